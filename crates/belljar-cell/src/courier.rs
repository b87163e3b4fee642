//! The courier: a process of ours that is as weak as guest code and carries files through the door.
//!
//! It works inside the cell, as the guest, on the guest's own paths. Whatever trick a path or an archive plays, it can
//! reach nothing that the guest could not reach anyway; the other side only ever sees a stream of bytes.

use std::fs::File;
use std::io::BufWriter;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::archive::{self, Limits, Rules};
use crate::failure::{Failure, Step};
use crate::guest::Cage;

/// What to carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Errand {
    /// Unpack the stream into a folder inside; it is made when it is not there.
    Put {
        /// The folder.
        path: String,
        /// The most bytes and entries.
        limits: (u64, u64),
    },
    /// Pack a file or folder inside into the stream.
    Get {
        /// What.
        path: String,
        /// The most bytes and entries.
        limits: (u64, u64),
    },
}

/// Does the errand. The outer error is ours; the inner one is about the guest's files or the archive.
pub(crate) fn run(
    cage: &Cage<'_>,
    errand: &Errand,
    stream: BorrowedFd<'_>,
) -> Result<Result<(), String>, Failure> {
    rustix::stdio::dup2_stdin(stream).step(|| "take the stream".to_owned())?;
    rustix::process::setsid().step(|| "start a session".to_owned())?;
    cage.enter()?;
    let stream =
        rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).step(|| "take the stream".to_owned())?;
    let stream = File::from(stream);
    Ok(match errand {
        Errand::Put { path, limits } => put(path, *limits, stream),
        Errand::Get { path, limits } => get(path, *limits, stream),
    })
}

fn put(path: &str, limits: (u64, u64), stream: File) -> Result<(), String> {
    let said = |error: std::io::Error| format!("{path}: {error}");
    std::fs::create_dir_all(path).map_err(said)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| said(error.into()))?;
    archive::unpack(stream, folder, Rules::strict(amount(limits))).map_err(|error| error.to_string())?;
    Ok(())
}

/// The folder that holds it is found as the guest would find it, links and all; from there on none is followed.
fn get(path: &str, limits: (u64, u64), stream: File) -> Result<(), String> {
    let said = |error: rustix::io::Errno| format!("{path}: {error}");
    let path_inside = Path::new(path);
    let (parent, name) = match (path_inside.parent(), path_inside.file_name()) {
        (Some(parent), Some(name)) => (parent, name),
        _ => (path_inside, std::ffi::OsStr::new(".")),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty()).map_err(said)?;
    let called = if name == "." { std::ffi::OsStr::new("") } else { name };
    archive::pack(parent.as_fd(), Path::new(name), called, BufWriter::new(stream), amount(limits))
        .map_err(|error| error.to_string())?;
    Ok(())
}

fn amount((bytes, entries): (u64, u64)) -> Limits {
    Limits { bytes, entries }
}

//! A layer's tar, from a stranger, into a folder.
//!
//! Nothing in a layer acts outside of the folder that is given: names are followed within the layer alone, by
//! [`tree`], and every call names something in a folder that is open. What a layer hides becomes what overlays that are
//! mounted with `userxattr` understand: devices 0/0 and `user.overlay.opaque`.

mod archive;
mod disk;
mod feed;
mod file;
mod header;
mod name;
mod pax;
mod place;
pub(crate) mod seen;
mod sparse;
mod tree;
pub(crate) mod xattr;

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::thread;

use belljar_cell::cell::Guest;
use belljar_cell::failure::Failure;
use belljar_cell::lobby::Lobby;
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};

use crate::compression::Compression;
use crate::digest::Digest;
use archive::Archive;
use disk::Disk;
use feed::{Feed, Stream};
use place::Placer;

/// Who owns what is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Whom the layer names; only root, of a machine or of a user namespace, can do that.
    Exact,
    /// The caller, whomever the layer names.
    Squash,
    /// The caller; a layer that names anybody but 0:0 is refused.
    Refuse,
}

/// How much a layer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes, both of the tar and of the files in it with their holes.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
    /// Bytes of a path.
    pub path: usize,
    /// How many bytes may come of one compressed byte, on the whole, once a layer is large.
    pub swelling: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bytes: 64 << 30, entries: 4 << 20, path: 4095, swelling: 500 }
    }
}

/// How a layer is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Who owns what is unpacked.
    pub ownership: Ownership,
    /// How much it may take.
    pub limits: Limits,
}

/// What was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The name of the tar as it is without compression, to its very end.
    pub diff_id: Digest,
    /// The length of that tar.
    pub bytes: u64,
    /// How many entries it had.
    pub entries: u64,
    /// What belonged to somebody other than 0:0 in the layer.
    pub owners: Foreign,
    /// What is not on disk though the layer has it.
    pub left_out: LeftOut,
    /// How many folders the layer has things in and does not speak of.
    pub implied_folders: u64,
    /// Whether it hides all layers below it; overlays do not look for that at the root, so whoever mounts must.
    pub opaque: bool,
    /// How it came.
    pub compression: Compression,
    /// Everything as it is on the disk now, one line each.
    pub(crate) sums: String,
    /// What it takes on the disk.
    pub(crate) disk: u64,
}

impl Unpacked {
    /// Whether the tar is all there was, as it came: then its name is the name of what came.
    pub(crate) fn is_whole_of(&self, length: u64) -> bool {
        self.compression == Compression::Plain && self.bytes == length
    }
}

/// What is known once everything is placed.
#[derive(Debug, Serialize, Deserialize)]
struct Placed {
    entries: u64,
    owners: Foreign,
    left_out: LeftOut,
    implied_folders: u64,
    opaque: bool,
    sums: String,
    disk: u64,
}

/// Entries that belong to others than 0:0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// How many there are.
    pub entries: u64,
    /// The highest user among them.
    pub highest_uid: u32,
    /// The highest group among them.
    pub highest_gid: u32,
}

/// What is not on disk though the layer has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Device nodes, and links to them.
    pub devices: u64,
    /// Extended attributes that steer the system, or that the file system does not hold.
    pub xattrs: u64,
    /// What the file system AUFS kept for itself.
    pub reserved: u64,
}

/// Why a layer was not unpacked; what is in the folder by then is of no use.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The source failed, or its compression is broken.
    #[error("failed to read the layer")]
    Read {
        /// Why.
        #[from]
        source: io::Error,
    },
    /// It ends too early.
    #[error("the layer ends in the middle of an entry: it was cut off")]
    Truncated,
    /// It is no tar, or a broken one.
    #[error("the layer is not a sound tar: {what}, before byte {at}")]
    Malformed {
        /// Where in the tar.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// It is too large.
    #[error("the layer is larger than {limit} bytes")]
    TooManyBytes {
        /// The limit.
        limit: u64,
    },
    /// It has too many entries.
    #[error("the layer has more than {limit} entries")]
    TooManyEntries {
        /// The limit.
        limit: u64,
    },
    /// It is a bomb.
    #[error("the layer swells to more than {limit} times its compressed size")]
    Swells {
        /// The limit.
        limit: u64,
    },
    /// A path is too long.
    #[error("a path is longer than {limit} bytes: {path:?}")]
    PathTooLong {
        /// The path, or its last part.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// A name is too long.
    #[error("a name is longer than 255 bytes: {path:?}")]
    NameTooLong {
        /// The path.
        path: PathBuf,
    },
    /// A name cannot be used.
    #[error("{path:?} is not a name for something in a layer: {what}")]
    Name {
        /// The name.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A link's target cannot be used.
    #[error("the target of the link {path:?} cannot be used: {what}")]
    Target {
        /// The link.
        path: PathBuf,
        /// What is wrong with its target.
        what: &'static str,
    },
    /// A hard link leads to nothing that this layer has placed before.
    #[error("the hard link {path:?} leads to {target:?}, which is not in this layer before it")]
    NoTarget {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A hard link leads to a folder.
    #[error("the hard link {path:?} leads to the folder {target:?}")]
    TargetIsFolder {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// Something is inside of what is no folder.
    #[error("{path:?} is inside of something that is no folder")]
    NotInFolder {
        /// The path.
        path: PathBuf,
    },
    /// Links lead round in circles.
    #[error("the links on the way to {path:?} lead round in circles")]
    Circle {
        /// The path.
        path: PathBuf,
    },
    /// An entry is of a kind that layers do not have.
    #[error("{path:?} is of a kind that layers do not have: {:?}", char::from(*flag))]
    UnknownKind {
        /// The path.
        path: PathBuf,
        /// The kind, as it stands in the tar.
        flag: u8,
    },
    /// Somebody else owns an entry, and that was not wanted.
    #[error("{path:?} belongs to {uid}:{gid}, and only files of 0:0 can be stored here")]
    ForeignOwner {
        /// The path.
        path: PathBuf,
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
    /// An owner could not be set.
    #[error("failed to give {path:?} to {uid}:{gid}, which takes root or subordinate ids for both")]
    Owner {
        /// The path.
        path: PathBuf,
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// Why.
        source: io::Error,
    },
    /// The disk refused.
    #[error("failed to {operation} {path:?}")]
    Place {
        /// What was done.
        operation: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Whatever went wrong in the process that has the owners.
    #[error("{failure}")]
    Inside {
        /// What it says.
        failure: Failure,
    },
    /// The folder is in use.
    #[error("the folder for the layer is not empty")]
    NotEmpty,
}

impl UnpackError {
    /// The same, with the whole path.
    fn about(self, whole: &[u8]) -> UnpackError {
        match self {
            UnpackError::Place { operation, source, .. } => {
                UnpackError::Place { operation, path: shown(whole), source }
            }
            other => other,
        }
    }
}

/// Puts a layer, compressed or not, into an empty folder. Nothing is flushed to the disk.
pub fn unpack(
    archive: impl Read + Send,
    into: BorrowedFd<'_>,
    options: &Options,
) -> Result<Unpacked, UnpackError> {
    let (pump, feed) = feed::feed();
    let (pumped, placed) = thread::scope(|scope| {
        let pump = scope.spawn(|| pump.run(archive, &options.limits));
        let placed = place_all(feed, into, options);
        (pump.join().unwrap_or_else(|_| Err(broken_down())), placed)
    });
    unpacked(pumped, placed)
}

/// The same in a process that is root of a user namespace which has the map of a cell with this guest: owners are as the
/// layer says, for that guest. The stream is read and hashed here.
pub fn unpack_mapped(
    archive: impl Read + Send,
    into: BorrowedFd<'_>,
    limits: &Limits,
    (lobby, guest): (&Lobby, &Guest),
) -> Result<Unpacked, UnpackError> {
    let options = Options { ownership: Ownership::Exact, limits: *limits };
    let (pump, source) = feed::between_processes()?;
    let (pumped, placed) = thread::scope(|scope| {
        let pump = scope.spawn(|| pump.run(archive, limits));
        let placed = lobby.run_as_in_cell(guest, || {
            let placed = place_all(Feed::from_socket(&source), into, &options);
            placed.map_err(|error| Failure::new(told(&error)))
        });
        // One that was not listened to to its end must not wait for that.
        let _ = shutdown(&source, Shutdown::Both);
        let placed = placed.map_err(|failure| UnpackError::Inside { failure });
        (pump.join().unwrap_or_else(|_| Err(broken_down())), placed)
    });
    unpacked(pumped, placed)
}

fn broken_down() -> UnpackError {
    io::Error::other("the decompression broke down").into()
}

/// An error with what is behind it, as one sentence.
fn told(error: &UnpackError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What is wrong with the source is the cause of what was found wrong with the entries.
fn unpacked(
    pumped: Result<Option<Stream>, UnpackError>,
    placed: Result<Placed, UnpackError>,
) -> Result<Unpacked, UnpackError> {
    let stream = pumped?;
    let placed = placed?;
    let stream = stream.ok_or(UnpackError::Truncated)?;
    Ok(Unpacked {
        diff_id: stream.digest,
        bytes: stream.bytes,
        compression: stream.compression,
        entries: placed.entries,
        owners: placed.owners,
        left_out: placed.left_out,
        implied_folders: placed.implied_folders,
        opaque: placed.opaque,
        sums: placed.sums,
        disk: placed.disk,
    })
}

fn place_all(feed: Feed<'_>, into: BorrowedFd<'_>, options: &Options) -> Result<Placed, UnpackError> {
    let mut archive = Archive::new(feed);
    let mut placer = Placer::new(Disk::open(into)?, options);
    while let Some(entry) = archive.next()? {
        placer.place(entry, &mut archive)?;
    }
    archive.drain();
    placer.finish()?;
    Ok(placer.placed())
}

/// A path for people: cut where it is absurdly long.
fn shown(path: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    const ENOUGH: usize = 512;
    PathBuf::from(std::ffi::OsStr::from_bytes(&path[..path.len().min(ENOUGH)]))
}

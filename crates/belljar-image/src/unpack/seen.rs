//! What a file is like on the disk, in words that can be compared: its looks are had without reading it.

use std::ffi::{CStr, OsStr};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::digest::{Digest, Hashed};

/// The names of all attributes of a file, or the value of one, are not longer.
const LONGEST_ATTRIBUTE: usize = 1 << 16;

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Kind, mode, owner, size, time and number.
    pub(crate) looks: String,
    /// The name of its bytes, or where it leads; and the name of its attributes, where it has some.
    pub(crate) content: String,
    /// What it takes on the disk.
    pub(crate) disk: u64,
}

impl Seen {
    /// What is known of it already: its state on the disk and its bytes.
    pub(crate) fn new(stat: &Stat, content: String) -> Seen {
        Seen { looks: looks(stat), content, disk: u64::try_from(stat.st_blocks).unwrap_or(0) * 512 }
    }

    /// What is in a file that has no bytes.
    pub(crate) fn nothing() -> String {
        "-".to_owned()
    }
}

/// The name of all attributes of an open file, after a space; nothing where it has none.
pub(crate) fn attributes_of(file: impl AsFd) -> io::Result<String> {
    let file = file.as_fd();
    let list = |names: &mut [u8]| rustix::fs::flistxattr(file, names);
    let get = |name: &OsStr, value: &mut [u8]| rustix::fs::fgetxattr(file, name, value);
    Ok(attributes(list, get)?)
}

/// The line of one file in a sum: path, looks and contents, parted by tabs.
pub(crate) fn line(path: &[u8], seen: &Seen) -> String {
    format!("{}\t{}\t{}\n", escaped(path), seen.looks, seen.content)
}

/// Attributes that are part of a layer; others are this machine's.
fn is_of_the_layer(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == b"security.capability"
}

pub(crate) fn looks(stat: &Stat) -> String {
    let kind = FileType::from_raw_mode(stat.st_mode);
    // A folder's size is its filesystem's affair.
    let size = if kind == FileType::Directory { 0 } else { stat.st_size };
    format!("{:o} {} {} {size} {} {}", stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime, stat.st_rdev)
}

/// Reads what a file has in it, and its attributes. No link is followed.
pub(crate) fn content(folder: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> io::Result<String> {
    let mut content = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let mut hash = Hashed::new(io::sink());
            io::copy(&mut open_file(folder, name)?, &mut hash)?;
            hash.finish().0.hex()
        }
        FileType::Symlink => escaped(rustix::fs::readlinkat(folder, name, Vec::new())?.to_bytes()),
        _ => Seen::nothing(),
    };
    let file =
        Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(OsStr::from_bytes(name.to_bytes()));
    let list = |names: &mut [u8]| rustix::fs::llistxattr(&file, names);
    let get = |name: &OsStr, value: &mut [u8]| rustix::fs::lgetxattr(&file, name, value);
    content += &match attributes(list, get) {
        Err(Errno::ACCESS) => {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let handle = rustix::fs::openat(folder, name, flags, Mode::empty())?;
            lend(&handle, || Ok(attributes(list, get)?))?
        }
        found => found?,
    };
    Ok(content)
}

/// The name of all attributes of a file, after a space; nothing where it has none.
fn attributes(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<String> {
    // Most files have none, and this much costs nothing.
    let mut names = vec![0_u8; 256];
    let mut length = list(&mut names);
    if length == Err(Errno::RANGE) {
        names.resize(LONGEST_ATTRIBUTE, 0);
        length = list(&mut names);
    }
    let length = match length {
        Err(Errno::NOTSUP) => return Ok(String::new()),
        length => length?,
    };
    let mut names: Vec<&[u8]> =
        names[..length].split(|byte| *byte == 0).filter(|name| is_of_the_layer(name)).collect();
    if names.is_empty() {
        return Ok(String::new());
    }
    names.sort_unstable();
    let mut all = Vec::new();
    for name in names {
        let mut value = vec![0_u8; LONGEST_ATTRIBUTE];
        let length = get(OsStr::from_bytes(name), &mut value)?;
        all.extend([name, &b"="[..], &value[..length], &b"\0"[..]].concat());
    }
    Ok(format!(" {}", Digest::of(&all).hex()))
}

fn open_file(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(folder, name, flags, Mode::empty());
    match open(flags) {
        Err(Errno::ACCESS) => Ok(File::from(readable(&open(OFlags::PATH | flags)?, flags)?)),
        opened => Ok(File::from(opened?)),
    }
}

/// Opens what its owner may not read.
fn readable(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let itself = format!("/proc/self/fd/{}", handle.as_raw_fd());
    lend(handle, || Ok(rustix::fs::open(&itself, flags - OFlags::NOFOLLOW, Mode::empty())?))
}

/// Does something while the owner may read: the mode is lent for that moment.
pub(crate) fn lend<T>(handle: &OwnedFd, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let itself = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let mode = Mode::from_raw_mode(rustix::fs::fstat(handle)?.st_mode);
    rustix::fs::chmod(&itself, mode | Mode::RUSR | Mode::XUSR)?;
    let result = read();
    rustix::fs::chmod(&itself, mode)?;
    result
}

/// Printable, without spaces.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len()), |mut text, byte| {
        match byte {
            b'\\' | 0..=b' ' | 0x7f.. => drop(write!(text, "\\x{byte:02x}")),
            plain => text.push(char::from(*plain)),
        }
        text
    })
}

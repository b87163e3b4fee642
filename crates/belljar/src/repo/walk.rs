//! A walk through a folder that strangers filled: never through a link, in the order of the names' bytes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

/// Deeper than this nobody works, and each level holds a file descriptor.
const DEPTH_LIMIT: usize = 256;

/// One thing found on the way.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// The folder it is in.
    pub(super) folder: BorrowedFd<'a>,
    /// Its name there.
    pub(super) name: &'a CString,
    /// Its path from the root of the walk.
    pub(super) path: &'a [u8],
    pub(super) kind: FileType,
    /// Its permission bits.
    pub(super) mode: Mode,
}

/// Whether to look inside a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Descend {
    Into,
    Past,
}

/// What a walk does with what it finds.
pub(super) trait Visitor {
    /// Called for each entry, a folder before its content.
    fn visit(&mut self, entry: &Entry<'_>) -> io::Result<Descend>;

    /// Called for a folder after its content.
    fn leave(&mut self, _entry: &Entry<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Called for a folder that cannot be entered.
    fn closed(&mut self, _entry: &Entry<'_>, error: io::Error) -> io::Result<()> {
        Err(error)
    }
}

/// Walks everything below `root`; `root` itself is not visited.
pub(super) fn walk(root: &Path, visitor: &mut impl Visitor) -> io::Result<()> {
    let folder = openat(CWD, root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    walk_folder(&folder, &mut Vec::new(), 0, visitor)
}

fn walk_folder(
    folder: &OwnedFd,
    path: &mut Vec<u8>,
    depth: usize,
    visitor: &mut impl Visitor,
) -> io::Result<()> {
    for name in sorted_names(folder)? {
        // What is gone by now was not there.
        let stat = match statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            other => other?,
        };
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        let (kind, mode) =
            (FileType::from_raw_mode(stat.st_mode), Mode::from_raw_mode(stat.st_mode & 0o7777));
        visit(&Entry { folder: folder.as_fd(), name: &name, path, kind, mode }, depth, visitor)?;
        path.truncate(length);
    }
    Ok(())
}

fn visit(entry: &Entry<'_>, depth: usize, visitor: &mut impl Visitor) -> io::Result<()> {
    if visitor.visit(entry)? == Descend::Past || entry.kind != FileType::Directory {
        return Ok(());
    }
    if depth >= DEPTH_LIMIT {
        return visitor.closed(entry, io::Error::other("too many folders inside each other"));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(entry.folder, entry.name, flags, Mode::empty()) {
        Ok(folder) => walk_folder(&folder, &mut entry.path.to_vec(), depth + 1, visitor)?,
        Err(error) => visitor.closed(entry, error.into())?,
    }
    visitor.leave(entry)
}

fn sorted_names(folder: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

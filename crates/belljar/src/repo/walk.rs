//! A walk through a folder that strangers filled: never through a link, in the order of the names' bytes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

/// Deeper than this nobody works, and each level holds a file descriptor.
const DEPTH_LIMIT: usize = 256;
/// More names than this in the folders that are open at once are not held in memory.
const NAME_LIMIT: usize = 400_000;

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
    Walk { visitor, held: 0 }.folder(&folder, &mut Vec::new(), 0)
}

/// A walk under way.
struct Walk<'a, V> {
    visitor: &'a mut V,
    /// Names held in memory for the folders that are open.
    held: usize,
}

impl<V: Visitor> Walk<'_, V> {
    fn folder(&mut self, folder: &OwnedFd, path: &mut Vec<u8>, depth: usize) -> io::Result<()> {
        let names = sorted_names(folder, NAME_LIMIT - self.held)?;
        let count = names.len();
        self.held += count;
        for name in names {
            let length = path.len();
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            self.entry(folder, &name, path, depth)?;
            path.truncate(length);
        }
        self.held -= count;
        Ok(())
    }

    fn entry(&mut self, folder: &OwnedFd, name: &CString, path: &[u8], depth: usize) -> io::Result<()> {
        let entry = |kind, mode| Entry { folder: folder.as_fd(), name, path, kind, mode };
        match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            // What is gone by now was not there.
            Err(Errno::NOENT) => Ok(()),
            // A folder that may be listed and not entered.
            Err(error) => self.visitor.closed(&entry(FileType::Unknown, Mode::empty()), error.into()),
            Ok(stat) => {
                let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
                self.visit(&entry(FileType::from_raw_mode(stat.st_mode), mode), depth)
            }
        }
    }

    fn visit(&mut self, entry: &Entry<'_>, depth: usize) -> io::Result<()> {
        if self.visitor.visit(entry)? == Descend::Past || entry.kind != FileType::Directory {
            return Ok(());
        }
        if depth >= DEPTH_LIMIT {
            return self.visitor.closed(entry, io::Error::other("too many folders inside each other"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(entry.folder, entry.name, flags, Mode::empty()).map_err(io::Error::from);
        let inside = opened.and_then(|folder| self.folder(&folder, &mut entry.path.to_vec(), depth + 1));
        match inside {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::FileTooLarge) =>
            {
                self.visitor.closed(entry, error)?;
            }
            other => other?,
        }
        self.visitor.leave(entry)
    }
}

/// The names in a folder in the order of their bytes; more than `most` of them are too many.
fn sorted_names(folder: &OwnedFd, most: usize) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
        if names.len() > most {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too many names in one folder"));
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_too_many_names_is_not_held_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let open = || openat(CWD, folder.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(sorted_names(&open(), 3).unwrap(), [c"a".to_owned(), c"b".to_owned(), c"c".to_owned()]);
        assert_eq!(sorted_names(&open(), 2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}

//! A look at a folder of the host before a guest gets it.
//!
//! A socket in it is a door to whoever listens at it outside: no namespace and no filter shuts it, so such a folder is
//! refused. The guest's own sockets, made later, lead only to itself.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, openat};

/// How many names are looked at: a folder with more of them is taken as it is.
const MOST: usize = 200_000;
/// How deep the look goes.
const DEEPEST: usize = 64;

/// The first socket below a folder, if there is one. What cannot be read cannot be used by a guest either.
pub(crate) fn find_socket(folder: &Path) -> Option<PathBuf> {
    let mut left = MOST;
    let mut waiting = vec![(folder.to_owned(), 0)];
    while let Some((path, depth)) = waiting.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(entries) = openat(CWD, &path, flags, Mode::empty()).and_then(Dir::new) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            left = left.checked_sub(1)?;
            let inner = || path.join(std::ffi::OsStr::from_bytes(name));
            match entry.file_type() {
                FileType::Socket => return Some(inner()),
                FileType::Directory if depth < DEEPEST => waiting.push((inner(), depth + 1)),
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_found_wherever_it_is_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("a/file"), "").unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("a/link")).unwrap();
        assert_eq!(find_socket(folder.path()), None);
        let socket = folder.path().join("a/b/socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(find_socket(folder.path()), Some(socket));
    }
}

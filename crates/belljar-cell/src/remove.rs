//! Removal of a tree that a guest has written: no link is followed, no mount is entered.
//!
//! A guest can leave folders without permissions, and nest them deeper than a stack or a path can
//! go. So the walk goes down a bounded number of levels, and what is deeper is first moved up to the top of the tree.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, chmod, fstat, openat, openat2, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use crate::failure::Step;
use crate::lobby::Lobby;

/// How many levels are open at once; each takes two descriptors.
const DEPTH: u32 = 64;

/// Removes a directory and everything in it; what is already gone is no error.
///
/// What belongs to subordinate ids of the caller's goes too: a helper process in a user namespace of theirs does it.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match remove_directly(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => match Lobby::make() {
            Ok(lobby) => remove_in(&lobby, path),
            Err(_) => Err(error),
        },
        other => other,
    }
}

fn remove_in(lobby: &Lobby, path: &Path) -> io::Result<()> {
    let removed = lobby.run(|| remove_directly(path).step(|| format!("remove {}", path.display())));
    removed.map_err(|failure| match failure.errno {
        0 => io::Error::other(failure),
        errno => io::Error::from_raw_os_error(errno),
    })
}

fn remove_directly(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = openat(CWD, parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let top = match enter(parent.as_fd(), name) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let mut moved = 0;
    loop {
        let before = moved;
        empty(&top, &top, 0, &mut moved)?;
        if moved == before {
            break;
        }
    }
    Ok(gone(unlinkat(&parent, name, AtFlags::REMOVEDIR))?)
}

/// Removes everything in a folder; what is deeper than [`DEPTH`] is moved up to the top, for another round.
fn empty(top: &OwnedFd, folder: &OwnedFd, depth: u32, moved: &mut u64) -> rustix::io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let may_be_file = entry.file_type() != FileType::Directory;
        if is_dots(name) || (may_be_file && remove_file(folder.as_fd(), name)? == Removed::Yes) {
            continue;
        }
        // Opened also to be moved: that writes its `..`, so it must be writable itself.
        let inner = match enter(folder.as_fd(), name) {
            Err(Errno::NOENT) => continue,
            other => other?,
        };
        if depth == DEPTH {
            drop(inner);
            renameat(folder, name, top, free_name(top, moved)?)?;
            continue;
        }
        empty(top, &inner, depth + 1, moved)?;
        drop(inner);
        gone(unlinkat(folder, name, AtFlags::REMOVEDIR))?;
    }
    Ok(())
}

fn free_name(top: &OwnedFd, moved: &mut u64) -> rustix::io::Result<String> {
    loop {
        *moved += 1;
        let name = format!(".hoisted-{moved}");
        match statat(top, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(name),
            other => drop(other?),
        }
    }
}

#[derive(PartialEq, Eq)]
enum Removed {
    Yes,
    No,
}

fn remove_file(folder: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Removed> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(Removed::Yes),
        Err(Errno::ISDIR) => Ok(Removed::No),
        // Some filesystems answer so for a folder.
        Err(Errno::PERM) if is_folder(folder, name)? => Ok(Removed::No),
        Err(error) => Err(error),
    }
}

fn is_folder(folder: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<bool> {
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Opens a folder, giving its owner all rights first; refuses links and other mounts.
fn enter(parent: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let handle = openat2(parent, name, flags, Mode::empty(), resolve)?;
    if fstat(&handle)?.st_mode & 0o700 != 0o700 {
        // The handle is the very folder, so this cannot be led astray by a link.
        chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::RWXU)?;
    }
    openat(&handle, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_hostile_folder_goes_and_what_its_links_point_to_stays() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let base = tempfile::tempdir().unwrap();
        let top = base.path().join("top");
        fs::create_dir_all(top.join("shut/inner")).unwrap();
        symlink(outside.path(), top.join("link")).unwrap();
        symlink(outside.path(), top.join("shut/link")).unwrap();
        fs::write(top.join("shut/inner").join(OsStr::from_bytes(b"\xff\xfe")), "x").unwrap();
        fs::write(top.join(".hoisted-1"), "in the way").unwrap();
        fs::set_permissions(top.join("shut/inner"), Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(top.join("shut"), Permissions::from_mode(0o000)).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn depth_beyond_every_path_limit_is_no_obstacle() {
        let base = tempfile::tempdir().unwrap();
        let top = base.path().join("deep");
        fs::create_dir(&top).unwrap();
        let mut at = openat(CWD, &top, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = enter(at.as_fd(), "d").unwrap();
        }
        drop(at);
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_folder_that_is_not_there_is_fine_and_a_link_is_refused() {
        let base = tempfile::tempdir().unwrap();
        remove_tree(&base.path().join("none")).unwrap();
        fs::create_dir(base.path().join("real")).unwrap();
        symlink(base.path().join("real"), base.path().join("link")).unwrap();
        assert!(remove_tree(&base.path().join("link")).is_err());
        assert!(base.path().join("real").exists());
    }
}

//! Removes folders that a guest filled: any depth, any mode, any name, and never a step through a link.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Removes a folder and everything in it; one that is not there is fine.
///
/// Subfolders are first moved up into the top folder, so neither open files nor stack grow with depth.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match open_folder(CWD, &c_name(path.as_os_str())?) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(unlinkat(CWD, path, AtFlags::empty())?),
        other => other?,
    };
    let mut moved = 0_u64;
    loop {
        let folders = clear(top.as_fd())?;
        if folders.is_empty() {
            break;
        }
        for name in folders {
            flatten(top.as_fd(), &name, &mut moved)?;
        }
    }
    drop(top);
    Ok(unlinkat(CWD, path, AtFlags::REMOVEDIR)?)
}

/// Empties one folder of the top folder: files go, subfolders move up beside it.
fn flatten(top: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> io::Result<()> {
    let folder = open_folder(top, name)?;
    for child in clear(folder.as_fd())? {
        // A folder's own write permission decides about moving it, because its `..` changes.
        make_accessible(folder.as_fd(), &child)?;
        *moved += 1;
        renameat(&folder, &child, top, free_name(top, moved)?)?;
    }
    drop(folder);
    Ok(unlinkat(top, name, AtFlags::REMOVEDIR)?)
}

fn free_name(top: BorrowedFd<'_>, counter: &mut u64) -> io::Result<CString> {
    loop {
        let name = c_name(OsStr::new(&format!(".belljar-{counter}")))?;
        match rustix::fs::statat(top, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(name),
            _ => *counter += 1,
        }
    }
}

/// Unlinks everything in a folder that is not a folder, and names the folders.
fn clear(folder: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut folders = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory || !unlink(folder, name)? {
            folders.push(name.to_owned());
        }
    }
    Ok(folders)
}

/// Unlinks a file; says no when it turns out to be a folder.
fn unlink(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn open_folder(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(at, name, flags, Mode::empty()) {
        Ok(folder) => {
            // An open folder may still lack write permission; its owner can always give that.
            let _ = rustix::fs::fchmod(&folder, Mode::RWXU);
            Ok(folder)
        }
        Err(Errno::ACCESS) => {
            make_accessible(at, name)?;
            openat(at, name, flags, Mode::empty())
        }
        Err(error) => Err(error),
    }
}

/// Gives the owner all rights on a folder. Nothing else runs in these folders any more, so the name still means the
/// same; a link's target could only be changed if the link had appeared since it was listed as a folder.
fn make_accessible(at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let is_folder = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    if is_folder { chmodat(at, name, Mode::RWXU, AtFlags::empty()) } else { Ok(()) }
}

fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
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
        fs::write(top.join(".belljar-1"), "in the way").unwrap();
        fs::set_permissions(top.join("shut/inner"), Permissions::from_mode(0)).unwrap();
        fs::set_permissions(top.join("shut"), Permissions::from_mode(0)).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn depth_beyond_every_path_limit_is_no_obstacle() {
        let base = tempfile::tempdir().unwrap();
        let top = base.path().join("deep");
        fs::create_dir(&top).unwrap();
        let mut at = open_folder(CWD, &c_name(top.as_os_str()).unwrap()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_folder(at.as_fd(), c"d").unwrap();
        }
        drop(at);
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_folder_that_is_not_there_is_fine_and_a_link_is_only_unlinked() {
        let base = tempfile::tempdir().unwrap();
        remove_tree(&base.path().join("none")).unwrap();
        fs::create_dir(base.path().join("real")).unwrap();
        symlink(base.path().join("real"), base.path().join("link")).unwrap();
        remove_tree(&base.path().join("link")).unwrap();
        assert!(base.path().join("real").exists() && !base.path().join("link").exists());
    }
}

//! Files and folders that their owner shut even against itself.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, chmod, fstat, openat};
use rustix::io::Errno;

use super::Source;
use crate::archive::walk::{flags_for, kind};

/// Something that an ordinary user may read for the moment. Its mode goes back to what it was when this goes.
#[derive(Debug)]
pub(super) struct Unlocked {
    /// The very file or folder, whatever becomes of its name.
    handle: OwnedFd,
    mode: Mode,
}

impl Unlocked {
    /// Gives the owner, who must be the caller, the right to read it, and opens it.
    pub(super) fn open(
        folder: BorrowedFd<'_>,
        name: &[u8],
        expected: FileType,
    ) -> rustix::io::Result<Option<Source>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match openat(folder, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let stat = fstat(&handle)?;
        if kind(&stat) != expected {
            return Ok(None);
        }
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        if stat.st_uid != rustix::process::geteuid().as_raw() || mode.contains(rights(expected)) {
            return Err(Errno::ACCESS);
        }
        let unlocked = Unlocked { handle, mode };
        chmod(unlocked.path(), mode | rights(expected))?;
        let file =
            openat(CWD, unlocked.path(), flags_for(expected).difference(OFlags::NOFOLLOW), Mode::empty())?;
        Ok(Some((file, stat, Some(unlocked))))
    }

    /// A name that only this process has for it, and that leads to nothing else.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.handle.as_fd().as_raw_fd())
    }
}

impl Drop for Unlocked {
    fn drop(&mut self) {
        // Nobody is left to be told; the owner can set it again.
        let _ = chmod(self.path(), self.mode);
    }
}

fn rights(kind: FileType) -> Mode {
    match kind {
        FileType::Directory => Mode::RUSR | Mode::XUSR,
        _ => Mode::RUSR,
    }
}

//! Folders of cache mounts: they stay from build to build, one per id.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use belljar_image::digest::Digest;
use belljar_image::dockerfile::{Ownership, Sharing};

use crate::interrupt::Interrupt;

/// How often it is looked whether somebody else is done with a folder.
const LOOK: Duration = Duration::from_millis(20);
/// How many folders one id has at most, for steps that want one each.
const MOST: usize = 64;

/// A folder that is this step's for as long as the lock is held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) folder: PathBuf,
    _lock: File,
}

/// The folder of an id, made when it is not there.
pub(super) fn hold(
    kept: &Path,
    id: &str,
    sharing: Sharing,
    ownership: Ownership,
    interrupt: &Interrupt,
) -> io::Result<Held> {
    // An id is any text; its digest is a name.
    let home = kept.join("mounts").join(Digest::of(id.as_bytes()).hex());
    DirBuilder::new().recursive(true).mode(0o700).create(&home)?;
    let (number, lock) = match sharing {
        Sharing::Shared => (0, wait(&home, File::try_lock_shared, interrupt)?),
        Sharing::Locked => (0, wait(&home, File::try_lock, interrupt)?),
        Sharing::Private => free(&home)?,
    };
    let folder = home.join(format!("data-{number}"));
    make(&folder, ownership)?;
    Ok(Held { folder, _lock: lock })
}

fn open(home: &Path, number: usize) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(home.join(format!("lock-{number}")))
}

fn wait(home: &Path, lock: fn(&File) -> Result<(), TryLockError>, interrupt: &Interrupt) -> io::Result<File> {
    let file = open(home, 0)?;
    loop {
        match lock(&file) {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if interrupt.is_asked() => {
                return Err(io::Error::other("interrupted while another build used the cache"));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(LOOK),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// The first folder that nobody uses.
fn free(home: &Path) -> io::Result<(usize, File)> {
    for number in 0..MOST {
        let file = open(home, number)?;
        match file.try_lock() {
            Ok(()) => return Ok((number, file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other("too many builds use this cache at once"))
}

/// Under another name first: a folder that has its name has its owner.
fn make(folder: &Path, ownership: Ownership) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let new = folder.with_extension(format!("new-{}", std::process::id()));
    match fs::create_dir(&new) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    fs::set_permissions(&new, Permissions::from_mode(ownership.mode & 0o7777))?;
    if rustix::process::geteuid().is_root() {
        chown(&new, Some(ownership.uid), Some(ownership.gid))?;
    }
    match fs::rename(&new, folder) {
        // Another step of the same id was quicker.
        Err(_) if folder.is_dir() => fs::remove_dir(&new),
        other => other,
    }
}

//! The lock on the disk: found near a task, read with suspicion, replaced whole.
//!
//! Who changes it holds its folder's lock from reading to renaming, so that two at the same time both keep what they
//! add; the folder's lock goes with its holder, and needs no file of its own. A kill leaves the old lock or the new one,
//! and at most the half-written successor, which the next change throws away.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::Lock;
use super::text::LockError;
use crate::digest::Digest;

/// What a lock is called.
pub const LOCK_FILE: &str = "belljar.lock";
const SUCCESSOR: &str = ".belljar.lock.new";
/// What a lock may be long: thousands of images.
const MOST_BYTES: u64 = 8 << 20;
/// How far up a lock is looked for.
const HIGHEST: usize = 64;

/// Where a lock is, or will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFile {
    folder: PathBuf,
}

/// A lock as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// What it says.
    pub lock: Lock,
    /// The digest of its bytes.
    pub digest: Digest,
}

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed<T> {
    /// What the change answered.
    pub value: T,
    /// The digest of the lock's bytes as they are now; nothing where there is no lock.
    pub digest: Option<Digest>,
}

/// Why a lock could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// The system did not let us read it.
    #[error("failed to read {}: {source}", path.display())]
    Read {
        /// The lock.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what a lock is.
    #[error("{} {reason}", path.display())]
    NotALock {
        /// The lock.
        path: PathBuf,
        /// What it is instead.
        reason: &'static str,
    },
    /// It does not say what a lock says.
    #[error("{}: {source}", path.display())]
    Wrong {
        /// The lock.
        path: PathBuf,
        /// What is wrong with it.
        source: LockError,
    },
    /// The system did not let us write it.
    #[error("failed to write {}: {source}", path.display())]
    Write {
        /// The lock.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl LockFile {
    /// The lock of a task: the nearest one from the task's folder upward, as far as the repository that the folder is in;
    /// else the one that would be beside the task. A lock above the task's folder counts only when it belongs to the
    /// folder's owner, to root or to the caller: anybody can put a file into a shared folder.
    pub fn find(task_folder: &Path) -> io::Result<LockFile> {
        let own = task_folder.canonicalize()?;
        let trusted = [own.metadata()?.uid(), 0, rustix::process::geteuid().as_raw()];
        for folder in own.ancestors().take(HIGHEST) {
            let found = folder.join(LOCK_FILE).symlink_metadata();
            if found.is_ok_and(|meta| folder == own || trusted.contains(&meta.uid())) {
                return Ok(LockFile { folder: folder.to_owned() });
            }
            if folder.join(".git").symlink_metadata().is_ok() {
                break;
            }
        }
        Ok(LockFile { folder: own })
    }

    /// The folder that the lock's paths start at, absolute and without links.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.folder.join(LOCK_FILE)
    }

    /// Reads it; nothing where there is none.
    pub fn read(&self) -> Result<Option<Read>, LockFileError> {
        let path = self.path();
        let failed = |source| LockFileError::Read { path: path.clone(), source };
        let not_a_lock = |reason| LockFileError::NotALock { path: path.clone(), reason };
        // A pipe must not hold us up, a link not lead us elsewhere.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                return Err(not_a_lock("is a link; a lock is a file of its own"));
            }
            opened => opened.map_err(failed)?,
        };
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(not_a_lock("is not a file"));
        }
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(not_a_lock("is too long for a lock"));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| not_a_lock("is not UTF-8 text"))?;
        let lock = Lock::parse(text).map_err(|source| LockFileError::Wrong { path: path.clone(), source })?;
        Ok(Some(Read { lock, digest: Digest::of(&bytes) }))
    }

    /// Reads it again, lets it be changed, and writes it if it was; nobody else changes it meanwhile.
    pub fn change<T>(&self, change: impl FnOnce(&mut Lock) -> T) -> Result<Changed<T>, LockFileError> {
        let failed = |source| LockFileError::Write { path: self.path(), source };
        let folder = File::open(&self.folder).map_err(failed)?;
        hold(&folder).map_err(failed)?;
        let before = self.read()?;
        let mut lock = before.as_ref().map(|read| read.lock.clone()).unwrap_or_default();
        let value = change(&mut lock);
        if before.as_ref().map_or(&Lock::default(), |read| &read.lock) == &lock {
            return Ok(Changed { value, digest: before.map(|read| read.digest) });
        }
        let text = lock.to_string();
        self.replace(&folder, text.as_bytes()).map_err(failed)?;
        Ok(Changed { value, digest: Some(Digest::of(text.as_bytes())) })
    }

    fn replace(&self, folder: &File, bytes: &[u8]) -> io::Result<()> {
        let successor = self.folder.join(SUCCESSOR);
        let replaced = write_new(&successor, bytes).and_then(|()| fs::rename(&successor, self.path()));
        if replaced.is_err() {
            let _ = fs::remove_file(&successor);
        }
        replaced.and_then(|()| folder.sync_all())
    }
}

/// Holds the folder's lock until the folder is closed. A file system that has no such locks gives none: then two runs
/// at the same moment may lose an entry, which the next run pins again.
fn hold(folder: &File) -> io::Result<()> {
    loop {
        match folder.lock() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_unsupported(&error) => return Ok(()),
            other => return other,
        }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK, Errno::BADF];
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

/// Never through a link that somebody left in the way.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

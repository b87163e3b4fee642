//! Locks: one file per thing. Who makes or removes a thing holds its file exclusively, who uses it holds it shared.
//!
//! Locks go with the processes that hold them, however those end, so there is nothing to clean up after a crash.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use super::failure::{Doing, StoreError};
use super::{Notice, Store, Watch};
use crate::digest::Digest;

/// What is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thing {
    Blob(Digest),
    Layer(Digest),
    Image(Digest),
    /// Something that has no name yet.
    Fresh(u64),
    /// The records of images and names, while one is written.
    Records,
}

/// The name of the lock that no thing has.
const RECORDS: &str = "records";

impl Thing {
    /// The name of its lock, and of what is made of it in scratch.
    pub(crate) fn key(self) -> String {
        match self {
            Thing::Blob(digest) => format!("blob-{}", digest.hex()),
            Thing::Layer(digest) => format!("layer-{}", digest.hex()),
            Thing::Image(digest) => format!("image-{}", digest.hex()),
            Thing::Fresh(number) => format!("fresh-{number:016x}"),
            Thing::Records => RECORDS.to_owned(),
        }
    }

    pub(crate) fn from_key(key: &str) -> Option<Thing> {
        match key.split_once('-') {
            Some(("blob", hex)) => Digest::from_hex(hex).map(Thing::Blob),
            Some(("layer", hex)) => Digest::from_hex(hex).map(Thing::Layer),
            Some(("image", hex)) => Digest::from_hex(hex).map(Thing::Image),
            Some(("fresh", hex)) => u64::from_str_radix(hex, 16).ok().map(Thing::Fresh),
            _ => (key == RECORDS).then_some(Thing::Records),
        }
    }

    fn digest(self) -> Option<Digest> {
        match self {
            Thing::Blob(digest) | Thing::Layer(digest) | Thing::Image(digest) => Some(digest),
            Thing::Fresh(_) | Thing::Records => None,
        }
    }
}

/// A hold on something in the store: while it is open, in this process or in one that inherited it, nobody removes
/// the thing.
#[derive(Debug)]
pub struct Lease {
    file: File,
    path: PathBuf,
}

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<Lease> for OwnedFd {
    fn from(lease: Lease) -> OwnedFd {
        lease.file.into()
    }
}

impl Lease {
    /// Whether the file still has its name; one that was removed while it was waited for locks nothing.
    fn counts(&self) -> io::Result<bool> {
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            named => Ok(named?.ino() == self.file.metadata()?.ino()),
        }
    }

    /// Removes the lock's file; only for one that is held exclusively.
    pub(crate) fn forget(self) -> io::Result<()> {
        super::unless_gone(fs::remove_file(&self.path))
    }
}

/// What somebody who wants a thing finds.
pub(crate) enum Turn {
    /// It is there, and held.
    There(Lease),
    /// It is not there, and ours to make.
    Ours(Lease),
}

impl Store {
    fn open_lock(&self, thing: Thing) -> io::Result<Lease> {
        let path = self.folder.join("locks").join(thing.key());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        Ok(Lease { file: options.open(&path)?, path })
    }

    /// Waits until nobody else has it.
    pub(crate) fn lock(&self, thing: Thing) -> Result<Lease, StoreError> {
        let doing = || format!("lock {}", thing.key());
        loop {
            let lease = self.open_lock(thing).doing(doing)?;
            lease.file.lock().doing(doing)?;
            if lease.counts().doing(doing)? {
                return Ok(lease);
            }
        }
    }

    /// Has it alone, or not at all.
    pub(crate) fn try_lock(&self, thing: Thing) -> Result<Option<Lease>, StoreError> {
        let doing = || format!("lock {}", thing.key());
        loop {
            let lease = self.open_lock(thing).doing(doing)?;
            match lease.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error).doing(doing),
            }
            if lease.counts().doing(doing)? {
                return Ok(Some(lease));
            }
        }
    }

    /// Holds it together with others; waits for who makes or removes it.
    pub(crate) fn share(&self, thing: Thing, watch: Watch<'_>) -> Result<Lease, StoreError> {
        let doing = || format!("lock {}", thing.key());
        loop {
            let lease = self.open_lock(thing).doing(doing)?;
            match lease.file.try_lock_shared() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    thing.digest().into_iter().for_each(|digest| watch(Notice::Waiting(digest)));
                    lease.file.lock_shared().doing(doing)?;
                }
                Err(TryLockError::Error(error)) => return Err(error).doing(doing),
            }
            if lease.counts().doing(doing)? {
                return Ok(lease);
            }
        }
    }

    /// From the exclusive lock of a maker to the shared one of a user. The kernel lets go in between, so nothing is
    /// removed meanwhile: removers hold the lock of the records.
    pub(crate) fn settle(&self, lease: Lease) -> Result<Lease, StoreError> {
        let _no_removals = self.lock(Thing::Records)?;
        lease.file.lock_shared().doing(|| format!("hold {}", lease.path.display()))?;
        Ok(lease)
    }

    /// Waits until the thing is there or it is ours to make it. Never waits for those who use a thing, only for who
    /// makes it: two that want two things of each other would wait forever.
    pub(crate) fn turn(
        &self,
        thing: Thing,
        is_there: impl Fn() -> Result<bool, StoreError>,
        watch: Watch<'_>,
    ) -> Result<Turn, StoreError> {
        loop {
            let shared = self.share(thing, watch)?;
            if is_there()? {
                return Ok(Turn::There(shared));
            }
            drop(shared);
            match self.try_lock(thing)? {
                Some(lease) if !is_there()? => return Ok(Turn::Ours(lease)),
                Some(_) => {}
                // Somebody just looks, or was quicker.
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

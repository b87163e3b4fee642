//! A folder for what is half done, for as long as somebody works in it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use belljar_cell::remove::remove_tree;

use super::failure::{Doing, StoreError};
use super::lock::{Lease, Thing};
use super::{Store, layer};

/// A folder in the store that is gone with this value. After a crash its lock is free, and whoever cleans up removes it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    lease: Option<Lease>,
}

impl Scratch {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed with what crashes left.
        if remove_tree(&self.path).is_ok() {
            let _ = self.lease.take().map(Lease::forget);
        }
    }
}

impl Store {
    /// A new empty folder that nobody else touches.
    pub fn scratch_folder(&self) -> Result<Scratch, StoreError> {
        let thing = Thing::Fresh(layer::random()?);
        let lease = self.lock(thing)?;
        let path = self.scratch(&thing.key());
        DirBuilder::new().mode(0o700).create(&path).doing(|| format!("make {}", path.display()))?;
        Ok(Scratch { path, lease: Some(lease) })
    }
}

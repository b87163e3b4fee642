//! Short-lived folders in the cache that a crash does not leave behind for long.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::RepoError;
use super::store::private_folder;

const PREFIX: &str = "scratch-";
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A folder that is removed when this goes; its lock says that its owner lives.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    pub(super) fn new(cache: &Path) -> Result<Scratch, RepoError> {
        sweep(cache);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = cache.join(format!("{PREFIX}{}-{number}", std::process::id()));
        let lock_path = path.with_extension("lock");
        let lock = File::create(&lock_path).map_err(RepoError::io("make", &lock_path))?;
        lock.lock().map_err(RepoError::io("lock", &lock_path))?;
        // The number of a process that died long ago may come again.
        fs::remove_dir_all(&path).ok();
        private_folder(&path)?;
        Ok(Scratch { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
        fs::remove_file(self.path.with_extension("lock")).ok();
    }
}

fn sweep(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let Some(stem) = name.strip_suffix(".lock") else { continue };
        let Ok(lock) = File::open(entry.path()) else { continue };
        if lock.try_lock().is_ok() {
            fs::remove_dir_all(cache.join(stem)).ok();
            fs::remove_file(entry.path()).ok();
        }
    }
}

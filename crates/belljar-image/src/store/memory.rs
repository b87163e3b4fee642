//! What was imported before: which image came of a file, so that it is not read again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::failure::StoreError;
use super::lock::Thing;
use super::{FORMAT, Store};
use crate::digest::Digest;

/// The folder of what is remembered.
pub(super) const MEMORY: &str = "memory";

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    format: u32,
    image: Digest,
}

impl Store {
    /// The image that came of something before, if it is still there. `what` says everything by which a change of it
    /// would be noticed.
    pub fn recall(&self, what: &str) -> Result<Option<Digest>, StoreError> {
        let found: Option<Remembered> = match self.read_json(&self.memory_path(what)) {
            Err(StoreError::Damaged { .. }) => None,
            found => found?,
        };
        Ok(found.map(|found| found.image).filter(|image| self.image_path(*image).exists()))
    }

    /// Remembers which image came of something.
    pub fn remember(&self, what: &str, image: Digest) -> Result<(), StoreError> {
        let _writing = self.lock(Thing::Records)?;
        self.write_json(&self.memory_path(what), &Remembered { format: FORMAT, image })
    }

    /// Forgets what came to images that are gone.
    pub(super) fn sweep_memory(&self) -> Result<(), StoreError> {
        let _writing = self.lock(Thing::Records)?;
        for file in self.file_names(MEMORY)? {
            let path = self.folder.join(MEMORY).join(file);
            let found: Option<Remembered> = self.read_json(&path).unwrap_or_default();
            if found.is_none_or(|found| !self.image_path(found.image).exists()) {
                self.remove_record(&path)?;
            }
        }
        Ok(())
    }

    fn memory_path(&self, what: &str) -> PathBuf {
        self.folder.join(MEMORY).join(format!("{}.json", Digest::of(what.as_bytes()).hex()))
    }
}

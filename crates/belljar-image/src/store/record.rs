//! Records: the small files that say what is there. Each is replaced whole, by one process at a time.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::failure::{Doing, StoreError};
use super::{DOCUMENT_LIMIT, Store, read_bounded, unless_gone};

impl Store {
    /// Writes a record and waits for the disk. The caller holds the lock of the records.
    pub(super) fn write_record(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let doing = || format!("write {}", path.display());
        let half = self.scratch("record");
        let mut file = File::create(&half).doing(doing)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).doing(doing)?;
        fs::rename(&half, path).doing(doing)?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all()).doing(doing)
    }

    pub(super) fn write_json(&self, path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
        let json = serde_json::to_vec(value)
            .map_err(io::Error::from)
            .doing(|| format!("write {}", path.display()))?;
        self.write_record(path, &json)
    }

    /// A record, or nothing where none is.
    pub(super) fn read_json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, StoreError> {
        match read_bounded(path, DOCUMENT_LIMIT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing(|| format!("read {}", path.display())),
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| StoreError::Damaged { path: path.to_owned(), reason: error.to_string() }),
        }
    }

    /// The caller holds the lock of the records.
    pub(super) fn remove_record(&self, path: &Path) -> Result<(), StoreError> {
        unless_gone(fs::remove_file(path)).doing(|| format!("remove {}", path.display()))
    }

    /// The names of the files in a folder of the store.
    pub(super) fn file_names(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        let path = self.folder.join(folder);
        let list =
            || fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
        let names = list().doing(|| format!("list {}", path.display()))?;
        let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
        names.sort();
        Ok(names)
    }
}

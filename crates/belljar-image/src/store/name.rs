//! Names: what people call images. Any text may come, so the file of a name is called by the hash of it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::failure::StoreError;
use super::lock::Thing;
use super::{FORMAT, Store};
use crate::digest::Digest;

/// Longer ones nobody types.
const LONGEST: usize = 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Name {
    format: u32,
    pub(super) name: String,
    pub(super) image: Digest,
}

impl Store {
    /// Gives an image a name; the image that had it before goes without.
    pub fn name(&self, image: Digest, name: &str) -> Result<(), StoreError> {
        check(name)?;
        let _writing = self.lock(Thing::Records)?;
        if !self.image_path(image).exists() {
            return Err(StoreError::NoImage(image));
        }
        self.write_json(&self.name_path(name), &Name { format: FORMAT, name: name.to_owned(), image })
    }

    /// Takes a name away; the image stays. Says whether there was one.
    pub fn untag(&self, name: &str) -> Result<bool, StoreError> {
        let _writing = self.lock(Thing::Records)?;
        let path = self.name_path(name);
        let there = path.exists();
        self.remove_record(&path).map(|()| there)
    }

    pub(super) fn named(&self, name: &str) -> Result<Option<Digest>, StoreError> {
        let found: Option<Name> = self.read_json(&self.name_path(name))?;
        Ok(found.filter(|found| found.name == name).map(|found| found.image))
    }

    /// All names, also of images that are gone; one that cannot be read names nothing.
    pub(super) fn names(&self) -> Result<Vec<(PathBuf, Option<Name>)>, StoreError> {
        let mut names = Vec::new();
        for file in self.file_names("names")? {
            let path = self.folder.join("names").join(file);
            match self.read_json(&path) {
                // Gone since it was listed.
                Ok(None) => {}
                Ok(name) => names.push((path, name)),
                Err(StoreError::Damaged { .. }) => names.push((path, None)),
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    fn name_path(&self, name: &str) -> PathBuf {
        self.folder.join("names").join(format!("{}.json", Digest::of(name.as_bytes()).hex()))
    }
}

/// Names that would fool who reads or types them are refused.
fn check(name: &str) -> Result<(), StoreError> {
    let refuse = |reason| Err(StoreError::BadName { name: name.chars().take(80).collect(), reason });
    if name.is_empty() {
        return refuse("a name has at least one character");
    }
    if name.len() > LONGEST {
        return refuse("a name has at most 1024 bytes");
    }
    if name.chars().any(|sign| sign.is_control() || sign.is_whitespace()) {
        return refuse("a name has no spaces and no control characters");
    }
    if name.starts_with("sha256:") || Digest::from_hex(name).is_some() {
        return refuse("that is how images are called by their content");
    }
    Ok(())
}

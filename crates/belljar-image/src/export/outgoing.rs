//! An image on its way to a registry: the same bytes as in an export, ready to be read from anywhere in them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use super::content::{self, Content, Contents};
use super::{ExportError, Writing};
use crate::digest::Digest;
use crate::registry::Origin;
use crate::store::{Store, StoredImage};

/// An image with everything that a registry needs of it.
#[derive(Debug)]
pub struct Outgoing {
    /// The manifest.
    pub manifest: Vec<u8>,
    blobs: BTreeMap<Digest, File>,
}

impl Outgoing {
    /// Opens everything; layers whose compressed bytes are gone are packed again.
    pub fn of(store: &Store, image: &StoredImage) -> Result<Outgoing, ExportError> {
        let _held = store.hold(image.config_digest, &|_| {})?;
        let mut contents = Contents::new();
        let (manifest, layers) = content::of_image(store, image, &mut contents)?;
        let bytes = match contents.remove(&content::path(manifest.digest)) {
            Some(content) => whole(store, content)?,
            None => return Err(ExportError::Damaged(manifest.digest)),
        };
        let mut blobs = BTreeMap::new();
        for digest in layers.iter().map(|layer| layer.digest).chain([image.config_digest]) {
            if let Some(content) = contents.remove(&content::path(digest)) {
                blobs.insert(digest, opened(store, content)?);
            }
        }
        Ok(Outgoing { manifest: bytes, blobs })
    }
}

fn whole(store: &Store, content: Content) -> Result<Vec<u8>, ExportError> {
    let mut bytes = Vec::new();
    super::copy(store, content, "the manifest", &mut bytes)?;
    Ok(bytes)
}

fn opened(store: &Store, content: Content) -> Result<File, ExportError> {
    match content {
        Content::Blob { file, .. } => Ok(file),
        other @ (Content::Folder | Content::Bytes(_) | Content::Tree { .. }) => {
            let mut file = store.unnamed()?;
            super::copy(store, other, "a layer", &mut file)?;
            file.sync_data().writing("a layer").map(|()| file)
        }
    }
}

impl Origin for Outgoing {
    fn open(&self, digest: Digest, offset: u64) -> io::Result<Box<dyn Read + '_>> {
        let file = self.blobs.get(&digest).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(From { file, offset }))
    }
}

/// A file from somewhere on, beside others who read it elsewhere.
struct From<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for From<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

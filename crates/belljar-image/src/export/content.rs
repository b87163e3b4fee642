//! What is in an export: bytes as they came where they are still there, otherwise layers packed again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use super::{ExportError, Writing};
use crate::digest::Digest;
use crate::oci::{Descriptor, Manifest, media};
use crate::pack::{self, Packed};
use crate::store::{Layer, Store, StoreError, StoredImage};

/// By path.
pub(super) type Contents = BTreeMap<String, Content>;

/// One file of an export.
#[derive(Debug)]
pub(super) enum Content {
    Folder,
    Bytes(Vec<u8>),
    /// A blob of the store, open so that nobody can take it away.
    Blob {
        digest: Digest,
        size: u64,
        file: File,
    },
    /// A layer whose bytes are gone; its files were seen to make them again.
    Tree {
        size: u64,
        layer: Box<Layer>,
    },
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        match self {
            Content::Folder => 0,
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Blob { size, .. } | Content::Tree { size, .. } => *size,
        }
    }
}

/// Where a blob lies in an export.
pub(super) fn path(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Adds everything of an image, and says which manifest and layers it has there.
pub(super) fn of_image(
    store: &Store,
    image: &StoredImage,
    contents: &mut Contents,
) -> Result<(Descriptor, Vec<Descriptor>), ExportError> {
    let mut layers = Vec::new();
    for (diff_id, wanted) in image.diff_ids.iter().zip(&image.manifest_layers) {
        layers.push(of_layer(store, *diff_id, wanted, contents)?);
    }
    let config = blob(store, image.config_digest)?;
    let config_size = config.size();
    contents.insert(path(image.config_digest), config);
    if layers == image.manifest_layers {
        contents.insert(path(image.manifest.digest), blob(store, image.manifest.digest)?);
        return Ok((image.manifest.clone(), layers));
    }
    let manifest = Manifest {
        schema_version: 2,
        media_type: media::MANIFEST.to_owned(),
        config: Descriptor { size: config_size, ..described(media::CONFIG, image.config_digest) },
        layers: layers.clone(),
        annotations: BTreeMap::new(),
    };
    let bytes = serde_json::to_vec(&manifest).map_err(io::Error::from).writing("the manifest")?;
    let descriptor =
        Descriptor { size: bytes.len() as u64, ..described(media::MANIFEST, Digest::of(&bytes)) };
    contents.insert(path(descriptor.digest), Content::Bytes(bytes));
    Ok((descriptor, layers))
}

fn described(media_type: &str, digest: Digest) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest,
        size: 0,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

fn blob(store: &Store, digest: Digest) -> Result<Content, ExportError> {
    let file = store.blob(digest)?.ok_or(ExportError::Damaged(digest))?;
    let size = file.metadata().writing("a blob")?.len();
    Ok(Content::Blob { digest, size, file })
}

/// The bytes a layer came in, or those it came in with another image, or its files.
fn of_layer(
    store: &Store,
    diff_id: Digest,
    wanted: &Descriptor,
    contents: &mut Contents,
) -> Result<Descriptor, ExportError> {
    let stored = store.compressed(diff_id)?;
    let best = stored.iter().find(|blob| blob.digest == wanted.digest).or(stored.first());
    if let Some(best) = best {
        contents.insert(path(best.digest), blob(store, best.digest)?);
        return Ok(best.clone());
    }
    if let Some(content) = contents.get(&path(diff_id)) {
        return Ok(Descriptor { size: content.size(), ..described(media::LAYER, diff_id) });
    }
    let layer = store.layer(diff_id, &|_| {})?.ok_or(StoreError::NoLayer(diff_id))?;
    let packed = pack(store, &layer.tree, io::sink())?;
    if packed.diff_id != diff_id {
        return Err(ExportError::NotTheSame { wanted: diff_id, packed: packed.diff_id });
    }
    contents.insert(path(diff_id), Content::Tree { size: packed.bytes, layer: Box::new(layer) });
    Ok(Descriptor { size: packed.bytes, ..described(media::LAYER, diff_id) })
}

/// Packs a layer's files as they are.
pub(super) fn pack(store: &Store, tree: &Path, out: impl Write) -> Result<Packed, ExportError> {
    let folder = File::open(tree).writing("a layer")?;
    Ok(pack::pack(folder.as_fd(), &store.pack_options(), out)?)
}

//! The store as a place for builds.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::{Base, BuildError, Depot, Made};
use crate::digest::Digest;
use crate::oci::{Descriptor, ImageConfig, Manifest, Platform, media};
use crate::store::{Layer, Notice, Origin, Store};

/// A store, a folder for what is half done, and one for what steps made.
pub struct StoreDepot<'a> {
    store: &'a Store,
    scratch: PathBuf,
    cache: PathBuf,
    /// Layers must not be taken away while they are built on.
    held: Vec<Layer>,
    blobs: Vec<(Digest, Descriptor)>,
    folders: u64,
}

fn nobody(_: Notice) {}

impl<'a> StoreDepot<'a> {
    /// Both folders must be there. `scratch` is empty and the caller's to remove.
    pub fn new(store: &'a Store, scratch: &Path, cache: &Path) -> StoreDepot<'a> {
        let (scratch, cache) = (scratch.to_owned(), cache.to_owned());
        StoreDepot { store, scratch, cache, held: Vec::new(), blobs: Vec::new(), folders: 0 }
    }

    fn hold(&mut self, diff_id: Digest) -> Result<Option<PathBuf>, BuildError> {
        let Some(layer) = self.store.layer(diff_id, &nobody)? else { return Ok(None) };
        let tree = layer.tree.clone();
        self.held.push(layer);
        Ok(Some(tree))
    }

    fn memory(&self, key: Digest) -> PathBuf {
        self.cache.join(key.hex())
    }

    /// A layer's bytes as they came, or as they are made again.
    fn descriptor(&self, diff_id: Digest) -> Result<Descriptor, BuildError> {
        let known = self.blobs.iter().find(|(known, _)| *known == diff_id).map(|(_, blob)| blob.clone());
        let size =
            self.held.iter().find(|layer| layer.record.diff_id == diff_id).map(|layer| layer.record.bytes);
        let plain = |size| Descriptor {
            media_type: media::LAYER.to_owned(),
            digest: diff_id,
            size,
            platform: None,
            annotations: Default::default(),
        };
        known.or_else(|| size.map(plain)).ok_or(BuildError::NoImage(diff_id.to_string()))
    }
}

impl Depot for StoreDepot<'_> {
    fn base(&mut self, reference: &str, _: &Platform) -> Result<Base, BuildError> {
        let missing = || BuildError::NoImage(reference.to_owned());
        let image = self.store.image(reference)?.ok_or_else(missing)?;
        for (diff_id, blob) in image.diff_ids.iter().zip(&image.manifest_layers) {
            self.hold(*diff_id)?.ok_or_else(missing)?;
            self.blobs.push((*diff_id, blob.clone()));
        }
        Ok(Base { config: image.config, trees: image.layers })
    }

    fn folder(&mut self) -> Result<PathBuf, BuildError> {
        self.folders += 1;
        let folder = self.scratch.join(self.folders.to_string());
        fs::create_dir(&folder).map_err(BuildError::read("a folder for the step"))?;
        Ok(folder)
    }

    fn add(&mut self, archive: File) -> Result<(Digest, PathBuf), BuildError> {
        let (_, layer) = self.store.add_unknown_layer(archive, &nobody)?;
        let (diff_id, tree) = (layer.record.diff_id, layer.tree.clone());
        self.held.push(layer);
        Ok((diff_id, tree))
    }

    fn recall(&mut self, key: Digest) -> Result<Option<Made>, BuildError> {
        // What cannot be read was never finished; the step is done again.
        let Ok(text) = fs::read_to_string(self.memory(key)) else { return Ok(None) };
        if text == "nothing" {
            return Ok(Some(Made::Nothing));
        }
        let Ok(diff_id) = text.parse() else { return Ok(None) };
        Ok(self.hold(diff_id)?.map(|tree| Made::Layer(diff_id, tree)))
    }

    fn remember(&mut self, key: Digest, made: &Made) -> Result<(), BuildError> {
        let text = match made {
            Made::Nothing => "nothing".to_owned(),
            Made::Layer(diff_id, _) => diff_id.to_string(),
        };
        let new = self.scratch.join("memory");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, self.memory(key)));
        written.map_err(BuildError::read("the memory of steps"))
    }

    fn finish(&mut self, config: &ImageConfig) -> Result<Digest, BuildError> {
        let json = |source: serde_json::Error| BuildError::read("the configuration")(source.into());
        let bytes = serde_json::to_vec(config).map_err(json)?;
        let layers =
            config.rootfs.diff_ids.iter().map(|id| self.descriptor(*id)).collect::<Result<_, _>>()?;
        let document = Descriptor {
            media_type: media::CONFIG.to_owned(),
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
            platform: None,
            annotations: Default::default(),
        };
        let manifest = Manifest {
            schema_version: 2,
            media_type: media::MANIFEST.to_owned(),
            config: document,
            layers,
            annotations: Default::default(),
        };
        let manifest = serde_json::to_vec(&manifest).map_err(json)?;
        let origin = Origin { from: "a build".to_owned(), repo_digest: None };
        Ok(self.store.add_image(&manifest, &bytes, &origin, &nobody)?.config_digest)
    }
}

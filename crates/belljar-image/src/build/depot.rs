//! The store as a place for builds.

use std::fs::{self, DirBuilder, File};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::{Base, BuildError, Depot, Made};
use crate::digest::Digest;
use crate::oci::{Descriptor, ImageConfig, Manifest, Platform, media};
use crate::reference::Reference;
use crate::store::{Layer, Notice, Origin, Scratch, Store, StoredImage};
use crate::unpack::{self, Limits, Options};

/// A store, a folder in it for what is half done, and one for what steps made.
pub struct StoreDepot<'a> {
    store: &'a Store,
    /// Whoever cleans the store up removes it once this process is gone.
    scratch: Scratch,
    cache: PathBuf,
    /// Layers must not be taken away while they are built on.
    held: Vec<Layer>,
    blobs: Vec<(Digest, Descriptor)>,
    folders: u64,
    bring: Option<Bring<'a>>,
}

/// Brings an image that is not in the store into it, and says by what name it is there.
pub type Bring<'a> = Box<dyn FnMut(&str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> + 'a>;

fn nobody(_: Notice) {}

impl<'a> StoreDepot<'a> {
    /// `cache` is where it is noted what steps made; it is made when it is not there.
    pub fn new(store: &'a Store, cache: &Path) -> Result<StoreDepot<'a>, BuildError> {
        let scratch = store.scratch_folder()?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(cache);
        made.map_err(BuildError::read("the memory of steps"))?;
        let cache = cache.to_owned();
        Ok(StoreDepot { store, scratch, cache, held: Vec::new(), blobs: Vec::new(), folders: 0, bring: None })
    }

    /// The same, with somebody who fetches images that are not there.
    #[must_use]
    pub fn bringing(self, bring: Bring<'a>) -> StoreDepot<'a> {
        StoreDepot { bring: Some(bring), ..self }
    }

    /// An image as it is written, or by its full name.
    fn find(&mut self, reference: &str) -> Result<StoredImage, BuildError> {
        let full = reference.parse::<Reference>().map(|reference| reference.to_string());
        for name in std::iter::once(reference.to_owned()).chain(full) {
            if let Some(image) = self.store.image(&name)? {
                return Ok(image);
            }
        }
        let missing = || BuildError::NoImage(reference.to_owned());
        let bring = self.bring.as_mut().ok_or_else(missing)?;
        let name = bring(reference).map_err(BuildError::Bring)?;
        self.store.image(&name)?.ok_or_else(missing)
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
        let image = self.find(reference)?;
        for (diff_id, blob) in image.diff_ids.iter().zip(&image.manifest_layers) {
            self.hold(*diff_id)?.ok_or_else(missing)?;
            self.blobs.push((*diff_id, blob.clone()));
        }
        Ok(Base { config: image.config, trees: image.layers })
    }

    fn folder(&mut self) -> Result<PathBuf, BuildError> {
        self.folders += 1;
        let folder = self.scratch.path().join(self.folders.to_string());
        fs::create_dir(&folder).map_err(BuildError::read("a folder for the step"))?;
        Ok(folder)
    }

    fn unpack(&mut self, archive: File) -> Result<PathBuf, BuildError> {
        let folder = self.folder()?;
        let open = File::open(&folder).map_err(BuildError::read("a folder for the step"))?;
        let options = Options { ownership: self.store.owners(), limits: Limits::default() };
        unpack::unpack(archive, open.as_fd(), &options)?;
        Ok(folder)
    }

    fn add(&mut self, archive: File) -> Result<(Digest, PathBuf), BuildError> {
        let (_, layer) = self.store.add_unknown_layer(archive, &nobody)?;
        let (diff_id, tree) = (layer.record.diff_id, layer.tree.clone());
        self.held.push(layer);
        Ok((diff_id, tree))
    }

    fn tree(&mut self, diff_id: Digest) -> Result<Option<PathBuf>, BuildError> {
        self.hold(diff_id)
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
        let new = self.scratch.path().join("memory");
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

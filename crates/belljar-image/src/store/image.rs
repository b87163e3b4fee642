//! Images: a record that names a configuration and layers, written when everything it names is on the disk.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::failure::{Doing, StoreError};
use super::layer::Ownership;
use super::lock::{Lease, Thing};
use super::space::Freed;
use super::{DOCUMENT_LIMIT, FORMAT, Store, Watch, read_bounded};
use crate::digest::Digest;
use crate::oci::{Descriptor, ImageConfig, Manifest, media};

/// More layers than this cannot be mounted.
const MOST_LAYERS: usize = 500;
/// A beginning of an image's digest is not shorter.
const SHORTEST_PREFIX: usize = 4;

/// Where an image came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// In words, for people.
    pub from: String,
    /// `name@sha256:…`, where it can be fetched again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_digest: Option<String>,
}

/// What is written down about an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    pub(super) format: u32,
    pub(super) config: Digest,
    pub(super) diff_ids: Vec<Digest>,
    /// Manifests of this image, the newest first: one image can come in several compressions.
    pub(super) manifests: Vec<KnownManifest>,
    /// Where it came from, the newest first.
    pub(super) origins: Vec<Origin>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownManifest {
    pub(super) manifest: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// An image in the store.
#[derive(Debug, Clone)]
pub struct StoredImage {
    /// Its name for machines.
    pub config_digest: Digest,
    /// What it says of itself.
    pub config: ImageConfig,
    /// The names of its layers, lowest first.
    pub diff_ids: Vec<Digest>,
    /// The folders to mount, lowest first. What lies below a layer that hides everything is not among them.
    pub layers: Vec<PathBuf>,
    /// The manifest it came with last.
    pub manifest: Descriptor,
    /// What that manifest calls its layers.
    pub manifest_layers: Vec<Descriptor>,
    /// `name@sha256:…`, where it can be fetched again.
    pub repo_digests: Vec<String>,
    /// What people call it.
    pub names: Vec<String>,
    /// Whose its files are; squashed when those of one layer are.
    pub ownership: Ownership,
    /// Where it came from last.
    pub origin: Origin,
    /// When it was added or used last.
    pub last_used: SystemTime,
    /// What its trees take on the disk.
    pub disk: u64,
}

/// What a removal did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// The names that are gone.
    pub names: Vec<String>,
    /// What else went with it.
    pub freed: Freed,
}

impl Store {
    /// Adds an image whose layers are there.
    pub fn add_image(
        &self,
        manifest: &[u8],
        config: &[u8],
        origin: &Origin,
        watch: Watch<'_>,
    ) -> Result<StoredImage, StoreError> {
        let known = understand(manifest, config)?;
        let image = Digest::of(config);
        // Held until the record is there, so that nobody takes them away as unused.
        let held =
            known.1.iter().map(|diff_id| self.layer(*diff_id, watch)?.ok_or(StoreError::NoLayer(*diff_id)));
        let _layers = held.collect::<Result<Vec<_>, _>>()?;
        let _documents = [self.put_bytes(manifest, watch)?, self.put_bytes(config, watch)?];
        self.sync()?;
        let _writing = self.lock(Thing::Records)?;
        let path = self.image_path(image);
        let earlier = match self.read_json::<ImageRecord>(&path) {
            Err(StoreError::Damaged { .. }) => None,
            earlier => earlier?,
        };
        let record = merge(earlier, image, known, origin);
        self.write_json(&path, &record)?;
        self.stored(record)
    }

    /// An image by its name, by its configuration's digest, by a beginning of that, or by where it was fetched from.
    pub fn image(&self, reference: &str) -> Result<Option<StoredImage>, StoreError> {
        let Some(image) = self.find(reference)? else { return Ok(None) };
        self.read_json(&self.image_path(image))?.map(|record| self.stored(record)).transpose()
    }

    /// Keeps an image and its layers from being removed, for as long as the lease is open anywhere.
    pub fn hold(&self, image: Digest, watch: Watch<'_>) -> Result<Lease, StoreError> {
        let lease = self.share(Thing::Image(image), watch)?;
        if self.image_path(image).exists() { Ok(lease) } else { Err(StoreError::NoImage(image)) }
    }

    /// What is locked, shared, while an image is used; [`Store::hold`] makes it.
    pub fn lock_path(&self, image: Digest) -> PathBuf {
        self.folder.join("locks").join(Thing::Image(image).key())
    }

    /// Every image that can be read, in the order of their digests.
    pub fn list(&self) -> Result<Vec<StoredImage>, StoreError> {
        let mut images = Vec::new();
        for record in self.records()? {
            match self.stored(record) {
                Ok(image) => images.push(image),
                Err(StoreError::Damaged { .. } | StoreError::NoLayer(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(images)
    }

    /// Says that an image is used now.
    pub fn touch(&self, image: Digest) -> Result<(), StoreError> {
        let touched =
            File::open(self.image_path(image)).and_then(|file| file.set_modified(SystemTime::now()));
        touched.doing(|| format!("say that the image {image} is used"))
    }

    /// Removes an image with its names, and what no other image needs.
    pub fn remove(&self, image: Digest) -> Result<Removed, StoreError> {
        let path = self.image_path(image);
        let mut removed = Removed::default();
        let record = {
            let _writing = self.lock(Thing::Records)?;
            if !path.exists() {
                return Err(StoreError::NoImage(image));
            }
            let Some(lease) = self.try_lock(Thing::Image(image))? else {
                return Err(StoreError::InUse { what: format!("the image {image}") });
            };
            let record: Option<ImageRecord> = self.read_json(&path).ok().flatten();
            self.remove_record(&path)?;
            for (path, name) in self.names()? {
                if let Some(name) = name.filter(|name| name.image == image) {
                    self.remove_record(&path)?;
                    removed.names.push(name.name);
                }
            }
            lease.forget().doing(|| format!("unlock the image {image}"))?;
            record
        };
        if let Some(record) = record {
            removed.freed = self.sweep_parts_of(&record)?;
        }
        Ok(removed)
    }

    fn find(&self, reference: &str) -> Result<Option<Digest>, StoreError> {
        let digits = reference.strip_prefix("sha256:").unwrap_or(reference);
        if let Some(image) = Digest::from_hex(digits)
            && self.image_path(image).exists()
        {
            return Ok(Some(image));
        }
        if let Some(image) = self.named(reference)? {
            return Ok(Some(image));
        }
        let records = self.records()?;
        let fetched = |record: &&ImageRecord| record.repo_digests().any(|known| known == reference);
        if let Some(record) = records.iter().find(fetched) {
            return Ok(Some(record.config));
        }
        let is_prefix =
            digits.len() >= SHORTEST_PREFIX && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let mut candidates: Vec<Digest> = records.iter().map(|record| record.config).collect();
        candidates.retain(|image| is_prefix && image.hex().starts_with(digits));
        match candidates.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            _ => Err(StoreError::Ambiguous { prefix: reference.to_owned(), candidates }),
        }
    }

    /// Every record that can be read.
    pub(super) fn records(&self) -> Result<Vec<ImageRecord>, StoreError> {
        let mut records = Vec::new();
        for file in self.file_names("images")? {
            match self.read_json::<ImageRecord>(&self.folder.join("images").join(file)) {
                Ok(record) => records.extend(record),
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(records)
    }

    pub(super) fn is_layer_of_an_image(&self, diff_id: Digest) -> Result<bool, StoreError> {
        Ok(self.records()?.iter().any(|record| record.diff_ids.contains(&diff_id)))
    }

    pub(super) fn stored(&self, record: ImageRecord) -> Result<StoredImage, StoreError> {
        let path = self.image_path(record.config);
        let damaged = |reason: &str| StoreError::Damaged { path: path.clone(), reason: reason.to_owned() };
        let bytes = read_bounded(&self.blob_path(record.config), DOCUMENT_LIMIT).unwrap_or_default();
        if Digest::of(&bytes) != record.config {
            return Err(damaged("its configuration is not what it was"));
        }
        let config: ImageConfig =
            serde_json::from_slice(&bytes).map_err(|error| damaged(&error.to_string()))?;
        let newest = record.manifests.first().ok_or_else(|| damaged("it has no manifest"))?.clone();
        let (mut ownership, mut disk, mut layers) = (Ownership::Exact, 0, Vec::new());
        for diff_id in &record.diff_ids {
            let layer = self.layer_record(*diff_id)?.ok_or(StoreError::NoLayer(*diff_id))?;
            ownership = ownership.max(layer.ownership);
            disk += layer.disk;
            if layer.opaque {
                layers.clear();
            }
            layers.push(self.tree_path(*diff_id));
        }
        let meta = fs::metadata(&path).and_then(|meta| meta.modified());
        let mut names: Vec<String> = self
            .names()?
            .into_iter()
            .filter_map(|(_, name)| name)
            .filter(|name| name.image == record.config)
            .map(|name| name.name)
            .collect();
        names.sort();
        Ok(StoredImage {
            config_digest: record.config,
            config,
            layers,
            manifest: newest.manifest,
            manifest_layers: newest.layers,
            repo_digests: record.repo_digests().map(str::to_owned).collect(),
            names,
            ownership,
            origin: record
                .origins
                .first()
                .cloned()
                .ok_or_else(|| damaged("nothing says where it came from"))?,
            last_used: meta.doing(|| format!("look at {}", path.display()))?,
            disk,
            diff_ids: record.diff_ids,
        })
    }
}

impl ImageRecord {
    pub(super) fn repo_digests(&self) -> impl Iterator<Item = &str> {
        self.origins.iter().filter_map(|origin| origin.repo_digest.as_deref())
    }
}

/// The manifest as it is kept, and the layers it means.
fn understand(manifest: &[u8], config: &[u8]) -> Result<(KnownManifest, Vec<Digest>), StoreError> {
    let bad = |what, reason: String| StoreError::BadDocument { what, reason };
    let parsed: Manifest =
        serde_json::from_slice(manifest).map_err(|error| bad("manifest", error.to_string()))?;
    let settings: ImageConfig =
        serde_json::from_slice(config).map_err(|error| bad("configuration", error.to_string()))?;
    if parsed.config.digest != Digest::of(config) {
        return Err(bad("manifest", format!("it names the configuration {}", parsed.config.digest)));
    }
    let diff_ids = settings.rootfs.diff_ids;
    if parsed.layers.len() != diff_ids.len() {
        let (archives, layers) = (parsed.layers.len(), diff_ids.len());
        return Err(bad("manifest", format!("it has {archives} layers, and its configuration has {layers}")));
    }
    if diff_ids.len() > MOST_LAYERS {
        return Err(bad(
            "configuration",
            format!("it has {} layers; at most {MOST_LAYERS} can be used", diff_ids.len()),
        ));
    }
    let media_type =
        if parsed.media_type.is_empty() { media::MANIFEST.to_owned() } else { parsed.media_type };
    let manifest = Descriptor {
        media_type,
        digest: Digest::of(manifest),
        size: manifest.len() as u64,
        platform: None,
        annotations: std::collections::BTreeMap::new(),
    };
    Ok((KnownManifest { manifest, layers: parsed.layers }, diff_ids))
}

fn merge(
    earlier: Option<ImageRecord>,
    config: Digest,
    (manifest, diff_ids): (KnownManifest, Vec<Digest>),
    origin: &Origin,
) -> ImageRecord {
    let (mut manifests, mut origins) =
        earlier.map(|earlier| (earlier.manifests, earlier.origins)).unwrap_or_default();
    manifests.retain(|known| known.manifest.digest != manifest.manifest.digest);
    manifests.insert(0, manifest);
    origins.retain(|known| known != origin);
    origins.insert(0, origin.clone());
    ImageRecord { format: FORMAT, config, diff_ids, manifests, origins }
}

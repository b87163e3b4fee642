//! An image from a registry into a store: what is there stays, the rest comes side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::auth::{Action, Scope};
use super::blob::stored;
use super::platform;
use super::retry::Session;
use super::{Client, Foreign, LARGEST_MANIFEST, Progress, RegistryError, Resolved, Watch, lock};
use crate::digest::Digest;
use crate::oci::{Descriptor, ImageConfig, Platform};
use crate::reference::Name;

/// Where an image goes. Several threads use it at a time, each for another blob.
pub trait Destination: Sync {
    /// A blob that is there, if it is not larger than `limit`.
    fn read_blob(&self, digest: Digest, limit: u64) -> Result<Option<Vec<u8>>, Foreign>;

    /// A place for a blob, with what an earlier attempt left there. Whoever else wants to make the same blob waits here,
    /// and finds it made.
    fn open_partial(&self, blob: &Descriptor) -> Result<Opened<'_>, Foreign>;

    /// Whether a layer is there by its own name, so that its bytes need not come.
    fn has_layer(&self, diff_id: Digest) -> Result<bool, Foreign>;

    /// Takes a layer whose blob is there. Called as soon as the blob is, while others still come.
    fn add_layer(&self, diff_id: Digest, blob: &Descriptor) -> Result<(), Foreign>;
}

/// What was found when a blob was to be made.
pub enum Opened<'a> {
    /// It is there, whole.
    There,
    /// It is to be made.
    Part(Box<dyn Partial + 'a>),
}

/// A blob that is being made. Dropped without a commit, it keeps what it has for the next attempt.
pub trait Partial: Write + Send {
    /// How many bytes it has.
    fn offset(&self) -> u64;

    /// The bytes it has, from the first.
    fn prefix(&mut self) -> Result<Box<dyn Read + '_>, Foreign>;

    /// Throws away what it has.
    fn restart(&mut self) -> Result<(), Foreign>;

    /// It is whole, and its digest was verified: from now on it is there.
    fn commit(self: Box<Self>) -> Result<(), Foreign>;
}

/// An image that is there now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// What was found.
    pub resolved: Resolved,
    /// The digest of the configuration, which names the image.
    pub image: Digest,
    /// The configuration.
    pub config: ImageConfig,
}

impl Scope {
    pub(super) fn pull(name: &Name) -> Scope {
        Scope { repository: name.repository().to_owned(), action: Action::Pull, from: None }
    }
}

impl Client {
    /// Finds out what a name means for a machine, without its layers.
    pub fn resolve(
        &self,
        name: &Name,
        wanted: &Platform,
        watch: Watch<'_>,
    ) -> Result<Resolved, RegistryError> {
        Session::run(self, watch, |session| session.resolve(name, wanted, None))
    }

    /// Brings an image into a destination. What is there already, is not transferred.
    pub fn pull(
        &self,
        name: &Name,
        wanted: &Platform,
        destination: &dyn Destination,
        watch: Watch<'_>,
    ) -> Result<Pulled, RegistryError> {
        Session::run(self, watch, |session| session.pull(name, wanted, destination))
    }
}

/// A layer by both its names.
struct Layer<'a> {
    diff_id: Digest,
    blob: &'a Descriptor,
}

impl Session<'_> {
    fn pull(
        &self,
        name: &Name,
        wanted: &Platform,
        destination: &dyn Destination,
    ) -> Result<Pulled, RegistryError> {
        let resolved = self.resolve(name, wanted, Some(destination))?;
        let config = self.config(name, wanted, &resolved, destination)?;
        let mut seen = BTreeSet::new();
        let pairs = config.rootfs.diff_ids.iter().zip(&resolved.manifest.layers);
        let layers: Vec<Layer<'_>> = pairs
            .map(|(diff_id, blob)| Layer { diff_id: *diff_id, blob })
            .filter(|layer| seen.insert(layer.diff_id))
            .collect();
        self.side_by_side(&layers, |layer| self.layer(name, layer, destination))?;
        // Last, so that a manifest is there only once the rest is.
        keep(destination, resolved.digest, &resolved.bytes)?;
        for (digest, bytes) in &resolved.lists {
            keep(destination, *digest, bytes)?;
        }
        Ok(Pulled { image: resolved.manifest.config.digest, config, resolved })
    }

    fn config(
        &self,
        name: &Name,
        wanted: &Platform,
        resolved: &Resolved,
        destination: &dyn Destination,
    ) -> Result<ImageConfig, RegistryError> {
        let not_an_image = |reason: String| RegistryError::NotAnImage { name: name.to_string(), reason };
        let descriptor = &resolved.manifest.config;
        if descriptor.size > LARGEST_MANIFEST {
            return Err(not_an_image("its configuration is larger than 4 MiB".to_owned()));
        }
        self.blob(name, descriptor, destination)?;
        let bytes = destination.read_blob(descriptor.digest, LARGEST_MANIFEST);
        let bytes = bytes.map_err(stored(descriptor.digest))?.unwrap_or_default();
        let config: ImageConfig = serde_json::from_slice(&bytes)
            .map_err(|error| not_an_image(format!("its configuration is not understood: {error}")))?;
        if config.rootfs.diff_ids.len() != resolved.manifest.layers.len() {
            return Err(not_an_image(
                "its configuration names another number of layers than its manifest".to_owned(),
            ));
        }
        let there = Platform {
            architecture: config.architecture.clone(),
            os: config.os.clone(),
            variant: config.variant.clone(),
        };
        if !platform::runs(&there, wanted) {
            let (name, wanted) = (name.to_string(), Box::new(wanted.clone()));
            return Err(RegistryError::NoPlatform { name, wanted, there: vec![there] });
        }
        Ok(config)
    }

    fn layer(
        &self,
        name: &Name,
        layer: &Layer<'_>,
        destination: &dyn Destination,
    ) -> Result<(), RegistryError> {
        let digest = layer.blob.digest;
        if destination.has_layer(layer.diff_id).map_err(stored(digest))? {
            (self.watch.progress)(Progress::There { digest });
            return Ok(());
        }
        self.blob(name, layer.blob, destination)?;
        let failed = |source| RegistryError::Destination { what: format!("layer {}", layer.diff_id), source };
        destination.add_layer(layer.diff_id, layer.blob).map_err(failed)
    }

    /// Does something for each item with as many threads as the settings say. The first error ends the others.
    pub(super) fn side_by_side<I: Sync>(
        &self,
        items: &[I],
        work: impl Fn(&I) -> Result<(), RegistryError> + Sync,
    ) -> Result<(), RegistryError> {
        let next = AtomicUsize::new(0);
        let first: Mutex<Option<RegistryError>> = Mutex::new(None);
        let worker = || {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.check().and_then(|()| work(item)) {
                    lock(&first).get_or_insert(error);
                    return self.fail();
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.client.settings.threads.clamp(1, 16).min(items.len()) {
                scope.spawn(worker);
            }
        });
        first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

fn keep(destination: &dyn Destination, digest: Digest, bytes: &[u8]) -> Result<(), RegistryError> {
    let blob = Descriptor {
        media_type: String::new(),
        digest,
        size: bytes.len() as u64,
        platform: None,
        annotations: BTreeMap::new(),
    };
    let Opened::Part(mut partial) = destination.open_partial(&blob).map_err(stored(digest))? else {
        return Ok(());
    };
    partial.restart().map_err(stored(digest))?;
    partial.write_all(bytes).map_err(|error| stored(digest)(Box::new(error)))?;
    partial.commit().map_err(stored(digest))
}

//! A pull into the store: what comes is held until the image that names it is written down.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::blob::{Begun, Blob, BlobWriter};
use super::failure::{Doing, StoreError};
use super::layer::Layer;
use super::{DOCUMENT_LIMIT, Origin, Store, StoredImage, Watch, read_bounded};
use crate::digest::Digest;
use crate::oci::{Descriptor, Platform};
use crate::reference::Name;
use crate::registry::{self, Client, Destination, Foreign, Opened, Partial, RegistryError};

/// Why nothing was pulled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The registry, or the way from it.
    #[error(transparent)]
    Registry(RegistryError),
    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the store itself said is told as that, not as what it did to the pull.
impl From<RegistryError> for PullError {
    fn from(error: RegistryError) -> PullError {
        match error {
            RegistryError::Destination { what, source } => match source.downcast::<StoreError>() {
                Ok(error) => PullError::Store(*error),
                Err(source) => PullError::Registry(RegistryError::Destination { what, source }),
            },
            other => PullError::Registry(other),
        }
    }
}

impl Store {
    /// Brings an image from a registry and writes it down. What is there already is not transferred; what several
    /// processes want, one of them fetches. The image gets no name.
    pub fn pull(
        &self,
        client: &Client,
        name: &Name,
        wanted: &Platform,
        watch: Watch<'_>,
        progress: registry::Watch<'_>,
    ) -> Result<StoredImage, PullError> {
        let intake = Intake::new(self, watch);
        match intake.pull(client, name, wanted, progress) {
            // Bytes that lay here were damaged, and are gone now: this time they come from the registry.
            Err(_) if intake.was_damaged() => Intake::new(self, watch).pull(client, name, wanted, progress),
            result => result,
        }
    }
}

/// The store as a place that a registry's client fills.
struct Intake<'a> {
    store: &'a Store,
    watch: Watch<'a>,
    held: Mutex<Held>,
    /// A blob of the store was not what its name says.
    damaged: AtomicBool,
}

#[derive(Default)]
struct Held {
    blobs: BTreeMap<Digest, Blob>,
    layers: Vec<Layer>,
}

impl<'a> Intake<'a> {
    fn new(store: &'a Store, watch: Watch<'a>) -> Intake<'a> {
        Intake { store, watch, held: Mutex::default(), damaged: AtomicBool::new(false) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_damaged(&self) -> bool {
        self.damaged.load(Ordering::SeqCst)
    }

    fn pull(
        &self,
        client: &Client,
        name: &Name,
        wanted: &Platform,
        progress: registry::Watch<'_>,
    ) -> Result<StoredImage, PullError> {
        let pulled = client.pull(name, wanted, self, progress)?;
        let found = pulled.resolved.name.digest().unwrap_or(pulled.resolved.digest);
        let repo_digest = Some(format!("{}/{}@{found}", name.registry(), name.repository()));
        let origin = Origin { from: format!("registry {}", name.registry()), repo_digest };
        if let Some(known) = self.known(&pulled, &origin)? {
            return Ok(known);
        }
        let config = self.document(pulled.image)?.ok_or(StoreError::NoImage(pulled.image))?;
        Ok(self.store.add_image(&pulled.resolved.bytes, &config, &origin, self.watch)?)
    }

    /// The image as it is written down, if that says all of it already: then nothing has to be written.
    fn known(&self, pulled: &registry::Pulled, origin: &Origin) -> Result<Option<StoredImage>, StoreError> {
        let known = match self.store.image(&pulled.image.to_string()) {
            Err(StoreError::Damaged { .. } | StoreError::NoLayer(_)) => None,
            known => known?,
        };
        let same =
            |image: &StoredImage| image.manifest.digest == pulled.resolved.digest && image.origin == *origin;
        Ok(known.filter(same))
    }

    /// A document that is what its name says.
    fn document(&self, digest: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        match read_bounded(&self.store.blob_path(digest), DOCUMENT_LIMIT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing(|| format!("read the blob {digest}")),
            Ok(bytes) => Ok(Some(bytes).filter(|bytes| Digest::of(bytes) == digest)),
        }
    }

    fn begin(&self, content: &Descriptor) -> Result<Begun<'_>, StoreError> {
        let begun = self.store.begin_blob(content, self.watch)?;
        let Begun::There(blob) = begun else { return Ok(begun) };
        // A small one may be a document, which is used as it lies; layers are hashed while they are unpacked.
        if content.size <= registry::LARGEST_MANIFEST && self.document(content.digest)?.is_none() {
            drop(blob);
            self.store.drop_blob(content.digest)?;
            return self.store.begin_blob(content, self.watch);
        }
        Ok(Begun::There(blob))
    }
}

impl Destination for Intake<'_> {
    fn read_blob(&self, digest: Digest, limit: u64) -> Result<Option<Vec<u8>>, Foreign> {
        let bytes = self.document(digest)?;
        Ok(bytes.filter(|bytes| bytes.len() as u64 <= limit))
    }

    fn open_partial(&self, blob: &Descriptor) -> Result<Opened<'_>, Foreign> {
        if self.held().blobs.contains_key(&blob.digest) {
            return Ok(Opened::There);
        }
        Ok(match self.begin(blob)? {
            Begun::There(held) => {
                self.held().blobs.insert(blob.digest, held);
                Opened::There
            }
            Begun::Writing(writer) => Opened::Part(Box::new(Part { writer, intake: self })),
        })
    }

    fn has_layer(&self, diff_id: Digest) -> Result<bool, Foreign> {
        let layer = self.store.layer(diff_id, self.watch)?;
        let there = layer.is_some();
        self.held().layers.extend(layer);
        Ok(there)
    }

    fn add_layer(&self, diff_id: Digest, blob: &Descriptor) -> Result<(), Foreign> {
        // The layer holds its blob itself; ours would keep a damaged one from being removed.
        let lease = self.held().blobs.remove(&blob.digest);
        drop(lease);
        let open = |_| -> io::Result<io::Empty> {
            self.damaged.store(true, Ordering::SeqCst);
            Err(io::Error::new(io::ErrorKind::InvalidData, "the bytes in the store were damaged"))
        };
        let layer = self.store.add_layer(blob, diff_id, open, self.watch)?;
        self.held().layers.push(layer);
        Ok(())
    }
}

/// A blob on its way into the store.
struct Part<'a> {
    writer: BlobWriter<'a>,
    intake: &'a Intake<'a>,
}

impl Write for Part<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Partial for Part<'_> {
    fn offset(&self) -> u64 {
        self.writer.written()
    }

    fn prefix(&mut self) -> Result<Box<dyn Read + '_>, Foreign> {
        Ok(Box::new(self.writer.earlier()?))
    }

    fn restart(&mut self) -> Result<(), Foreign> {
        Ok(self.writer.restart()?)
    }

    fn commit(self: Box<Self>) -> Result<(), Foreign> {
        let Part { writer, intake } = *self;
        let blob = writer.commit()?;
        intake.held().blobs.insert(blob.digest, blob);
        Ok(())
    }
}

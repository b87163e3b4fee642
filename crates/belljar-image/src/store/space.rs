//! Space: what the store takes, and what goes first when it should take less.

use std::collections::BTreeSet;
use std::fs;
use std::time::SystemTime;

use belljar_cell::remove::remove_tree;

use super::failure::{Doing, StoreError};
use super::image::ImageRecord;
use super::lock::Thing;
use super::{Store, unless_gone};
use crate::digest::Digest;

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Freed {
    /// Images, by their configuration.
    pub images: Vec<Digest>,
    /// Layers, by their diff_ids.
    pub layers: Vec<Digest>,
    /// Compressed layers and documents.
    pub blobs: Vec<Digest>,
    /// Half-made things.
    pub scraps: u64,
    /// Bytes on the disk.
    pub bytes: u64,
}

impl Freed {
    fn add(&mut self, other: Freed) {
        self.images.extend(other.images);
        self.layers.extend(other.layers);
        self.blobs.extend(other.blobs);
        self.scraps += other.scraps;
        self.bytes += other.bytes;
    }
}

/// What the store takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many images.
    pub images: u64,
    /// How many layers.
    pub layers: u64,
    /// Bytes of unpacked layers.
    pub trees: u64,
    /// Bytes of compressed layers and documents.
    pub blobs: u64,
    /// Bytes that no image needs.
    pub unused: u64,
}

impl Usage {
    /// All bytes.
    pub fn bytes(self) -> u64 {
        self.trees + self.blobs
    }
}

/// Which images may go when space is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evict {
    /// Those that can be fetched again.
    Fetchable,
    /// Also those that were imported or built.
    Everything,
}

impl Store {
    /// What the store takes on the disk.
    pub fn disk_usage(&self) -> Result<Usage, StoreError> {
        let records = self.records()?;
        let (layers, blobs) = needed(&records);
        let mut usage = Usage { images: records.len() as u64, ..Usage::default() };
        for diff_id in self.digests("layers/sha256")? {
            let disk = self.layer_record(diff_id)?.map_or(0, |record| record.disk);
            usage.layers += 1;
            usage.trees += disk;
            usage.unused += if layers.contains(&diff_id) { 0 } else { disk };
        }
        for digest in self.digests("blobs/sha256")? {
            let size = self.blob_size(digest);
            usage.blobs += size;
            usage.unused += if blobs.contains(&digest) { 0 } else { size };
        }
        Ok(usage)
    }

    /// Removes what no image needs and nobody is making or using: layers, blobs, half-made things, names of nothing.
    pub fn prune(&self) -> Result<Freed, StoreError> {
        let mut freed = self.sweep_scratch(Parts::Too)?;
        let (layers, blobs) = needed(&self.records()?);
        for diff_id in self.digests("layers/sha256")?.into_iter().filter(|diff_id| !layers.contains(diff_id))
        {
            freed.add(self.sweep_layer(diff_id)?);
        }
        for digest in self.digests("blobs/sha256")?.into_iter().filter(|digest| !blobs.contains(digest)) {
            freed.add(self.sweep_blob(digest)?);
        }
        self.sweep_names()?;
        self.sweep_memory()?;
        self.sweep_locks()?;
        Ok(freed)
    }

    /// Removes what dead processes left half-made, apart from beginnings of blobs, with which a later try goes on.
    pub fn sweep(&self) -> Result<Freed, StoreError> {
        self.sweep_scratch(Parts::Stay)
    }

    /// Makes the store take at most so many bytes: first what no image needs, then compressed layers, then images,
    /// those not used for longest first. What is held stays, so the store may still take more afterwards.
    pub fn evict_to(&self, budget: u64, which: Evict) -> Result<Freed, StoreError> {
        let mut freed = Freed::default();
        if self.disk_usage()?.bytes() <= budget {
            return Ok(freed);
        }
        freed.add(self.prune()?);
        let mut candidates = self.by_age()?;
        candidates.retain(|(_, record)| which == Evict::Everything || record.repo_digests().next().is_some());
        for (_, record) in &candidates {
            for layer in record.manifests.iter().flat_map(|known| &known.layers) {
                if self.disk_usage()?.bytes() <= budget {
                    return Ok(freed);
                }
                if which == Evict::Everything || !self.is_blob_of_a_kept_image(layer.digest)? {
                    freed.add(self.evict_blob(layer.digest)?);
                }
            }
        }
        for (_, record) in &candidates {
            if self.disk_usage()?.bytes() <= budget {
                break;
            }
            match self.remove(record.config) {
                Ok(removed) => {
                    freed.images.push(record.config);
                    freed.add(removed.freed);
                }
                Err(StoreError::InUse { .. } | StoreError::NoImage(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(freed)
    }

    fn by_age(&self) -> Result<Vec<(SystemTime, ImageRecord)>, StoreError> {
        let aged = |record: ImageRecord| {
            let used = fs::metadata(self.image_path(record.config)).and_then(|meta| meta.modified());
            (used.unwrap_or(SystemTime::UNIX_EPOCH), record)
        };
        let mut records: Vec<_> = self.records()?.into_iter().map(aged).collect();
        records.sort_by_key(|(used, record)| (*used, record.config));
        Ok(records)
    }

    /// An image that cannot be fetched again keeps its bytes: they may be the only ones it can be exported from.
    fn is_blob_of_a_kept_image(&self, digest: Digest) -> Result<bool, StoreError> {
        let mut kept = self.records()?.into_iter().filter(|record| record.repo_digests().next().is_none());
        Ok(kept.any(|record| blobs_of(&record).any(|blob| blob == digest)))
    }

    /// What an image that is gone leaves.
    pub(super) fn sweep_parts_of(&self, record: &ImageRecord) -> Result<Freed, StoreError> {
        let mut freed = Freed::default();
        for diff_id in &record.diff_ids {
            freed.add(self.sweep_layer(*diff_id)?);
        }
        for digest in blobs_of(record) {
            freed.add(self.sweep_blob(digest)?);
        }
        Ok(freed)
    }

    /// Removes a layer, unless somebody uses it or an image needs it.
    fn sweep_layer(&self, diff_id: Digest) -> Result<Freed, StoreError> {
        let removing = self.lock(Thing::Records)?;
        let Some(lease) = self.try_lock(Thing::Layer(diff_id))? else { return Ok(Freed::default()) };
        if !self.layer_path(diff_id).exists() || self.is_layer_of_an_image(diff_id)? {
            return Ok(Freed::default());
        }
        let bytes = self.layer_record(diff_id)?.map_or(0, |record| record.disk);
        let gone = self.take_away(diff_id)?;
        drop(removing);
        let doing = || format!("remove the layer {diff_id}");
        remove_tree(&gone).doing(doing)?;
        lease.forget().doing(doing)?;
        Ok(Freed { layers: vec![diff_id], bytes, ..Freed::default() })
    }

    fn sweep_blob(&self, digest: Digest) -> Result<Freed, StoreError> {
        let is_needed = || Ok(needed(&self.records()?).1.contains(&digest));
        self.remove_blob(digest, is_needed)
    }

    fn evict_blob(&self, digest: Digest) -> Result<Freed, StoreError> {
        // A document that calls itself a layer is still a document.
        let is_document = || {
            let named = |record: &ImageRecord| {
                record.config == digest
                    || record.manifests.iter().any(|known| known.manifest.digest == digest)
            };
            Ok(self.records()?.iter().any(named))
        };
        self.remove_blob(digest, is_document)
    }

    fn remove_blob(
        &self,
        digest: Digest,
        is_kept: impl Fn() -> Result<bool, StoreError>,
    ) -> Result<Freed, StoreError> {
        let _removing = self.lock(Thing::Records)?;
        let Some(lease) = self.try_lock(Thing::Blob(digest))? else { return Ok(Freed::default()) };
        let path = self.blob_path(digest);
        if !path.exists() || is_kept()? {
            return Ok(Freed::default());
        }
        let bytes = self.blob_size(digest);
        let doing = || format!("remove the blob {digest}");
        unless_gone(fs::remove_file(path)).doing(doing)?;
        lease.forget().doing(doing)?;
        Ok(Freed { blobs: vec![digest], bytes, ..Freed::default() })
    }

    /// Removes what dead processes left half-made.
    pub(super) fn sweep_scratch(&self, parts: Parts) -> Result<Freed, StoreError> {
        let mut freed = Freed::default();
        for file in self.file_names("scratch")? {
            let is_part = file.ends_with(".part") && file.starts_with("blob-");
            let key = file.strip_suffix(".part").or(file.strip_suffix(".gone")).unwrap_or(&file);
            let key = if file == "record" { "records" } else { key };
            if is_part && parts == Parts::Stay {
                continue;
            }
            // What has no owner that could be asked is nobody's.
            let lease = match Thing::from_key(key).map(|thing| self.try_lock(thing)).transpose()? {
                Some(None) => continue,
                lease => lease.flatten(),
            };
            let path = self.scratch(&file);
            let doing = || format!("remove {}", path.display());
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if meta.is_dir() {
                remove_tree(&path).doing(doing)?;
            } else {
                unless_gone(fs::remove_file(&path)).doing(doing)?;
                freed.bytes += meta.len();
            }
            freed.scraps += 1;
            drop(lease);
        }
        Ok(freed)
    }

    fn sweep_names(&self) -> Result<(), StoreError> {
        let _writing = self.lock(Thing::Records)?;
        for (path, name) in self.names()? {
            if name.is_none_or(|name| !self.image_path(name.image).exists()) {
                self.remove_record(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the locks of things that are not there.
    pub(super) fn sweep_locks(&self) -> Result<(), StoreError> {
        for key in self.file_names("locks")? {
            let there = match Thing::from_key(&key) {
                Some(Thing::Blob(digest)) => self.blob_path(digest).exists(),
                Some(Thing::Layer(diff_id)) => self.layer_path(diff_id).exists(),
                Some(Thing::Image(image)) => self.image_path(image).exists(),
                Some(Thing::Fresh(_)) => false,
                Some(Thing::Records) | None => true,
            };
            if there {
                continue;
            }
            if let Some(lease) =
                Thing::from_key(&key).map(|thing| self.try_lock(thing)).transpose()?.flatten()
            {
                lease.forget().doing(|| format!("remove the lock {key}"))?;
            }
        }
        Ok(())
    }

    pub(super) fn digests(&self, folder: &str) -> Result<Vec<Digest>, StoreError> {
        Ok(self.file_names(folder)?.iter().filter_map(|name| Digest::from_hex(name)).collect())
    }

    fn blob_size(&self, digest: Digest) -> u64 {
        fs::metadata(self.blob_path(digest)).map_or(0, |meta| meta.len())
    }
}

/// Whether beginnings of blobs, which a later try could go on with, are swept too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    Too,
    Stay,
}

pub(super) fn blobs_of(record: &ImageRecord) -> impl Iterator<Item = Digest> {
    let manifests = record.manifests.iter();
    let named =
        manifests.flat_map(|known| known.layers.iter().chain([&known.manifest]).map(|blob| blob.digest));
    named.chain([record.config])
}

/// The layers and blobs that images name.
fn needed(records: &[ImageRecord]) -> (BTreeSet<Digest>, BTreeSet<Digest>) {
    let layers = records.iter().flat_map(|record| record.diff_ids.iter().copied()).collect();
    (layers, records.iter().flat_map(blobs_of).collect())
}

//! The check: everything in the store against what it should be, and what can be mended is.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use belljar_cell::cell::Guest;
use belljar_cell::failure::Step;
use belljar_cell::remove::remove_tree;

use super::blob::Blob;
use super::failure::{Doing, StoreError};
use super::image::ImageRecord;
use super::layer::{SUMS, TREE};
use super::lock::Thing;
use super::space::Parts;
use super::sum::{self, Reading};
use super::{DOCUMENT_LIMIT, Mapped, Notice, Store, read_bounded};
use crate::digest::{Digest, Hashed};

/// The sums of a tree are not larger.
const SUMS_LIMIT: u64 = 4 << 30;

/// How closely is looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Kinds, modes, owners, sizes, times and numbers of files; documents whole.
    Quick,
    /// And every byte.
    Deep,
}

/// What happens to damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    /// It is told.
    No,
    /// It is mended or removed.
    Yes,
}

/// Damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is damaged.
    pub what: String,
    /// How.
    pub trouble: String,
    /// What was done about it.
    pub cure: Cure,
}

/// What was done about damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// Nothing; nothing was asked for.
    None,
    /// It was made again from what is in the store.
    Mended,
    /// It was removed.
    Removed,
    /// It is in use and cannot be touched now.
    InUse,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Blobs that were looked at.
    pub blobs: u64,
    /// Layers that were looked at.
    pub layers: u64,
    /// Images that were looked at.
    pub images: u64,
    /// Half-made things of processes that are gone, which were removed. They are no damage.
    pub scraps: u64,
    /// What is damaged.
    pub findings: Vec<Finding>,
    /// Images that are not whole and must be fetched or imported again, by name where they have one.
    pub fetch_again: Vec<String>,
}

impl Report {
    /// Nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn add(&mut self, what: String, trouble: String, cure: Cure) {
        self.findings.push(Finding { what, trouble, cure });
    }
}

impl Store {
    /// Checks the store. What other processes make meanwhile is left alone.
    pub fn fsck(&self, depth: Depth, mend: Mend) -> Result<Report, StoreError> {
        let mut report = Report { scraps: self.sweep_scratch(Parts::Stay)?.scraps, ..Report::default() };
        self.check_documents(mend, &mut report)?;
        for digest in self.digests("blobs/sha256")? {
            self.check_blob(digest, depth, mend, &mut report)?;
        }
        let mut layers = self.digests("layers/sha256")?;
        layers.extend(self.records()?.into_iter().flat_map(|record| record.diff_ids));
        layers.sort_unstable();
        layers.dedup();
        for diff_id in layers {
            self.check_layer(diff_id, depth, mend, &mut report)?;
        }
        if mend == Mend::Yes {
            self.sweep_locks()?;
        }
        Ok(report)
    }

    /// Records, configurations and manifests.
    fn check_documents(&self, mend: Mend, report: &mut Report) -> Result<(), StoreError> {
        for file in self.file_names("images")? {
            let path = self.folder.join("images").join(&file);
            report.images += 1;
            match self.read_json::<ImageRecord>(&path) {
                Ok(Some(record)) => self.check_image(&record, mend, report)?,
                Ok(None) => report.images -= 1,
                Err(StoreError::Damaged { reason, .. }) => {
                    let cure = self.remove_damaged(&path, mend)?;
                    report.fetch_again.push(format!("sha256:{}", file.trim_end_matches(".json")));
                    report.add(format!("the record {file} of an image"), reason, cure);
                }
                Err(error) => return Err(error),
            }
        }
        for (path, name) in self.names()? {
            if name.is_none() {
                let cure = self.remove_damaged(&path, mend)?;
                report.add(format!("the name {}", path.display()), "it cannot be read".to_owned(), cure);
            }
        }
        Ok(())
    }

    fn check_image(&self, record: &ImageRecord, mend: Mend, report: &mut Report) -> Result<(), StoreError> {
        let documents = record.manifests.iter().map(|known| known.manifest.digest).chain([record.config]);
        for digest in documents {
            let found = read_bounded(&self.blob_path(digest), DOCUMENT_LIMIT);
            if found.is_ok_and(|bytes| Digest::of(&bytes) == digest) {
                continue;
            }
            if !self.image_path(record.config).exists() {
                return Ok(());
            }
            let cure = self.give_up(record, mend, report)?;
            let trouble = format!("its document {digest} is missing or not what it was");
            report.add(format!("the image {}", record.config), trouble, cure);
            return Ok(());
        }
        Ok(())
    }

    /// An image that is not whole: it is to be fetched again, and is no image until then.
    fn give_up(&self, record: &ImageRecord, mend: Mend, report: &mut Report) -> Result<Cure, StoreError> {
        let names = self.names()?.into_iter().filter_map(|(_, name)| name);
        let mut names: Vec<String> =
            names.filter(|name| name.image == record.config).map(|name| name.name).collect();
        names.extend(record.repo_digests().map(str::to_owned));
        names.push(record.config.to_string());
        names.truncate(1);
        report
            .fetch_again
            .extend(names.into_iter().filter(|name| !report.fetch_again.contains(name)).collect::<Vec<_>>());
        if mend == Mend::No {
            return Ok(Cure::None);
        }
        let _writing = self.lock(Thing::Records)?;
        let Some(_alone) = self.try_lock(Thing::Image(record.config))? else { return Ok(Cure::InUse) };
        self.remove_record(&self.image_path(record.config)).map(|()| Cure::Removed)
    }

    fn remove_damaged(&self, path: &Path, mend: Mend) -> Result<Cure, StoreError> {
        if mend == Mend::No {
            return Ok(Cure::None);
        }
        let _writing = self.lock(Thing::Records)?;
        self.remove_record(path).map(|()| Cure::Removed)
    }

    fn check_blob(
        &self,
        digest: Digest,
        depth: Depth,
        mend: Mend,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        let held = self.share(Thing::Blob(digest), &|_: Notice| {})?;
        let Some(file) = self.blob(digest)? else { return Ok(()) };
        report.blobs += 1;
        let trouble = match depth {
            Depth::Quick => self.wrong_length(digest, &file)?,
            Depth::Deep => {
                let mut hash = Hashed::new(io::sink());
                io::copy(&mut &file, &mut hash).doing(|| format!("read the blob {digest}"))?;
                (hash.finish().0 != digest).then(|| "its content is not what its name says".to_owned())
            }
        };
        drop(held);
        let Some(trouble) = trouble else { return Ok(()) };
        let cure = match mend {
            Mend::No => Cure::None,
            Mend::Yes => match self.drop_blob(digest) {
                Err(StoreError::InUse { .. }) => Cure::InUse,
                dropped => dropped.map(|()| Cure::Removed)?,
            },
        };
        report.add(format!("the blob {digest}"), trouble, cure);
        Ok(())
    }

    fn wrong_length(&self, digest: Digest, file: &File) -> Result<Option<String>, StoreError> {
        let length = file.metadata().doing(|| format!("look at the blob {digest}"))?.len();
        let records = self.records()?;
        let manifests = records.iter().flat_map(|record| &record.manifests);
        let mut known = manifests.flat_map(|known| known.layers.iter().chain([&known.manifest]));
        let expected = known.find(|blob| blob.digest == digest).map(|blob| blob.size);
        let wrong = expected.filter(|expected| *expected != length);
        Ok(wrong.map(|expected| format!("it has {length} bytes, and should have {expected}")))
    }

    fn check_layer(
        &self,
        diff_id: Digest,
        depth: Depth,
        mend: Mend,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        let held = self.share(Thing::Layer(diff_id), &|_: Notice| {})?;
        let is_needed = self.is_layer_of_an_image(diff_id)?;
        if !is_needed && !self.layer_path(diff_id).exists() {
            return Ok(());
        }
        report.layers += 1;
        let trouble = self.damage_of(diff_id, depth)?;
        drop(held);
        let Some(trouble) = trouble else { return Ok(()) };
        let cure = match mend {
            Mend::No if !self.compressed(diff_id)?.is_empty() => Cure::None,
            Mend::No => self.give_up_layer(diff_id, mend, report)?,
            Mend::Yes => self.mend_layer(diff_id, report)?,
        };
        report.add(format!("the layer {diff_id}"), trouble, cure);
        Ok(())
    }

    fn damage_of(&self, diff_id: Digest, depth: Depth) -> Result<Option<String>, StoreError> {
        let Some(record) = self.layer_record(diff_id)? else { return Ok(Some("it is missing".to_owned())) };
        let folder = self.layer_path(diff_id);
        let sums = read_bounded(&folder.join(SUMS), SUMS_LIMIT).unwrap_or_default();
        if Digest::of(&sums) != record.sums {
            return Ok(Some("the sums of its files are not what they were".to_owned()));
        }
        let reading = match depth {
            Depth::Quick => Reading::Looks,
            Depth::Deep => Reading::Contents,
        };
        let tree = folder.join(TREE);
        let compare = || sum::of_tree(&tree, reading).map(|found| found.difference(&sums, reading));
        let compared = match (&self.mapped, record.guest) {
            (_, None) => compare().map_err(|error| error.to_string()),
            // Its owners have the numbers that they have inside.
            (Some(Mapped { lobby, guest }), Some(made_for)) => {
                let guest = Guest { uid: made_for.0, gid: made_for.1, ..guest.clone() };
                let compared = lobby.run_as_in_cell(&guest, || compare().step(|| "look at it".to_owned()));
                compared.map_err(|failure| failure.to_string())
            }
            (None, Some(_)) => Err("they belong to subordinate ids, which cannot be used now".to_owned()),
        };
        Ok(compared.unwrap_or_else(|reason| Some(format!("its files cannot be read: {reason}"))))
    }

    /// The compressed bytes of a layer that are in the store, whichever image they came with.
    pub(crate) fn compressed(&self, diff_id: Digest) -> Result<Vec<crate::oci::Descriptor>, StoreError> {
        let mut found: Vec<crate::oci::Descriptor> = Vec::new();
        for record in self.records()? {
            for known in &record.manifests {
                let pairs = record.diff_ids.iter().zip(&known.layers);
                let blobs = pairs.filter(|(layer, _)| **layer == diff_id).map(|(_, blob)| blob);
                for blob in blobs {
                    let known_already = found.iter().any(|other| other.digest == blob.digest);
                    if !known_already && self.has_blob(blob.digest, blob.size)? {
                        found.push(blob.clone());
                    }
                }
            }
        }
        Ok(found)
    }

    fn mend_layer(&self, diff_id: Digest, report: &mut Report) -> Result<Cure, StoreError> {
        let made = self.scratch(&Thing::Layer(diff_id).key());
        {
            // Sandboxes hold images, so a layer is free when it and all its images are.
            let images = self.records()?.into_iter().filter(|record| record.diff_ids.contains(&diff_id));
            let things = images.map(|record| Thing::Image(record.config)).chain([Thing::Layer(diff_id)]);
            let alone = things.map(|thing| self.try_lock(thing)).collect::<Result<Vec<_>, _>>()?;
            let alone: Option<Vec<_>> = alone.into_iter().collect();
            let Some(_alone) = alone else { return Ok(Cure::InUse) };
            let doing = || format!("mend the layer {diff_id}");
            for blob in self.compressed(diff_id)? {
                remove_tree(&made).doing(doing)?;
                let lease = self.share(Thing::Blob(blob.digest), &|_: Notice| {})?;
                let blob = Blob { digest: blob.digest, size: blob.size, lease };
                if self.unpack_blob(&blob, diff_id, &made).is_ok() {
                    let gone = self.take_away(diff_id)?;
                    fs::rename(&made, self.layer_path(diff_id)).doing(doing)?;
                    remove_tree(&gone).doing(doing)?;
                    self.sync()?;
                    return Ok(Cure::Mended);
                }
            }
            remove_tree(&made).doing(doing)?;
            let gone = self.take_away(diff_id)?;
            remove_tree(&gone).doing(doing)?;
        }
        self.give_up_layer(diff_id, Mend::Yes, report)
    }

    fn give_up_layer(&self, diff_id: Digest, mend: Mend, report: &mut Report) -> Result<Cure, StoreError> {
        let mut cure = if mend == Mend::Yes { Cure::Removed } else { Cure::None };
        for record in self.records()?.iter().filter(|record| record.diff_ids.contains(&diff_id)) {
            if self.give_up(record, mend, report)? == Cure::InUse {
                cure = Cure::InUse;
            }
        }
        Ok(cure)
    }
}

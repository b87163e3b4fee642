//! Layers: folders that were unpacked once, named by what they were unpacked from.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_cell::remove::remove_tree;
use serde::{Deserialize, Serialize};

use super::blob::{Begun, Blob, BlobWriter};
use super::failure::{Doing, StoreError};
use super::lock::{Lease, Thing, Turn};
use super::stream::Kept;
use super::{FORMAT, Mapped, Notice, Owners, Store, Watch, read_bounded, unless_gone};
use crate::digest::{Digest, Hashed};
use crate::oci::Descriptor;
use crate::unpack::{self, Limits, Options, Unpacked};

pub(super) const RECORD: &str = "layer.json";
pub(super) const SUMS: &str = "tree.sum";
pub(super) const TREE: &str = "tree";

/// Whose the files of a layer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// As the layer says.
    Exact,
    /// All the caller's, who stands for root; the layer names nobody but root.
    AllRoot,
    /// All the caller's, though the layer names others.
    Squashed,
}

/// What is written down about a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// The format of this file.
    pub format: u32,
    /// The name of the archive, not compressed.
    pub diff_id: Digest,
    /// The archive's length.
    pub bytes: u64,
    /// Entries of the archive.
    pub entries: u64,
    /// What the tree takes on the disk.
    pub disk: u64,
    /// Whose the files are.
    pub ownership: Ownership,
    /// It hides all layers below it.
    #[serde(default)]
    pub opaque: bool,
    /// For which user and group inside it was unpacked, where its owners are an ordinary user's subordinate ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<(u32, u32)>,
    /// The name of `tree.sum`.
    pub sums: Digest,
    /// When the machine last started; a layer of no image is trusted only until the next start, because it may not
    /// have reached the disk.
    pub boot: String,
}

/// A layer that is there and stays while this is held.
#[derive(Debug)]
pub struct Layer {
    /// Its folder of files.
    pub tree: PathBuf,
    /// What is known of it.
    pub record: LayerRecord,
    lease: Lease,
    /// Its compressed bytes, where they came with it: they stay at least until an image names them.
    _blob: Option<Blob>,
}

impl Layer {
    /// The hold on it, to be handed on.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Store {
    /// Adds a layer, unpacked while it comes and checked against both of its names. `open` is called only when the
    /// layer has to be fetched, with the number of bytes that are there from an earlier try; it returns the rest.
    pub fn add_layer<R: Read + Send>(
        &self,
        content: &Descriptor,
        diff_id: Digest,
        open: impl FnOnce(u64) -> io::Result<R>,
        watch: Watch<'_>,
    ) -> Result<Layer, StoreError> {
        let layer = match self.turn(Thing::Layer(diff_id), || self.has_layer(diff_id), watch)? {
            Turn::There(lease) => self.layer_at(diff_id, lease, None),
            Turn::Ours(lease) => {
                watch(Notice::Unpacking(diff_id));
                let blob = self.make_layer(content, diff_id, open, watch)?;
                self.settle(lease).and_then(|lease| self.layer_at(diff_id, lease, Some(blob)))
            }
        }?;
        watch(Notice::There(diff_id));
        Ok(layer)
    }

    /// Adds a layer of which nothing is known yet.
    pub fn add_unknown_layer(
        &self,
        source: impl Read + Send,
        watch: Watch<'_>,
    ) -> Result<(Blob, Layer), StoreError> {
        let thing = Thing::Fresh(random()?);
        let lease = self.lock(thing)?;
        let (part, made) = (self.part_path(thing), self.scratch(&thing.key()));
        let added = self.unpack_unknown(source, &part, &made).and_then(|(digest, size, record)| {
            let blob = self.place_blob(&part, digest, size, watch)?;
            let layer = self.place_layer(&made, record.diff_id, watch)?;
            Ok((blob, layer))
        });
        let doing = || format!("clear {}", part.display());
        unless_gone(fs::remove_file(&part)).doing(doing)?;
        remove_tree(&made).doing(doing)?;
        lease.forget().doing(doing)?;
        added
    }

    /// A layer that is in the store, held.
    pub fn layer(&self, diff_id: Digest, watch: Watch<'_>) -> Result<Option<Layer>, StoreError> {
        let lease = self.share(Thing::Layer(diff_id), watch)?;
        if !self.has_layer(diff_id)? {
            return Ok(None);
        }
        self.layer_at(diff_id, lease, None).map(Some)
    }

    fn layer_at(&self, diff_id: Digest, lease: Lease, blob: Option<Blob>) -> Result<Layer, StoreError> {
        let record = self.layer_record(diff_id)?.ok_or(StoreError::NoLayer(diff_id))?;
        Ok(Layer { tree: self.tree_path(diff_id), record, lease, _blob: blob })
    }

    pub(super) fn tree_path(&self, diff_id: Digest) -> PathBuf {
        self.layer_path(diff_id).join(TREE)
    }

    /// What is written down about a layer; nothing where it is not there or not to be read.
    pub(super) fn layer_record(&self, diff_id: Digest) -> Result<Option<LayerRecord>, StoreError> {
        let path = self.layer_path(diff_id).join(RECORD);
        match read_bounded(&path, super::DOCUMENT_LIMIT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing(|| format!("read {}", path.display())),
            Ok(bytes) => {
                let record: Option<LayerRecord> = serde_json::from_slice(&bytes).ok();
                Ok(record.filter(|record| record.format <= FORMAT && record.diff_id == diff_id))
            }
        }
    }

    fn has_layer(&self, diff_id: Digest) -> Result<bool, StoreError> {
        let Some(record) = self.layer_record(diff_id)? else { return Ok(false) };
        let squashed = record.ownership == Ownership::Squashed && self.owners != Owners::Squash;
        if squashed || record.guest != self.guest() {
            // What no image has is made again; the files of a sandbox are not taken from under it.
            return match self.is_layer_of_an_image(diff_id)? || squashed {
                true => Err(StoreError::OtherOwners(diff_id)),
                false => Ok(false),
            };
        }
        Ok((record.boot == boot() && !record.boot.is_empty()) || self.is_layer_of_an_image(diff_id)?)
    }

    fn make_layer<R: Read + Send>(
        &self,
        content: &Descriptor,
        diff_id: Digest,
        open: impl FnOnce(u64) -> io::Result<R>,
        watch: Watch<'_>,
    ) -> Result<Blob, StoreError> {
        let made = self.scratch(&Thing::Layer(diff_id).key());
        // What lies here was made by somebody who died.
        remove_tree(&made).doing(|| format!("clear {}", made.display()))?;
        let result = self.fetch_layer(content, diff_id, &made, open, watch);
        if result.is_err() {
            remove_tree(&made).doing(|| format!("clear {}", made.display()))?;
            return result;
        }
        self.clear_place(diff_id)?;
        fs::rename(&made, self.layer_path(diff_id)).doing(|| format!("store the layer {diff_id}"))?;
        result
    }

    fn fetch_layer<R: Read + Send>(
        &self,
        content: &Descriptor,
        diff_id: Digest,
        made: &Path,
        open: impl FnOnce(u64) -> io::Result<R>,
        watch: Watch<'_>,
    ) -> Result<Blob, StoreError> {
        let begun = match self.begin_blob(content, watch)? {
            Begun::There(blob) => match self.unpack_blob(&blob, diff_id, made) {
                Ok(()) => return Ok(blob),
                Err(StoreError::WrongContent { .. }) => {
                    drop(blob);
                    self.drop_blob(content.digest)?;
                    remove_tree(made).doing(|| format!("clear {}", made.display()))?;
                    self.begin_blob(content, watch)?
                }
                Err(error) => return Err(error),
            },
            writing => writing,
        };
        match begun {
            Begun::There(blob) => self.unpack_blob(&blob, diff_id, made).map(|()| blob),
            Begun::Writing(writer) => self.unpack_stream(writer, diff_id, made, open),
        }
    }

    /// Unpacks from a blob that is in the store, which is checked anew.
    pub(super) fn unpack_blob(&self, blob: &Blob, diff_id: Digest, made: &Path) -> Result<(), StoreError> {
        let file =
            self.blob(blob.digest)?.ok_or_else(|| StoreError::InUse { what: blob.digest.to_string() })?;
        let mut source = Hashed::new(file);
        let unpacked = self.unpack_tree(&mut source, made);
        io::copy(&mut source, &mut io::sink()).doing(|| format!("read the blob {}", blob.digest))?;
        let (found, found_size, _) = source.finish();
        if found != blob.digest {
            let (expected, expected_size) = (blob.digest, blob.size);
            return Err(StoreError::WrongContent { expected, expected_size, found, found_size });
        }
        self.write_layer(made, &unpacked?, Some(diff_id)).map(drop)
    }

    fn unpack_stream<R: Read + Send>(
        &self,
        mut writer: BlobWriter<'_>,
        diff_id: Digest,
        made: &Path,
        open: impl FnOnce(u64) -> io::Result<R>,
    ) -> Result<Blob, StoreError> {
        let doing = || format!("read the layer {diff_id}");
        let written = writer.written();
        let fresh = open(written).doing(doing)?;
        if writer.is_called(diff_id) {
            // Both names are of the same bytes, and the unpacking finds out one of them.
            writer.leave_hashing();
        }
        let mut source = Kept::new(writer.earlier().doing(doing)?, fresh, writer);
        let unpacked = self.unpack_tree(&mut source, made);
        if source.broken.is_none() {
            // An archive may end before its stream does.
            let _ = io::copy(&mut source, &mut io::sink());
        }
        if let Some(error) = source.broken {
            return Err(error).doing(doing);
        }
        // What was sent wrongly is told as that, whatever the unpacking made of it.
        let blob = match &unpacked {
            Ok(unpacked) if unpacked.is_whole_of(source.copy.written()) => {
                source.copy.commit_read(unpacked.diff_id)?
            }
            _ => source.copy.commit()?,
        };
        self.write_layer(made, &unpacked?, Some(diff_id)).map(|_| blob)
    }

    fn unpack_unknown(
        &self,
        source: impl Read + Send,
        part: &Path,
        made: &Path,
    ) -> Result<(Digest, u64, LayerRecord), StoreError> {
        let doing = || "read the archive".to_owned();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(part).doing(doing)?;
        let none = File::open("/dev/null").doing(doing)?.take(0);
        let mut source = Kept::new(none, source, Hashed::new(file));
        let unpacked = self.unpack_tree(&mut source, made);
        if let Some(error) = source.broken {
            return Err(error).doing(doing);
        }
        let unpacked = unpacked?;
        io::copy(&mut source, &mut io::sink()).doing(doing)?;
        let (digest, size, _) = source.copy.finish();
        Ok((digest, size, self.write_layer(made, &unpacked, None)?))
    }

    /// The one place where a stranger's archive becomes files.
    fn unpack_tree(&self, source: &mut (impl Read + Send), made: &Path) -> Result<Unpacked, StoreError> {
        let tree = made.join(TREE);
        let doing = || format!("make {}", tree.display());
        let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        private(made).and_then(|()| DirBuilder::new().mode(0o755).create(&tree)).doing(doing)?;
        let folder = File::open(&tree).doing(doing)?;
        let limits = Limits::default();
        let unpacked = match &self.mapped {
            Some(Mapped { lobby, guest }) => {
                unpack::unpack_mapped(source, folder.as_fd(), &limits, (lobby, guest))
            }
            None => unpack::unpack(source, folder.as_fd(), &Options { ownership: self.owners, limits }),
        };
        unpacked.map_err(StoreError::from)
    }

    /// Writes down what was unpacked, beside it.
    fn write_layer(
        &self,
        made: &Path,
        unpacked: &Unpacked,
        expected: Option<Digest>,
    ) -> Result<LayerRecord, StoreError> {
        let found = unpacked.diff_id;
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(StoreError::WrongLayer { expected, found });
        }
        let doing = || format!("write {}", made.display());
        let record = LayerRecord {
            format: FORMAT,
            diff_id: found,
            bytes: unpacked.bytes,
            entries: unpacked.entries,
            disk: unpacked.disk,
            ownership: self.ownership(unpacked),
            opaque: unpacked.opaque,
            guest: self.guest(),
            sums: Digest::of(unpacked.sums.as_bytes()),
            boot: boot(),
        };
        fs::write(made.join(SUMS), &unpacked.sums).doing(doing)?;
        let json = serde_json::to_vec(&record).map_err(io::Error::from).doing(doing)?;
        fs::write(made.join(RECORD), json).doing(doing)?;
        Ok(record)
    }

    fn ownership(&self, unpacked: &Unpacked) -> Ownership {
        match self.owners {
            _ if self.mapped.is_some() => Ownership::Exact,
            Owners::Exact => Ownership::Exact,
            Owners::Refuse => Ownership::AllRoot,
            Owners::Squash if unpacked.owners.entries == 0 => Ownership::AllRoot,
            Owners::Squash => Ownership::Squashed,
        }
    }

    fn place_blob(
        &self,
        part: &Path,
        digest: Digest,
        size: u64,
        watch: Watch<'_>,
    ) -> Result<Blob, StoreError> {
        let lease = match self.turn(Thing::Blob(digest), || self.has_blob(digest, size), watch)? {
            Turn::There(lease) => lease,
            Turn::Ours(lease) => {
                fs::rename(part, self.blob_path(digest)).doing(|| format!("store the blob {digest}"))?;
                self.settle(lease)?
            }
        };
        Ok(Blob { digest, size, lease })
    }

    fn place_layer(&self, made: &Path, diff_id: Digest, watch: Watch<'_>) -> Result<Layer, StoreError> {
        let lease = match self.turn(Thing::Layer(diff_id), || self.has_layer(diff_id), watch)? {
            Turn::There(lease) => lease,
            Turn::Ours(lease) => {
                self.clear_place(diff_id)?;
                fs::rename(made, self.layer_path(diff_id)).doing(|| format!("store the layer {diff_id}"))?;
                self.settle(lease)?
            }
        };
        self.layer_at(diff_id, lease, None)
    }

    /// Removes what lies in a layer's place; the caller has the layer alone.
    fn clear_place(&self, diff_id: Digest) -> Result<(), StoreError> {
        let gone = self.take_away(diff_id)?;
        remove_tree(&gone).doing(|| format!("remove the layer {diff_id}"))
    }

    /// Moves a layer out of its place, to be removed; the caller has the layer alone.
    pub(super) fn take_away(&self, diff_id: Digest) -> Result<PathBuf, StoreError> {
        let gone = self.scratch(&format!("{}.gone", Thing::Layer(diff_id).key()));
        let doing = || format!("remove the layer {diff_id}");
        remove_tree(&gone).doing(doing)?;
        unless_gone(fs::rename(self.layer_path(diff_id), &gone)).doing(doing)?;
        Ok(gone)
    }
}

/// Which start of the machine this is.
pub(super) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

pub(super) fn random() -> Result<u64, StoreError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .doing(|| "get random bytes".to_owned())?;
    Ok(u64::from_ne_bytes(bytes))
}

//! Blobs: content that is its name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::failure::{Doing, StoreError};
use super::lock::{Lease, Thing, Turn};
use super::{Store, Watch, unless_gone};
use crate::digest::{Digest, Hashed};
use crate::oci::Descriptor;

/// A blob that is there and stays while this is held.
#[derive(Debug)]
pub struct Blob {
    /// Its name.
    pub digest: Digest,
    /// Its length.
    pub size: u64,
    pub(super) lease: Lease,
}

impl Blob {
    /// The hold on it, to be handed on.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

/// What a writer of a blob begins with.
#[derive(Debug)]
pub enum Begun<'store> {
    /// It is there already.
    There(Blob),
    /// It is to be written.
    Writing(BlobWriter<'store>),
}

/// A blob that is being written; what was written before a crash is still there, see [`BlobWriter::written`].
#[derive(Debug)]
pub struct BlobWriter<'store> {
    store: &'store Store,
    lease: Lease,
    part: PathBuf,
    file: File,
    length: u64,
    /// Nothing where somebody else hashes what is written.
    hash: Option<Summer>,
    digest: Digest,
    size: u64,
}

/// Counts and hashes.
pub(super) struct Summer(pub(super) Hashed<io::Sink>);

impl std::fmt::Debug for Summer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {} bytes", self.0.bytes())
    }
}

impl Store {
    /// The bytes of a blob. They are not hashed here: who depends on them hashes them as they pass.
    pub fn blob(&self, digest: Digest) -> Result<Option<File>, StoreError> {
        match File::open(self.blob_path(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.doing(|| format!("open the blob {digest}")).map(Some),
        }
    }

    /// Begins to write a blob, or finds that it is there. Waits for another process that writes it.
    pub fn begin_blob(&self, content: &Descriptor, watch: Watch<'_>) -> Result<Begun<'_>, StoreError> {
        let (digest, size) = (content.digest, content.size);
        match self.turn(Thing::Blob(digest), || self.has_blob(digest, size), watch)? {
            Turn::There(lease) => Ok(Begun::There(Blob { digest, size, lease })),
            Turn::Ours(lease) => {
                let part = self.part_path(Thing::Blob(digest));
                let (file, hash) = open_part(&part, size).doing(|| format!("write {}", part.display()))?;
                let (length, hash) = (hash.0.bytes(), Some(hash));
                Ok(Begun::Writing(BlobWriter { store: self, lease, part, file, length, hash, digest, size }))
            }
        }
    }

    /// Stores a small document.
    pub fn put_bytes(&self, bytes: &[u8], watch: Watch<'_>) -> Result<Blob, StoreError> {
        let (digest, size) = (Digest::of(bytes), bytes.len() as u64);
        let content = Descriptor {
            media_type: String::new(),
            digest,
            size,
            platform: None,
            annotations: std::collections::BTreeMap::new(),
        };
        match self.begin_blob(&content, watch)? {
            Begun::There(blob) => {
                // A loss of power may have left anything under this name, and this costs nothing.
                if super::read_bounded(&self.blob_path(digest), size).ok().as_deref() == Some(bytes) {
                    return Ok(blob);
                }
                drop(blob);
                self.drop_blob(digest)?;
                self.put_bytes(bytes, watch)
            }
            Begun::Writing(mut writer) => {
                let doing = || format!("write the blob {digest}");
                writer.restart().doing(doing)?;
                writer.write_all(bytes).doing(doing)?;
                writer.commit()
            }
        }
    }

    /// Takes a blob that is not what it says out of the store.
    pub(super) fn drop_blob(&self, digest: Digest) -> Result<(), StoreError> {
        let thing = Thing::Blob(digest);
        let _removing = self.lock(Thing::Records)?;
        let Some(lease) = self.try_lock(thing)? else {
            return Err(StoreError::InUse { what: format!("the blob {digest}") });
        };
        let doing = || format!("remove the blob {digest}");
        unless_gone(fs::remove_file(self.blob_path(digest))).doing(doing)?;
        unless_gone(fs::remove_file(self.part_path(thing))).doing(doing)?;
        lease.forget().doing(doing)
    }

    /// One of another length is damaged, and counts as not there.
    pub(super) fn has_blob(&self, digest: Digest, size: u64) -> Result<bool, StoreError> {
        match fs::metadata(self.blob_path(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            meta => Ok(meta.doing(|| format!("look at the blob {digest}"))?.len() == size),
        }
    }

    pub(super) fn part_path(&self, thing: Thing) -> PathBuf {
        self.scratch(&format!("{}.part", thing.key()))
    }
}

/// Opens what was written before and hashes it again; what is too long was not ours.
pub(super) fn open_part(part: &std::path::Path, size: u64) -> io::Result<(File, Summer)> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(part)?;
    let mut hash = Hashed::new(io::sink());
    if file.metadata()?.len() > size {
        file.set_len(0)?;
    }
    io::copy(&mut file, &mut hash)?;
    Ok((file, Summer(hash)))
}

fn hash_of(path: &std::path::Path) -> io::Result<Digest> {
    let mut hash = Hashed::new(io::sink());
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hash.finish().0)
}

impl BlobWriter<'_> {
    /// How many bytes are there from an earlier try; the next ones are expected to follow them.
    pub fn written(&self) -> u64 {
        self.length
    }

    pub(super) fn is_called(&self, digest: Digest) -> bool {
        self.digest == digest
    }

    /// What is written from now on is hashed by who reads it again; see [`BlobWriter::commit_read`].
    pub(super) fn leave_hashing(&mut self) {
        self.hash = None;
    }

    /// What is there from an earlier try, to be read.
    pub(super) fn earlier(&self) -> io::Result<io::Take<File>> {
        Ok(File::open(&self.part)?.take(self.written()))
    }

    /// Throws away what is there from an earlier try.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.length = 0;
        self.hash = self.hash.as_ref().map(|_| Summer(Hashed::new(io::sink())));
        Ok(())
    }

    /// Reads all the rest of the blob.
    pub fn fill(&mut self, source: &mut impl Read) -> io::Result<u64> {
        io::copy(source, self)
    }

    /// Puts the blob into its place, if it is what it should be. What is too short is kept for the next try; what is
    /// wrong is not.
    pub fn commit(mut self) -> Result<Blob, StoreError> {
        let found = match self.hash.take() {
            Some(hash) => hash.0.finish().0,
            None => hash_of(&self.part).doing(|| format!("read {}", self.part.display()))?,
        };
        self.commit_read(found)
    }

    /// The same for who has read everything that is written, and says what its name is.
    pub(super) fn commit_read(self, found: Digest) -> Result<Blob, StoreError> {
        let (digest, size, found_size) = (self.digest, self.size, self.length);
        if (found, found_size) != (digest, size) {
            if found_size >= size {
                unless_gone(fs::remove_file(&self.part))
                    .doing(|| format!("remove {}", self.part.display()))?;
            }
            return Err(StoreError::WrongContent {
                expected: digest,
                expected_size: size,
                found,
                found_size,
            });
        }
        let doing = || format!("store the blob {digest}");
        fs::rename(&self.part, self.store.blob_path(digest)).doing(doing)?;
        Ok(Blob { digest, size, lease: self.store.settle(self.lease)? })
    }
}

impl Write for BlobWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written() + bytes.len() as u64 > self.size {
            let reason = StoreError::TooLong { digest: self.digest, size: self.size };
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let count = self.file.write(bytes)?;
        self.length += count as u64;
        if let Some(hash) = &mut self.hash {
            hash.0.write_all(&bytes[..count])?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

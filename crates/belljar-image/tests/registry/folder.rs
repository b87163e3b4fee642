//! A plain folder to pull into: real files, a lock per blob, a part that stays when a pull is cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use belljar_image::digest::Digest;
use belljar_image::oci::Descriptor;
use belljar_image::registry::{Destination, Foreign, Opened, Partial};

pub(crate) struct Folder {
    place: tempfile::TempDir,
    pub(crate) layers: Mutex<Vec<Digest>>,
}

struct Part {
    file: File,
    path: PathBuf,
    whole: PathBuf,
    offset: u64,
    _lock: File,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder { place: tempfile::tempdir().unwrap(), layers: Mutex::default() }
    }

    pub(crate) fn blob(&self, digest: Digest) -> PathBuf {
        self.place.path().join(digest.hex())
    }

    pub(crate) fn part(&self, digest: Digest) -> PathBuf {
        self.place.path().join(format!("{}.part", digest.hex()))
    }

    /// What is there, whole.
    pub(crate) fn read(&self, digest: Digest) -> Option<Vec<u8>> {
        fs::read(self.blob(digest)).ok()
    }
}

impl Destination for Folder {
    fn read_blob(&self, digest: Digest, limit: u64) -> Result<Option<Vec<u8>>, Foreign> {
        Ok(self.read(digest).filter(|bytes| bytes.len() as u64 <= limit))
    }

    fn open_partial(&self, blob: &Descriptor) -> Result<Opened<'_>, Foreign> {
        let (path, whole) = (self.part(blob.digest), self.blob(blob.digest));
        let lock = File::create(path.with_extension("lock"))?;
        lock.lock()?;
        if whole.metadata().is_ok_and(|metadata| metadata.len() == blob.size) {
            return Ok(Opened::There);
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
        let offset = file.metadata()?.len();
        Ok(Opened::Part(Box::new(Part { file, path, whole, offset, _lock: lock })))
    }

    fn has_layer(&self, diff_id: Digest) -> Result<bool, Foreign> {
        Ok(self.layers.lock().unwrap().contains(&diff_id))
    }

    fn add_layer(&self, diff_id: Digest, blob: &Descriptor) -> Result<(), Foreign> {
        assert_eq!(Digest::of(&fs::read(self.blob(blob.digest))?), blob.digest);
        self.layers.lock().unwrap().push(diff_id);
        Ok(())
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Partial for Part {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn prefix(&mut self) -> Result<Box<dyn Read + '_>, Foreign> {
        Ok(Box::new(open(&self.path)?))
    }

    fn restart(&mut self) -> Result<(), Foreign> {
        self.offset = 0;
        Ok(self.file.set_len(0)?)
    }

    fn commit(self: Box<Self>) -> Result<(), Foreign> {
        Ok(fs::rename(&self.path, &self.whole)?)
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

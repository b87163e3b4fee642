//! The store: blobs, layers, images and their names, shared by every process of a user, without a daemon.
//!
//! Everything is made in `scratch` and renamed into its place. One lock file per thing says who is at it: held
//! exclusively it is being made or removed, held shared it is in use. See `docs/design/images.md`.

mod blob;
mod check;
mod failure;
mod image;
mod layer;
mod lock;
mod memory;
mod name;
mod pull;
mod record;
mod scratch;
mod space;
mod stream;
mod sum;

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use belljar_cell::cell::Guest;
use belljar_cell::lobby::Lobby;
pub use blob::{Begun, Blob, BlobWriter};
pub use check::{Cure, Depth, Finding, Mend, Report};
use failure::Doing;
pub use failure::StoreError;
pub use image::{Origin, Removed, StoredImage};
pub use layer::{Layer, LayerRecord, Ownership};
pub use lock::Lease;
use lock::Thing;
pub use pull::PullError;
pub use scratch::Scratch;
pub use space::{Evict, Freed, Usage};

use crate::digest::Digest;
/// What happens to owners that the caller cannot give to files.
pub use crate::unpack::Ownership as Owners;

/// The newest layout this version understands.
const FORMAT: u32 = 1;
/// Manifests, configurations and the store's own records are not larger.
pub const DOCUMENT_LIMIT: u64 = 8 << 20;

/// Told while something is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Another process makes this now; its work will be used.
    Waiting(Digest),
    /// A layer is being made.
    Unpacking(Digest),
    /// A layer is there.
    There(Digest),
}

/// Whom to tell.
pub type Watch<'a> = &'a (dyn Fn(Notice) + Sync);

/// A folder of images.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    owners: Owners,
    mapped: Option<Mapped>,
}

/// What an ordinary user with subordinate ids gives files their owners with.
#[derive(Debug)]
struct Mapped {
    lobby: Lobby,
    guest: Guest,
}

impl Store {
    /// Opens a store, and makes one where none is.
    pub fn open(folder: &Path, owners: Owners) -> Result<Store, StoreError> {
        let store = Store { folder: folder.to_owned(), owners, mapped: None };
        let doing = || format!("open the image store {}", folder.display());
        make_folder(folder).doing(doing)?;
        // Files with the rights of their owner lie in it, so nobody else may come near them.
        let meta = folder.metadata().doing(doing)?;
        if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
            return Err(StoreError::NotPrivate { folder: folder.to_owned() });
        }
        for part in ["blobs/sha256", "layers/sha256", "images", "names", "locks", "scratch", memory::MEMORY] {
            make_folder(&folder.join(part)).doing(doing)?;
        }
        store.check_format().map(|()| store)
    }

    /// The same store for cells with this guest, where an ordinary user has subordinate ids: owners are exact, as the
    /// cell's map makes them. What is unpacked so is of no use for another guest.
    #[must_use]
    pub fn for_guest(self, lobby: Lobby, guest: Guest) -> Store {
        Store { mapped: Some(Mapped { lobby, guest }), ..self }
    }

    /// For whom layers are unpacked, where that makes a difference.
    fn guest(&self) -> Option<(u32, u32)> {
        self.mapped.as_ref().map(|mapped| (mapped.guest.uid, mapped.guest.gid))
    }

    /// What happens to owners that the caller cannot give to files.
    pub fn owners(&self) -> Owners {
        self.owners
    }

    /// The store's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let path = self.folder.join("format");
        match read_bounded(&path, 64) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let _writing = self.lock(Thing::Records)?;
                self.write_record(&path, FORMAT.to_string().as_bytes())
            }
            Err(error) => Err(error).doing(|| format!("read {}", path.display())),
            Ok(bytes) => {
                match std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse::<u32>().ok()) {
                    Some(format) if format <= FORMAT => Ok(()),
                    _ => Err(StoreError::Newer { folder: self.folder.clone() }),
                }
            }
        }
    }

    fn blob_path(&self, digest: Digest) -> PathBuf {
        self.folder.join("blobs/sha256").join(digest.hex())
    }

    fn layer_path(&self, diff_id: Digest) -> PathBuf {
        self.folder.join("layers/sha256").join(diff_id.hex())
    }

    fn image_path(&self, config: Digest) -> PathBuf {
        self.folder.join("images").join(format!("{}.json", config.hex()))
    }

    fn scratch(&self, name: &str) -> PathBuf {
        self.folder.join("scratch").join(name)
    }

    /// Once per image, before its record appears: what a record names is on the disk.
    fn sync(&self) -> Result<(), StoreError> {
        let doing = || "write the store to the disk".to_owned();
        let folder = File::open(&self.folder).doing(doing)?;
        rustix::fs::syncfs(&folder).map_err(io::Error::from).doing(doing)
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// A whole file of the store, unless it is larger than it may be.
fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than it may be"));
    }
    Ok(bytes)
}

/// No error where there is nothing.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Store {
    /// A file without a name on the store's disk, which goes with who has it open.
    pub(crate) fn unnamed(&self) -> Result<File, StoreError> {
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let file = rustix::fs::open(self.folder.join("scratch"), flags, mode);
        file.map(File::from).doing(|| "make a temporary file in the store".to_owned())
    }

    /// How a folder becomes a layer: root's as it is, an ordinary user's as root's.
    pub(crate) fn pack_options(&self) -> crate::pack::Options {
        let owners = match self.owners {
            Owners::Exact => crate::pack::Owners::Keep,
            Owners::Squash | Owners::Refuse => crate::pack::Owners::Fixed { uid: 0, gid: 0 },
        };
        crate::pack::Options {
            times: crate::pack::Times::Keep,
            owners,
            bytes: crate::unpack::Limits::default().bytes,
        }
    }

    /// Keeps a stream in a file without a name.
    pub(crate) fn spool(&self, source: &mut impl Read) -> Result<File, StoreError> {
        let mut file = self.unnamed()?;
        let doing = || "keep the archive in the store while it is read".to_owned();
        io::copy(source, &mut file).doing(doing)?;
        io::Seek::rewind(&mut file).doing(doing)?;
        Ok(file)
    }
}

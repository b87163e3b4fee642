//! Import: images that lie in files and folders, made by whomever, into the store.

mod choice;
mod docker;
mod layout;
mod source;
mod tar;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use source::Source;
use tar::Table;

use crate::compression::{self, Compression};
use crate::digest::Digest;
use crate::oci::{Descriptor, ImageConfig, Manifest, Platform, RootFs, media};
use crate::pack::{self, PackError};
use crate::store::{Layer, Origin, Store, StoreError, StoredImage, Watch};

/// What shows that a folder or an archive is a system's root: the first name in it is one of these.
const ROOT_NAMES: &[&str] = &[
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt", "opt", "proc",
    "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var",
];
/// Enough of an archive to see its first names.
const BEGINNING: u64 = 64 << 10;

/// Which image is meant, where there are several.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// By the name it has in the archive.
    pub name: Option<String>,
    /// For which machine.
    pub platform: Platform,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted { name: None, platform: Platform::here() }
    }
}

/// An image that was imported.
#[derive(Debug)]
pub struct Imported {
    /// As it is in the store now.
    pub image: StoredImage,
    /// What it is called where it came from. A stranger may have written that: whether it is called so here is for the
    /// caller to say.
    pub names: Vec<String>,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The source cannot be read.
    #[error("cannot read {what}: {source}")]
    Read {
        /// Which part of it.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A document is not what it should be.
    #[error("{document} is not as it should be: {reason}")]
    Document {
        /// Which.
        document: String,
        /// Why.
        reason: String,
    },
    /// Something that is named is not there.
    #[error("{0} is named but not there: the image is not whole")]
    Missing(String),
    /// None is what is wanted.
    #[error("no image {wanted} is there; these are: {there}")]
    NoSuch {
        /// What was asked for.
        wanted: String,
        /// What there is.
        there: String,
    },
    /// Several are what is wanted.
    #[error("several images are there, say which one: {there}")]
    Several {
        /// What there is.
        there: String,
    },
    /// A folder cannot be packed.
    #[error("cannot pack the folder: {0}")]
    Pack(#[from] PackError),
}

/// Says what was read.
trait Reading<T> {
    fn reading(self, what: &str) -> Result<T, ImportError>;
}

impl<T> Reading<T> for io::Result<T> {
    fn reading(self, what: &str) -> Result<T, ImportError> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ImportError::Missing(what.to_owned()),
            _ => ImportError::Read { what: what.to_owned(), source },
        })
    }
}

/// Imports whatever lies at a path: an OCI layout, an archive of one, a docker archive, a root as a tar or as a folder.
pub fn import(
    store: &Store,
    path: &Path,
    wanted: &Wanted,
    watch: Watch<'_>,
) -> Result<Imported, ImportError> {
    let shown = path.display().to_string();
    if path.is_dir() {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder =
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from).reading(&shown)?;
        return import_folder(store, folder, wanted, watch);
    }
    import_archive(store, File::open(path).reading(&shown)?, wanted, watch)
}

/// Imports an archive from an open file, or from a pipe.
pub fn import_archive(
    store: &Store,
    file: File,
    wanted: &Wanted,
    watch: Watch<'_>,
) -> Result<Imported, ImportError> {
    let what = "the archive";
    let mut file = file;
    if file.rewind().is_err() {
        file = store.spool(&mut file)?;
    }
    let (compression, first) = beginning(&mut file).reading(what)?;
    let is_root = tar::first_name(&first).is_some_and(|name| ROOT_NAMES.contains(&name.as_str()));
    if !is_root {
        let plain = match compression {
            Compression::Plain => file.try_clone().reading(what)?,
            _ => {
                let inner = file.try_clone().and_then(compression::open);
                store.spool(&mut inner.reading(what)?)?
            }
        };
        if let Some(source) = archive_of_images(plain).reading(what)? {
            return import_source(store, &source, wanted, watch);
        }
        file.rewind().reading(what)?;
    }
    import_root(store, file, compression, &wanted.platform, watch)
}

/// How the archive is compressed, and its first bytes without that; the file is at its beginning again.
fn beginning(file: &mut File) -> io::Result<(Compression, Vec<u8>)> {
    let mut telling = Vec::new();
    (&mut *file).take(Compression::TELLING as u64).read_to_end(&mut telling)?;
    file.rewind()?;
    let mut first = Vec::new();
    compression::open(&mut *file)?.take(BEGINNING).read_to_end(&mut first)?;
    file.rewind()?;
    Ok((Compression::of(&telling), first))
}

/// An archive in which images are described; what is not one may be a root.
fn archive_of_images(file: File) -> io::Result<Option<Source>> {
    let table = match Table::read(file) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(None),
        table => table?,
    };
    let is_of_images = table.has("index.json") || table.has("manifest.json");
    Ok(is_of_images.then_some(Source::Archive(table)))
}

fn import_folder(
    store: &Store,
    folder: OwnedFd,
    wanted: &Wanted,
    watch: Watch<'_>,
) -> Result<Imported, ImportError> {
    let source = Source::Folder(folder);
    if source.has("oci-layout") && source.has("index.json") {
        return import_source(store, &source, wanted, watch);
    }
    let Source::Folder(folder) = source else { return Err(ImportError::Missing("the folder".to_owned())) };
    let mut packed = store.unnamed()?;
    pack::pack(folder.as_fd(), &store.pack_options(), &mut packed)?;
    packed.rewind().reading("the packed folder")?;
    import_root(store, packed, Compression::Plain, &wanted.platform, watch)
}

fn import_source(
    store: &Store,
    source: &Source,
    wanted: &Wanted,
    watch: Watch<'_>,
) -> Result<Imported, ImportError> {
    if source.has("index.json") {
        let chosen = choice::choose(layout::candidates(source)?, wanted)?;
        return layout::import(store, source, &chosen, watch);
    }
    let chosen = choice::choose(docker::candidates(source)?, wanted)?;
    docker::import(store, source, &chosen, watch)
}

/// A root becomes an image of one layer, whose configuration says nothing but that.
fn import_root(
    store: &Store,
    file: File,
    compression: Compression,
    platform: &Platform,
    watch: Watch<'_>,
) -> Result<Imported, ImportError> {
    let media_type = match compression {
        Compression::Gzip => media::LAYER_GZIP,
        Compression::Zstd => media::LAYER_ZSTD,
        Compression::Plain | Compression::Xz | Compression::Bzip2 => media::LAYER,
    };
    let (blob, layer) = match compression {
        // Images know no such layers.
        Compression::Xz | Compression::Bzip2 => {
            store.add_unknown_layer(compression::open(file).reading("the archive")?, watch)?
        }
        Compression::Plain | Compression::Gzip | Compression::Zstd => store.add_unknown_layer(file, watch)?,
    };
    let config = ImageConfig {
        architecture: platform.architecture.clone(),
        os: platform.os.clone(),
        variant: platform.variant.clone(),
        rootfs: RootFs { diff_ids: vec![layer.record.diff_id], ..RootFs::default() },
        ..ImageConfig::default()
    };
    let config = serde_json::to_vec(&config).map_err(io::Error::from).reading("the configuration")?;
    let layers = vec![descriptor(media_type, blob.digest, blob.size)];
    let image = add(store, &config, layers, &[layer], "a root file system", watch)?;
    Ok(Imported { image, names: Vec::new() })
}

/// Adds an image that came without a manifest.
fn add(
    store: &Store,
    config: &[u8],
    layers: Vec<Descriptor>,
    _held: &[Layer],
    from: &str,
    watch: Watch<'_>,
) -> Result<StoredImage, ImportError> {
    let manifest = Manifest {
        schema_version: 2,
        media_type: media::MANIFEST.to_owned(),
        config: descriptor(media::CONFIG, Digest::of(config), config.len() as u64),
        layers,
        annotations: std::collections::BTreeMap::new(),
    };
    let manifest = serde_json::to_vec(&manifest).map_err(io::Error::from).reading("the manifest")?;
    let origin = Origin { from: from.to_owned(), repo_digest: None };
    Ok(store.add_image(&manifest, config, &origin, watch)?)
}

fn descriptor(media_type: &str, digest: Digest, size: u64) -> Descriptor {
    let annotations = std::collections::BTreeMap::new();
    Descriptor { media_type: media_type.to_owned(), digest, size, platform: None, annotations }
}

/// A document of a stranger.
fn parse<T: serde::de::DeserializeOwned>(document: &str, bytes: &[u8]) -> Result<T, ImportError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ImportError::Document { document: document.to_owned(), reason: error.to_string() })
}

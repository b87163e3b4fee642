//! Export: images of the store as files that others take.
//!
//! One archive is at once an OCI layout and a docker archive. The same images give the same bytes.

mod content;
mod name;
mod outgoing;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use content::{Content, Contents};
pub use outgoing::Outgoing;
use serde::Serialize;

use crate::digest::{Digest, Hashed};
use crate::oci::{Descriptor, Index, Platform, media};
use crate::pack::PackError;
use crate::store::{Store, StoreError, StoredImage};

/// Why nothing was exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The store could not give it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It could not be written.
    #[error("cannot write {what}: {source}")]
    Write {
        /// Which part.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes that a layer came in are gone, and its files do not make them again.
    #[error(
        "the bytes that the layer {wanted} came in are not in the store any more, and its files give another layer ({packed}): fetch or import the image again, then export it"
    )]
    NotTheSame {
        /// As the image says.
        wanted: Digest,
        /// As its files are.
        packed: Digest,
    },
    /// A blob is damaged.
    #[error("the blob {0} in the store is damaged: check the store")]
    Damaged(Digest),
    /// A folder that something is in.
    #[error("{0} is there already and not empty: name a new folder")]
    NotEmpty(String),
    /// A layer cannot be packed.
    #[error("cannot pack the layer: {0}")]
    Pack(#[from] PackError),
}

/// Says what was written.
trait Writing<T> {
    fn writing(self, what: &str) -> Result<T, ExportError>;
}

impl<T> Writing<T> for io::Result<T> {
    fn writing(self, what: &str) -> Result<T, ExportError> {
        self.map_err(|source| ExportError::Write { what: what.to_owned(), source })
    }
}

/// One line of `manifest.json`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct DockerEntry {
    config: String,
    repo_tags: Vec<String>,
    layers: Vec<String>,
}

/// Writes images as one archive, which is both an OCI layout and a docker archive.
pub fn export_archive(
    store: &Store,
    images: &[StoredImage],
    out: &mut impl Write,
) -> Result<(), ExportError> {
    let mut contents = documents(store, images)?;
    let folders = ["blobs/", "blobs/sha256/"];
    contents.extend(folders.map(|folder| (folder.to_owned(), Content::Folder)));
    for (path, content) in contents {
        write_entry(store, &path, content, out)?;
    }
    // Two empty blocks end an archive.
    out.write_all(&[0; 1024]).and_then(|()| out.flush()).writing("the archive")
}

/// Writes images as an OCI layout into a new folder. The index comes last, so a folder that is not whole is no layout.
pub fn export_layout(store: &Store, images: &[StoredImage], folder: &Path) -> Result<(), ExportError> {
    let shown = folder.display().to_string();
    DirBuilder::new().recursive(true).mode(0o755).create(folder.join("blobs/sha256")).writing(&shown)?;
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>).writing(&shown)?;
    let blobs = fs::read_dir(folder.join("blobs/sha256")).writing(&shown)?.count();
    if entries.len() != 1 || blobs != 0 {
        return Err(ExportError::NotEmpty(shown));
    }
    let mut contents = documents(store, images)?;
    contents.remove("manifest.json");
    let index = contents.remove_entry("index.json");
    for (path, content) in contents.into_iter().chain(index) {
        let mut file = File::create_new(folder.join(&path)).writing(&path)?;
        copy(store, content, &path, &mut file)?;
        file.sync_all().writing(&path)?;
    }
    Ok(())
}

/// Everything that is written, by its path.
fn documents(store: &Store, images: &[StoredImage]) -> Result<Contents, ExportError> {
    let mut contents = Contents::new();
    let (mut entries, mut manifests) = (Vec::new(), Vec::new());
    for image in images {
        // Only what is looked at by name has to be held: files that are open stay.
        let _held = store.hold(image.config_digest, &|_| {})?;
        let (manifest, layers) = content::of_image(store, image, &mut contents)?;
        entries.push(DockerEntry {
            config: content::path(image.config_digest),
            repo_tags: image.names.iter().filter_map(|name| name::tag(name)).collect(),
            layers: layers.iter().map(|layer| content::path(layer.digest)).collect(),
        });
        manifests.extend(index_entries(image, &manifest));
    }
    let index = Index {
        schema_version: 2,
        media_type: media::INDEX.to_owned(),
        manifests,
        annotations: BTreeMap::new(),
    };
    contents.insert("index.json".to_owned(), json(&index)?);
    contents.insert("manifest.json".to_owned(), json(&entries)?);
    contents.insert("oci-layout".to_owned(), Content::Bytes(br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
    Ok(contents)
}

fn json(value: &impl Serialize) -> Result<Content, ExportError> {
    serde_json::to_vec(value).map(Content::Bytes).map_err(io::Error::from).writing("a document")
}

/// One entry for each name; one without for an image that has none.
fn index_entries(image: &StoredImage, manifest: &Descriptor) -> Vec<Descriptor> {
    let config = &image.config;
    let platform = Platform {
        architecture: config.architecture.clone(),
        os: config.os.clone(),
        variant: config.variant.clone(),
    };
    let entry =
        |annotations| Descriptor { platform: Some(platform.clone()), annotations, ..manifest.clone() };
    if image.names.is_empty() {
        return vec![entry(BTreeMap::new())];
    }
    image.names.iter().map(|name| entry(name::annotations(name))).collect()
}

fn write_entry(store: &Store, path: &str, content: Content, out: &mut impl Write) -> Result<(), ExportError> {
    let size = content.size();
    let mut header = tar::Header::new_ustar();
    header.set_path(path).writing(path)?;
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    let is_folder = matches!(content, Content::Folder);
    header.set_mode(if is_folder { 0o755 } else { 0o644 });
    header.set_entry_type(if is_folder { tar::EntryType::Directory } else { tar::EntryType::Regular });
    header.set_cksum();
    out.write_all(header.as_bytes()).writing(path)?;
    copy(store, content, path, out)?;
    let padding = usize::try_from(size.next_multiple_of(512) - size).unwrap_or_default();
    out.write_all(&[0; 512][..padding]).writing(path)
}

/// Blobs are checked on their way: what is damaged here is not handed on.
fn copy(store: &Store, content: Content, path: &str, out: &mut impl Write) -> Result<(), ExportError> {
    match content {
        Content::Folder => Ok(()),
        Content::Bytes(bytes) => out.write_all(&bytes).writing(path),
        Content::Blob { digest, size, file } => {
            let mut hashed = Hashed::new(file.take(size));
            io::copy(&mut hashed, out).writing(path)?;
            let (found, length, _) = hashed.finish();
            if (found, length) == (digest, size) { Ok(()) } else { Err(ExportError::Damaged(digest)) }
        }
        Content::Tree { layer, .. } => {
            let (packed, wanted) =
                (content::pack(store, &layer.tree, &mut *out)?.diff_id, layer.record.diff_id);
            if packed == wanted { Ok(()) } else { Err(ExportError::NotTheSame { wanted, packed }) }
        }
    }
}

//! Why the store could not do something.

use std::io;
use std::path::PathBuf;

use crate::digest::Digest;
use crate::unpack::UnpackError;

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system refused.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// Others could reach the files of images.
    #[error("the image store {} must belong to the caller and be closed to all others: chmod 700 it, or use another folder", folder.display())]
    NotPrivate {
        /// The store.
        folder: PathBuf,
    },
    /// The store has a layout that this version does not know.
    #[error("the image store {} was written by a newer version: use that version, or another folder", folder.display())]
    Newer {
        /// The store.
        folder: PathBuf,
    },
    /// Content is not what its name says.
    #[error(
        "content is not what was asked for: expected {expected} with {expected_size} bytes, got {found} with {found_size}"
    )]
    WrongContent {
        /// The name that was asked for.
        expected: Digest,
        /// Its length.
        expected_size: u64,
        /// The name of what came.
        found: Digest,
        /// Its length.
        found_size: u64,
    },
    /// More came than was announced.
    #[error("content of {digest} is longer than the {size} bytes that were announced")]
    TooLong {
        /// The name that was asked for.
        digest: Digest,
        /// Its length.
        size: u64,
    },
    /// An archive holds other files than the image's configuration says.
    #[error("the layer {expected} of the configuration is not what was sent: its files are {found}")]
    WrongLayer {
        /// As the configuration says.
        expected: Digest,
        /// As they came.
        found: Digest,
    },
    /// A layer could not be unpacked.
    #[error("cannot unpack the layer: {}", whole(.0))]
    Unpack(#[source] UnpackError),
    /// Files belong to somebody whom the caller cannot give them to.
    #[error(
        "{path:?} in the layer belongs to {uid}:{gid}, and the caller can make only files of its own: run as root, or allow that every file is given to the caller (squash)"
    )]
    ForeignOwner {
        /// The first of them.
        path: PathBuf,
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// Something uses what should go.
    #[error("{what} is in use by a sandbox or by another process: end that first")]
    InUse {
        /// What it is.
        what: String,
    },
    /// A beginning of an image's name that several have.
    #[error("`{prefix}` is the beginning of several images: {}", candidates.iter().map(Digest::to_string).collect::<Vec<_>>().join(", "))]
    Ambiguous {
        /// As written.
        prefix: String,
        /// Which it could be.
        candidates: Vec<Digest>,
    },
    /// A name that cannot be given.
    #[error("an image cannot be named {name:?}: {reason}")]
    BadName {
        /// As written.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// A document that is no image's.
    #[error("the {what} is not that of an image: {reason}")]
    BadDocument {
        /// Manifest or configuration.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// A layer was unpacked before with other owners: all files the caller's, or those of another user inside.
    #[error(
        "the layer {0} is in the store with other owners than are asked for now (its files were given to the caller, or were unpacked for another user inside): remove the images that use it, prune, and fetch again"
    )]
    OtherOwners(Digest),
    /// A layer that an image names is not in the store.
    #[error("the layer {0} is not in the store: fetch or import the image again")]
    NoLayer(Digest),
    /// An image is not in the store.
    #[error("the image {0} is not in the store")]
    NoImage(Digest),
    /// A file of the store cannot be understood.
    #[error("{} is damaged: {reason}; a check of the store with repair removes it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl From<UnpackError> for StoreError {
    fn from(error: UnpackError) -> StoreError {
        match error {
            UnpackError::ForeignOwner { path, uid, gid } | UnpackError::Owner { path, uid, gid, .. } => {
                StoreError::ForeignOwner { path, uid, gid }
            }
            other => StoreError::Unpack(other),
        }
    }
}

/// An error with what is behind it, as one sentence.
fn whole(error: &UnpackError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Says what was tried.
pub(crate) trait Doing<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, StoreError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::System { doing: doing(), source })
    }
}

impl<T> Doing<T> for rustix::io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, StoreError> {
        self.map_err(io::Error::from).doing(doing)
    }
}

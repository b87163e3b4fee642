//! `belljar.lock`: what the images of tasks are, to the byte.
//!
//! An entry has two sides that are kept apart: what was asked for ([`Intent`]: a reference and a platform) and what that
//! was when it was pinned ([`Pin`]). Beside them stand locators, which help to find such bytes and prove nothing.

mod context;
mod drift;
mod file;
mod intent;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;

pub use context::{ContextError, context_hash};
pub use drift::Drift;
pub use file::{Changed, LOCK_FILE, LockFile, LockFileError, Read};
pub use intent::{Intent, Unportable};
pub use text::{LOCK_FORMAT, LockError, Wrong};

/// What is pinned, by what was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lock {
    /// The entries; written in this order.
    pub images: BTreeMap<Intent, Entry>,
}

/// One image on one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub pin: Pin,
    /// Where such bytes may be found.
    pub locators: Locators,
}

/// What an image is, or was when somebody looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// An image with a configuration, wherever it came from.
    Image(Identity),
    /// An image that was built here: reused while the context is the same.
    Build {
        /// The hash of the Dockerfile and of what a build can see of its context.
        context_hash: Digest,
        /// What came out.
        image: Identity,
    },
    /// A root directory, by its content.
    Directory {
        /// The digest of the directory packed, without times and owners.
        content_digest: Digest,
    },
    /// The machine itself: noted for people, and pinned by nothing.
    Host {
        /// What the system calls itself.
        system: String,
        /// The digest of the machine's fingerprint.
        fingerprint: Digest,
    },
}

/// What names an image everywhere: it survives compression, load, save and push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The digest of its configuration.
    pub config_digest: Digest,
    /// Its layers, the lowest first.
    pub diff_ids: Vec<Digest>,
}

/// Where bytes may be found; never compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locators {
    /// `name@sha256:…` of registries.
    pub repo_digests: BTreeSet<String>,
    /// The manifest it came with.
    pub manifest_digest: Option<Digest>,
    /// What Docker calls it where it came from.
    pub docker_image_id: Option<Digest>,
}

impl Pin {
    /// The image, where it is one.
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Pin::Image(image) | Pin::Build { image, .. } => Some(image),
            Pin::Directory { .. } | Pin::Host { .. } => None,
        }
    }

    /// Whether the bytes are fixed by it.
    pub fn is_pinned(&self) -> bool {
        !matches!(self, Pin::Host { .. })
    }

    /// The word in the lock.
    pub fn kind(&self) -> &'static str {
        match self {
            Pin::Image(_) => "image",
            Pin::Build { .. } => "build",
            Pin::Directory { .. } => "directory",
            Pin::Host { .. } => "host",
        }
    }

    /// How what is there now differs from this pin; a machine is not compared.
    pub fn drift(&self, now: &Pin) -> Option<Drift> {
        let same = match (self, now) {
            (Pin::Host { .. }, Pin::Host { .. }) => true,
            (locked, now) => locked == now,
        };
        (!same).then(|| Drift { locked: self.clone(), now: now.clone() })
    }
}

#[cfg(test)]
mod tests;

//! What a person may write as an image.

mod found;
mod name;
mod written;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::oci::Settings;

pub use found::{Form, Found};
pub use name::{DEFAULT_REGISTRY, Name, NameError};
pub use written::{Daemon, Prefix, Reference, SyntaxError};

/// An image that was understood and found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// The machine's own system folders, read-only.
    Host,
    /// A root directory.
    Directory(PathBuf),
    /// An image in the store.
    Stored(Box<StoredRoot>),
}

/// What an engine needs to know of an image in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRoot {
    /// What a person calls it.
    pub reference: String,
    /// What names it everywhere.
    pub config_digest: Digest,
    /// The names of its layers, the lowest first.
    pub diff_ids: Vec<Digest>,
    /// Its layers, unpacked, the lowest first.
    pub layers: Vec<PathBuf>,
    /// Locked, shared, while it is used: then nobody takes it away.
    pub lock: PathBuf,
    /// What it says about its containers.
    pub settings: Settings,
}

/// Why a reference means no image.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// Neither `host` nor a path.
    #[error("image `{reference}` is not known: this version takes `host` or the path of a root directory")]
    Unknown {
        /// As written.
        reference: String,
    },
    /// A path that cannot be opened.
    #[error("image `{reference}` cannot be opened: {source}")]
    Open {
        /// As written.
        reference: String,
        /// What the system said.
        source: io::Error,
    },
    /// A folder that holds no system.
    #[error("image `{reference}` is not a root directory: {reason}")]
    NotARoot {
        /// As written.
        reference: String,
        /// What is missing.
        reason: &'static str,
    },
    /// What is there is not what the reference means.
    #[error("image `{reference}` was {explained}; {reason}")]
    NotThat {
        /// As written.
        reference: String,
        /// How it was understood.
        explained: String,
        /// What is wrong.
        reason: &'static str,
    },
}

impl Image {
    /// Understands a reference; a relative path starts at the task's folder.
    pub fn find(reference: &str, folder: &Path) -> Result<Image, ReferenceError> {
        if reference == "host" {
            return Ok(Image::Host);
        }
        if !looks_like_a_path(reference) {
            return Err(ReferenceError::Unknown { reference: reference.to_owned() });
        }
        let open = |source| ReferenceError::Open { reference: reference.to_owned(), source };
        let path = folder.join(reference).canonicalize().map_err(open)?;
        Image::root(reference, path).map(Image::Directory)
    }

    /// A folder that holds a system.
    fn root(reference: &str, path: PathBuf) -> Result<PathBuf, ReferenceError> {
        let not_a_root = |reason| ReferenceError::NotARoot { reference: reference.to_owned(), reason };
        if !path.is_dir() {
            return Err(not_a_root("it is not a folder"));
        }
        if path == Path::new("/") {
            return Err(not_a_root("it is this machine itself; use `host`"));
        }
        let has_shell = ["bin/sh", "usr/bin/sh", "bin/bash", "usr/bin/bash"];
        if !has_shell.iter().any(|shell| path.join(shell).symlink_metadata().is_ok()) {
            return Err(not_a_root("it has no shell (bin/sh)"));
        }
        Ok(path)
    }
}

fn looks_like_a_path(reference: &str) -> bool {
    ["/", "./", "../"].iter().any(|start| reference.starts_with(start)) || matches!(reference, "." | "..")
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Image::Host => f.write_str("host"),
            Image::Directory(path) => write!(f, "{}", path.display()),
            Image::Stored(root) => f.write_str(&root.reference),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_understood_or_refused_with_their_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("root/bin")).unwrap();
        assert_eq!(Image::find("host", folder.path()).unwrap(), Image::Host);
        let refusal = |reference: &str| Image::find(reference, folder.path()).unwrap_err().to_string();
        assert!(refusal("python:3.11").contains("`python:3.11` is not known"));
        assert!(refusal("./none").contains("cannot be opened"));
        assert!(refusal("./root").contains("no shell"));
        assert!(refusal("/").contains("use `host`"));
        std::fs::write(folder.path().join("root/bin/sh"), "").unwrap();
        assert!(matches!(Image::find("./root", folder.path()).unwrap(), Image::Directory(_)));
    }
}

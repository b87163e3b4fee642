//! What a guest may be and do: nothing beyond what any user may, but for the builder of images.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cell::User;

/// What the guest may do beyond what any user may. Only the builder of images asks for more than nothing: no task file
/// and no verb about sandboxes can.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub enum Powers {
    /// Nothing.
    #[default]
    None,
    /// What a step of an image's making needs: it is root inside and changes all of its root, an overlay.
    Build(Building),
}

/// What a cell for building has that others have not.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Building {
    /// A folder of the caller's with an empty folder `upper`, where everything stays that the guest changes.
    pub layer: PathBuf,
    /// What is seen in places of the root and is no part of it.
    pub fittings: Vec<Fitting>,
}

/// Something that is mounted over the root of a cell for building.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fitting {
    /// Where the guest sees it.
    pub target: PathBuf,
    /// What it is.
    pub kind: FittingKind,
}

/// What is mounted over the root of a cell for building.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FittingKind {
    /// A file or folder of the host; who owns it there owns it inside.
    Tree {
        /// Where it is on the host.
        source: PathBuf,
        /// What the guest may do with it.
        access: Access,
    },
    /// Memory that is gone with the cell.
    Memory {
        /// The most bytes.
        size: Option<u64>,
    },
    /// A file that is nowhere on a disk.
    File {
        /// What is in it.
        content: Content,
        /// Its mode.
        mode: u32,
        /// Whose it is.
        owner: User,
    },
}

/// What a guest may do with a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Read.
    ReadOnly,
    /// Read and write.
    Writable,
}

/// Bytes that may be a secret, so they are shown nowhere.
#[derive(Clone, Serialize, Deserialize)]
pub struct Content(pub Vec<u8>);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// What a guest is allowed to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Anybody but root, without a power.
    Guest,
    /// Also root inside, with the powers of [`crate::policy::BUILD_CAPABILITIES`] over the cell's own files.
    Builder,
}

//! A folder, or the upper part of an overlay, into a tar that is the same everywhere.
//!
//! Names come in the order of their bytes, each folder before what is in it. What the file system says that a layer does
//! not (when a file was read, on which device it is, in which order a folder lists) is not written. Whoever still works
//! in the tree can spoil the tar, which is then an error, but cannot lead out of the tree or have more read than was
//! announced.

mod attributes;
mod tar;
mod tree;

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::digest::Digest;

/// Which times entries have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// Those of the tree.
    Keep,
    /// Those of the tree, but none later than this one.
    AtMost(i64),
    /// All this one.
    Fixed(i64),
}

/// Ids that are next to each other, outside and inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first as the tree has it.
    pub outside: u32,
    /// The first as the tar gets it.
    pub inside: u32,
    /// How many.
    pub count: u32,
}

/// Who owns entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owners {
    /// Who owns them in the tree.
    Keep,
    /// Always the same.
    Fixed {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
    /// Whoever stands for the owner in these tables; who is not in them is an error.
    Mapped {
        /// Users.
        uids: Vec<IdRange>,
        /// Groups.
        gids: Vec<IdRange>,
    },
}

/// How a tree is packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which times entries have.
    pub times: Times,
    /// Who owns them.
    pub owners: Owners,
    /// How many bytes all files together may have; holes count, because they are written.
    pub bytes: u64,
}

/// What was packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The name of the tar.
    pub diff_id: Digest,
    /// Its length.
    pub bytes: u64,
    /// How many entries it has.
    pub entries: u64,
    /// What is not in it though the tree has it.
    pub left_out: LeftOut,
}

/// What layers have no place for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Sockets.
    pub sockets: u64,
    /// Device nodes.
    pub devices: u64,
    /// Extended attributes that steer the system, or that cannot be written.
    pub xattrs: u64,
}

/// Why a tree was not packed; what was written by then is of no use.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The tar could not be written.
    #[error("failed to write the layer")]
    Write {
        /// Why.
        source: io::Error,
    },
    /// The tree could not be read.
    #[error("failed to {operation} {path:?}")]
    Read {
        /// What was done.
        operation: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody works in the tree.
    #[error("{path:?} changed while it was read: stop what works in the folder, then try again")]
    Changed {
        /// What changed.
        path: PathBuf,
    },
    /// A layer cannot say that.
    #[error("{path:?} cannot be in a layer: {what}")]
    Unfit {
        /// Of what.
        path: PathBuf,
        /// What cannot be said.
        what: &'static str,
    },
    /// An owner has no id inside.
    #[error("{path:?} belongs to {uid}:{gid}, which stands for nobody inside")]
    Owner {
        /// The path.
        path: PathBuf,
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
    /// It is too large.
    #[error("the files are larger than {limit} bytes together, holes included")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
}

/// Writes a tree as the tar of a layer. Devices 0/0 and opaque folders become whiteouts.
pub fn pack(tree: BorrowedFd<'_>, options: &Options, out: impl Write) -> Result<Packed, PackError> {
    let mut walk = tree::Walk::new(tree, options, tar::Tar::new(out))?;
    walk.run()?;
    walk.finish()
}

impl Times {
    fn apply(self, time: (i64, u32)) -> (i64, u32) {
        match self {
            Times::Keep => time,
            Times::AtMost(latest) => time.min((latest, 0)),
            Times::Fixed(time) => (time, 0),
        }
    }

    /// What whiteouts have, which have no time of their own.
    fn of_nothing(self) -> (i64, u32) {
        match self {
            Times::Keep | Times::AtMost(_) => (0, 0),
            Times::Fixed(time) => (time, 0),
        }
    }
}

impl Owners {
    fn apply(&self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        match self {
            Owners::Keep => Some((uid, gid)),
            Owners::Fixed { uid, gid } => Some((*uid, *gid)),
            Owners::Mapped { uids, gids } => Some((inside(uids, uid)?, inside(gids, gid)?)),
        }
    }
}

fn inside(ranges: &[IdRange], id: u32) -> Option<u32> {
    ranges.iter().find_map(|range| {
        let offset = id.checked_sub(range.outside).filter(|offset| *offset < range.count)?;
        range.inside.checked_add(offset)
    })
}

/// A path for people: cut where it is absurdly long.
fn shown(path: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    const ENOUGH: usize = 512;
    PathBuf::from(std::ffi::OsStr::from_bytes(&path[..path.len().min(ENOUGH)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_looked_up_in_their_table() {
        let uids = vec![
            IdRange { outside: 1000, inside: 0, count: 1 },
            IdRange { outside: 100_000, inside: 1, count: 65_535 },
        ];
        let owners = Owners::Mapped { gids: uids.clone(), uids };
        assert_eq!(owners.apply(1000, 1000), Some((0, 0)));
        assert_eq!(owners.apply(100_000, 165_534), Some((1, 65_535)));
        assert_eq!(owners.apply(165_535, 1000), None);
        assert_eq!(owners.apply(0, 1000), None);
    }

    #[test]
    fn times_are_kept_bounded_or_fixed() {
        assert_eq!(Times::Keep.apply((7, 5)), (7, 5));
        assert_eq!(Times::AtMost(7).apply((7, 5)), (7, 0));
        assert_eq!(Times::AtMost(7).apply((6, 5)), (6, 5));
        assert_eq!(Times::Fixed(0).apply((7, 5)), (0, 0));
    }
}

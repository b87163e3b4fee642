//! A folder to unpack into, and beside it one that nobody may touch.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use belljar_cell::archive::{ArchiveError, Limits, Links, OnRefusal, Rules, Summary, pack, unpack};

pub(crate) const LIMITS: Limits = Limits { bytes: 1 << 30, entries: 100_000 };
pub(crate) const SECRET: &str = "the secret that lies outside";

pub(crate) struct Ground {
    pub(crate) base: tempfile::TempDir,
}

impl Ground {
    pub(crate) fn new() -> Ground {
        let ground = Ground { base: tempfile::tempdir().unwrap() };
        let outside = ground.outside();
        fs::create_dir_all(outside.join("folder")).unwrap();
        fs::create_dir(ground.inside()).unwrap();
        fs::write(outside.join("secret"), SECRET).unwrap();
        fs::write(outside.join("folder/secret"), SECRET).unwrap();
        symlink("secret", outside.join("link")).unwrap();
        ground
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.base.path().join("outside")
    }

    pub(crate) fn inside(&self) -> PathBuf {
        self.base.path().join("inside")
    }

    /// A path of the outside as text, to be put into archives.
    pub(crate) fn outside_text(&self) -> String {
        self.outside().to_str().unwrap().to_owned()
    }

    pub(crate) fn unpack(&self, archive: &[u8], rules: Rules) -> Result<Summary, ArchiveError> {
        unpack(archive, open(&self.inside()), rules)
    }

    /// Everything beside the folder that is unpacked into, in every detail.
    pub(crate) fn rest(&self) -> Rest {
        let names = fs::read_dir(self.base.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        Rest { names, outside: look(&self.outside()) }
    }
}

/// What lies beside the folder that is unpacked into.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    names: BTreeSet<OsString>,
    outside: Tree,
}

pub(crate) fn strict() -> Rules {
    Rules::strict(LIMITS)
}

pub(crate) fn lenient() -> Rules {
    Rules { limits: LIMITS, refused: OnRefusal::Count, links: Links::Any, mask: 0 }
}

pub(crate) fn open(folder: &Path) -> OwnedFd {
    OwnedFd::from(File::open(folder).unwrap())
}

pub(crate) fn pack_all(folder: &Path) -> (Vec<u8>, Summary) {
    let mut bytes = Vec::new();
    let root = open(folder);
    let summary = pack(root.as_fd(), Path::new("."), OsStr::new(""), &mut bytes, LIMITS).unwrap();
    (bytes, summary)
}

/// What is known of one file, folder or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) mode: u32,
    pub(crate) mtime: (i64, i64),
    pub(crate) links: u64,
    pub(crate) identity: (u64, u64),
    pub(crate) content: Vec<u8>,
}

pub(crate) type Tree = BTreeMap<PathBuf, Seen>;

/// Looks at a whole tree; its top has an empty path.
pub(crate) fn look(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        tree.insert(folder.clone(), see(&top.join(&folder)));
        for entry in fs::read_dir(top.join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            let seen = see(&top.join(&path));
            if seen.mode & libc_type::MASK == libc_type::FOLDER {
                folders.push(path);
            } else {
                tree.insert(path, seen);
            }
        }
    }
    tree
}

mod libc_type {
    pub(super) const MASK: u32 = 0o170_000;
    pub(super) const FOLDER: u32 = 0o040_000;
}

fn see(path: &Path) -> Seen {
    let meta = path.symlink_metadata().unwrap();
    let content = match (meta.is_file(), meta.is_symlink()) {
        (true, _) => fs::read(path).unwrap(),
        (_, true) => fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec(),
        (false, false) => Vec::new(),
    };
    Seen {
        mode: meta.mode(),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        links: if meta.is_dir() { 0 } else { meta.nlink() },
        identity: (meta.dev(), meta.ino()),
        content,
    }
}

/// A small generator of numbers: the same every time.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

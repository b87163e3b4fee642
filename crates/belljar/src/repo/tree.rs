//! One digest over the final content of a folder, and the listing that says where two differ.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, openat, readlinkat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::walk::{Descend, Entry, Visitor, walk};
use crate::digest::hexadecimal;

/// Bytes read for one digest. A guest can make a file of a petabyte that takes no room on the disk.
const BYTE_BUDGET: u64 = 4 << 30;
/// Bytes read of one file, so that one alone does not use up the budget of all.
const FILE_BUDGET: u64 = 1 << 30;

/// The content of a folder, without its `.git`, as one value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeDigest {
    /// `sha256:` and the digest over the sorted entries.
    pub digest: String,
    /// The number of regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries whose content could not be read or was too much to read; they count by name and type.
    pub unread: u64,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A regular file that its owner may execute.
    Executable,
    /// A folder.
    Directory,
    /// A symbolic link; its digest is that of its target.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
    /// A file or folder that may not be read.
    Unreadable,
    /// A file that is larger than what is left to read.
    TooLarge,
}

/// One entry of a folder's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// The path from the root, any bytes.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
    /// The size of a file.
    pub bytes: u64,
    /// The SHA-256 of a file's content or a link's target, in hexadecimal.
    pub digest: Option<String>,
}

/// A digest that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the content of {}", path.display())]
pub struct TreeError {
    /// The folder.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The digest of a folder's content.
pub fn tree_digest(root: &Path) -> Result<TreeDigest, TreeError> {
    let mut hasher = Sha256::new();
    let mut total = TreeDigest { digest: String::new(), files: 0, bytes: 0, unread: 0 };
    read(root, &mut |entry| {
        feed(&mut hasher, &entry);
        let is_file = matches!(entry.kind, EntryKind::File | EntryKind::Executable | EntryKind::TooLarge);
        total.files += u64::from(is_file);
        total.bytes += entry.bytes;
        total.unread += u64::from(matches!(entry.kind, EntryKind::Unreadable | EntryKind::TooLarge));
    })?;
    total.digest = format!("sha256:{}", hexadecimal(&hasher.finalize()));
    Ok(total)
}

/// Every entry, in the order in which the digest takes them: depth first, names by their bytes.
pub fn tree_entries(root: &Path) -> Result<Vec<TreeEntry>, TreeError> {
    let mut entries = Vec::new();
    read(root, &mut |entry| entries.push(entry))?;
    Ok(entries)
}

/// The paths of regular files that `wanted` picks, at most `most` of them; no content is read.
pub fn files_in_tree(
    root: &Path,
    most: usize,
    wanted: &mut dyn FnMut(&Path) -> bool,
) -> Result<Vec<PathBuf>, TreeError> {
    let mut finder = Finder { most, wanted, found: Vec::new() };
    match walk(root, &mut finder) {
        Err(error) if error.kind() != io::ErrorKind::FileTooLarge => {
            Err(TreeError { path: root.to_path_buf(), source: error })
        }
        Ok(()) | Err(_) => Ok(finder.found),
    }
}

struct Finder<'a> {
    most: usize,
    wanted: &'a mut dyn FnMut(&Path) -> bool,
    found: Vec<PathBuf>,
}

impl Visitor for Finder<'_> {
    fn visit(&mut self, entry: &Entry<'_>) -> io::Result<Descend> {
        if entry.path == b".git" {
            return Ok(Descend::Past);
        }
        let path = path_of(entry);
        if entry.kind == FileType::RegularFile && self.found.len() < self.most && (self.wanted)(&path) {
            self.found.push(path);
        }
        Ok(Descend::Into)
    }

    fn closed(&mut self, _entry: &Entry<'_>, _error: io::Error) -> io::Result<()> {
        Ok(())
    }
}

// Lengths before values: no two different listings have the same bytes.
fn feed(hasher: &mut Sha256, entry: &TreeEntry) {
    let path = entry.path.as_os_str().as_bytes();
    hasher.update([kind_byte(entry.kind)]);
    hasher.update((path.len() as u64).to_le_bytes());
    hasher.update(path);
    hasher.update(entry.bytes.to_le_bytes());
    let digest = entry.digest.as_deref().unwrap_or_default();
    hasher.update([u8::from(entry.digest.is_some())]);
    hasher.update(digest.as_bytes());
}

fn kind_byte(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::File => b'f',
        EntryKind::Executable => b'x',
        EntryKind::Directory => b'd',
        EntryKind::Symlink => b'l',
        EntryKind::Fifo => b'p',
        EntryKind::Socket => b's',
        EntryKind::Device => b'c',
        EntryKind::Unreadable => b'u',
        EntryKind::TooLarge => b'h',
    }
}

fn read(root: &Path, sink: &mut dyn FnMut(TreeEntry)) -> Result<(), TreeError> {
    let mut reader = Reader { left: BYTE_BUDGET, buffer: vec![0; 128 * 1024], sink };
    match walk(root, &mut reader) {
        // More names than anybody can hold: the folder as a whole counts as unread.
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            (reader.sink)(TreeEntry {
                path: PathBuf::new(),
                kind: EntryKind::Unreadable,
                bytes: 0,
                digest: None,
            });
            Ok(())
        }
        other => other.map_err(|source| TreeError { path: root.to_path_buf(), source }),
    }
}

struct Reader<'a> {
    left: u64,
    buffer: Vec<u8>,
    sink: &'a mut dyn FnMut(TreeEntry),
}

impl Visitor for Reader<'_> {
    fn visit(&mut self, entry: &Entry<'_>) -> io::Result<Descend> {
        if entry.path == b".git" {
            return Ok(Descend::Past);
        }
        let (kind, bytes, digest) = match entry.kind {
            FileType::Directory => (EntryKind::Directory, 0, None),
            FileType::Symlink => link(entry),
            FileType::RegularFile => self.file(entry),
            FileType::Fifo => (EntryKind::Fifo, 0, None),
            FileType::Socket => (EntryKind::Socket, 0, None),
            _ => (EntryKind::Device, 0, None),
        };
        (self.sink)(TreeEntry { path: path_of(entry), kind, bytes, digest });
        Ok(Descend::Into)
    }

    fn closed(&mut self, entry: &Entry<'_>, _error: io::Error) -> io::Result<()> {
        let kind = EntryKind::Unreadable;
        (self.sink)(TreeEntry { path: path_of(entry), kind, bytes: 0, digest: None });
        Ok(())
    }
}

type Content = (EntryKind, u64, Option<String>);
const UNREADABLE: Content = (EntryKind::Unreadable, 0, None);

fn path_of(entry: &Entry<'_>) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(entry.path))
}

fn link(entry: &Entry<'_>) -> Content {
    match readlinkat(entry.folder, entry.name, Vec::new()) {
        Ok(target) => (EntryKind::Symlink, 0, Some(crate::digest::sha256(target.as_bytes()))),
        Err(_) => UNREADABLE,
    }
}

impl Reader<'_> {
    fn file(&mut self, entry: &Entry<'_>) -> Content {
        // Not blocking: between the look and the open it may have become a fifo.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let Ok(descriptor) = openat(entry.folder, entry.name, flags, Mode::empty()) else {
            return UNREADABLE;
        };
        let file = File::from(descriptor);
        let Ok(metadata) = file.metadata() else { return UNREADABLE };
        if !metadata.is_file() {
            return UNREADABLE;
        }
        let size = metadata.len();
        if size > self.left.min(FILE_BUDGET) {
            return (EntryKind::TooLarge, size, None);
        }
        let kind = if entry.mode.contains(Mode::XUSR) { EntryKind::Executable } else { EntryKind::File };
        match self.hash(file.take(size)) {
            Ok((bytes, digest)) => (kind, bytes, Some(digest)),
            Err(_) => UNREADABLE,
        }
    }

    // No more than the size at the start is read, so a file that grows all the time ends too.
    fn hash(&mut self, mut file: io::Take<File>) -> io::Result<(u64, String)> {
        let mut hasher = Sha256::new();
        let mut bytes = 0;
        loop {
            match file.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => {
                    hasher.update(&self.buffer[..count]);
                    bytes += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.left -= bytes;
        Ok((bytes, hexadecimal(&hasher.finalize())))
    }
}

//! Goes through a tree by open folders, and writes what is there.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::vec;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat, statat,
};
use rustix::io::{Errno, read};

use super::attributes::{self, Attributes};
use super::tar::{Entry, Kind, Tar};
use super::{LeftOut, Options, PackError, Packed, shown};

/// How many folders stay open; below that they are opened anew after each folder in them.
const OPEN_FOLDERS: usize = 128;
/// How much is read at once.
const BUFFER: usize = 256 << 10;
/// Paths that are longer can be made, step by step, but not used.
const LONGEST_PATH: usize = 4095;
/// The most bytes of attributes that readers of layers take.
const MOST_ATTRIBUTES: usize = 768 << 10;
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// A folder whose names are being gone through.
struct Level {
    folder: Option<OwnedFd>,
    /// Device and number, to know it again.
    identity: (u64, u64),
    /// The length of its path.
    length: usize,
    names: vec::IntoIter<Vec<u8>>,
}

/// The walk through one tree.
pub(super) struct Walk<'a, W: Write> {
    root: OwnedFd,
    options: &'a Options,
    tar: Tar<W>,
    path: Vec<u8>,
    levels: Vec<Level>,
    /// The first name of files that have several.
    first_names: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    bytes: u64,
    left_out: LeftOut,
}

impl<'a, W: Write> Walk<'a, W> {
    pub(super) fn new(
        tree: BorrowedFd<'_>,
        options: &'a Options,
        tar: Tar<W>,
    ) -> Result<Walk<'a, W>, PackError> {
        let root = open_folder(tree, b".").map_err(|errno| failed(errno, "open", b"."))?;
        Ok(Walk {
            root,
            options,
            tar,
            path: Vec::new(),
            levels: Vec::new(),
            first_names: HashMap::new(),
            buffer: vec![0; BUFFER],
            bytes: 0,
            left_out: LeftOut::default(),
        })
    }

    /// Writes everything, the root first.
    pub(super) fn run(&mut self) -> Result<(), PackError> {
        let root = open_folder(self.root.as_fd(), b".").map_err(|errno| self.failed(errno, "open"))?;
        self.folder(root)?;
        while let Some(level) = self.levels.last_mut() {
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            self.path.truncate(level.length);
            let folder = match level.folder.take() {
                Some(folder) => folder,
                None => self.open_again()?,
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            let depth = self.levels.len();
            self.name(&folder, &name)?;
            // Deep down a folder is only kept while nothing in it was entered.
            if (depth <= OPEN_FOLDERS || self.levels.len() == depth)
                && let Some(level) = self.levels.get_mut(depth - 1)
            {
                level.folder = Some(folder);
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Packed, PackError> {
        let entries = self.tar.entries;
        let (diff_id, bytes) = self.tar.finish().map_err(|source| PackError::Write { source })?;
        Ok(Packed { diff_id, bytes, entries, left_out: self.left_out })
    }

    fn open_again(&self) -> Result<OwnedFd, PackError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let folder = openat2(&self.root, &self.path[..], flags, Mode::empty(), resolve)
            .map_err(|errno| self.failed(errno, "open"))?;
        let found = fstat(&folder).map_err(|errno| self.failed(errno, "look at"))?;
        match self.levels.last() {
            Some(level) if level.identity == (found.st_dev, found.st_ino) => Ok(folder),
            _ => Err(self.changed()),
        }
    }

    /// One name of a folder.
    fn name(&mut self, folder: &OwnedFd, name: &[u8]) -> Result<(), PackError> {
        if self.path.len() > LONGEST_PATH {
            return Err(self.unfit("its path is too long"));
        }
        if name.starts_with(WHITEOUT) {
            return Err(self.unfit("in layers its name means that another one is hidden"));
        }
        let found =
            statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| self.failed(errno, "look at"))?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                let inner = open_folder(folder.as_fd(), name).map_err(|errno| self.failed(errno, "open"))?;
                self.folder(inner)
            }
            FileType::RegularFile => self.file(folder, name, &found),
            FileType::Symlink => self.link(folder, name, &found),
            FileType::Fifo => self.fifo(&found),
            FileType::CharacterDevice if found.st_rdev == 0 => self.whiteout(name),
            FileType::Socket => {
                self.left_out.sockets += 1;
                Ok(())
            }
            _ => {
                self.left_out.devices += 1;
                Ok(())
            }
        }
    }

    /// Writes a folder, and has its names gone through next.
    fn folder(&mut self, folder: OwnedFd) -> Result<(), PackError> {
        let found = fstat(&folder).map_err(|errno| self.failed(errno, "look at"))?;
        let attributes = self.attributes(&folder)?;
        let shown_path = if self.path.is_empty() { b"./".to_vec() } else { [&self.path[..], b"/"].concat() };
        self.begin(Kind::Folder, &shown_path, b"", &found, 0, &attributes.kept)?;
        if attributes.opaque {
            let prefix = if self.path.is_empty() { &b""[..] } else { &shown_path };
            self.nothing(&[prefix, OPAQUE].concat())?;
        }
        let names = sorted_names(&folder).map_err(|errno| self.failed(errno, "list"))?;
        self.levels.push(Level {
            folder: Some(folder),
            identity: (found.st_dev, found.st_ino),
            length: self.path.len(),
            names: names.into_iter(),
        });
        Ok(())
    }

    fn file(&mut self, folder: &OwnedFd, name: &[u8], listed: &Stat) -> Result<(), PackError> {
        if self.is_known(listed)? {
            return Ok(());
        }
        // Something else may have taken its place: a pipe would keep whoever opens it waiting.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(folder, name, flags, Mode::empty()).map_err(|errno| self.failed(errno, "open"))?;
        let found = fstat(&file).map_err(|errno| self.failed(errno, "look at"))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
            || (found.st_dev, found.st_ino) != (listed.st_dev, listed.st_ino)
        {
            return Err(self.changed());
        }
        let size = u64::try_from(found.st_size).unwrap_or_default();
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.options.bytes {
            return Err(PackError::TooLarge { limit: self.options.bytes });
        }
        let attributes = self.attributes(&file)?;
        let path = self.path.clone();
        self.begin(Kind::File, &path, b"", &found, size, &attributes.kept)?;
        self.body(&file)?;
        let after = fstat(&file).map_err(|errno| self.failed(errno, "look at"))?;
        if (after.st_size, after.st_mtime, after.st_mtime_nsec)
            != (found.st_size, found.st_mtime, found.st_mtime_nsec)
        {
            return Err(self.changed());
        }
        Ok(())
    }

    /// Writes as many bytes as were announced, or fails.
    fn body(&mut self, file: &OwnedFd) -> Result<(), PackError> {
        while self.tar.left() > 0 {
            let wanted = usize::try_from(self.tar.left()).unwrap_or(usize::MAX).min(BUFFER);
            let count = match read(file, &mut self.buffer[..wanted]) {
                Err(Errno::INTR) => continue,
                other => other.map_err(|errno| self.failed(errno, "read"))?,
            };
            if count == 0 {
                return Err(self.changed());
            }
            self.tar.body(&self.buffer[..count]).map_err(|source| PackError::Write { source })?;
        }
        Ok(())
    }

    fn link(&mut self, folder: &OwnedFd, name: &[u8], found: &Stat) -> Result<(), PackError> {
        if self.is_known(found)? {
            return Ok(());
        }
        let target = readlinkat(folder, name, Vec::new()).map_err(|errno| self.failed(errno, "read"))?;
        let path = self.path.clone();
        self.begin(Kind::Link, &path, target.as_bytes(), found, 0, &[])
    }

    fn fifo(&mut self, found: &Stat) -> Result<(), PackError> {
        if self.is_known(found)? {
            return Ok(());
        }
        let path = self.path.clone();
        self.begin(Kind::Fifo, &path, b"", found, 0, &[])
    }

    fn whiteout(&mut self, name: &[u8]) -> Result<(), PackError> {
        let folder = &self.path[..self.path.len() - name.len()];
        self.nothing(&[folder, WHITEOUT, name].concat())
    }

    /// An entry that only says that something is not there.
    fn nothing(&mut self, path: &[u8]) -> Result<(), PackError> {
        let mtime = self.options.times.of_nothing();
        let entry =
            Entry { kind: Kind::File, path, link: b"", mode: 0, owner: (0, 0), mtime, size: 0, xattrs: &[] };
        self.tar.begin(&entry).map_err(|source| PackError::Write { source })
    }

    /// Whether a file was written under another name, to which a link is written then.
    fn is_known(&mut self, found: &Stat) -> Result<bool, PackError> {
        if found.st_nlink < 2 {
            return Ok(false);
        }
        let identity = (found.st_dev, found.st_ino);
        if let Some(first) = self.first_names.get(&identity).cloned() {
            let path = self.path.clone();
            self.begin(Kind::HardLink, &path, &first, found, 0, &[])?;
            return Ok(true);
        }
        self.first_names.insert(identity, self.path.clone());
        Ok(false)
    }

    fn begin(
        &mut self,
        kind: Kind,
        path: &[u8],
        link: &[u8],
        found: &Stat,
        size: u64,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), PackError> {
        let (uid, gid) = (found.st_uid, found.st_gid);
        let owner = self.options.owners.apply(uid, gid);
        let owner = owner.ok_or_else(|| PackError::Owner { path: shown(path), uid, gid })?;
        let nanoseconds = u32::try_from(found.st_mtime_nsec).unwrap_or_default();
        let mtime = self.options.times.apply((found.st_mtime, nanoseconds));
        // The permissions of links mean nothing, and differ between systems.
        let mode = if kind == Kind::Link { 0o777 } else { found.st_mode & 0o7777 };
        let entry = Entry { kind, path, link, mode, owner, mtime, size, xattrs };
        self.tar.begin(&entry).map_err(|source| PackError::Write { source })
    }

    fn attributes(&mut self, file: &OwnedFd) -> Result<Attributes, PackError> {
        let attributes =
            attributes::read(file).map_err(|errno| self.failed(errno, "read the attributes of"))?;
        if let Some(what) = attributes.unfit {
            return Err(self.unfit(what));
        }
        let size: usize = attributes.kept.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > MOST_ATTRIBUTES {
            return Err(self.unfit("it has too many extended attributes"));
        }
        self.left_out.xattrs += attributes.left_out;
        Ok(attributes)
    }

    /// What was listed and is no longer there, or no longer what it was, has changed; all else is a failure.
    fn failed(&self, errno: Errno, operation: &'static str) -> PackError {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => self.changed(),
            _ => failed(errno, operation, &self.path),
        }
    }

    fn changed(&self) -> PackError {
        PackError::Changed { path: shown(&self.path) }
    }

    fn unfit(&self, what: &'static str) -> PackError {
        PackError::Unfit { path: shown(&self.path), what }
    }
}

fn failed(errno: Errno, operation: &'static str, path: &[u8]) -> PackError {
    PackError::Read { operation, path: shown(path), source: io::Error::from(errno) }
}

fn open_folder(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

fn sorted_names(folder: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

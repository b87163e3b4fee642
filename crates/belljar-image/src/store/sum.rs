//! The sum of a tree: one line per file, so that damage is found. `looks` are had without reading any file.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::digest::{Digest, Hashed};

/// How much of a tree is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Kinds, modes, owners, sizes and times.
    Looks,
    /// And every byte.
    Contents,
}

/// What a tree is.
pub(super) struct Sums {
    /// By path: looks, and contents.
    lines: BTreeMap<Vec<u8>, (String, String)>,
    /// What it takes on the disk.
    pub(super) disk: u64,
}

/// Attributes that are part of a layer; others are this machine's.
fn is_of_the_layer(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == b"security.capability"
}

/// Looks at every file of a tree. No link is followed, and no path leads out.
pub(super) fn of_tree(tree: &Path, reading: Reading) -> io::Result<Sums> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, tree, flags, Mode::empty())?;
    let mut walk = Walk { reading, sums: Sums { lines: BTreeMap::new(), disk: 0 }, twins: HashMap::new() };
    walk.sums.add(b".", looks(&rustix::fs::fstat(&top)?), "-".to_owned());
    let mut pending = vec![PathBuf::from(".")];
    while let Some(folder) = pending.pop() {
        let opened = open_folder(top.as_fd(), &folder)?;
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = folder.join(OsStr::from_bytes(name.to_bytes()));
            if walk.visit(opened.as_fd(), name, &path)? == FileType::Directory {
                pending.push(path);
            }
        }
    }
    Ok(walk.sums)
}

struct Walk {
    reading: Reading,
    sums: Sums,
    /// Files with several names are read once.
    twins: HashMap<u64, String>,
}

impl Walk {
    fn visit(&mut self, folder: BorrowedFd<'_>, name: &CStr, path: &Path) -> io::Result<FileType> {
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let twin =
            self.twins.get(&stat.st_ino).filter(|_| stat.st_nlink > 1 && kind == FileType::RegularFile);
        let content = match (self.reading, twin) {
            (Reading::Looks, _) => String::new(),
            (Reading::Contents, Some(content)) => content.clone(),
            (Reading::Contents, None) => content(folder, name, &stat)?,
        };
        if stat.st_nlink > 1 && kind == FileType::RegularFile {
            self.twins.insert(stat.st_ino, content.clone());
        }
        self.sums.add(path.as_os_str().as_bytes(), looks(&stat), content);
        self.sums.disk += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        Ok(kind)
    }
}

fn looks(stat: &Stat) -> String {
    let kind = FileType::from_raw_mode(stat.st_mode);
    // A folder's size is its filesystem's affair.
    let size = if kind == FileType::Directory { 0 } else { stat.st_size };
    format!("{:o} {} {} {size} {} {}", stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime, stat.st_rdev)
}

fn content(folder: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> io::Result<String> {
    let mut content = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let mut hash = Hashed::new(io::sink());
            io::copy(&mut open_file(folder, name)?, &mut hash)?;
            hash.finish().0.hex()
        }
        FileType::Symlink => escaped(rustix::fs::readlinkat(folder, name, Vec::new())?.to_bytes()),
        _ => "-".to_owned(),
    };
    if let Some(attributes) = attributes(folder, name)? {
        let _ = write!(content, " {}", attributes.hex());
    }
    Ok(content)
}

/// The name of all attributes of a file.
fn attributes(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<Digest>> {
    let file =
        Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(OsStr::from_bytes(name.to_bytes()));
    let mut names = vec![0_u8; 1 << 16];
    let length = match rustix::fs::llistxattr(&file, &mut names) {
        Err(Errno::NOTSUP) => return Ok(None),
        length => length?,
    };
    let mut names: Vec<&[u8]> =
        names[..length].split(|byte| *byte == 0).filter(|name| is_of_the_layer(name)).collect();
    names.sort_unstable();
    let mut all = Vec::new();
    for name in &names {
        let mut value = vec![0_u8; 1 << 16];
        let length = rustix::fs::lgetxattr(&file, OsStr::from_bytes(name), &mut value)?;
        all.extend([name, &b"="[..], &value[..length], &b"\0"[..]].concat());
    }
    Ok((!names.is_empty()).then(|| Digest::of(&all)))
}

fn open_folder(top: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let open = |flags| rustix::fs::openat2(top, path, flags, Mode::empty(), resolve);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match open(flags) {
        Err(Errno::ACCESS) => readable(&open(OFlags::PATH | flags)?, flags),
        opened => Ok(opened?),
    }
}

fn open_file(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(folder, name, flags, Mode::empty());
    match open(flags) {
        Err(Errno::ACCESS) => Ok(File::from(readable(&open(OFlags::PATH | flags)?, flags)?)),
        opened => Ok(File::from(opened?)),
    }
}

/// Opens what its owner may not read: the mode is lent for the moment of the opening.
fn readable(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let itself = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let mode = Mode::from_raw_mode(rustix::fs::fstat(handle)?.st_mode);
    rustix::fs::chmod(&itself, mode | Mode::RUSR | Mode::XUSR)?;
    let opened = rustix::fs::open(&itself, flags - OFlags::NOFOLLOW, Mode::empty());
    rustix::fs::chmod(&itself, mode)?;
    Ok(opened?)
}

/// Printable, without spaces.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        match byte {
            b'\\' | 0..=b' ' | 0x7f.. => drop(write!(text, "\\x{byte:02x}")),
            plain => text.push(char::from(*plain)),
        }
        text
    })
}

impl Sums {
    fn add(&mut self, path: &[u8], looks: String, content: String) {
        self.lines.insert(path.to_vec(), (looks, content));
    }

    /// As it is stored: path, looks and contents, parted by tabs, in the order of the paths.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut text = String::new();
        for (path, (looks, content)) in &self.lines {
            let _ = writeln!(text, "{}\t{looks}\t{content}", escaped(path));
        }
        text.into_bytes()
    }

    /// The first difference from what was stored, in words.
    pub(super) fn difference(&self, stored: &[u8], reading: Reading) -> Option<String> {
        let stored = String::from_utf8_lossy(stored);
        let mut expected: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
        for line in stored.lines() {
            let mut columns = line.splitn(3, '\t');
            let mut next = || columns.next().unwrap_or_default();
            expected.insert(next(), (next(), next()));
        }
        for (path, (looks, content)) in &self.lines {
            let path = escaped(path);
            match expected.remove(path.as_str()) {
                None => return Some(format!("{path} was added")),
                Some((before, _)) if before != looks => {
                    return Some(format!("{path} was changed: {before} is now {looks}"));
                }
                Some((_, before)) if reading == Reading::Contents && before != content => {
                    return Some(format!("the contents of {path} were changed"));
                }
                Some(_) => {}
            }
        }
        expected.keys().next().map(|path| format!("{path} is missing"))
    }
}

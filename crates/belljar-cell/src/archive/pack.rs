//! Writes a file or a folder as a tar stream.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, Stat, fstat, fstatfs, openat, readlinkat, statat};
use rustix::io::Errno;

use super::hardlinks::FirstNames;
use super::header::{BLOCK, Entry, Kind};
use super::ladder::Opened;
use super::reader::padding;
use super::times::Mtime;
use super::walk::{Name, Step, Walk, WalkError, kind_of, open_as};
use super::way::{Way, descend};
use super::{ArchiveError, Limits, MOST_NAME, Refusal, Summary, shown};

/// How many bytes of a file are read at once.
const PIECE: usize = 64 << 10;
/// Blocks of zeros at the end of an archive.
const END: u64 = 2 * BLOCK as u64;
/// File systems that the kernel makes up: their files are not files, and reading them can wait for ever.
const MADE_UP: [i64; 9] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x0027_e0eb, // cgroup
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x1cd1,      // devpts
];

/// Packs what `what` names inside `root`, and all that is in it, under the name `called`.
///
/// `what` is a relative path of which no part may be a link, but the last, which is packed as a link; `.` is the
/// folder `root` itself. With an empty `called` a folder's entries stand at the top of the archive, and anything else
/// keeps its name. Entries come in the order of their names, so the same tree makes the same archive.
///
/// Pipes, sockets and devices are left out and counted; so are the kernel's own file systems. A file that changes
/// while it is read keeps the length it was announced with. Owners are not recorded. Set-user-id and set-group-id bits
/// are not either.
pub fn pack(
    root: BorrowedFd<'_>,
    what: &Path,
    called: &OsStr,
    to: impl Write,
    limits: Limits,
) -> Result<Summary, ArchiveError> {
    let what = what.as_os_str().as_bytes();
    let way = Way::parse(what).map_err(|reason| refused(what, reason))?;
    let called = checked(called.as_bytes())?;
    let unreadable = |error: Errno| unreadable(what, error);
    let parent = descend(root, way.parent()).map_err(unreadable)?;
    let mut packer = Packer::new(to, limits);
    if way.is_top() {
        packer
            .tree(openat(&parent, ".", Opened::Read.flags(), Mode::empty()).map_err(unreadable)?, called)?;
        return packer.finish();
    }
    let kind = kind_of(parent.as_fd(), way.name()).map_err(unreadable)?;
    if kind == FileType::Directory {
        let folder = openat(&parent, way.name(), Opened::Read.flags(), Mode::empty()).map_err(unreadable)?;
        packer.tree(folder, called)?;
    } else {
        packer.single(
            parent.as_fd(),
            way.name(),
            kind,
            if called.is_empty() { way.name() } else { called },
        )?;
    }
    packer.finish()
}

/// A name for the top of an archive is empty or one name.
fn checked(called: &[u8]) -> Result<&[u8], ArchiveError> {
    if called.is_empty() {
        return Ok(called);
    }
    match Way::parse(called) {
        Ok(way) if way.name() == called => Ok(called),
        Ok(_) => Err(refused(called, Refusal::NotAFolder)),
        Err(reason) => Err(refused(called, reason)),
    }
}

fn refused(name: &[u8], reason: Refusal) -> ArchiveError {
    ArchiveError::Refused { name: shown(name), reason }
}

fn unreadable(name: &[u8], error: impl Into<io::Error>) -> ArchiveError {
    ArchiveError::ReadTree { name: shown(name), source: error.into() }
}

struct Packer<W: Write> {
    to: BufWriter<W>,
    limits: Limits,
    /// How many bytes of the limit are left.
    left: u64,
    summary: Summary,
    first_names: FirstNames,
    /// The header in the making, and then pieces of content.
    buffer: Vec<u8>,
}

impl<W: Write> Packer<W> {
    fn new(to: W, limits: Limits) -> Packer<W> {
        Packer {
            to: BufWriter::with_capacity(PIECE, to),
            limits,
            left: limits.bytes,
            summary: Summary::default(),
            first_names: FirstNames::default(),
            buffer: Vec::new(),
        }
    }

    fn single(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        kind: FileType,
        called: &[u8],
    ) -> Result<(), ArchiveError> {
        match kind {
            FileType::RegularFile => self.file(folder, name, called),
            FileType::Symlink => self.link(folder, name, called),
            _ => Err(ArchiveError::Unfit { name: shown(name) }),
        }
    }

    fn tree(&mut self, top: OwnedFd, called: &[u8]) -> Result<(), ArchiveError> {
        let stat = fstat(&top).map_err(|error| unreadable(called, error))?;
        let prefix = if called.is_empty() { Vec::new() } else { [called, b"/"].concat() };
        self.folder(if prefix.is_empty() { b"./" } else { &prefix }, &stat)?;
        let entries = self.limits.entries;
        let mut walk = Walk::new(top, entries).map_err(|error| ended(&error, entries, called))?;
        // The devices of the folders on the way down, to notice where another file system begins.
        let mut devices = vec![stat.st_dev];
        while let Some(step) = walk.next() {
            match step {
                Step::Up => drop(devices.pop()),
                Step::Entry(entry) => self.entry(&mut walk, &mut devices, &prefix, &entry)?,
            }
        }
        self.summary.vanished += walk.vanished();
        Ok(())
    }

    fn entry(
        &mut self,
        walk: &mut Walk,
        devices: &mut Vec<u64>,
        prefix: &[u8],
        entry: &Name,
    ) -> Result<(), ArchiveError> {
        let name = entry.name.to_bytes();
        let full = [prefix, walk.path(), name].concat();
        let failed = |error: Errno| unreadable(&full, error);
        let folder = walk.folder().map_err(failed)?;
        let kind = match entry.kind {
            FileType::Unknown => match kind_of(folder, name) {
                Err(Errno::NOENT) => return self.vanished(),
                other => other.map_err(failed)?,
            },
            known => known,
        };
        match kind {
            FileType::RegularFile => self.file(folder, name, &full),
            FileType::Symlink => self.link(folder, name, &full),
            FileType::Directory => self.enter(walk, devices, name, full),
            _ => {
                self.summary.left_out += 1;
                Ok(())
            }
        }
    }

    fn enter(
        &mut self,
        walk: &mut Walk,
        devices: &mut Vec<u64>,
        name: &[u8],
        mut full: Vec<u8>,
    ) -> Result<(), ArchiveError> {
        let failed = |error: Errno| unreadable(&full, error);
        let above = walk.folder().map_err(failed)?;
        let Some((folder, stat)) = open_as(above, name, FileType::Directory).map_err(failed)? else {
            return self.vanished();
        };
        if devices.last() != Some(&stat.st_dev) && is_made_up(&folder).map_err(failed)? {
            self.summary.left_out += 1;
            return Ok(());
        }
        full.push(b'/');
        self.folder(&full, &stat)?;
        devices.push(stat.st_dev);
        walk.enter(name, folder, &stat).map_err(|error| ended(&error, self.limits.entries, &full))
    }

    fn folder(&mut self, full: &[u8], stat: &Stat) -> Result<(), ArchiveError> {
        self.summary.folders += 1;
        self.header(full, b"", Kind::Folder, stat, 0)
    }

    fn link(&mut self, folder: BorrowedFd<'_>, name: &[u8], full: &[u8]) -> Result<(), ArchiveError> {
        let looked = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|stat| Ok((stat, readlinkat(folder, name, Vec::new())?)));
        let (stat, target) = match looked {
            // So answers what is no longer a link.
            Err(Errno::NOENT | Errno::INVAL) => return self.vanished(),
            other => other.map_err(|error| unreadable(full, error))?,
        };
        self.summary.links += 1;
        self.header(full, target.to_bytes(), Kind::Link, &stat, 0)
    }

    fn file(&mut self, folder: BorrowedFd<'_>, name: &[u8], full: &[u8]) -> Result<(), ArchiveError> {
        let found = open_as(folder, name, FileType::RegularFile);
        let Some((file, stat)) = found.map_err(|error| unreadable(full, error))? else {
            return self.vanished();
        };
        if let Some(first) = self.first_names.get(&stat) {
            let first = first.to_vec();
            self.summary.hard_links += 1;
            return self.header(full, &first, Kind::HardLink, &stat, 0);
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.header(full, b"", Kind::File, &stat, size)?;
        self.content(&mut File::from(file), size, full)?;
        self.summary.files += 1;
        self.summary.bytes += size;
        self.first_names.remember(&stat, full);
        Ok(())
    }

    /// Writes exactly `size` bytes and the padding, whatever has become of the file.
    fn content(&mut self, file: &mut File, size: u64, full: &[u8]) -> Result<(), ArchiveError> {
        self.buffer.resize(PIECE, 0);
        let mut left = size;
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let count = match file.read(&mut self.buffer[..wanted]) {
                Ok(0) => {
                    self.summary.cut_short += 1;
                    return self.zeros(left + padding(size));
                }
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(unreadable(full, error)),
            };
            self.to.write_all(&self.buffer[..count]).map_err(unwritable)?;
            left -= count as u64;
        }
        self.zeros(padding(size))
    }

    fn header(
        &mut self,
        full: &[u8],
        link: &[u8],
        kind: Kind,
        stat: &Stat,
        size: u64,
    ) -> Result<(), ArchiveError> {
        if full.len() > MOST_NAME {
            return Err(refused(full, Refusal::TooLong));
        }
        let entry = Entry {
            name: full.to_vec(),
            link: link.to_vec(),
            kind,
            mode: stat.st_mode & 0o1777,
            mtime: Mtime::of(stat),
            size,
        };
        self.buffer.clear();
        entry.encode(&mut self.buffer);
        self.spend((self.buffer.len() as u64).saturating_add(size).saturating_add(padding(size)))?;
        self.to.write_all(&self.buffer).map_err(unwritable)
    }

    fn spend(&mut self, bytes: u64) -> Result<(), ArchiveError> {
        let too_many = ArchiveError::Limit { most: self.limits.bytes, what: "bytes in the archive" };
        self.left = self.left.checked_sub(bytes).ok_or(too_many)?;
        Ok(())
    }

    fn zeros(&mut self, mut count: u64) -> Result<(), ArchiveError> {
        const ZEROS: [u8; 8 * BLOCK] = [0; 8 * BLOCK];
        while count > 0 {
            let length = usize::try_from(count).unwrap_or(ZEROS.len()).min(ZEROS.len());
            self.to.write_all(&ZEROS[..length]).map_err(unwritable)?;
            count -= length as u64;
        }
        Ok(())
    }

    fn vanished(&mut self) -> Result<(), ArchiveError> {
        self.summary.vanished += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<Summary, ArchiveError> {
        self.spend(END)?;
        self.zeros(END)?;
        self.to.flush().map_err(unwritable)?;
        Ok(self.summary)
    }
}

fn is_made_up(folder: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(MADE_UP.contains(&fstatfs(folder)?.f_type))
}

fn unwritable(source: io::Error) -> ArchiveError {
    ArchiveError::WriteArchive { source }
}

fn ended(error: &WalkError, entries: u64, name: &[u8]) -> ArchiveError {
    match (error, error.limit(entries)) {
        (_, Some((most, what))) => ArchiveError::Limit { most, what },
        (WalkError::List(error), None) => unreadable(name, *error),
        (_, None) => unreadable(name, Errno::IO),
    }
}

//! Makes a tree out of a tar stream that anybody may have made up.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, chmodat, fchmod, fstat, futimens, linkat, mkdirat, openat, statat,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::header::{Entry, Kind};
use super::ladder::{Ladder, Opened};
use super::reader::Reader;
use super::times::Mtime;
use super::way::{Way, descend, parts};
use super::{ArchiveError, Links, OnRefusal, Refusal, Rules, Summary, shown};

/// How many bytes of a file are written at once.
const PIECE: usize = 64 << 10;
/// How often a place is cleared that somebody else fills again and again.
const ATTEMPTS: u32 = 16;
/// The mode of a folder that is needed and not named.
const IMPLIED: u32 = 0o755;

/// Unpacks an archive into a folder.
///
/// Whatever the archive says and whatever others do in the folder meanwhile, nothing outside of it is read, made,
/// changed or removed: each entry is created by one name in a folder that was reached from `into` step by step without
/// a link. A file or link in an entry's place is removed first and never written to; a folder stays, keeps its mode
/// and takes in what the archive has for it. A folder that somebody moves while it is being filled is filled where it
/// went. Everything belongs to the caller; owners in the archive mean nothing.
///
/// A new folder gets its mode and time when the archive goes on to something outside of it, so a folder's entries
/// should stand together, as every packer writes them.
///
/// Reads exactly the archive and not one byte more, so give it a buffered reader where that does not matter. When it
/// ends with an error, what was unpacked so far stays, the last file perhaps not whole.
pub fn unpack(from: impl Read, into: OwnedFd, rules: Rules) -> Result<Summary, ArchiveError> {
    let mut archive = Reader::new(from, rules.limits.bytes);
    let mut unpacker = Unpacker {
        ladder: Ladder::new(into, Opened::Pass),
        made: Vec::new(),
        rules,
        summary: Summary::default(),
        entries: 0,
        buffer: vec![0; PIECE],
    };
    while let Some(entry) = archive.next()? {
        unpacker.place(&entry, &mut archive)?;
    }
    unpacker.leave(0)?;
    Ok(unpacker.summary)
}

/// Where a folder on the way down came from.
#[derive(Debug, Clone, Copy)]
enum Made {
    /// It was there.
    Before,
    /// It was made here; if the archive named it, its mode and time wait until all is in it.
    Here(Option<(Mode, Mtime)>),
}

struct Unpacker {
    ladder: Ladder,
    /// One for each level of the ladder.
    made: Vec<Made>,
    rules: Rules,
    summary: Summary,
    entries: u64,
    buffer: Vec<u8>,
}

/// Why an entry was not created.
enum Trouble {
    Refused(Refusal),
    Failed(Errno),
    Archive(ArchiveError),
}

impl From<Refusal> for Trouble {
    fn from(reason: Refusal) -> Trouble {
        Trouble::Refused(reason)
    }
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Trouble {
        match error {
            Errno::NAMETOOLONG => Trouble::Refused(Refusal::TooLong),
            other => Trouble::Failed(other),
        }
    }
}

impl From<ArchiveError> for Trouble {
    fn from(error: ArchiveError) -> Trouble {
        Trouble::Archive(error)
    }
}

impl Unpacker {
    fn place<R: Read>(&mut self, entry: &Entry, archive: &mut Reader<R>) -> Result<(), ArchiveError> {
        self.count_entry()?;
        match self.create(entry, archive) {
            Ok(()) => Ok(()),
            Err(Trouble::Refused(_)) if self.rules.refused == OnRefusal::Count => {
                self.summary.refused += 1;
                Ok(())
            }
            Err(Trouble::Refused(reason)) => Err(ArchiveError::Refused { name: shown(&entry.name), reason }),
            Err(Trouble::Failed(error)) => Err(failed(&entry.name, error)),
            Err(Trouble::Archive(error)) => Err(error),
        }
    }

    fn count_entry(&mut self) -> Result<(), ArchiveError> {
        self.entries += 1;
        let most = self.rules.limits.entries;
        if self.entries > most { Err(ArchiveError::Limit { most, what: "entries" }) } else { Ok(()) }
    }

    fn create<R: Read>(&mut self, entry: &Entry, archive: &mut Reader<R>) -> Result<(), Trouble> {
        let way = Way::parse(&entry.name)?;
        if way.is_top() {
            return if entry.kind == Kind::Folder { Ok(()) } else { Err(Refusal::Empty.into()) };
        }
        match entry.kind {
            Kind::Folder => self.folder(&way, entry),
            Kind::File => self.file(&way, entry, archive),
            Kind::Link => self.link(&way, entry),
            Kind::HardLink => self.hard_link(&way, entry),
            Kind::Special => Err(Refusal::Special.into()),
            Kind::Sparse | Kind::Other => Err(Refusal::Kind.into()),
        }
    }

    fn folder(&mut self, way: &Way, entry: &Entry) -> Result<(), Trouble> {
        let levels = way.depth() + 1;
        if self.ladder.common_depth(way.path()) == levels {
            self.leave(levels)?;
        } else {
            self.go(way.parent())?;
            self.enter(way.name(), Wanted::Named)?;
        }
        let mode = self.mode(entry, 0o1777);
        if let Some(made @ Made::Here(_)) = self.made.last_mut() {
            *made = Made::Here(Some((mode, entry.mtime)));
        }
        self.summary.folders += 1;
        Ok(())
    }

    fn file<R: Read>(&mut self, way: &Way, entry: &Entry, archive: &mut Reader<R>) -> Result<(), Trouble> {
        self.go(way.parent())?;
        let (folder, name) = (self.ladder.folder()?, way.name());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || openat(folder, name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(in_free_place(folder, name, make)?);
        loop {
            let count = archive.read(&mut self.buffer)?;
            if count == 0 {
                break;
            }
            file.write_all(&self.buffer[..count])
                .map_err(|source| ArchiveError::WriteTree { name: shown(&entry.name), source })?;
        }
        fchmod(&file, self.mode(entry, 0o777))?;
        futimens(&file, &entry.mtime.to_timestamps())?;
        self.summary.files += 1;
        self.summary.bytes += entry.size;
        Ok(())
    }

    fn link(&mut self, way: &Way, entry: &Entry) -> Result<(), Trouble> {
        let target = entry.link.as_slice();
        if target.is_empty() {
            return Err(Refusal::Empty.into());
        }
        if target.contains(&0) {
            return Err(Refusal::ZeroByte.into());
        }
        if self.rules.links == Links::Inside && !leads_inside(target, way.depth()) {
            return Err(Refusal::LinkOutside.into());
        }
        self.go(way.parent())?;
        let (folder, name) = (self.ladder.folder()?, way.name());
        in_free_place(folder, name, || symlinkat(target, folder, name))?;
        utimensat(folder, name, &entry.mtime.to_timestamps(), AtFlags::SYMLINK_NOFOLLOW)?;
        self.summary.links += 1;
        Ok(())
    }

    fn hard_link(&mut self, way: &Way, entry: &Entry) -> Result<(), Trouble> {
        let target = Way::parse(&entry.link).map_err(|_| Refusal::HardLink)?;
        if target.is_top() || target == *way {
            return Err(Refusal::HardLink.into());
        }
        let source = plain_file(self.ladder.top(), &target)?;
        self.go(way.parent())?;
        let (folder, name) = (self.ladder.folder()?, way.name());
        // Links the name itself: should it have become a symbolic link by now, that is linked and not followed.
        in_free_place(folder, name, || linkat(&source, target.name(), folder, name, AtFlags::empty()))?;
        self.summary.hard_links += 1;
        Ok(())
    }

    fn mode(&self, entry: &Entry, most: u32) -> Mode {
        Mode::from_raw_mode(entry.mode & most & !self.rules.mask)
    }

    /// Goes to a folder, each part of whose path has a slash after it, and makes what is missing.
    fn go(&mut self, path: &[u8]) -> Result<(), Trouble> {
        self.leave(self.ladder.common_depth(path))?;
        for part in parts(&path[self.ladder.path().len()..]) {
            self.enter(part, Wanted::Implied)?;
        }
        Ok(())
    }

    /// Goes down into a folder, and makes it if it is not there.
    fn enter(&mut self, name: &[u8], wanted: Wanted) -> Result<(), Trouble> {
        let mut made = Made::Before;
        for _ in 0..ATTEMPTS {
            let above = self.ladder.folder()?;
            match openat(above, name, Opened::Pass.flags(), Mode::empty()) {
                Ok(folder) => {
                    let stat = fstat(&folder)?;
                    self.ladder.push(name, folder, &stat)?;
                    self.made.push(made);
                    return Ok(());
                }
                Err(Errno::NOENT) => {}
                Err(Errno::NOTDIR | Errno::LOOP) if wanted == Wanted::Named => clear(above, name)?,
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(Refusal::NotAFolder.into()),
                Err(error) => return Err(error.into()),
            }
            match mkdirat(above, name, self.first_mode(wanted)) {
                Ok(()) => made = Made::Here(None),
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error.into()),
            }
            if wanted == Wanted::Implied {
                self.count_entry()?;
            }
        }
        Err(Errno::EXIST.into())
    }

    /// The mode of a new folder; one that is named gets its own when all is in it.
    fn first_mode(&self, wanted: Wanted) -> Mode {
        match wanted {
            Wanted::Named => Mode::RWXU,
            Wanted::Implied => Mode::from_raw_mode(IMPLIED & !self.rules.mask | 0o700),
        }
    }

    /// Goes up to this level; folders that were made get their mode and time now that all is in them.
    fn leave(&mut self, depth: usize) -> Result<(), ArchiveError> {
        while self.ladder.depth() > depth {
            let made = self.made.pop().unwrap_or(Made::Before);
            if let Made::Here(Some((mode, mtime))) = made {
                self.finish(mode, mtime).map_err(|error| failed(self.ladder.path(), error))?;
            }
            self.ladder.pop().map_err(|error| failed(self.ladder.path(), error))?;
        }
        Ok(())
    }

    fn finish(&self, mode: Mode, mtime: Mtime) -> rustix::io::Result<()> {
        let folder = self.ladder.folder()?;
        utimensat(folder, ".", &mtime.to_timestamps(), AtFlags::empty())?;
        chmodat(folder, ".", mode, AtFlags::empty())
    }
}

/// How a folder came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// As an entry of the archive: what is in its place and no folder has to go.
    Named,
    /// As part of a path: what is in its place must be a folder.
    Implied,
}

/// Creates something once its place is free; what is there goes first, unless it is a folder.
fn in_free_place<T>(
    folder: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn() -> rustix::io::Result<T>,
) -> Result<T, Trouble> {
    for _ in 0..ATTEMPTS {
        match make() {
            Err(Errno::EXIST) => clear(folder, name)?,
            other => return Ok(other?),
        }
    }
    Err(Errno::EXIST.into())
}

fn clear(folder: BorrowedFd<'_>, name: &[u8]) -> Result<(), Trouble> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => Err(Refusal::FolderInPlace.into()),
        Err(error) => Err(error.into()),
    }
}

/// The folder in which the way ends in a plain file.
fn plain_file(top: BorrowedFd<'_>, way: &Way) -> Result<OwnedFd, Trouble> {
    let looked = descend(top, way.parent())
        .and_then(|folder| statat(&folder, way.name(), AtFlags::SYMLINK_NOFOLLOW).map(|stat| (folder, stat)));
    match looked {
        Ok((folder, stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Ok(folder),
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(Refusal::HardLink.into()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a link at this depth cannot lead out of the folder.
///
/// A `..` after a name would go up from wherever another link led. At the front it goes up from the link's own folder,
/// whose real depth is known because no link was followed to get there.
fn leads_inside(target: &[u8], depth: usize) -> bool {
    let (mut up, mut named) = (0, false);
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named => return false,
            b".." => up += 1,
            _ => named = true,
        }
    }
    !target.starts_with(b"/") && up <= depth
}

fn failed(name: &[u8], error: Errno) -> ArchiveError {
    ArchiveError::WriteTree { name: shown(name), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_inside_goes_up_only_at_its_front() {
        for (target, depth, expected) in [
            ("a", 0, true),
            ("./a/b", 0, true),
            ("../a", 1, true),
            ("../../a", 1, false),
            (".././../a", 2, true),
            ("a/..", 5, false),
            ("..", 0, false),
            ("/a", 5, false),
            ("...", 0, true),
        ] {
            assert_eq!(leads_inside(target.as_bytes(), depth), expected, "{target} {depth}");
        }
    }
}

//! A walk through a tree that somebody else may be changing.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::vec::IntoIter;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::ladder::{Ladder, MOST_LEVELS, Opened};

/// The most bytes of names that are held at once, over all levels.
const MOST_HELD: usize = 64 << 20;
/// What a name costs beside its bytes.
const NAME_COST: usize = 48;
/// How many bytes of a folder are read at once.
const LISTED: usize = 32 << 10;

/// Something in a folder.
#[derive(Debug)]
pub(crate) struct Name {
    /// What it is called.
    pub(crate) name: CString,
    /// What it was when the folder was read, where the file system says.
    pub(crate) kind: FileType,
}

/// What comes next on a walk.
#[derive(Debug)]
pub(crate) enum Step {
    /// Something in [`Walk::folder`].
    Entry(Name),
    /// The walk went up one level.
    Up,
}

/// Why a walk ended early.
#[derive(Debug)]
pub(crate) enum WalkError {
    /// More entries than allowed.
    Entries,
    /// More names in folders that are not finished than can be held.
    Names,
    /// More levels than are supported.
    Levels,
    /// A folder could not be read.
    List(Errno),
}

impl WalkError {
    /// A limit that was exceeded, and what it counts; `None` when it was no limit.
    pub(crate) fn limit(&self, entries: u64) -> Option<(u64, &'static str)> {
        match self {
            WalkError::Entries => Some((entries, "entries")),
            WalkError::Names => Some((MOST_HELD as u64, "bytes of names in unfinished folders")),
            WalkError::Levels => Some((MOST_LEVELS as u64, "levels of folders")),
            WalkError::List(_) => None,
        }
    }
}

/// A walk in the order of names, folders before what is in them. Only the folders the caller enters are walked.
#[derive(Debug)]
pub(crate) struct Walk {
    ladder: Ladder,
    levels: Vec<Level>,
    entries_left: u64,
    held: usize,
    buffer: Vec<u8>,
    vanished: u64,
}

#[derive(Debug)]
struct Level {
    names: IntoIter<Name>,
    held: usize,
}

impl Walk {
    /// A walk through an open folder.
    pub(crate) fn new(top: OwnedFd, most_entries: u64) -> Result<Walk, WalkError> {
        let mut walk = Walk {
            ladder: Ladder::new(top, Opened::Read),
            levels: Vec::new(),
            entries_left: most_entries,
            held: 0,
            buffer: Vec::with_capacity(LISTED),
            vanished: 0,
        };
        walk.list()?;
        Ok(walk)
    }

    /// The folder that the last entry is in.
    pub(crate) fn folder(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        self.ladder.folder()
    }

    /// The path of [`Walk::folder`] from the top: each name with a slash after it.
    pub(crate) fn path(&self) -> &[u8] {
        self.ladder.path()
    }

    /// How many entries were listed and never offered, because their folder went away.
    pub(crate) fn vanished(&self) -> u64 {
        self.vanished
    }

    /// The next step; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Step> {
        if let Some(name) = self.levels.last_mut()?.names.next() {
            return Some(Step::Entry(name));
        }
        self.held -= self.levels.pop()?.held;
        let above = self.levels.last_mut()?;
        if self.ladder.pop().is_err() {
            self.vanished += above.names.len() as u64;
            above.names = Vec::new().into_iter();
        }
        Some(Step::Up)
    }

    /// Goes down into a folder that the caller opened from [`Walk::folder`]; its entries come next, then a step up.
    pub(crate) fn enter(&mut self, name: &[u8], folder: OwnedFd, stat: &Stat) -> Result<(), WalkError> {
        self.ladder.push(name, folder, stat).map_err(|_| WalkError::Levels)?;
        self.list()
    }

    fn list(&mut self) -> Result<(), WalkError> {
        let (mut names, before) = (Vec::new(), self.held);
        let folder = self.ladder.folder().map_err(WalkError::List)?;
        let mut listing = RawDir::new(folder, self.buffer.spare_capacity_mut());
        while let Some(entry) = listing.next() {
            let entry = match entry {
                // So answers a folder that was removed meanwhile.
                Err(Errno::NOENT) => break,
                other => other.map_err(WalkError::List)?,
            };
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries_left = self.entries_left.checked_sub(1).ok_or(WalkError::Entries)?;
            self.held += entry.file_name().count_bytes() + NAME_COST;
            if self.held > MOST_HELD {
                return Err(WalkError::Names);
            }
            names.push(Name { name: entry.file_name().to_owned(), kind: entry.file_type() });
        }
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.levels.push(Level { names: names.into_iter(), held: self.held - before });
        Ok(())
    }
}

/// What a name stands for, the name itself if it is a link.
pub(crate) fn kind_of(folder: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<FileType> {
    Ok(kind(&statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// What this is.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Opens what a name stands for to read it, and looks at what was opened. `None` when it is a link or of another kind
/// or gone: it was not so a moment ago.
pub(crate) fn open_as(
    folder: BorrowedFd<'_>,
    name: &[u8],
    expected: FileType,
) -> rustix::io::Result<Option<(OwnedFd, Stat)>> {
    let file = match openat(folder, name, flags_for(expected), Mode::empty()) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Ok(None),
        other => other?,
    };
    let stat = fstat(&file)?;
    Ok((kind(&stat) == expected).then_some((file, stat)))
}

/// Never follows a link, never waits for a pipe, never takes a terminal.
pub(crate) fn flags_for(expected: FileType) -> OFlags {
    match expected {
        FileType::Directory => Opened::Read.flags(),
        _ => OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
    }
}

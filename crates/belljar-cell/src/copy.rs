//! Copies the private tree of one sandbox for another, while the first one's guest may still be writing to it.
//!
//! The tree is a stranger's, so it is walked by descriptors and no link is followed; the copy is made in a new folder
//! that nobody else can reach. What an overlay needs to show the same picture is kept: whiteouts, opaque folders,
//! redirections.

mod attributes;
mod content;
#[cfg(test)]
mod tests;
mod unlocked;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, fchmod, fchown, fstat, futimens,
    linkat, mkdirat, mknodat, openat, readlinkat, statat, symlinkat, utimensat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::archive::ladder::{Ladder, Opened};
use crate::archive::walk::{Name, Step as WalkStep, Walk, WalkError, kind, kind_of, open_as};
use crate::archive::{FirstNames, Mtime, descend, shown};
use crate::failure::{Failure, Step};
use crate::lobby::Lobby;
use attributes::Attributes;
use content::Content;
use unlocked::Unlocked;

/// How many ids a sandbox has.
const IDS: u32 = 65_536;
/// Whose files become whose: an owner `from + n` becomes `to + n`, for n below 65,536.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shift {
    /// The first id of the sandbox that is copied.
    pub from: u32,
    /// The first id of the sandbox that gets the copy.
    pub to: u32,
}

impl Shift {
    /// Every owner stays who it is.
    pub const NONE: Shift = Shift { from: 0, to: 0 };

    /// The new id; `None` for one that is not the sandbox's.
    fn apply(self, id: u32) -> Option<u32> {
        if self == Shift::NONE {
            return Some(id);
        }
        let inside = id.checked_sub(self.from).filter(|inside| *inside < IDS)?;
        self.to.checked_add(inside)
    }
}

/// How much is copied at most, so that no guest can keep the copying busy for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of data, holes not counted, and of extended attributes.
    pub bytes: u64,
    /// Files, folders and everything else; also what is left out.
    pub entries: u64,
}

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Plain files.
    pub files: u64,
    /// Folders, the top included.
    pub folders: u64,
    /// Symbolic links.
    pub links: u64,
    /// Further names of a file that was there already.
    pub hard_links: u64,
    /// Pipes.
    pub pipes: u64,
    /// Marks of an overlay that something below is deleted.
    pub whiteouts: u64,
    /// Bytes of data, holes not counted, and of extended attributes.
    pub bytes: u64,
    /// Sockets, devices and other file systems: not copied.
    pub left_out: u64,
    /// Entries that were gone or replaced before they could be copied.
    pub vanished: u64,
}

/// Copies the folder `from`, with all that is in it, to the new folder `to`.
///
/// Modes, times, symbolic and hard links, pipes, overlay whiteouts, holes and `user.*` attributes are kept;
/// set-user-id and set-group-id bits, other attributes, sockets and devices are not. With `shift` every owner is
/// moved from one sandbox's range to the other's, and one outside of the range is an error; without, all belongs to
/// the caller. The paths themselves must be the caller's own; only what is in `from` may be a stranger's. After an
/// error the unfinished copy stays, to be removed by the caller.
pub fn copy_tree(from: &Path, to: &Path, shift: Option<Shift>, limits: Limits) -> Result<Summary, Failure> {
    let step = || format!("copy {} to {}", from.display(), to.display());
    let (top, stat, unlocked) = open_top(from).step(step)?;
    mkdirat(CWD, to, Mode::RWXU).step(step)?;
    let new = openat(CWD, to, Opened::Read.flags(), Mode::empty()).step(step)?;
    let mut copier = Copier::new(new, stat.st_dev, shift, limits);
    copier.begin_folder(top.as_fd(), &stat, unlocked, b".").map_err(|trouble| trouble.named(b"."))?;
    let mut walk = Walk::new(top, limits.entries).map_err(|error| ended(&error, limits, b"."))?;
    while let Some(step) = walk.next() {
        match step {
            WalkStep::Entry(name) => copier.entry(&mut walk, &name)?,
            WalkStep::Up => copier.finish_folder()?,
        }
    }
    copier.finish_folder()?;
    let vanished = copier.summary.vanished + walk.vanished();
    Ok(Summary { vanished, bytes: copier.budget.spent(), ..copier.summary })
}

/// Copies like [`copy_tree`] what a cell with subordinate ids owns: in a user namespace of theirs, where every owner can
/// stay who it is.
pub fn copy_mapped(from: &Path, to: &Path, limits: Limits) -> Result<Summary, Failure> {
    let lobby = Lobby::make().map_err(|reason| Failure::new(format!("use subordinate ids: {reason}")))?;
    lobby.run(|| copy_tree(from, to, Some(Shift::NONE), limits))
}

fn open_top(from: &Path) -> rustix::io::Result<Source> {
    let name = from.file_name().ok_or(Errno::INVAL)?;
    let parent = from.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    open_source(parent.as_fd(), name.as_bytes(), FileType::Directory)?.ok_or(Errno::NOTDIR)
}

fn ended(error: &WalkError, limits: Limits, name: &[u8]) -> Failure {
    match (error, error.limit(limits.entries)) {
        (_, Some((most, what))) => Failure::new(format!("copy a tree of more than {most} {what}")),
        (WalkError::List(error), None) => failure(name, *error),
        (_, None) => failure(name, Errno::IO),
    }
}

fn failure(name: &[u8], error: Errno) -> Failure {
    Failure { step: format!("copy {}", shown(name)), errno: error.raw_os_error() }
}

/// Why something was not copied.
enum Trouble {
    Kernel(Errno),
    Failure(Failure),
}

impl Trouble {
    fn named(self, name: &[u8]) -> Failure {
        match self {
            Trouble::Kernel(error) => failure(name, error),
            Trouble::Failure(failure) => failure,
        }
    }
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Trouble {
        Trouble::Kernel(error)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Failure(failure)
    }
}

/// What became of an entry.
enum Done {
    Copied,
    LeftOut,
    Vanished,
}

/// A folder being filled.
struct Filling {
    stat: Stat,
    owner: Option<Owner>,
    /// Kept until all of the original is read.
    _unlocked: Option<Unlocked>,
}

type Owner = (Option<Uid>, Option<Gid>);

struct Copier {
    to: Ladder,
    /// One for the top and one for each level of the ladder.
    filling: Vec<Filling>,
    device: u64,
    shift: Option<Shift>,
    limits: Limits,
    budget: Budget,
    first_names: FirstNames,
    summary: Summary,
    content: Content,
    attributes: Attributes,
}

impl Copier {
    fn new(to: OwnedFd, device: u64, shift: Option<Shift>, limits: Limits) -> Copier {
        Copier {
            to: Ladder::new(to, Opened::Read),
            filling: Vec::new(),
            device,
            shift,
            limits,
            budget: Budget::new(limits.bytes),
            first_names: FirstNames::default(),
            summary: Summary::default(),
            content: Content::default(),
            attributes: Attributes::default(),
        }
    }

    fn entry(&mut self, walk: &mut Walk, entry: &Name) -> Result<(), Failure> {
        let full = [walk.path(), entry.name.to_bytes()].concat();
        match self.copy(walk, entry, &full) {
            Ok(Done::Copied) => Ok(()),
            Ok(Done::LeftOut) => {
                self.summary.left_out += 1;
                Ok(())
            }
            Ok(Done::Vanished) => {
                self.summary.vanished += 1;
                Ok(())
            }
            Err(trouble) => Err(trouble.named(&full)),
        }
    }

    fn copy(&mut self, walk: &mut Walk, entry: &Name, full: &[u8]) -> Result<Done, Trouble> {
        let (folder, name) = (walk.folder()?, entry.name.to_bytes());
        let kind = match entry.kind {
            FileType::Unknown => match kind_of(folder, name) {
                Err(Errno::NOENT) => return Ok(Done::Vanished),
                other => other?,
            },
            known => known,
        };
        match kind {
            FileType::RegularFile => self.file(folder, name, full),
            FileType::Directory => self.folder(walk, name, full),
            FileType::Symlink => self.link(folder, name, full),
            FileType::Fifo | FileType::CharacterDevice => self.special(folder, name, full),
            _ => Ok(Done::LeftOut),
        }
    }

    fn folder(&mut self, walk: &mut Walk, name: &[u8], full: &[u8]) -> Result<Done, Trouble> {
        let Some((from, stat, unlocked)) = open_source(walk.folder()?, name, FileType::Directory)? else {
            return Ok(Done::Vanished);
        };
        if stat.st_dev != self.device {
            return Ok(Done::LeftOut);
        }
        mkdirat(self.to.folder()?, name, Mode::RWXU)?;
        let new = openat(self.to.folder()?, name, Opened::Read.flags(), Mode::empty())?;
        let new_stat = fstat(&new)?;
        self.to.push(name, new, &new_stat)?;
        self.begin_folder(from.as_fd(), &stat, unlocked, full)?;
        walk.enter(name, from, &stat).map_err(|error| ended(&error, self.limits, full))?;
        Ok(Done::Copied)
    }

    /// Copies the attributes of a folder; its owner, mode and time come last, when all is in it.
    fn begin_folder(
        &mut self,
        from: BorrowedFd<'_>,
        stat: &Stat,
        unlocked: Option<Unlocked>,
        full: &[u8],
    ) -> Result<(), Trouble> {
        let owner = self.owner(stat, full)?;
        self.attributes.copy(from, self.to.folder()?, &mut self.budget)?;
        self.filling.push(Filling { stat: *stat, owner, _unlocked: unlocked });
        self.summary.folders += 1;
        Ok(())
    }

    fn finish_folder(&mut self) -> Result<(), Failure> {
        let Some(Filling { stat, owner, .. }) = self.filling.pop() else { return Ok(()) };
        let finished = self
            .to
            .folder()
            .and_then(|folder| finish(folder, owner, &stat))
            .map_err(|error| failure(self.to.path(), error));
        finished?;
        self.to.pop().map_err(|error| failure(self.to.path(), error))
    }

    fn file(&mut self, folder: BorrowedFd<'_>, name: &[u8], full: &[u8]) -> Result<Done, Trouble> {
        let Some((from, stat, _)) = open_source(folder, name, FileType::RegularFile)? else {
            return Ok(Done::Vanished);
        };
        let owner = self.owner(&stat, full)?;
        if let Some(first) = self.first_names.get(&stat) {
            link_again(&self.to, first, name)?;
            self.summary.hard_links += 1;
            return Ok(Done::Copied);
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let new = openat(self.to.folder()?, name, flags, Mode::RUSR | Mode::WUSR)?;
        self.content.copy(from.as_fd(), new.as_fd(), &stat, &mut self.budget)?;
        self.attributes.copy(from.as_fd(), new.as_fd(), &mut self.budget)?;
        finish(new.as_fd(), owner, &stat)?;
        self.first_names.remember(&stat, full);
        self.summary.files += 1;
        Ok(Done::Copied)
    }

    fn link(&mut self, folder: BorrowedFd<'_>, name: &[u8], full: &[u8]) -> Result<Done, Trouble> {
        let looked = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|stat| Ok((stat, readlinkat(folder, name, Vec::new())?)));
        let (stat, target) = match looked {
            // So answers what is no longer a link.
            Err(Errno::NOENT | Errno::INVAL) => return Ok(Done::Vanished),
            other => other?,
        };
        let owner = self.owner(&stat, full)?;
        symlinkat(target.as_c_str(), self.to.folder()?, name)?;
        self.finish_name(name, owner, &stat)?;
        self.summary.links += 1;
        Ok(Done::Copied)
    }

    /// A pipe, or a whiteout, which is a device without a number; other devices are left out.
    fn special(&mut self, folder: BorrowedFd<'_>, name: &[u8], full: &[u8]) -> Result<Done, Trouble> {
        let stat = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Done::Vanished),
            other => other?,
        };
        let count = match kind(&stat) {
            FileType::Fifo => &mut self.summary.pipes,
            FileType::CharacterDevice if stat.st_rdev == 0 => &mut self.summary.whiteouts,
            _ => return Ok(Done::LeftOut),
        };
        *count += 1;
        let owner = self.owner(&stat, full)?;
        mknodat(self.to.folder()?, name, kind(&stat), Mode::empty(), 0)?;
        // Follows links, but this is no link, and the new tree is nobody else's.
        chmodat(self.to.folder()?, name, mode(&stat), AtFlags::empty())?;
        self.finish_name(name, owner, &stat)?;
        Ok(Done::Copied)
    }

    fn finish_name(&self, name: &[u8], owner: Option<Owner>, stat: &Stat) -> rustix::io::Result<()> {
        let folder = self.to.folder()?;
        if let Some((user, group)) = owner {
            chownat(folder, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        utimensat(folder, name, &Mtime::of(stat).to_timestamps(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The owner in the copy; `None` when it stays the caller's.
    fn owner(&self, stat: &Stat, full: &[u8]) -> Result<Option<Owner>, Failure> {
        let Some(shift) = self.shift else { return Ok(None) };
        match (shift.apply(stat.st_uid), shift.apply(stat.st_gid)) {
            (Some(user), Some(group)) => Ok(Some((Some(Uid::from_raw(user)), Some(Gid::from_raw(group))))),
            (None, _) | (_, None) => Err(Failure::new(format!(
                "copy {}: its owner {}:{} is not of the sandbox",
                shown(full),
                stat.st_uid,
                stat.st_gid
            ))),
        }
    }
}

/// Gives what was copied its owner, mode and time, in the order in which none undoes another.
fn finish(new: BorrowedFd<'_>, owner: Option<Owner>, stat: &Stat) -> rustix::io::Result<()> {
    if let Some((user, group)) = owner {
        fchown(new, user, group)?;
    }
    fchmod(new, mode(stat))?;
    futimens(new, &Mtime::of(stat).to_timestamps())
}

/// The mode without set-user-id and set-group-id.
fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o1777)
}

/// Links a file of the copy into its deepest folder under another name.
fn link_again(to: &Ladder, first: &[u8], name: &[u8]) -> rustix::io::Result<()> {
    let last = first.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let folder = descend(to.top(), &first[..last])?;
    linkat(&folder, &first[last..], to.folder()?, name, AtFlags::empty())
}

/// Something of the original, open to be read; with what made it readable, if it was not.
type Source = (OwnedFd, Stat, Option<Unlocked>);

fn open_source(
    folder: BorrowedFd<'_>,
    name: &[u8],
    expected: FileType,
) -> rustix::io::Result<Option<Source>> {
    let caller = rustix::process::geteuid();
    // Who reads what others own has powers that pass.
    let shut = |stat: &Stat| !caller.is_root() && stat.st_uid == caller.as_raw() && is_impassable(stat);
    match open_as(folder, name, expected) {
        Err(Errno::ACCESS) => Unlocked::open(folder, name, expected),
        // It can be listed, but nothing in it can be opened.
        Ok(Some((_, stat))) if shut(&stat) => Unlocked::open(folder, name, expected),
        other => Ok(other?.map(|(file, stat)| (file, stat, None))),
    }
}

fn is_impassable(stat: &Stat) -> bool {
    kind(stat) == FileType::Directory && stat.st_mode & 0o100 == 0
}

/// How many bytes may still be copied.
#[derive(Debug)]
struct Budget {
    most: u64,
    left: u64,
}

impl Budget {
    fn new(most: u64) -> Budget {
        Budget { most, left: most }
    }

    fn spend(&mut self, bytes: u64) -> Result<(), Failure> {
        let too_many = || Failure::new(format!("copy a tree of more than {} bytes", self.most));
        self.left = self.left.checked_sub(bytes).ok_or_else(too_many)?;
        Ok(())
    }

    fn spent(&self) -> u64 {
        self.most - self.left
    }
}

//! The way down from a folder to one below it, held open, of any depth.
//!
//! A path cannot be used where strangers rename: it may lead elsewhere the next time. Descriptors cannot be kept for
//! every level either: there are too few. So a ladder keeps the deepest levels open and, further up, one in many. A
//! level that was closed is opened again from the nearest open one above it, name by name and following no link, and
//! must be the very folder it was.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

/// How many of the deepest levels stay open.
const WINDOW: usize = 64;
/// One in so many levels further up stays open.
const SPACING: usize = 256;
/// The most levels: this bounds the descriptors to 192.
pub(crate) const MOST_LEVELS: usize = 32_768;

/// How folders are opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    /// To be listed and passed through.
    Read,
    /// To be passed through only, which needs fewer rights.
    Pass,
}

impl Opened {
    /// The flags to open a folder with; a link is never followed.
    pub(crate) fn flags(self) -> OFlags {
        let plain = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match self {
            Opened::Read => plain | OFlags::RDONLY,
            Opened::Pass => plain.difference(OFlags::NONBLOCK) | OFlags::PATH,
        }
    }
}

/// The way down from a top folder.
#[derive(Debug)]
pub(crate) struct Ladder {
    top: OwnedFd,
    rungs: Vec<Rung>,
    /// The names of all rungs, a slash after each.
    path: Vec<u8>,
    opened: Opened,
}

#[derive(Debug)]
struct Rung {
    /// Where its part of the path ends, the slash included.
    end: usize,
    folder: Option<OwnedFd>,
    identity: (u64, u64),
}

impl Ladder {
    /// A ladder that stands on a folder.
    pub(crate) fn new(top: OwnedFd, opened: Opened) -> Ladder {
        Ladder { top, rungs: Vec::new(), path: Vec::new(), opened }
    }

    /// The folder it stands on.
    pub(crate) fn top(&self) -> BorrowedFd<'_> {
        self.top.as_fd()
    }

    /// How many levels below the top this is.
    pub(crate) fn depth(&self) -> usize {
        self.rungs.len()
    }

    /// The path of the deepest folder from the top: each name with a slash after it.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The deepest folder; an error when it is no longer where it was.
    pub(crate) fn folder(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        match self.rungs.last() {
            None => Ok(self.top.as_fd()),
            Some(rung) => rung.folder.as_ref().map(AsFd::as_fd).ok_or(Errno::STALE),
        }
    }

    /// How many levels this path and the ladder's have in common.
    pub(crate) fn common_depth(&self, path: &[u8]) -> usize {
        if path.starts_with(&self.path) {
            return self.rungs.len();
        }
        let common = self.path.iter().zip(path).take_while(|(a, b)| a == b).count();
        self.rungs.partition_point(|rung| rung.end <= common)
    }

    /// Goes down into a folder that the caller opened from the deepest one by this name.
    pub(crate) fn push(&mut self, name: &[u8], folder: OwnedFd, stat: &Stat) -> rustix::io::Result<()> {
        if self.rungs.len() == MOST_LEVELS {
            return Err(Errno::NAMETOOLONG);
        }
        self.path.extend_from_slice(name);
        self.path.push(b'/');
        let end = self.path.len();
        self.rungs.push(Rung { end, folder: Some(folder), identity: identity(stat) });
        self.close_behind(self.rungs.len() - 1);
        Ok(())
    }

    /// Goes up one level. An error says that the folder there is no longer where it was; going up further is possible.
    pub(crate) fn pop(&mut self) -> rustix::io::Result<()> {
        self.rungs.pop();
        self.path.truncate(self.rungs.last().map_or(0, |rung| rung.end));
        match self.rungs.last() {
            Some(rung) if rung.folder.is_none() => self.open_again(),
            Some(_) | None => Ok(()),
        }
    }

    fn open_again(&mut self) -> rustix::io::Result<()> {
        let first = self.rungs.iter().rposition(|rung| rung.folder.is_some()).map_or(0, |open| open + 1);
        for index in first..self.rungs.len() {
            let above = match index {
                0 => Some(&self.top),
                _ => self.rungs[index - 1].folder.as_ref(),
            };
            let folder =
                openat(above.ok_or(Errno::STALE)?, self.name(index), self.opened.flags(), Mode::empty())?;
            if identity(&fstat(&folder)?) != self.rungs[index].identity {
                return Err(Errno::STALE);
            }
            self.rungs[index].folder = Some(folder);
            self.close_behind(index);
        }
        Ok(())
    }

    fn name(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |above| self.rungs[above].end);
        &self.path[start..self.rungs[index].end - 1]
    }

    /// Closes the level that falls out of the window when this one is opened.
    fn close_behind(&mut self, index: usize) {
        if let Some(behind) = index.checked_sub(WINDOW)
            && behind % SPACING != 0
        {
            self.rungs[behind].folder = None;
        }
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat, renameat};

    fn down(ladder: &mut Ladder, name: &str) {
        let flags = Opened::Pass.flags();
        let _ = mkdirat(ladder.folder().unwrap(), name, Mode::RWXU);
        let folder = openat(ladder.folder().unwrap(), name, flags, Mode::empty()).unwrap();
        let stat = fstat(&folder).unwrap();
        ladder.push(name.as_bytes(), folder, &stat).unwrap();
    }

    fn ladder(base: &tempfile::TempDir) -> Ladder {
        let top = openat(CWD, base.path(), Opened::Pass.flags(), Mode::empty()).unwrap();
        Ladder::new(top, Opened::Pass)
    }

    fn open(ladder: &Ladder) -> usize {
        ladder.rungs.iter().filter(|rung| rung.folder.is_some()).count()
    }

    #[test]
    fn few_levels_are_open_and_each_is_the_right_one_on_the_way_up() {
        let base = tempfile::tempdir().unwrap();
        let mut ladder = ladder(&base);
        let mut expected = Vec::new();
        for _ in 0..1500 {
            down(&mut ladder, "d");
            expected.push(fstat(ladder.folder().unwrap()).unwrap().st_ino);
            assert!(open(&ladder) <= WINDOW + 6);
        }
        while ladder.depth() > 0 {
            assert_eq!(fstat(ladder.folder().unwrap()).unwrap().st_ino, expected[ladder.depth() - 1]);
            assert_eq!(ladder.path().len(), 2 * ladder.depth());
            assert!(open(&ladder) <= WINDOW + 6);
            ladder.pop().unwrap();
        }
        crate::remove::remove_tree(&base.path().join("d")).unwrap();
    }

    #[test]
    fn a_level_that_was_moved_away_is_noticed_and_those_above_still_work() {
        let base = tempfile::tempdir().unwrap();
        let mut ladder = ladder(&base);
        for _ in 0..200 {
            down(&mut ladder, "d");
        }
        renameat(ladder.top(), "d/d/d", ladder.top(), "away").unwrap();
        mkdirat(ladder.top(), "d/d/d", Mode::RWXU).unwrap();
        let mut lost = 0;
        while ladder.depth() > 0 {
            lost += usize::from(ladder.pop().is_err());
            assert_eq!(ladder.folder().is_err(), ladder.depth() > 2 && ladder.depth() <= 200 - WINDOW);
        }
        assert_eq!(lost, 200 - WINDOW - 2);
        crate::remove::remove_tree(&base.path().join("d")).unwrap();
    }

    #[test]
    fn common_levels_are_counted_by_whole_names() {
        let base = tempfile::tempdir().unwrap();
        let mut ladder = ladder(&base);
        for name in ["ab", "c", "def"] {
            down(&mut ladder, name);
        }
        for (path, expected) in [
            ("", 0),
            ("a/", 0),
            ("ab/", 1),
            ("ab/c/", 2),
            ("ab/cd/", 1),
            ("ab/c/def/", 3),
            ("ab/c/def/g/", 3),
        ] {
            assert_eq!(ladder.common_depth(path.as_bytes()), expected, "{path}");
        }
    }
}

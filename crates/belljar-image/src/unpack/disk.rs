//! The folder on disk: every call goes through the descriptor of a folder, and no path with a link in it is followed.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fstat,
    mkdirat, mknodat, openat, openat2, statat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::seen::Seen;
use super::tree::{Id, ROOT, Tree};
use super::{UnpackError, shown};

/// How many folders are kept open.
const OPEN_FOLDERS: usize = 64;
/// Made and removed again, to see what becomes of new files.
const PROBE: &str = "probe";
/// What every folder has while things are put into it, whatever the layer says.
const OURS: Mode = Mode::from_raw_mode(0o700);

/// The folder that a layer goes into.
pub(super) struct Disk {
    root: OwnedFd,
    open: HashMap<Id, Rc<OwnedFd>>,
    /// Who owns what is made here.
    pub(super) owner: (u32, u32),
    /// The permissions that new files may have at birth.
    pub(super) grantable: u32,
}

/// Names an operation and what it was done to.
pub(super) trait Doing<T> {
    fn doing(self, operation: &'static str, path: &[u8]) -> Result<T, UnpackError>;
}

impl<T> Doing<T> for Result<T, Errno> {
    fn doing(self, operation: &'static str, path: &[u8]) -> Result<T, UnpackError> {
        self.map_err(|errno| UnpackError::Place { operation, path: shown(path), source: errno.into() })
    }
}

impl Disk {
    /// Opens the folder, which must be empty.
    pub(super) fn open(into: BorrowedFd<'_>) -> Result<Disk, UnpackError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(into, ".", flags, Mode::empty()).doing("open", b".")?;
        let mut entries = Dir::read_from(&root).doing("list", b".")?;
        if entries.any(|entry| entry.is_ok_and(|entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")))
        {
            return Err(UnpackError::NotEmpty);
        }
        let (owner, grantable) = probe(&root).doing("try the folder", b".")?;
        Ok(Disk { root, open: HashMap::new(), owner, grantable })
    }

    /// A folder of the layer.
    pub(super) fn folder(&mut self, tree: &Tree, id: Id) -> Result<Rc<OwnedFd>, UnpackError> {
        if let Some(folder) = self.open.get(&id) {
            return Ok(folder.clone());
        }
        let folder = Rc::new(self.open_anew(tree, id)?);
        if self.open.len() >= OPEN_FOLDERS {
            self.open.clear();
        }
        self.open.insert(id, folder.clone());
        Ok(folder)
    }

    /// A folder of the layer, for once.
    pub(super) fn open_anew(&self, tree: &Tree, id: Id) -> Result<OwnedFd, UnpackError> {
        let path = tree.path(id);
        let shown = if id == ROOT { b"." } else { &path[..] };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, shown, flags, Mode::empty(), resolve).doing("open", shown)
    }

    pub(super) fn make_folder(&mut self, tree: &Tree, at: Id, name: &[u8]) -> Result<(), UnpackError> {
        mkdirat(self.folder(tree, at)?, name, OURS).doing("make the folder", name)
    }

    /// Makes a file that was not there.
    pub(super) fn make_file(
        &mut self,
        tree: &Tree,
        at: Id,
        name: &[u8],
        mode: u32,
    ) -> Result<OwnedFd, UnpackError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(self.folder(tree, at)?, name, flags, Mode::from_raw_mode(mode)).doing("make the file", name)
    }

    /// Makes what overlays take for "nothing of that name below".
    pub(super) fn make_whiteout(
        &mut self,
        tree: &Tree,
        at: Id,
        name: &[u8],
    ) -> Result<Rc<Seen>, UnpackError> {
        let folder = self.folder(tree, at)?;
        mknodat(&folder, name, FileType::CharacterDevice, Mode::empty(), 0).doing("hide", name)?;
        Disk::date(&folder, name, (0, 0))?;
        Disk::see(&folder, name, Seen::nothing())
    }

    /// Looks at what a name stands for now; what is in it is known.
    pub(super) fn see(folder: impl AsFd, name: &[u8], content: String) -> Result<Rc<Seen>, UnpackError> {
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).doing("look at", name)?;
        Ok(Rc::new(Seen::new(&stat, content)))
    }

    /// Removes something that is no folder.
    pub(super) fn remove(&mut self, tree: &Tree, at: Id, name: &[u8]) -> Result<(), UnpackError> {
        unlinkat(self.folder(tree, at)?, name, AtFlags::empty()).doing("remove", name)
    }

    /// Removes a folder in which nothing is left.
    pub(super) fn remove_folder(
        &mut self,
        tree: &Tree,
        at: Id,
        name: &[u8],
        id: Id,
    ) -> Result<(), UnpackError> {
        self.open.remove(&id);
        unlinkat(self.folder(tree, at)?, name, AtFlags::REMOVEDIR).doing("remove the folder", name)
    }

    /// Gives a name, never what it leads to, its owner.
    pub(super) fn own(folder: impl AsFd, name: &[u8], owner: (u32, u32)) -> Result<(), UnpackError> {
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| {
            UnpackError::Owner { path: shown(name), uid: owner.0, gid: owner.1, source: errno.into() }
        })
    }

    /// Gives a name, never what it leads to, its time.
    pub(super) fn date(folder: impl AsFd, name: &[u8], mtime: (i64, u32)) -> Result<(), UnpackError> {
        utimensat(folder, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW).doing("date", name)
    }
}

/// Both times of a file are the one that layers have.
pub(super) fn times(mtime: (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Sees what a new file is like: mounts, parents and masks all have a say in it.
fn probe(root: &OwnedFd) -> Result<((u32, u32), u32), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(root, PROBE, flags, Mode::from_raw_mode(0o777))?;
    let found = fstat(&file)?;
    unlinkat(root, PROBE, AtFlags::empty())?;
    Ok(((found.st_uid, found.st_gid), found.st_mode & 0o777))
}

//! Puts entries where they belong.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Uid, XattrFlags, chmodat, fchmod, fchown, fsetxattr, futimens, linkat,
    mknodat, symlinkat,
};
use rustix::io::Errno;

use super::archive::{Archive, Entry, Kind};
use super::disk::{Disk, Doing, times};
use super::file;
use super::name::{self, Place};
use super::seen::{Seen, escaped};
use super::tree::{Child, Found, Id, ROOT, Tree};
use super::xattr::{self, Xattr};
use super::{Foreign, LeftOut, Options, Ownership, Placed, UnpackError, shown};

/// The longest target that a link can have.
const LONGEST_TARGET: usize = 4095;
/// Tells overlays that are mounted with `userxattr` that a folder hides what is below it.
const OPAQUE: &str = "user.overlay.opaque";

/// What a folder gets once everything is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Metadata {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, u32),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Metadata {
    /// That of a folder the layer does not speak of.
    pub(super) fn implied() -> Metadata {
        Metadata { mode: 0o755, owner: (0, 0), mtime: (0, 0), xattrs: Vec::new() }
    }

    fn of(entry: &mut Entry) -> Metadata {
        let xattrs = std::mem::take(&mut entry.xattrs);
        Metadata { mode: entry.mode, owner: (entry.uid, entry.gid), mtime: entry.mtime, xattrs }
    }
}

/// A layer that is being unpacked.
pub(super) struct Placer<'a> {
    options: &'a Options,
    tree: Tree,
    disk: Disk,
    bytes: u64,
    entries: u64,
    foreign: Foreign,
    left_out: LeftOut,
    implied_folders: u64,
}

impl<'a> Placer<'a> {
    pub(super) fn new(disk: Disk, options: &'a Options) -> Placer<'a> {
        let tree = Tree::new(Metadata::implied());
        Placer {
            options,
            tree,
            disk,
            bytes: 0,
            entries: 0,
            foreign: Foreign::default(),
            left_out: LeftOut::default(),
            implied_folders: 0,
        }
    }

    /// What was placed, once all is finished.
    pub(super) fn placed(&self) -> Placed {
        let (sums, disk) = self.tree.sums();
        Placed {
            entries: self.entries,
            owners: self.foreign,
            left_out: self.left_out,
            implied_folders: self.implied_folders,
            opaque: self.tree.folder(ROOT).is_some_and(|root| root.opaque),
            sums,
            disk,
        }
    }

    /// Places one entry.
    pub(super) fn place(&mut self, mut entry: Entry, archive: &mut Archive<'_>) -> Result<(), UnpackError> {
        self.count(&entry)?;
        let path = std::mem::take(&mut entry.path);
        match name::read(&path, &self.options.limits)? {
            Place::Reserved => {
                self.left_out.reserved += 1;
                Ok(())
            }
            Place::Opaque { folder } => {
                let id = self.enter(folder, &path)?;
                self.make_opaque(id);
                Ok(())
            }
            Place::Whiteout { folder, name } => {
                let at = self.enter(folder, &path)?;
                self.hide(at, name, &path)
            }
            Place::Root => self.place_root(entry, &path),
            Place::Name { folder, name } => {
                let at = self.enter(folder, &path)?;
                self.check_length(at, name)?;
                self.place_name(entry, archive, Spot { at, name, path: &path })
            }
        }
    }

    fn count(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        let limits = &self.options.limits;
        self.entries += 1;
        if self.entries > limits.entries {
            return Err(UnpackError::TooManyEntries { limit: limits.entries });
        }
        // Holes count: somebody may fill them.
        self.bytes = self.bytes.saturating_add(entry.size);
        if self.bytes > limits.bytes {
            return Err(UnpackError::TooManyBytes { limit: limits.bytes });
        }
        Ok(())
    }

    fn place_root(&mut self, mut entry: Entry, path: &[u8]) -> Result<(), UnpackError> {
        if entry.kind != Kind::Folder {
            return Err(UnpackError::Name { path: shown(path), what: "the root can only be a folder" });
        }
        self.check_owner(&entry, path)?;
        if let Some(root) = self.tree.folder_mut(ROOT) {
            root.metadata = Metadata::of(&mut entry);
        }
        Ok(())
    }

    fn place_name(
        &mut self,
        entry: Entry,
        archive: &mut Archive<'_>,
        spot: Spot<'_>,
    ) -> Result<(), UnpackError> {
        match entry.kind {
            Kind::HardLink => return self.place_hard_link(&entry, spot),
            Kind::CharacterDevice(0, 0) => return self.hide(spot.at, spot.name, spot.path),
            Kind::CharacterDevice(..) | Kind::BlockDevice => return self.leave_device(spot),
            Kind::File | Kind::Link | Kind::Folder | Kind::Fifo => {}
        }
        self.check_owner(&entry, spot.path)?;
        match entry.kind {
            Kind::Folder => self.place_folder(entry, spot),
            Kind::Link => self.place_link(&entry, spot),
            Kind::Fifo => self.place_fifo(&entry, spot),
            _ => self.place_file(entry, archive, spot),
        }
    }

    fn place_folder(&mut self, mut entry: Entry, spot: Spot<'_>) -> Result<(), UnpackError> {
        let metadata = Metadata::of(&mut entry);
        if let Some(Child::Folder(id)) = self.tree.child(spot.at, spot.name) {
            let id = *id;
            if let Some(folder) = self.tree.folder_mut(id) {
                folder.metadata = metadata;
            }
            return Ok(());
        }
        self.make_folder(spot.at, spot.name, metadata)?;
        Ok(())
    }

    fn place_file(
        &mut self,
        entry: Entry,
        archive: &mut Archive<'_>,
        spot: Spot<'_>,
    ) -> Result<(), UnpackError> {
        self.clear(spot.at, spot.name)?;
        let plain = entry.mode & !self.disk.grantable == 0 && entry.xattrs.is_empty();
        let mode = if plain { entry.mode } else { 0o600 };
        let made = self.disk.make_file(&self.tree, spot.at, spot.name, mode);
        let file = made.map_err(|error| error.about(spot.path))?;
        let mut content = file::fill(&file, &entry, archive, spot.path)?;
        let capability = self.set_xattrs(&file, &entry.xattrs, spot.path)?;
        // Its mode may keep even its owner from reading them.
        if capability.is_none() && !entry.xattrs.is_empty() {
            content += &file::attributes(&file, spot.path)?;
        }
        self.own(&file, (entry.uid, entry.gid), spot.path)?;
        if !plain {
            fchmod(&file, Mode::from_raw_mode(entry.mode)).doing("set the permissions of", spot.path)?;
        }
        // A change of owner takes capabilities away, so they come after it.
        if let Some(value) = capability {
            self.set_capability(&file, value, spot.path)?;
            content += &file::attributes(&file, spot.path)?;
        }
        futimens(&file, &times(entry.mtime)).doing("date", spot.path)?;
        let seen = file::see(&file, content, spot.path)?;
        self.tree.insert(spot.at, spot.name, Child::Other, Some(seen));
        Ok(())
    }

    fn place_link(&mut self, entry: &Entry, spot: Spot<'_>) -> Result<(), UnpackError> {
        let refuse = |what| Err(UnpackError::Target { path: shown(spot.path), what });
        if entry.link.is_empty() || entry.link.contains(&0) {
            return refuse("it is empty or has a NUL in it");
        }
        if entry.link.len() > LONGEST_TARGET {
            return refuse("it is too long");
        }
        self.clear(spot.at, spot.name)?;
        let folder = self.disk.folder(&self.tree, spot.at)?;
        symlinkat(&entry.link[..], &folder, spot.name).doing("make the link", spot.path)?;
        self.finish_name(entry, spot, &folder)?;
        let seen = Disk::see(&folder, spot.name, escaped(&entry.link))?;
        self.tree.insert(spot.at, spot.name, Child::Link(entry.link[..].into()), Some(seen));
        Ok(())
    }

    fn place_fifo(&mut self, entry: &Entry, spot: Spot<'_>) -> Result<(), UnpackError> {
        self.clear(spot.at, spot.name)?;
        let folder = self.disk.folder(&self.tree, spot.at)?;
        mknodat(&folder, spot.name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .doing("make the pipe", spot.path)?;
        self.finish_name(entry, spot, &folder)?;
        let seen = Disk::see(&folder, spot.name, Seen::nothing())?;
        self.tree.insert(spot.at, spot.name, Child::Other, Some(seen));
        Ok(())
    }

    /// Owner, permissions and time of what cannot be opened.
    fn finish_name(&mut self, entry: &Entry, spot: Spot<'_>, folder: &OwnedFd) -> Result<(), UnpackError> {
        self.left_out.xattrs += entry.xattrs.len() as u64;
        if self.owns(entry.uid, entry.gid) {
            Disk::own(folder, spot.name, (entry.uid, entry.gid))?;
        }
        if entry.kind == Kind::Fifo {
            // Made a moment ago in a folder that is only ours: this is no link.
            chmodat(folder, spot.name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
                .doing("set the permissions of", spot.path)?;
        }
        Disk::date(folder, spot.name, entry.mtime)
    }

    fn place_hard_link(&mut self, entry: &Entry, spot: Spot<'_>) -> Result<(), UnpackError> {
        let missing = || UnpackError::NoTarget { path: shown(spot.path), target: shown(&entry.link) };
        let (folder, name) = match name::read(&entry.link, &self.options.limits)? {
            Place::Name { folder, name } => (folder, name),
            _ => return Err(missing()),
        };
        let Found::Folder(at) = self.tree.find(ROOT, folder) else { return Err(missing()) };
        let target = self.tree.child(at, name).cloned().ok_or_else(missing)?;
        match target {
            Child::Whiteout => return Err(missing()),
            Child::Folder(_) => {
                return Err(UnpackError::TargetIsFolder {
                    path: shown(spot.path),
                    target: shown(&entry.link),
                });
            }
            Child::LeftOut => return self.leave_device(spot),
            Child::Link(_) | Child::Other => {}
        }
        if (at, name) == (spot.at, spot.name) {
            return Ok(());
        }
        if let Some(Child::Folder(id)) = self.tree.child(spot.at, spot.name)
            && self.tree.is_within(at, *id)
        {
            return Err(missing());
        }
        let seen = self.tree.seen_again(at, name);
        self.clear(spot.at, spot.name)?;
        let (from, to) = (self.disk.folder(&self.tree, at)?, self.disk.folder(&self.tree, spot.at)?);
        linkat(&from, name, &to, spot.name, AtFlags::empty()).doing("link", spot.path)?;
        self.tree.insert(spot.at, spot.name, target, seen);
        Ok(())
    }

    /// Devices of a stranger are none of this machine's business. Nothing is there in their place, not even what lower
    /// layers have of that name.
    fn leave_device(&mut self, spot: Spot<'_>) -> Result<(), UnpackError> {
        self.clear(spot.at, spot.name)?;
        let made = self.disk.make_whiteout(&self.tree, spot.at, spot.name);
        let seen = made.map_err(|error| error.about(spot.path))?;
        self.left_out.devices += 1;
        self.tree.insert(spot.at, spot.name, Child::LeftOut, Some(seen));
        Ok(())
    }

    /// Hides what lower layers have of this name. What this layer has of it stays, wherever in the layer it stands: a
    /// file hides by being there, and a folder is made to.
    fn hide(&mut self, at: Id, name: &[u8], path: &[u8]) -> Result<(), UnpackError> {
        self.check_length(at, name)?;
        match self.tree.child(at, name) {
            Some(Child::Folder(id)) => {
                let id = *id;
                self.make_opaque(id);
                Ok(())
            }
            Some(Child::Link(_) | Child::Other | Child::Whiteout | Child::LeftOut) => Ok(()),
            None => {
                let made = self.disk.make_whiteout(&self.tree, at, name);
                let seen = made.map_err(|error| error.about(path))?;
                self.tree.insert(at, name, Child::Whiteout, Some(seen));
                Ok(())
            }
        }
    }

    fn make_opaque(&mut self, id: Id) {
        if let Some(folder) = self.tree.folder_mut(id) {
            folder.opaque = true;
        }
    }

    /// The folder that a path leads to; what is missing of it is made.
    fn enter(&mut self, path: &[u8], entry: &[u8]) -> Result<Id, UnpackError> {
        let (mut at, mut rest) = (ROOT, path.to_vec());
        loop {
            match self.tree.find(at, &rest) {
                Found::Folder(id) => return Ok(id),
                Found::Blocked => return Err(UnpackError::NotInFolder { path: shown(entry) }),
                Found::Circle => return Err(UnpackError::Circle { path: shown(entry) }),
                Found::Missing { at: above, name, rest: left } => {
                    if !name::is_plain(&name) {
                        return Err(UnpackError::Name {
                            path: shown(&name),
                            what: "a link leads through it",
                        });
                    }
                    self.implied_folders += 1;
                    at = self.make_folder(above, &name, Metadata::implied())?;
                    rest = left;
                }
            }
        }
    }

    /// Makes a folder where none is. One that comes in place of a whiteout hides what the whiteout hid.
    fn make_folder(&mut self, at: Id, name: &[u8], metadata: Metadata) -> Result<Id, UnpackError> {
        self.check_length(at, name)?;
        let hides = self.tree.child(at, name) == Some(&Child::Whiteout);
        self.clear(at, name)?;
        self.disk.make_folder(&self.tree, at, name)?;
        let id = self.tree.insert_folder(at, name, metadata);
        if hides {
            self.make_opaque(id);
        }
        Ok(id)
    }

    /// Removes what the layer has placed under this name, with all that is in it.
    fn clear(&mut self, at: Id, name: &[u8]) -> Result<(), UnpackError> {
        match self.tree.child(at, name) {
            None => return Ok(()),
            Some(Child::Folder(id)) => {
                let id = *id;
                self.clear_folder(id)?;
                self.disk.remove_folder(&self.tree, at, name, id)?;
                self.tree.forget(id);
            }
            Some(_) => self.disk.remove(&self.tree, at, name)?,
        }
        self.tree.remove(at, name);
        Ok(())
    }

    /// Removes all that is in a folder, in steps, for it may be deep.
    fn clear_folder(&mut self, id: Id) -> Result<(), UnpackError> {
        let mut inner = vec![id];
        let mut at = 0;
        while at < inner.len() {
            inner.extend(self.tree.folders_in(inner[at]));
            at += 1;
        }
        for folder in inner.into_iter().rev() {
            for (name, child) in self.tree.children(folder) {
                match child {
                    Child::Folder(id) => {
                        self.disk.remove_folder(&self.tree, folder, &name, id)?;
                        self.tree.forget(id);
                    }
                    Child::Link(_) | Child::Whiteout | Child::LeftOut | Child::Other => {
                        self.disk.remove(&self.tree, folder, &name)?;
                    }
                }
                self.tree.remove(folder, &name);
            }
        }
        Ok(())
    }

    /// Links can make paths longer than any name that stands in the layer.
    fn check_length(&self, at: Id, name: &[u8]) -> Result<(), UnpackError> {
        let limit = self.options.limits.path;
        if self.tree.length_in(at, name) > limit {
            return Err(UnpackError::PathTooLong { path: shown(name), limit });
        }
        Ok(())
    }

    fn check_owner(&mut self, entry: &Entry, path: &[u8]) -> Result<(), UnpackError> {
        let (uid, gid) = (entry.uid, entry.gid);
        if (uid, gid) == (0, 0) {
            return Ok(());
        }
        if self.options.ownership == Ownership::Refuse {
            return Err(UnpackError::ForeignOwner { path: shown(path), uid, gid });
        }
        self.foreign.entries += 1;
        self.foreign.highest_uid = self.foreign.highest_uid.max(uid);
        self.foreign.highest_gid = self.foreign.highest_gid.max(gid);
        Ok(())
    }

    /// Whether something must be given to its owner.
    fn owns(&self, uid: u32, gid: u32) -> bool {
        self.options.ownership == Ownership::Exact && (uid, gid) != self.disk.owner
    }

    fn own(&self, file: impl AsFd, owner: (u32, u32), path: &[u8]) -> Result<(), UnpackError> {
        if !self.owns(owner.0, owner.1) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        fchown(file, Some(uid), Some(gid)).map_err(|errno| UnpackError::Owner {
            path: shown(path),
            uid: owner.0,
            gid: owner.1,
            source: errno.into(),
        })
    }

    /// Sets what anybody may set, and gives back what only the right owner keeps.
    fn set_xattrs<'x>(
        &mut self,
        file: &OwnedFd,
        xattrs: &'x [(Vec<u8>, Vec<u8>)],
        path: &[u8],
    ) -> Result<Option<&'x [u8]>, UnpackError> {
        let mut capability = None;
        for (name, value) in xattrs {
            match xattr::read(name) {
                Xattr::Keep => match fsetxattr(file, &name[..], value, XattrFlags::empty()) {
                    Err(Errno::OPNOTSUPP) => self.left_out.xattrs += 1,
                    result => result.doing("set an extended attribute of", path)?,
                },
                Xattr::Capability if self.options.ownership == Ownership::Exact => {
                    capability = Some(&value[..]);
                }
                Xattr::Capability | Xattr::LeaveOut => self.left_out.xattrs += 1,
            }
        }
        Ok(capability)
    }

    fn set_capability(&mut self, file: &OwnedFd, value: &[u8], path: &[u8]) -> Result<(), UnpackError> {
        match fsetxattr(file, xattr::CAPABILITY, value, XattrFlags::empty()) {
            Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => {
                self.left_out.xattrs += 1;
                Ok(())
            }
            result => result.doing("give capabilities to", path),
        }
    }

    /// Gives folders what they are to have, from within, because a folder may shut others out or be changed by what
    /// comes into it.
    pub(super) fn finish(&mut self) -> Result<(), UnpackError> {
        for id in self.tree.innermost_first() {
            let Some(folder) = self.tree.folder(id) else { continue };
            let (metadata, opaque) = (folder.metadata.clone(), folder.opaque);
            let path = self.tree.path(id);
            let file = self.disk.open_anew(&self.tree, id)?;
            self.left_out.xattrs += u64::from(self.set_xattrs(&file, &metadata.xattrs, &path)?.is_some());
            if opaque {
                fsetxattr(&file, OPAQUE, b"y", XattrFlags::empty()).doing("hide what is below", &path)?;
            }
            let mut content = Seen::nothing();
            // Those of the root are read by who mounts it, and are no part of the sum.
            if id != ROOT && (opaque || !metadata.xattrs.is_empty()) {
                content += &file::attributes(&file, &path)?;
            }
            // Whoever made the root may be somebody else inside of a user namespace.
            if id == ROOT && self.options.ownership == Ownership::Exact {
                Disk::own(&file, b".", metadata.owner)?;
            }
            self.own(&file, metadata.owner, &path)?;
            fchmod(&file, Mode::from_raw_mode(metadata.mode)).doing("set the permissions of", &path)?;
            futimens(&file, &times(metadata.mtime)).doing("date", &path)?;
            let seen = file::see(&file, content, &path)?;
            if let Some(folder) = self.tree.folder_mut(id) {
                folder.seen = Some(seen);
            }
        }
        Ok(())
    }
}

/// Where an entry goes: a name in a folder, and the path that led there.
#[derive(Clone, Copy)]
struct Spot<'a> {
    at: Id,
    name: &'a [u8],
    path: &'a [u8],
}

//! The private folders of a cell on the host's disk: its writable layer, home and temporary folders.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::cell::{CellSpec, Guest, Origin, Root, User, Workspace};
use crate::copy::{self, Shift, copy_tree};
use crate::failure::{Failure, Step};
use crate::ids::Ids;

/// Where a cell keeps what its guest writes outside a workspace of the host's.
#[derive(Debug, Clone)]
pub(crate) struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// The scratch of a cell.
    pub(crate) fn of(spec: &CellSpec) -> Scratch {
        let cell = spec.cells.join(&spec.id);
        let folder = match spec.limits.disk {
            None => cell.join(FOLDER),
            Some(_) => cell.join(DISK).join(FOLDER),
        };
        Scratch { folder }
    }

    /// Where a disk of the cell's own is mounted, when it has one.
    pub(crate) fn disk(spec: &CellSpec) -> PathBuf {
        spec.cells.join(&spec.id).join(DISK)
    }

    /// Folders that are mounted one by one over a root that the guest may not write to, and where it sees them. Root's
    /// overlay holds them all: there the owners of the image keep the guest from the rest.
    pub(crate) fn private(&self, spec: &CellSpec, ids: Ids) -> Vec<(PathBuf, PathBuf)> {
        if !is_sealed(spec, ids) {
            return Vec::new();
        }
        let mut all = vec![
            (self.folder.join("home"), spec.guest.home.clone()),
            (self.folder.join("tmp"), PathBuf::from("/tmp")),
            (self.folder.join("var-tmp"), PathBuf::from("/var/tmp")),
        ];
        if let Workspace::Own { target } = &spec.workspace {
            all.push((self.folder.join("work"), target.clone()));
        }
        all
    }

    /// The folder with the overlay's `upper` and `work`.
    pub(crate) fn layer(&self) -> PathBuf {
        self.folder.join("layer")
    }

    /// The same of a cell, which for one that builds is its caller's.
    pub(crate) fn layer_of(&self, spec: &CellSpec) -> PathBuf {
        spec.building().map_or_else(|| self.layer(), |building| building.layer.clone())
    }

    /// Makes the folders, owned by those who use them inside.
    pub(crate) fn create(&self, spec: &CellSpec, ids: Ids) -> Result<(), Failure> {
        match &spec.origin {
            Some(origin) => self.copy(origin, spec, ids),
            None => self.make_all(spec, ids),
        }
    }

    fn make_all(&self, spec: &CellSpec, ids: Ids) -> Result<(), Failure> {
        let Guest { uid, gid, .. } = spec.guest;
        let (init, who) = (ids.init_user(&spec.guest), (ids, &spec.guest));
        if let Some(parent) = self.folder.parent() {
            fs::create_dir_all(parent).step(|| format!("create {}", parent.display()))?;
        }
        make(&self.folder, 0o755, who, init)?;
        for (path, target) in self.private(spec, ids) {
            match target.to_str() {
                Some("/tmp" | "/var/tmp") => make(&path, 0o1777, who, init)?,
                _ => make(&path, 0o755, who, (uid, gid))?,
            }
        }
        if let (Some(building), Root::Layers(layers)) = (spec.building(), &spec.root) {
            return prepare(&building.layer, layers, who, init);
        }
        if matches!(spec.root, Root::Layers(_)) {
            make(&self.layer(), 0o755, who, init)?;
            make(&self.layer().join("upper"), 0o755, who, init)?;
            make(&self.layer().join("work"), 0o755, who, init)?;
        }
        Ok(())
    }

    /// Starts with the files of another cell; what an overlay keeps for itself is made anew.
    fn copy(&self, origin: &Origin, spec: &CellSpec, ids: Ids) -> Result<(), Failure> {
        let shift = match (origin.base, ids) {
            (Some(from), Ids::Range { base }) => Some(Shift { from, to: base }),
            (None, Ids::Caller { .. }) => None,
            (None, Ids::Mapped(_)) => Some(Shift::NONE),
            _ => {
                return Err(Failure::new(
                    "files that root made are for root, and those of a user for that user",
                ));
            }
        };
        if let Some(parent) = self.folder.parent() {
            fs::create_dir_all(parent).step(|| format!("create {}", parent.display()))?;
        }
        copy_tree(&origin.folder, &self.folder, shift, COPY_LIMITS)?;
        if matches!(spec.root, Root::Layers(_)) {
            let work = self.layer().join("work");
            crate::remove::remove_tree(&work).step(|| "clear the overlay's own folder".to_owned())?;
            make(&work, 0o755, (ids, &spec.guest), ids.init_user(&spec.guest))?;
        }
        Ok(())
    }
}

/// Whether the root is mounted read-only. An ordinary user's guest owns what the user owns, the image included, so
/// nothing else would keep it from changing the system that its next command runs on.
pub(crate) fn is_sealed(spec: &CellSpec, ids: Ids) -> bool {
    matches!(spec.root, Root::Pieces(_)) || (!ids.is_range() && spec.building().is_none())
}

/// Makes ready what a caller handed over for an overlay. Its `upper` is what the guest sees as `/`, so it looks as that
/// does in the highest layer.
fn prepare(layer: &Path, below: &[PathBuf], who: (Ids, &Guest), init: (u32, u32)) -> Result<(), Failure> {
    let step = || format!("prepare {}", layer.display());
    let mode = match below.last() {
        Some(top) => fs::metadata(top).step(step)?.permissions().mode() & 0o7777,
        None => 0o755,
    };
    make(&layer.join("work"), 0o755, who, init)?;
    own(layer, 0o755, who, init).step(step)?;
    own(&layer.join("upper"), mode, who, init).step(step)
}

/// The name of the folder in a cell's own.
const FOLDER: &str = "files";
/// The name of the folder that a disk of its own is mounted on.
const DISK: &str = "mount";
/// The most that a cell starts with.
const COPY_LIMITS: copy::Limits = copy::Limits { bytes: 64 << 30, entries: 10_000_000 };

/// The folder of a cell's private files, for whoever copies them; a disk of its own only its keeper can see.
pub fn files(spec: &CellSpec, keeper: u32) -> PathBuf {
    let folder = Scratch::of(spec).folder;
    match spec.limits.disk {
        None => folder,
        Some(_) => {
            Path::new(&format!("/proc/{keeper}/root")).join(folder.strip_prefix("/").unwrap_or(&folder))
        }
    }
}

fn make(path: &Path, mode: u32, (ids, guest): (Ids, &Guest), (uid, gid): (u32, u32)) -> Result<(), Failure> {
    let step = || format!("create {}", path.display());
    fs::create_dir(path).step(step)?;
    own(path, mode, (ids, guest), (uid, gid)).step(step)
}

fn own(path: &Path, mode: u32, (ids, guest): (Ids, &Guest), (uid, gid): (u32, u32)) -> std::io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    if ids.has_others() {
        let (uid, gid) = ids.outside(User { uid, gid }, guest);
        chown(path, Some(uid), Some(gid))?;
    }
    Ok(())
}

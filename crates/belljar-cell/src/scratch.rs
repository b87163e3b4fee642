//! The private folders of a cell on the host's disk: its writable layer, home and temporary folders.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::cell::{CellSpec, Guest};
use crate::failure::{Failure, Step};
use crate::ids::Ids;

/// Where a cell keeps what its guest writes outside the workspace.
#[derive(Debug, Clone)]
pub(crate) struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// The scratch of a cell.
    pub(crate) fn of(spec: &CellSpec) -> Scratch {
        Scratch { folder: spec.cells.join(&spec.id) }
    }

    /// Home, `/tmp` and `/var/tmp`, in this order.
    pub(crate) fn private(&self) -> [PathBuf; 3] {
        ["home", "tmp", "var-tmp"].map(|name| self.folder.join(name))
    }

    /// The folder with the overlay's `upper` and `work`.
    pub(crate) fn layer(&self) -> PathBuf {
        self.folder.join("layer")
    }

    /// Makes the folders, owned by those who use them inside.
    pub(crate) fn create(&self, ids: Ids, guest: &Guest) -> Result<(), Failure> {
        let [home, tmp, var_tmp] = self.private();
        let init = ids.init_user(guest);
        make(&home, 0o755, ids, (guest.uid, guest.gid))?;
        make(&tmp, 0o1777, ids, init)?;
        make(&var_tmp, 0o1777, ids, init)?;
        make(&self.layer(), 0o755, ids, init)?;
        make(&self.layer().join("upper"), 0o755, ids, init)?;
        make(&self.layer().join("work"), 0o755, ids, init)
    }
}

fn make(path: &Path, mode: u32, ids: Ids, (uid, gid): (u32, u32)) -> Result<(), Failure> {
    let step = || format!("create {}", path.display());
    fs::create_dir(path).step(step)?;
    fs::set_permissions(path, Permissions::from_mode(mode)).step(step)?;
    if ids.is_range() {
        chown(path, Some(ids.outside_user(uid)), Some(ids.outside_group(gid))).step(step)?;
    }
    Ok(())
}

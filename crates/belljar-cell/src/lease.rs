//! Leases: what a cell has on this machine, written before it has it, so that anybody can clean up after a crash.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Step};
use crate::groups::Groups;
use crate::remove::remove_tree;

/// How long a dead cell's processes may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);
const LEASE: &str = "lease.json";
const LOCK: &str = "lock";
/// What the name of a folder begins with while it is being removed.
const GONE: &str = ".gone-";
/// The newest lease this version understands.
const FORMAT: u32 = 1;

/// What is written down about a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The format of this file.
    pub format: u32,
    /// The cell.
    pub id: String,
    /// The keeper's process id.
    pub keeper: u32,
    /// The control groups it has or was about to make.
    pub groups: Option<Groups>,
}

/// A lease that this process holds. The lock goes with the process and its children, however they end.
#[derive(Debug)]
pub struct Held {
    folder: PathBuf,
    lease: Lease,
    _lock: File,
}

impl Lease {
    /// Makes the cell's folder and takes its lease.
    pub fn take(cells: &Path, id: &str, groups: Option<Groups>) -> Result<Held, Failure> {
        let step = || format!("take the lease in {}", cells.display());
        DirBuilder::new().recursive(true).mode(0o700).create(cells).step(step)?;
        let gate = File::open(cells).step(step)?;
        gate.lock_shared().step(step)?;
        let folder = cells.join(id);
        DirBuilder::new().mode(0o700).create(&folder).step(step)?;
        let lock = File::create_new(folder.join(LOCK)).step(step)?;
        lock.lock().step(step)?;
        let lease = Lease { format: FORMAT, id: id.to_owned(), keeper: std::process::id(), groups };
        write(&folder, &lease).step(step)?;
        Ok(Held { folder, lease, _lock: lock })
    }
}

fn write(folder: &Path, lease: &Lease) -> io::Result<()> {
    let temporary = folder.join("lease.new");
    fs::write(&temporary, serde_json::to_vec(lease)?)?;
    fs::rename(temporary, folder.join(LEASE))
}

impl Held {
    /// Gives everything back that the lease lists; what fails is said, and stays listed for a later try.
    pub fn release(self) -> Vec<Failure> {
        let groups = self.lease.groups.as_ref().map_or(Ok(()), |groups| groups.remove(PATIENCE));
        let removed = groups.and_then(|()| self.remove_folder());
        removed.err().into_iter().collect()
    }

    /// Under its other name the folder is nobody's cell any more: a reaper that meets it half removed goes on with
    /// the removal, and never takes it for a cell without a lease.
    fn remove_folder(&self) -> Result<(), Failure> {
        let step = || format!("remove {}", self.folder.display());
        let gone = self.folder.with_file_name(format!("{GONE}{}", self.lease.id));
        fs::rename(&self.folder, &gone).step(step)?;
        remove_locked(&gone).step(step)
    }
}

/// What a reaping did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct Reaped {
    /// Cells whose keeper was gone and that are gone now.
    pub removed: Vec<String>,
    /// Cells that are in use.
    pub alive: Vec<String>,
    /// What could not be removed.
    pub failures: Vec<String>,
}

/// Removes what dead keepers left behind; never touches a cell whose lock is held.
pub fn reap(cells: &Path) -> io::Result<Reaped> {
    let mut reaped = Reaped::default();
    for held in abandoned(cells, &mut reaped)? {
        let id = held.lease.id.clone();
        match held.release().as_slice() {
            [] => reaped.removed.push(id),
            failures => reaped.failures.extend(failures.iter().map(ToString::to_string)),
        }
    }
    Ok(reaped)
}

/// Takes the locks of all abandoned cells. The gate is shut meanwhile, so a folder without a lock is half-made by a
/// process that died, not by one that is at it.
fn abandoned(cells: &Path, reaped: &mut Reaped) -> io::Result<Vec<Held>> {
    let gate = match File::open(cells) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    gate.lock()?;
    let mut found = Vec::new();
    for entry in fs::read_dir(cells)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let id = entry.file_name().to_string_lossy().into_owned();
        if id.starts_with(GONE) {
            if let Err(error) = finish_removal(&entry.path()) {
                reaped.failures.push(format!("{id}: {error}"));
            }
            continue;
        }
        match claim(&entry.path(), &id) {
            Ok(Some(held)) => found.push(held),
            Ok(None) => reaped.alive.push(id),
            // Renamed away since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => reaped.failures.push(format!("{id}: {error}")),
        }
    }
    Ok(found)
}

/// Removes a folder whose lock is held, the lock last: a folder without one is empty, and anybody may remove it.
fn remove_locked(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        } else if entry.file_name() != LOCK {
            fs::remove_file(entry.path())?;
        }
    }
    unless_gone(fs::remove_file(folder.join(LOCK)))?;
    unless_gone(fs::remove_dir(folder))
}

fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Goes on with a removal whose beginner died; one that is at it holds the lock.
fn finish_removal(folder: &Path) -> io::Result<()> {
    match File::open(folder.join(LOCK)) {
        Ok(lock) if lock.try_lock().is_ok() => unless_gone(remove_locked(folder)),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => unless_gone(fs::remove_dir(folder)),
        Err(error) => Err(error),
    }
}

fn claim(folder: &Path, id: &str) -> io::Result<Option<Held>> {
    // The folder itself may be gone by now, so nothing is made in it without looking: only one that died before it
    // had a lock lacks one.
    let lock = match OpenOptions::new().write(true).open(folder.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => File::create_new(folder.join(LOCK))?,
        other => other?,
    };
    match lock.try_lock() {
        Err(fs::TryLockError::WouldBlock) => return Ok(None),
        Err(fs::TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    // Its keeper may have removed the cell between the opening and the locking; then this is the lock of nothing.
    if fs::metadata(folder.join(LOCK))?.ino() != lock.metadata()?.ino() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let lease = match fs::read(folder.join(LEASE)) {
        // Without a lease nothing but the folder was made yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Lease { format: FORMAT, id: id.to_owned(), keeper: 0, groups: None }
        }
        read => serde_json::from_slice::<Lease>(&read?)?,
    };
    if lease.format > FORMAT {
        return Err(io::Error::other("its lease was written by a newer Belljar"));
    }
    Ok(Some(Held { folder: folder.to_owned(), lease, _lock: lock }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_was_cut_short_is_finished_and_one_under_way_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let half = |name: &str, lock: bool| {
            let folder = base.path().join(name);
            fs::create_dir(&folder).unwrap();
            if lock {
                fs::create_dir(folder.join("home")).unwrap();
                File::create(folder.join(LOCK)).unwrap();
            }
            folder
        };
        let (empty, locked, busy) = (half(".gone-a", false), half(".gone-b", true), half(".gone-c", true));
        let held = File::open(busy.join(LOCK)).unwrap();
        held.lock().unwrap();
        assert_eq!(reap(base.path()).unwrap(), Reaped::default());
        assert_eq!([empty.exists(), locked.exists(), busy.exists()], [false, false, true]);
        drop(held);
        reap(base.path()).unwrap();
        assert!(!busy.exists());
    }

    #[test]
    fn only_what_nobody_holds_is_reaped() {
        let base = tempfile::tempdir().unwrap();
        let cells = base.path().join("cells");
        let held = Lease::take(&cells, "alive", None).unwrap();
        drop(Lease::take(&cells, "dead", None).unwrap());
        fs::create_dir(cells.join("half-made")).unwrap();
        let reaped = reap(&cells).unwrap();
        let mut removed = reaped.removed.clone();
        removed.sort();
        assert_eq!(removed, ["dead", "half-made"]);
        assert_eq!((reaped.alive, reaped.failures), (vec!["alive".to_owned()], Vec::new()));
        assert_eq!(held.release(), Vec::new());
        assert_eq!(fs::read_dir(&cells).unwrap().count(), 0);
    }
}

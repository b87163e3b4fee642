//! The shelf of snapshots: files of sandboxes that are kept as a base for others.
//!
//! A snapshot is made under another name and moved into its place when it is whole, and moved out of it before it is
//! removed; so whatever has a snapshot's name is one.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use belljar_cell::cell::{Origin, Status};
use belljar_cell::client::CellError;
use belljar_cell::copy::{self, Shift, copy_mapped, copy_tree};
use belljar_cell::ids::MAPPED;
use belljar_cell::remove::remove_tree;
use belljar_image::reference::Image;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::{Sandboxes, fault, own_files, unreadable, workspace_of};
use crate::fault::{Code, Fault};

/// The file that says what a snapshot was made from.
const ABOUT: &str = "snapshot.json";
/// The folder of its files.
const FILES: &str = "files";
/// What the name of a folder begins with while it is being made.
const MAKING: &str = ".making-";
/// What the name of a folder begins with while it is being removed.
const GONE: &str = ".gone-";
/// The most that is copied.
const LIMITS: copy::Limits = copy::Limits { bytes: 64 << 30, entries: 10_000_000 };

/// A snapshot: the files of a sandbox, kept as a base for others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// The sandbox it was taken from.
    pub sandbox: String,
    /// The image below it, as it was written.
    pub image: String,
    /// What names that image by its content, where something does.
    #[serde(default)]
    pub image_digest: Option<String>,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
    /// Whether the sandbox stood still meanwhile.
    pub still: bool,
    /// The first outside id of the range that owns the files, when root made them.
    base: Option<u32>,
    /// Where the guest worked.
    pub(super) workdir: String,
}

/// What killed processes had left on the shelf.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Swept {
    /// Half-made and half-removed snapshots that are gone now.
    pub removed: Vec<PathBuf>,
    /// What could not be removed, and why.
    pub failures: Vec<String>,
}

impl Sandboxes {
    /// Keeps the files of a sandbox under a name.
    pub fn snapshot(&self, id: &str, name: &str) -> Result<Snapshot, Fault> {
        let folder = self.snapshot_folder(name)?;
        let mut sandbox = self.open(id)?;
        let status = sandbox.cell.status().map_err(fault)?;
        own_files(&status)?;
        let _busy = self.shelf()?;
        if folder.exists() {
            let message = format!("there is a snapshot `{name}` already");
            return Err(
                Fault::new(Code::Usage, message).hint(format!("belljar sandbox snapshot --remove {name}"))
            );
        }
        let making = self.snapshots.join(format!("{MAKING}{}", Ulid::generate()));
        let still = sandbox.cell.freeze().map_err(fault)?;
        let copied = keep(&status, name, &making, still);
        let thawed = sandbox.cell.thaw().map_err(fault);
        let snapshot = copied.and_then(|snapshot| {
            fs::rename(&making, &folder).map_err(|error| unreadable(&folder, error))?;
            Ok(snapshot)
        });
        if snapshot.is_err() {
            let _ = remove_tree(&making);
        }
        thawed?;
        snapshot
    }

    /// Makes the shelf, and says that somebody is at it as long as the answer lives.
    fn shelf(&self) -> Result<File, Fault> {
        let failed = |error| unreadable(&self.snapshots, error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.snapshots).map_err(failed)?;
        let shelf = File::open(&self.snapshots).map_err(failed)?;
        shelf.lock_shared().map_err(failed)?;
        Ok(shelf)
    }

    fn snapshot_folder(&self, name: &str) -> Result<PathBuf, Fault> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 100 || name.starts_with(['.', '-']) || !name.chars().all(plain) {
            let message = format!("`{name}` is not a name for a snapshot");
            return Err(Fault::new(Code::Usage, message).hint("use letters, digits, `-`, `_` and `.`"));
        }
        Ok(self.snapshots.join(name))
    }

    /// What a sandbox starts with that is made from a snapshot.
    pub(super) fn origin(&self, snapshot: &Snapshot) -> Result<Origin, Fault> {
        Ok(Origin { folder: self.snapshot_folder(&snapshot.name)?.join(FILES), base: snapshot.base })
    }

    /// The image that a snapshot was made on; a name may mean another one by now, its digest does not.
    pub(super) fn image_below(&self, snapshot: &Snapshot) -> Result<Image, Fault> {
        let gone =
            |why: String| Fault::new(Code::ImageUnknown, format!("the snapshot's image is gone: {why}"));
        match &snapshot.image_digest {
            None => Image::find(&snapshot.image, Path::new("/")).map_err(|error| gone(error.to_string())),
            Some(digest) => {
                let image = self.images.find(digest).map_err(|fault| gone(fault.message))?;
                self.images.root(&image, snapshot.image.clone())
            }
        }
    }

    /// Finds a snapshot.
    pub fn find_snapshot(&self, name: &str) -> Result<Snapshot, Fault> {
        let folder = self.snapshot_folder(name)?;
        let unknown = |_| {
            Fault::new(Code::SnapshotUnknown, format!("there is no snapshot `{name}`"))
                .hint(Code::SnapshotUnknown.remedy())
        };
        let text = fs::read(folder.join(ABOUT)).map_err(unknown)?;
        let snapshot: Snapshot =
            serde_json::from_slice(&text).map_err(|error| unreadable(&folder, error.into()))?;
        // The name of the folder counts, should somebody have renamed it.
        Ok(Snapshot { name: name.to_owned(), ..snapshot })
    }

    /// The snapshots there are, by name.
    pub fn list_snapshots(&self) -> Result<Vec<Snapshot>, Fault> {
        let mut all: Vec<Snapshot> =
            self.on_the_shelf()?.iter().filter_map(|name| self.find_snapshot(name).ok()).collect();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(all)
    }

    /// Removes a snapshot; sandboxes that started from it have their own copy.
    pub fn remove_snapshot(&self, name: &str) -> Result<(), Fault> {
        let snapshot = self.find_snapshot(name)?;
        let folder = self.snapshot_folder(&snapshot.name)?;
        let _busy = self.shelf()?;
        let gone = self.snapshots.join(format!("{GONE}{}", Ulid::generate()));
        let removed = fs::rename(&folder, &gone).and_then(|()| remove_tree(&gone));
        removed.map_err(|error| unreadable(&folder, error))
    }

    /// Removes what killed processes left on the shelf; while somebody is at it, nothing.
    pub fn sweep_snapshots(&self) -> Result<Swept, Fault> {
        let mut swept = Swept::default();
        let shelf = match File::open(&self.snapshots) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(swept),
            other => other.map_err(|error| unreadable(&self.snapshots, error))?,
        };
        match shelf.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(swept),
            Err(TryLockError::Error(error)) => return Err(unreadable(&self.snapshots, error)),
            Ok(()) => {}
        }
        for name in
            self.on_the_shelf()?.iter().filter(|name| name.starts_with(MAKING) || name.starts_with(GONE))
        {
            let path = self.snapshots.join(name);
            match remove_tree(&path) {
                Ok(()) => swept.removed.push(path),
                Err(error) => swept.failures.push(format!("{}: {error}", path.display())),
            }
        }
        Ok(swept)
    }

    fn on_the_shelf(&self) -> Result<Vec<String>, Fault> {
        let entries = match fs::read_dir(&self.snapshots) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|error| unreadable(&self.snapshots, error))?,
        };
        Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }
}

fn keep(status: &Status, name: &str, making: &Path, still: bool) -> Result<Snapshot, Fault> {
    // What is inside is open to everybody in parts, as it was in the sandbox.
    DirBuilder::new().mode(0o700).create(making).map_err(|error| unreadable(making, error))?;
    let shift = status.base.map(|base| Shift { from: base, to: base });
    let files = belljar_cell::scratch::files(&status.spec, status.keeper);
    let copied = match status.created.mode.as_str() {
        MAPPED => copy_mapped(&files, &making.join(FILES), LIMITS),
        _ => copy_tree(&files, &making.join(FILES), shift, LIMITS),
    };
    copied.map_err(|failure| fault(CellError::Failed(failure)))?;
    let snapshot = Snapshot {
        name: name.to_owned(),
        sandbox: status.spec.id.clone(),
        image: status.spec.image.clone(),
        image_digest: status.spec.given.digest.clone(),
        created_ms: u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0),
        still,
        base: status.base,
        workdir: workspace_of(&status.spec),
    };
    let text = serde_json::to_vec_pretty(&snapshot)
        .map_err(|error| Fault::new(Code::Internal, "could not encode the snapshot").caused_by(error))?;
    fs::write(making.join(ABOUT), text).map_err(|error| unreadable(making, error))?;
    Ok(snapshot)
}

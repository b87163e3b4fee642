//! A run's own directory: made whole, locked while the run goes on, written atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use ulid::Ulid;

use crate::fault::{Code, Fault};
use crate::moment::Moment;
use crate::record::RunRecord;
use crate::stage::{Stage, Stream};

/// The record's file name.
pub const RECORD: &str = "run.json";
/// The journal's file name.
pub const JOURNAL: &str = "events.jsonl";
/// The plan's file name.
pub const PLAN: &str = "plan.json";
/// The file that the running process holds locked.
pub const LOCK: &str = "run.lock";
/// A file that only takes room: given up when the disk is full, so that the record can still say so.
const RESERVE: &str = ".reserve";
const RESERVE_BYTES: u64 = 128 * 1024;
/// What the name of a directory begins with while it is being made.
pub const STAGING: &str = ".new-";

/// Nobody else gets at the files that a guest wrote: they belong to the caller, whatever they do when they are run.
const FOLDERS: [(&str, u32); 4] =
    [("task", 0o755), ("logs", 0o755), ("workspace", 0o700), ("collected", 0o700)];

/// The directory of a run in progress; the lock on it is held as long as this value lives.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    run_id: String,
    started: Moment,
    _lock: File,
}

/// What a replaced file must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The death of any process: the kernel has the bytes.
    Process,
    /// The loss of power: the disk has the bytes.
    Power,
}

impl RunDir {
    /// Makes `<out>/runs/<UTC timestamp>__<ULID>/` with its folders and a record that says `running`.
    ///
    /// The directory appears under its name only when it is whole; on failure nothing is left.
    pub fn create(out: &Path, task_id: &str) -> Result<RunDir, Fault> {
        let missing = [out.to_path_buf(), out.join("runs")].map(|path| (!path.exists()).then_some(path));
        let made = RunDir::make(out, task_id);
        if made.is_err() {
            for path in missing.into_iter().flatten().rev() {
                let _ = fs::remove_dir(path);
            }
        }
        made
    }

    fn make(out: &Path, task_id: &str) -> Result<RunDir, Fault> {
        let started = Moment::now();
        let run_id = Ulid::generate().to_string();
        let runs = out.join("runs");
        fs::create_dir_all(&runs).map_err(|error| unwritable(&runs, error))?;
        let runs = runs.canonicalize().map_err(|error| unwritable(&runs, error))?;
        let staging = runs.join(format!("{STAGING}{run_id}"));
        let path = runs.join(format!("{}__{run_id}", started.compact()));
        let record = RunRecord::starting(&run_id, task_id, started);
        let lock = stage_directory(&staging, &record)
            .and_then(|lock| rename(&staging, &path).map(|()| lock))
            .inspect_err(|_| drop(fs::remove_dir_all(&staging)))?;
        Ok(RunDir { path, run_id, started, _lock: lock })
    }

    /// The directory, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run's ULID.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// When the run started.
    pub fn started(&self) -> Moment {
        self.started
    }

    /// Gives up the room that was kept for the end; says whether there was any left to give.
    pub fn release_reserve(&self) -> bool {
        fs::remove_file(self.path.join(RESERVE)).is_ok()
    }

    /// The folder that becomes the sandbox's workspace.
    pub fn workspace(&self) -> PathBuf {
        self.path.join("workspace")
    }

    /// The checkout.
    pub fn repo(&self) -> PathBuf {
        self.path.join("workspace").join("repo")
    }

    /// The folder for what the task asked to keep.
    pub fn collected(&self) -> PathBuf {
        self.path.join("collected")
    }

    /// The log of one stream of a stage.
    pub fn log(&self, stage: Stage, stream: Stream) -> PathBuf {
        self.path.join(stage.log_path(stream))
    }

    /// Freezes the task: writes each file under `task/`, by its relative path.
    pub fn freeze_task<'a>(
        &self,
        files: impl IntoIterator<Item = (&'a Path, &'a [u8])>,
    ) -> Result<(), Fault> {
        let task = self.path.join("task");
        files.into_iter().try_for_each(|(name, bytes)| freeze(&task, name, bytes))
    }

    /// Waits until the disk has the run directory's own name.
    pub fn sync_name(&self) -> Result<(), Fault> {
        let runs = self.path.parent().unwrap_or(&self.path);
        sync_folder(runs, Durability::Power).map_err(|error| unwritable(runs, error))
    }

    /// Replaces a file of the run directory whole: readers see the old bytes or the new, never a mixture.
    pub fn replace(&self, name: &str, bytes: &[u8], durability: Durability) -> Result<(), Fault> {
        replace(&self.path, name, bytes, durability)
    }
}

fn freeze(task: &Path, name: &Path, bytes: &[u8]) -> Result<(), Fault> {
    let inside = name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside || name.file_name().is_none() {
        let message = format!("{} leads out of the task's folder", name.display());
        return Err(Fault::new(Code::PathEscapes, message));
    }
    let path = task.join(name);
    let parent = path.parent().unwrap_or(task);
    fs::create_dir_all(parent).map_err(|error| unwritable(parent, error))?;
    write_new(&path, bytes).map_err(|error| unwritable(&path, error))
}

fn stage_directory(staging: &Path, record: &RunRecord) -> Result<File, Fault> {
    let failed = |error| unwritable(staging, error);
    fs::create_dir(staging).map_err(failed)?;
    let lock = OpenOptions::new().write(true).create_new(true).mode(0o644).open(staging.join(LOCK));
    let lock = lock.map_err(failed)?;
    lock.lock().map_err(failed)?;
    for (folder, mode) in FOLDERS {
        fs::DirBuilder::new().mode(mode).create(staging.join(folder)).map_err(failed)?;
    }
    write_new(&staging.join(RECORD), &record.to_vec()?).map_err(failed)?;
    take_room(&staging.join(RESERVE)).map_err(failed)?;
    Ok(lock)
}

fn take_room(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, RESERVE_BYTES) {
        // A file system that cannot promise room keeps none.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        other => Ok(other?),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), Fault> {
    fs::rename(from, to).map_err(|error| unwritable(to, error))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?.write_all(bytes)
}

/// Replaces a file in a folder by writing its successor beside it and renaming that over it.
///
/// The successor's name is fixed, so that a kill in between leaves at most one, which the next
/// replacement overwrites and [`discard_successor`] removes.
pub fn replace(folder: &Path, name: &str, bytes: &[u8], durability: Durability) -> Result<(), Fault> {
    let path = folder.join(name);
    let successor = folder.join(successor_name(name));
    let written = write_successor(&successor, bytes, durability)
        .and_then(|()| fs::rename(&successor, &path))
        .and_then(|()| sync_folder(folder, durability));
    written.map_err(|error| {
        let _ = fs::remove_file(&successor);
        unwritable(&path, error)
    })
}

/// Removes the successor that a kill in the middle of a replacement left behind.
pub fn discard_successor(folder: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(folder.join(successor_name(name))) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn successor_name(name: &str) -> String {
    format!(".{name}.new")
}

fn write_successor(path: &Path, bytes: &[u8], durability: Durability) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(bytes)?;
    match durability {
        Durability::Process => Ok(()),
        Durability::Power => file.sync_data(),
    }
}

/// A new name is on the disk only when its folder is.
fn sync_folder(folder: &Path, durability: Durability) -> io::Result<()> {
    match durability {
        Durability::Process => Ok(()),
        Durability::Power => File::open(folder)?.sync_all(),
    }
}

/// The fault for a path in the output folder that could not be written.
pub(crate) fn unwritable(path: &Path, error: io::Error) -> Fault {
    let (code, words) = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (Code::DiskFull, "no room left for"),
        _ => (Code::OutputUnwritable, "could not write"),
    };
    Fault::new(code, format!("{words} {}: {error}", path.display())).caused_by(error)
}

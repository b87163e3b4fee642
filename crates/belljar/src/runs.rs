//! The folder of runs: list, find, load, prune. Whatever lies in it is foreign until shown otherwise.

use std::fs::{self, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use ulid::Ulid;

use belljar_cell::remove::remove_tree;

use crate::fault::{Code, Fault};
use crate::foreign::open_plain;
use crate::journal::replay;
use crate::moment::{Millis, Moment};
use crate::outcome::Outcome;
use crate::record::{RunRecord, Status};
use crate::rundir::{JOURNAL, LOCK, RECORD, STAGING, discard_successor, unwritable};
use crate::stage::Stage;

/// A record larger than this is not one of ours.
const MAX_RECORD: u64 = 64 * 1024 * 1024;
/// What the name of a run begins with while it is being removed.
const LEAVING: &str = ".gone-";
/// How long a directory may be in the making before it counts as left behind.
const STAGING_GRACE: Duration = Duration::from_secs(60);

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A process holds it.
    Running,
    /// It has ended and its record is complete.
    Finished,
    /// The process that ran it is gone and left no verdict.
    Abandoned,
    /// Its record cannot be read.
    Damaged,
}

/// One run as a list shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunEntry {
    /// Its directory.
    pub path: PathBuf,
    /// Its ULID, from the directory's name.
    pub run_id: String,
    /// Where it stands.
    pub state: RunState,
    /// The task's id, where the record can be read.
    pub task_id: Option<String>,
    /// The outcome of a finished run.
    pub outcome: Option<Outcome>,
    /// The exit code of the command that decides, once it ended.
    pub exit_code: Option<i32>,
    /// The last stage that began.
    pub reached: Option<Stage>,
    /// When it started.
    pub started: Option<Moment>,
    /// How long it took.
    pub duration_ms: Option<Millis>,
    /// Why the record cannot be read.
    pub damage: Option<String>,
}

/// The runs in `<out>/runs`, newest first; what is not a run is left out. No folder means no runs.
pub fn list(out: &Path) -> Result<Vec<RunEntry>, Fault> {
    Ok(run_paths(out)?.into_iter().map(entry).collect())
}

fn run_paths(out: &Path) -> Result<Vec<PathBuf>, Fault> {
    let mut paths: Vec<PathBuf> =
        names(out)?.into_iter().map(|name| out.join("runs").join(name)).filter(|path| is_run(path)).collect();
    paths.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    Ok(paths)
}

fn names(out: &Path) -> Result<Vec<String>, Fault> {
    let runs = out.join("runs");
    let unreadable = |error: io::Error| {
        let message = format!("could not read {}: {error}", runs.display());
        Fault::new(Code::RecordUnreadable, message).caused_by(error)
    };
    let entries = match fs::read_dir(&runs) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(unreadable)?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect::<io::Result<_>>().map_err(unreadable)
}

/// Whether this is the directory of a run: its name is one, it is no link, and it has a record or a lock.
fn is_run(path: &Path) -> bool {
    let real = |name: &str| path.join(name).symlink_metadata().is_ok_and(|meta| meta.is_file());
    run_id(path).is_some()
        && path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
        && (real(RECORD) || real(LOCK))
}

/// The ULID in `<YYYYmmddTHHMMSSZ>__<ULID>`.
fn run_id(path: &Path) -> Option<String> {
    let (time, id) = path.file_name()?.to_str()?.split_once("__")?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = time.as_bytes();
    let is_time = time.is_ascii()
        && bytes.len() == 16
        && bytes[8] == b'T'
        && bytes[15] == b'Z'
        && digits(&time[..8])
        && digits(&time[9..15]);
    (is_time && Ulid::from_string(id).is_ok()).then(|| id.to_owned())
}

fn entry(path: PathBuf) -> RunEntry {
    let run_id = run_id(&path).unwrap_or_default();
    match load(&path) {
        Ok(run) => RunEntry {
            path,
            run_id,
            state: run.state,
            exit_code: exit_code(&run.record),
            reached: run.record.stages.last().map(|stage| stage.stage),
            task_id: Some(run.record.task_id),
            outcome: run.record.verdict.map(|verdict| verdict.outcome),
            started: Some(run.record.started),
            duration_ms: run.record.duration_ms,
            damage: None,
        },
        Err(fault) => RunEntry {
            path,
            run_id,
            state: RunState::Damaged,
            task_id: None,
            outcome: None,
            exit_code: None,
            reached: None,
            started: None,
            duration_ms: None,
            damage: Some(fault.message),
        },
    }
}

fn exit_code(record: &RunRecord) -> Option<i32> {
    record.stage(Stage::Run)?.commands.last().map(|command| command.exit_code)
}

/// A run as it is on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedRun {
    /// Its record; for a run without an end, completed from its journal.
    pub record: RunRecord,
    /// Where it stands.
    pub state: RunState,
}

/// Loads a run; one that was cut short is completed from its journal. Nothing is written.
pub fn load(path: &Path) -> Result<LoadedRun, Fault> {
    let held = is_held(path);
    let mut record = read_record(path)?;
    if record.status == Status::Running {
        record = record.rebuilt(&replay(&path.join(JOURNAL))?.events);
    }
    let state = match (record.status, held) {
        (Status::Finished, _) => RunState::Finished,
        (Status::Running, true) => RunState::Running,
        (Status::Running, false) => RunState::Abandoned,
    };
    Ok(LoadedRun { record, state })
}

fn read_record(path: &Path) -> Result<RunRecord, Fault> {
    let file = path.join(RECORD);
    let bytes = read_bounded(&file).map_err(|error| {
        let message = format!("could not read {}: {error}", file.display());
        Fault::new(Code::RecordUnreadable, message).caused_by(error)
    })?;
    RunRecord::from_slice(&bytes)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_plain(path)?.take(MAX_RECORD + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_RECORD {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "larger than any record"));
    }
    Ok(bytes)
}

/// Whether a process holds the run's lock.
fn is_held(path: &Path) -> bool {
    match open_plain(&path.join(LOCK)).map(|lock| lock.try_lock_shared()) {
        Ok(Err(TryLockError::WouldBlock)) => true,
        Ok(Ok(()) | Err(TryLockError::Error(_))) | Err(_) => false,
    }
}

/// Finds one run: `latest`, a path, the beginning of an id or of a directory's name, or the end of an id.
pub fn find(out: &Path, wanted: &str) -> Result<PathBuf, Fault> {
    if wanted.contains('/') || Path::new(wanted).join(RECORD).is_file() {
        return find_path(Path::new(wanted));
    }
    let paths = run_paths(out)?;
    let mut found = match wanted {
        "latest" => paths.into_iter().take(1).collect(),
        _ => paths.into_iter().filter(|path| is_meant(path, wanted)).collect::<Vec<_>>(),
    };
    match (found.pop(), found.as_slice()) {
        (Some(only), []) => Ok(only),
        (Some(_), [_, ..]) => Err(ambiguous(wanted, found.len() + 1)),
        (None, _) => {
            let message = format!("no run {wanted:?} in {}", out.join("runs").display());
            Err(Fault::new(Code::RunUnknown, message).hint("belljar runs ls lists them"))
        }
    }
}

fn find_path(path: &Path) -> Result<PathBuf, Fault> {
    if path.join(RECORD).is_file() {
        return Ok(path.to_path_buf());
    }
    Err(Fault::new(Code::RunUnknown, format!("{} is not the directory of a run", path.display())))
}

/// Runs of one minute have ids that begin alike, so a short name is the end of one.
fn is_meant(path: &Path, wanted: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let id = run_id(path).unwrap_or_default();
    let part = wanted.to_ascii_uppercase();
    !wanted.is_empty() && (name.starts_with(wanted) || id.starts_with(&part) || id.ends_with(&part))
}

fn ambiguous(wanted: &str, count: usize) -> Fault {
    Fault::new(Code::RunUnknown, format!("{count} runs begin or end with {wanted:?}"))
        .hint("give more of the id")
}

/// Which runs are to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prune {
    /// All but this many, the newest; runs in progress count.
    KeepNewest(usize),
    /// Those that started longer ago than this.
    OlderThan(Duration),
    /// The oldest, until the rest takes no more than this many bytes.
    ToSize(u64),
}

/// Whether to remove, or only to say what would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneMode {
    /// Say what would go.
    DryRun,
    /// Remove it.
    Remove,
}

/// What a pruning did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Pruned {
    /// Removed runs.
    pub removed: Vec<PathBuf>,
    /// Half-made and half-removed runs that a kill had left, and that are gone now.
    pub leftovers: Vec<PathBuf>,
    /// The room all of them took.
    pub freed_bytes: u64,
    /// Runs that were to go and are in progress.
    pub in_progress: Vec<PathBuf>,
    /// What could not be removed, and why.
    pub failed: Vec<(PathBuf, String)>,
}

/// Removes runs by a rule; never one in progress, never what is not a run.
pub fn prune(out: &Path, rule: Prune, mode: PruneMode) -> Result<Pruned, Fault> {
    let mut pruned = Pruned::default();
    if mode == PruneMode::Remove {
        sweep_leftovers(out, &mut pruned)?;
    }
    for (path, bytes) in chosen(out, rule)? {
        if is_held(&path) {
            pruned.in_progress.push(path);
            continue;
        }
        match remove(&path, mode) {
            Ok(()) => {
                pruned.freed_bytes += bytes;
                pruned.removed.push(path);
            }
            Err(fault) => pruned.failed.push((path, fault.message)),
        }
    }
    Ok(pruned)
}

fn chosen(out: &Path, rule: Prune) -> Result<Vec<(PathBuf, u64)>, Fault> {
    let sized = run_paths(out)?.into_iter().map(|path| {
        let bytes = disk_usage(&path);
        (path, bytes)
    });
    Ok(match rule {
        Prune::KeepNewest(count) => sized.skip(count).collect(),
        Prune::OlderThan(age) => sized.filter(|(path, _)| is_older(path, age)).collect(),
        Prune::ToSize(limit) => {
            let mut total = 0_u64;
            sized
                .filter(|(_, bytes)| {
                    total = total.saturating_add(*bytes);
                    total > limit
                })
                .collect()
        }
    })
}

fn is_older(path: &Path, age: Duration) -> bool {
    let id = run_id(path).and_then(|id| Ulid::from_string(&id).ok());
    id.is_some_and(|id| id.datetime().elapsed().is_ok_and(|passed| passed > age))
}

fn remove(path: &Path, mode: PruneMode) -> Result<(), Fault> {
    match mode {
        PruneMode::DryRun => return Ok(()),
        PruneMode::Remove => {}
    }
    // Out of sight first: a run is there or it is not, also when we are killed half-way.
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let leaving = path.with_file_name(format!("{LEAVING}{name}"));
    let removed = fs::rename(path, &leaving).and_then(|()| remove_tree(&leaving));
    removed.map_err(|error| unwritable(path, error))
}

/// Removes what killed processes left in `<out>/runs`: never a run, never what somebody holds.
pub fn sweep(out: &Path) -> Result<Pruned, Fault> {
    let mut pruned = Pruned::default();
    sweep_leftovers(out, &mut pruned)?;
    Ok(pruned)
}

/// Removes what a kill left: runs half removed, directories half made, records half replaced.
fn sweep_leftovers(out: &Path, pruned: &mut Pruned) -> Result<(), Fault> {
    for name in names(out)? {
        let path = out.join("runs").join(&name);
        let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if !is_dir || is_held(&path) {
            continue;
        }
        let swept = match (is_leftover(&name), is_run(&path)) {
            (true, _) => remove_leftover(&path, pruned),
            (false, true) => discard_successor(&path, RECORD),
            (false, false) => Ok(()),
        };
        if let Err(error) = swept {
            pruned.failed.push((path, error.to_string()));
        }
    }
    Ok(())
}

fn remove_leftover(path: &Path, pruned: &mut Pruned) -> io::Result<()> {
    let bytes = disk_usage(path);
    remove_tree(path)?;
    pruned.freed_bytes += bytes;
    pruned.leftovers.push(path.to_path_buf());
    Ok(())
}

fn is_leftover(name: &str) -> bool {
    if let Some(run) = name.strip_prefix(LEAVING) {
        return run_id(Path::new(run)).is_some();
    }
    let id = name.strip_prefix(STAGING).and_then(|id| Ulid::from_string(id).ok());
    id.is_some_and(|id| id.datetime().elapsed().is_ok_and(|passed| passed > STAGING_GRACE))
}

/// The room a tree takes on the disk; folders that cannot be read count as nothing.
pub fn disk_usage(path: &Path) -> u64 {
    let mut total = 0;
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            total += meta.blocks() * 512;
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    total
}

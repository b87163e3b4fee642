//! What is on disk after anything: creation, kill, damage, pruning.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use belljar::Code;
use belljar::event::EventKind;
use belljar::journal::{Follower, replay};
use belljar::outcome::Outcome;
use belljar::record::Status;
use belljar::rundir::{Durability, RunDir, discard_successor, replace};
use belljar::runs::{self, Prune, PruneMode, RunState};

use crate::make::{Script, run, started};

fn out() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn notice(text: &str) -> EventKind {
    EventKind::Notice { message: text.to_owned() }
}

#[test]
fn a_run_directory_is_made_whole() {
    let out = out();
    let dir = RunDir::create(&out.path().join("deep/er"), "toy").unwrap();
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, [".reserve", "collected", "logs", "run.json", "run.lock", "task", "workspace"]);
    let loaded = runs::load(dir.path()).unwrap();
    assert_eq!((loaded.state, loaded.record.status), (RunState::Running, Status::Running));
    drop(dir);
    assert_eq!(runs::list(&out.path().join("deep/er")).unwrap()[0].state, RunState::Abandoned);
}

#[test]
fn a_folder_that_cannot_be_written_is_said_and_left_as_it_was() {
    let out = out();
    fs::write(out.path().join("file"), "").unwrap();
    let fault = RunDir::create(&out.path().join("file"), "toy").unwrap_err();
    assert_eq!(fault.code, Code::OutputUnwritable);
    let fault = RunDir::create(Path::new("/proc/nothing"), "toy").unwrap_err();
    assert_eq!(fault.code, Code::OutputUnwritable);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1);
}

#[test]
fn a_task_is_frozen_inside_its_folder() {
    let out = out();
    let dir = RunDir::create(out.path(), "toy").unwrap();
    let files: [(&Path, &[u8]); 2] = [(Path::new("task.yaml"), b"id: toy"), (Path::new("p/a.diff"), b"x")];
    dir.freeze_task(files).unwrap();
    assert_eq!(fs::read(dir.path().join("task/p/a.diff")).unwrap(), b"x");
    for name in ["../x", "/x", "", "."] {
        let fault = dir.freeze_task([(Path::new(name), &b""[..])]).unwrap_err();
        assert_eq!(fault.code, Code::PathEscapes, "{name}");
    }
}

#[test]
fn a_torn_or_foreign_journal_gives_what_it_can() {
    let out = out();
    let mut recorder = started(out.path(), "0");
    let path = recorder.dir().path().join("events.jsonl");
    recorder.event(notice("one")).unwrap();
    let whole = replay(&path).unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"\xff\xfe not json\n{\"event\":\"from_the_future\",\"seq\":9}\n").unwrap();
    recorder.event(notice("two")).unwrap();
    file.write_all(b"{\"seq\":4,\"at\":\"20").unwrap();
    let damaged = replay(&path).unwrap();
    assert_eq!((damaged.skipped, damaged.torn_bytes), (vec![4, 5], 17));
    assert_eq!(damaged.events.len(), whole.events.len() + 1);
    assert_eq!(replay(Path::new("/nowhere/events.jsonl")).unwrap().events, []);
}

#[test]
fn every_cut_of_a_journal_is_readable() {
    let out = out();
    let (path, _) = run(out.path(), &Script::default());
    let bytes = fs::read(path.join("events.jsonl")).unwrap();
    let copy = out.path().join("cut.jsonl");
    for end in (0..bytes.len()).step_by(7) {
        fs::write(&copy, &bytes[..end]).unwrap();
        let replayed = replay(&copy).unwrap();
        assert_eq!(replayed.events.len(), bytes[..end].iter().filter(|b| **b == b'\n').count());
        assert_eq!(replayed.skipped, Vec::<u64>::new());
    }
}

#[test]
fn a_follower_sees_each_event_once_and_waits_for_whole_lines() {
    let out = out();
    let path = out.path().join("events.jsonl");
    let mut follower = Follower::new(&path);
    assert_eq!(follower.read().unwrap().events, []);
    let (run, _) = run(out.path(), &Script::default());
    let bytes = fs::read(run.join("events.jsonl")).unwrap();
    let mut file = fs::File::create(&path).unwrap();
    let mut seen = Vec::new();
    for piece in bytes.chunks(50) {
        file.write_all(piece).unwrap();
        seen.extend(follower.read().unwrap().events.into_iter().map(|event| event.seq));
    }
    assert_eq!(seen, (0..seen.len() as u64).collect::<Vec<_>>());
    assert!(seen.len() > 8);
}

#[test]
fn a_replacement_that_was_killed_at_any_point_leaves_a_whole_record() {
    let out = out();
    let folder = out.path();
    replace(folder, "run.json", b"old", Durability::Process).unwrap();
    for written in [&b""[..], b"ne", b"new"] {
        fs::write(folder.join(".run.json.new"), written).unwrap();
        assert_eq!(fs::read(folder.join("run.json")).unwrap(), b"old");
    }
    replace(folder, "run.json", b"x", Durability::Power).unwrap();
    assert_eq!(fs::read(folder.join("run.json")).unwrap(), b"x");
    assert!(!folder.join(".run.json.new").exists());
    fs::write(folder.join(".run.json.new"), "half").unwrap();
    discard_successor(folder, "run.json").unwrap();
    discard_successor(folder, "run.json").unwrap();
    assert!(!folder.join(".run.json.new").exists());
}

/// The process that the next test kills: reports each event only after the recorder took it.
#[test]
fn child_that_is_killed() {
    let Ok(out) = std::env::var("BELLJAR_TEST_KILLED_CHILD") else { return };
    let mut recorder = started(Path::new(&out), "0");
    for number in 0..100_000 {
        recorder.event(notice(&number.to_string())).unwrap();
        let bytes = recorder.record().to_vec().unwrap();
        recorder.dir().replace("run.json", &bytes, Durability::Process).unwrap();
        println!("reported {number}");
    }
}

#[test]
fn a_kill_at_any_instant_loses_no_reported_event() {
    for round in 0..8_u64 {
        let out = out();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "disk::child_that_is_killed", "--nocapture"])
            .env("BELLJAR_TEST_KILLED_CHILD", out.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut reported =
            lines.by_ref().take(30 + round as usize).filter(|l| l.contains("reported")).count();
        child.kill().unwrap();
        child.wait().unwrap();
        reported += lines.filter(|line| line.contains("reported")).count();
        let entry = runs::list(out.path()).unwrap().remove(0);
        assert_eq!(entry.state, RunState::Abandoned, "{:?}", entry.damage);
        let notices = replay(&entry.path.join("events.jsonl")).unwrap().events.len() - 2;
        assert!(notices >= reported && reported > 0, "{notices} journalled, {reported} reported");
    }
}

#[test]
fn a_record_cut_short_is_completed_from_its_journal() {
    let out = out();
    let (path, finished) = run(out.path(), &Script::default());
    let mut stale = finished.clone();
    stale.status = Status::Running;
    stale.verdict = None;
    stale.finished = None;
    stale.tree = None;
    fs::write(path.join("run.json"), stale.to_vec().unwrap()).unwrap();
    let loaded = runs::load(&path).unwrap();
    assert_eq!((loaded.state, loaded.record), (RunState::Finished, finished));
}

#[test]
fn a_list_tolerates_what_is_damaged_and_leaves_out_what_is_foreign() {
    let out = out();
    assert_eq!(runs::list(out.path()).unwrap(), []);
    let (good, _) = run(out.path(), &Script::default());
    let (bad, _) = run(out.path(), &Script::default());
    fs::write(bad.join("run.json"), b"{\xff").unwrap();
    let folder = out.path().join("runs");
    fs::create_dir(folder.join("notes")).unwrap();
    fs::create_dir(folder.join("20260101T000000Z__01ARZ3NDEKTSV4RRFFQ69G5FAV")).unwrap();
    symlink(&good, folder.join("20260101T000000Z__01ARZ3NDEKTSV4RRFFQ69G5FAW")).unwrap();
    fs::write(folder.join("20260101T000000Z__01ARZ3NDEKTSV4RRFFQ69G5FAX"), "").unwrap();
    let list = runs::list(out.path()).unwrap();
    let mut states: Vec<_> = list.iter().map(|entry| (entry.path.clone(), entry.state)).collect();
    states.sort_by_key(|(path, _)| path != &good);
    assert_eq!(states, [(good, RunState::Finished), (bad, RunState::Damaged)]);
    assert!(list.is_sorted_by(|a, b| a.path >= b.path));
}

#[test]
fn a_run_is_found_by_id_by_path_and_as_the_latest() {
    let out = out();
    let fault = runs::find(out.path(), "latest").unwrap_err();
    assert_eq!(fault.code, Code::RunUnknown);
    let (first, record) = run(out.path(), &Script::default());
    std::thread::sleep(Duration::from_millis(1100));
    let (second, _) = run(out.path(), &Script::default());
    assert_eq!(runs::find(out.path(), "latest").unwrap(), second);
    assert_eq!(runs::find(out.path(), &record.run_id).unwrap(), first);
    assert_eq!(runs::find(out.path(), &record.run_id[..12].to_lowercase()).unwrap(), first);
    assert_eq!(runs::find(out.path(), first.to_str().unwrap()).unwrap(), first);
    assert_eq!(
        runs::find(out.path(), &record.run_id[..3]).unwrap_err().message,
        "2 runs begin or end with \"01K\"".replace("01K", &record.run_id[..3])
    );
    assert!(runs::find(out.path(), "nonsense").is_err());
    assert!(runs::find(out.path(), "/etc").is_err());
}

#[test]
fn pruning_keeps_what_goes_on_and_what_is_not_a_run() {
    let out = out();
    let (old, _) = run(out.path(), &Script::default());
    let going = started(out.path(), "0");
    fs::create_dir(out.path().join("runs/notes")).unwrap();
    let dry = runs::prune(out.path(), Prune::KeepNewest(0), PruneMode::DryRun).unwrap();
    assert_eq!((dry.removed.clone(), old.exists()), (vec![old.clone()], true));
    let pruned = runs::prune(out.path(), Prune::KeepNewest(0), PruneMode::Remove).unwrap();
    assert_eq!(pruned.removed, std::slice::from_ref(&old));
    assert_eq!(pruned.in_progress, [going.dir().path()]);
    assert!(pruned.freed_bytes > 0);
    assert!(!old.exists() && going.dir().path().exists() && out.path().join("runs/notes").exists());
}

#[test]
fn pruning_by_age_and_by_size() {
    let out = out();
    let (a, _) = run(out.path(), &Script::default());
    let (b, _) = run(out.path(), &Script::default());
    let nothing =
        runs::prune(out.path(), Prune::OlderThan(Duration::from_secs(60)), PruneMode::Remove).unwrap();
    assert_eq!(nothing.removed, Vec::<PathBuf>::new());
    let nothing = runs::prune(out.path(), Prune::ToSize(1 << 40), PruneMode::Remove).unwrap();
    assert_eq!(nothing.removed, Vec::<PathBuf>::new());
    runs::prune(out.path(), Prune::ToSize(0), PruneMode::Remove).unwrap();
    assert!(!a.exists() && !b.exists());
}

/// A guest's tree: no permissions, links out, deeper than a path can be.
#[test]
fn pruning_a_tree_that_a_guest_made_hard() {
    let out = out();
    let precious = out.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "keep").unwrap();
    let (path, _) = run(out.path(), &Script::default());
    let hard = path.join("workspace/hard");
    fs::create_dir_all(hard.join("a/b")).unwrap();
    symlink(&precious, hard.join("a/link")).unwrap();
    fs::write(hard.join("a/b/.hoisted-1"), "").unwrap();
    deep(&hard, 3000);
    fs::set_permissions(hard.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(hard.join("a"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(&hard, fs::Permissions::from_mode(0o000)).unwrap();
    let pruned = runs::prune(out.path(), Prune::KeepNewest(0), PruneMode::Remove).unwrap();
    assert_eq!(pruned.failed, []);
    assert!(!path.exists());
    assert_eq!(fs::read_dir(out.path().join("runs")).unwrap().count(), 0);
    assert_eq!(fs::read(precious.join("file")).unwrap(), b"keep");
}

fn deep(folder: &Path, depth: usize) {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, folder, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&at, "deeper", Mode::from_raw_mode(0o755)).unwrap();
        at = openat(&at, "deeper", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn leftovers_of_a_kill_are_swept() {
    let out = out();
    let (path, _) = run(out.path(), &Script::default());
    fs::write(path.join(".run.json.new"), "half").unwrap();
    let folder = out.path().join("runs");
    let gone = folder.join(".gone-20260101T000000Z__01ARZ3NDEKTSV4RRFFQ69G5FAV");
    let made = folder.join(".new-01ARZ3NDEKTSV4RRFFQ69G5FAV");
    let young = folder.join(format!(".new-{}", ulid::Ulid::generate()));
    for leftover in [&gone, &made, &young] {
        fs::create_dir_all(leftover.join("workspace")).unwrap();
    }
    runs::prune(out.path(), Prune::KeepNewest(9), PruneMode::Remove).unwrap();
    assert!(!gone.exists() && !made.exists() && young.exists());
    assert!(path.exists() && !path.join(".run.json.new").exists());
}

/// Runs only inside the small file system that the next test mounts.
#[test]
fn child_on_a_full_disk() {
    let Ok(out) = std::env::var("BELLJAR_TEST_FULL_DISK") else { return };
    let out = Path::new(&out);
    let mut recorder = started(out, "0");
    let dir = recorder.dir().path().to_path_buf();
    let fault = (0..100_000).find_map(|_| recorder.event(notice(&"x".repeat(700))).err()).unwrap();
    assert_eq!(fault.code, Code::DiskFull);
    assert_eq!(replay(&dir.join("events.jsonl")).unwrap().torn_bytes, 0);
    assert_eq!(RunDir::create(&out.join("other"), "toy").unwrap_err().code, Code::DiskFull);
    assert!(!out.join("other").exists());
    fs::remove_file(out.join("ballast")).unwrap();
    recorder.failed(None, &fault).unwrap();
    let record = recorder.finish().unwrap();
    assert_eq!(record.verdict.unwrap().outcome, Outcome::DiskFull);
    println!("full disk shown");
}

#[test]
fn a_full_disk_is_called_a_full_disk() {
    let out = out();
    let script = "mount -t tmpfs -o size=256k none \"$1\" && head -c 65536 /dev/zero > \"$1/ballast\" && \
                  exec \"$2\" --exact disk::child_on_a_full_disk --nocapture";
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .arg(out.path())
        .arg(std::env::current_exe().unwrap())
        .env("BELLJAR_TEST_FULL_DISK", out.path())
        .output();
    let Ok(output) = output else { return println!("skipped: no unshare here") };
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("unshare failed") || text.contains("permission denied") {
        return println!("skipped: no user namespaces here");
    }
    assert!(text.contains("full disk shown"), "{text}");
}

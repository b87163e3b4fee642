//! Runs made without a sandbox: a recorder, a capture, and bytes given by the test.

use std::path::{Path, PathBuf};

use belljar::capture::Capture;
use belljar::event::EventKind;
use belljar::moment::{Millis, Moment};
use belljar::outcome::{Ending, StageOutcome};
use belljar::record::{CommandRecord, ImageRecord, RunRecord, TreeRecord, Usage};
use belljar::recorder::Recorder;
use belljar::rundir::RunDir;
use belljar::stage::{Stage, Stream};

/// What a made run prints, and how it ends.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) setup: &'static [u8],
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: &'static [u8],
    pub(crate) exit_code: i32,
    pub(crate) ending: Ending,
    pub(crate) hash_seed: &'static str,
    pub(crate) files: Vec<(&'static str, &'static str)>,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            setup: b"Collecting pytest\n",
            stdout: b"1 passed in 0.02s\n".to_vec(),
            stderr: b"",
            exit_code: 0,
            ending: Ending::Exited,
            hash_seed: "0",
            files: vec![("a.txt", "one\n")],
        }
    }
}

pub(crate) fn describe(record: &mut RunRecord, hash_seed: &str) {
    record.plan_digest = "sha256:plan".to_owned();
    record.repo_commit = Some("0123456789abcdef0123456789abcdef01234567".to_owned());
    record.environment = [("PYTHONHASHSEED".to_owned(), hash_seed.to_owned())].into();
    record.isolation.level = "strict".to_owned();
    record.network = [(Stage::Setup, "open".into()), (Stage::Run, "none".into())].into();
    record.limits = [("memory_bytes".to_owned(), 536_870_912.into())].into();
}

pub(crate) fn capture(
    dir: &Path,
    stage: Stage,
    stream: Stream,
    bytes: &[u8],
) -> belljar::stream::StreamRecord {
    Capture::new(dir, stage, stream, 1 << 20).copy(bytes, |_| {})
}

pub(crate) fn command(dir: &Path, stage: Stage, script: &str, stdout: &[u8], stderr: &[u8]) -> CommandRecord {
    CommandRecord {
        script: script.to_owned(),
        argv: vec!["bash".to_owned(), "-lc".to_owned(), script.to_owned()],
        cwd: "/workspace".to_owned(),
        started: Moment::now(),
        duration_ms: Millis::from_micros(20_500),
        ending: Ending::Exited,
        exit_code: 0,
        signal: None,
        not_started: None,
        survivors: Some(0),
        usage: Usage::default(),
        stdout: capture(dir, stage, Stream::Stdout, stdout),
        stderr: capture(dir, stage, Stream::Stderr, stderr),
    }
}

fn stage(recorder: &mut Recorder, stage: Stage, command: CommandRecord) {
    let clean = command.exit_code == 0;
    recorder.event(EventKind::StageStarted { stage }).unwrap();
    recorder.event(EventKind::CommandStarted { stage, index: 0, script: command.script.clone() }).unwrap();
    recorder.event(EventKind::CommandFinished { stage, index: 0, command: Box::new(command) }).unwrap();
    let outcome = if clean { StageOutcome::Ok } else { StageOutcome::Failed };
    recorder.event(EventKind::StageFinished { stage, outcome, duration_ms: Millis::from_micros(1) }).unwrap();
}

/// Makes a finished run; says where it is and what its record says.
pub(crate) fn run(out: &Path, script: &Script) -> (PathBuf, RunRecord) {
    let mut recorder = started(out, script.hash_seed);
    let path = recorder.dir().path().to_path_buf();
    let setup = command(&path, Stage::Setup, "pip install pytest", script.setup, b"");
    stage(&mut recorder, Stage::Setup, setup);
    let mut test = command(&path, Stage::Run, "pytest -q", &script.stdout, script.stderr);
    test.exit_code = script.exit_code;
    test.ending = script.ending;
    stage(&mut recorder, Stage::Run, test);
    recorder.event(EventKind::TreeHashed { tree: write_tree(&path, &script.files) }).unwrap();
    (path, recorder.finish().unwrap())
}

pub(crate) fn started(out: &Path, hash_seed: &str) -> Recorder {
    let dir = RunDir::create(out, "toy").unwrap();
    let mut recorder = Recorder::start(dir, "toy", std::time::Instant::now(), Box::new(|_| {}), |record| {
        describe(record, hash_seed)
    })
    .unwrap();
    let image = ImageRecord {
        reference: "host".to_owned(),
        kind: "host".to_owned(),
        identity: [("fingerprint".to_owned(), "sha256:image".into())].into(),
        locators: Default::default(),
        pinned: false,
        lock: None,
    };
    recorder.event(EventKind::ImageResolved { image }).unwrap();
    recorder
}

fn write_tree(run_dir: &Path, files: &[(&str, &str)]) -> TreeRecord {
    let repo = run_dir.join("workspace/repo");
    std::fs::create_dir(&repo).unwrap();
    for (name, content) in files {
        std::fs::create_dir_all(repo.join(name).parent().unwrap()).unwrap();
        std::fs::write(repo.join(name), content).unwrap();
    }
    let digest = format!("sha256:{}", files.iter().map(|(n, c)| format!("{n}={c}")).collect::<String>());
    TreeRecord { digest, files: files.len() as u64, bytes: 0, unread: 0 }
}

//! kill -9 at every stage boundary and at random moments: nothing is left running, the record is readable and says
//! what was reached, and the next command reaps the rest.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

use belljar::record::Status;
use belljar::runs::{self, RunState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::ground::{Ground, entries, runs_in};
use crate::remains::{self, Process};

const STAGES: [&str; 8] =
    ["prepare_image", "create", "clone", "checkout", "setup", "run", "collect", "destroy"];
/// How many random moments are tried.
const MOMENTS: usize = 50;
/// Against a hang only.
const PATIENCE: Duration = Duration::from_secs(60);

/// The ground of the killings: one task that forks in setup and in run, and an output folder for each victim.
struct Range {
    ground: Ground,
    task: PathBuf,
    mark: String,
    count: usize,
}

/// A run that is about to be killed.
struct Victim {
    client: Child,
    out: PathBuf,
}

impl Range {
    fn new(caller: Caller) -> Range {
        let ground = Ground::of(caller);
        let mark = format!("victim-{}", ground.base().file_name().unwrap().to_string_lossy());
        let forks =
            "for i in 1 2 3; do (trap '' TERM HUP; setsid sleep 600 &) ; done; (sleep 600 & sleep 600 &)";
        let task = ground.task("victim", &format!("{forks}; echo running > made; sleep 0.2"), &json!({
            "environment": {"env": {"GROUND_MARK": mark}},
            "setup": {"commands": [format!("{forks}; sleep 0.05"), "echo set up > $HOME/mark"], "network": "none"},
        }));
        Range { ground, task, mark, count: 0 }
    }

    fn start(&mut self) -> Victim {
        self.count += 1;
        let name = format!("out{}", self.count);
        let out = self.ground.path(&name);
        fs::create_dir(&out).unwrap();
        self.ground.give(&name);
        let mut command = self.ground.belljar();
        command.arg("run").arg(&self.task).arg("--out").arg(&out);
        let client = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("belljar starts");
        Victim { client, out }
    }

    /// Everything that must hold after a kill.
    fn expect_recovery(&self, victim: &Victim, known: &[Process], when: &str) {
        let mut marks = vec![self.mark.clone(), victim.out.to_string_lossy().into_owned()];
        marks.extend(victim.run().map(|run| cell_of(&run)));
        remains::expect_gone(known, &marks, when);
        if let Some(run) = victim.run() {
            expect_readable(&run, when);
        }
        let (mut code, mut answer) = self.ground.ask(&["gc"]);
        // A keeper that was never seen may still be taking its cell down; while it is at it, gc leaves the cell to it.
        for _ in 0..200 {
            if code != 0 || self.ground.cells().is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            (code, answer) = self.ground.ask(&["gc"]);
        }
        assert_eq!(code, 0, "{when}: gc failed: {answer:#}");
        assert_eq!(self.ground.cells(), [] as [PathBuf; 0], "{when}: cells are left after gc: {answer:#}");
        if let Some(run) = victim.run() {
            assert_eq!(
                remains::groups_of(&cell_of(&run)),
                [] as [PathBuf; 0],
                "{when}: control groups are left"
            );
        }
        assert_eq!(remains::mounts_below(self.ground.base()), [] as [String; 0], "{when}: mounts are left");
    }
}

/// What the names of a run's cell and control groups hold.
fn cell_of(run: &Path) -> String {
    let name = run.file_name().unwrap().to_string_lossy().into_owned();
    format!("belljar-cell-{}", name.split_once("__").unwrap().1.to_lowercase())
}

impl Victim {
    fn pid(&self) -> i32 {
        i32::try_from(self.client.id()).unwrap()
    }

    /// The run directory, once there is one.
    fn run(&self) -> Option<PathBuf> {
        runs_in(&self.out).into_iter().next()
    }

    fn events(&self) -> Vec<Value> {
        let text =
            self.run().and_then(|run| fs::read_to_string(run.join("events.jsonl")).ok()).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for an event; says no when the run ended first.
    fn wait_for(&mut self, is_it: impl Fn(&Value) -> bool) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.events().iter().any(&is_it) {
                return true;
            }
            if self.client.try_wait().unwrap().is_some() {
                return self.events().iter().any(&is_it);
            }
            assert!(Instant::now() < deadline, "the moment never came: {:#?}", self.events());
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Waits until the client ends by itself; one that never does is killed and fails the test.
    #[track_caller]
    fn wait_for_end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.client.try_wait().unwrap() {
                return status.code();
            }
            if Instant::now() > deadline {
                self.kill().iter().for_each(Process::kill);
                panic!("the client never ended: {:#?}", self.events());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn signal(&self, signal: Signal) {
        // Not waited for yet, so the number is still this process's, dead or alive.
        let _ = kill_process(Pid::from_raw(self.pid()).unwrap(), signal);
    }

    /// Kills the client; gives the processes it had. It is stopped first only to make that list complete.
    fn kill(&mut self) -> Vec<Process> {
        self.signal(Signal::STOP);
        let known = remains::descendants(self.pid());
        self.signal(Signal::KILL);
        self.client.wait().unwrap();
        known
    }

    fn kill_at_once(&mut self) {
        self.signal(Signal::KILL);
        self.client.wait().unwrap();
    }
}

/// The record parses, its journal replays, and both agree on how far the run got.
#[track_caller]
fn expect_readable(run: &Path, when: &str) {
    let bytes = fs::read(run.join("run.json")).unwrap_or_else(|error| panic!("{when}: no run.json: {error}"));
    let raw: Value =
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{when}: run.json: {error}"));
    let loaded = runs::load(run).unwrap_or_else(|fault| panic!("{when}: {fault}"));
    let journal = fs::read_to_string(run.join("events.jsonl")).unwrap_or_default();
    let events: Vec<Value> = journal.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ended = events.iter().any(|event| event["event"] == "run_finished");
    assert_eq!(loaded.record.status == Status::Finished, ended, "{when}: {raw:#}\n{journal}");
    assert_eq!(loaded.state, if ended { RunState::Finished } else { RunState::Abandoned }, "{when}: {raw:#}");
    let begun = events.iter().filter(|event| event["event"] == "stage_started");
    let begun: Vec<&str> = begun.map(|event| event["stage"].as_str().unwrap()).collect();
    let recorded: Vec<&str> = loaded.record.stages.iter().map(|stage| stage.stage.name()).collect();
    assert_eq!(recorded, begun, "{when}: {raw:#}");
    let finished = |name: &str| events.iter().any(|e| e["event"] == "stage_finished" && e["stage"] == name);
    for stage in &loaded.record.stages {
        assert_eq!(stage.outcome.is_some(), finished(stage.stage.name()), "{when}: {stage:?}");
    }
}

fn kill_at_every_boundary(caller: Caller) {
    let mut range = Range::new(caller);
    for stage in STAGES {
        for boundary in ["stage_started", "stage_finished"] {
            let when = format!("killed at {boundary} of {stage}");
            let mut victim = range.start();
            let is_it = |event: &Value| event["event"] == boundary && event["stage"] == stage;
            assert!(victim.wait_for(is_it), "{when}: it never came: {:#?}", victim.events());
            let known = victim.kill();
            let reached = victim.events().last().map(|event| event["event"].to_string());
            eprintln!("{when}: {} processes, last event {}", known.len(), reached.unwrap_or_default());
            range.expect_recovery(&victim, &known, &when);
        }
    }
}

#[test]
fn at_every_stage_boundary() {
    kill_at_every_boundary(Caller::Root);
}

#[test]
fn at_every_stage_boundary_of_the_delegated_user() {
    kill_at_every_boundary(Caller::Delegated);
}

#[test]
fn at_every_stage_boundary_of_a_user_with_subordinate_ids() {
    kill_at_every_boundary(Caller::Mapped);
}

/// A small generator: the moments need not be good, only repeatable.
struct Dice(u64);

impl Dice {
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 33).unwrap()) / f64::from(1_u32 << 31)
    }
}

/// From the environment, else from the clock.
fn seed() -> u64 {
    let given = std::env::var("BELLJAR_TEST_SEED").ok();
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64;
    given.map_or_else(clock, |text| text.parse().expect("BELLJAR_TEST_SEED is a number"))
}

#[test]
fn at_fifty_random_moments() {
    let seed = seed();
    eprintln!("BELLJAR_TEST_SEED={seed}");
    let mut range = Range::new(Caller::Root);
    let whole = Instant::now();
    let mut undisturbed = range.start();
    assert!(undisturbed.client.wait().unwrap().success(), "the undisturbed run failed");
    let (whole, mut dice) = (whole.elapsed(), Dice(seed));
    let mut abandoned = 0;
    for number in 0..MOMENTS {
        let moment = whole.mul_f64(dice.fraction());
        let when = format!("BELLJAR_TEST_SEED={seed}, kill {number} after {moment:?} of {whole:?}");
        let mut victim = range.start();
        std::thread::sleep(moment);
        let known = victim.kill();
        range.expect_recovery(&victim, &known, &when);
        abandoned += usize::from(!victim.events().iter().any(|event| event["event"] == "run_finished"));
    }
    assert!(abandoned > MOMENTS / 2, "only {abandoned} of {MOMENTS} kills hit a run in progress");
}

fn in_run(event: &Value) -> bool {
    event["event"] == "command_started" && event["stage"] == "run"
}

#[test]
fn the_keeper_alone() {
    let mut range = Range::new(Caller::Root);
    for _ in 0..5 {
        let mut victim = range.start();
        assert!(victim.wait_for(in_run));
        let keeper = remains::keeper_of(victim.pid()).expect("there is a keeper");
        let known = remains::descendants(victim.pid());
        keeper.kill();
        let code = victim.wait_for_end();
        range.expect_recovery(&victim, &known, "the keeper was killed");
        let record = runs::load(&victim.run().unwrap()).unwrap().record;
        let outcome = record.verdict.expect("the client lives and ends its record").outcome;
        assert_eq!((outcome.name(), code), ("sandbox_error", Some(4)));
    }
}

#[test]
fn keeper_and_client_together() {
    let mut range = Range::new(Caller::Root);
    for order in [0, 1, 0, 1] {
        let mut victim = range.start();
        assert!(victim.wait_for(in_run));
        let keeper = remains::keeper_of(victim.pid()).expect("there is a keeper");
        let known = remains::descendants(victim.pid());
        match order {
            0 => {
                keeper.kill();
                victim.kill_at_once();
            }
            _ => {
                victim.kill_at_once();
                keeper.kill();
            }
        }
        range.expect_recovery(&victim, &known, "both were killed");
    }
}

/// The spawner, the keeper, its init, the spare keeper and its init, one in each round. What the command does not need
/// may go; without its keeper or its init there is no sandbox.
#[test]
fn any_process_between_client_and_guest() {
    let mut range = Range::new(Caller::Root);
    for index in 0..5 {
        let mut victim = range.start();
        assert!(victim.wait_for(in_run));
        // Once there is a guest, everything else below the client is ours.
        let keeper = remains::keeper_of(victim.pid()).expect("there is a keeper");
        let known = remains::descendants(victim.pid());
        let own = remains::own_processes(victim.pid());
        let Some(target) = own.get(index) else {
            panic!("fewer than {} processes of ours: {known:?}", index + 1)
        };
        let needed = target.pid == keeper.pid || remains::parent(target) == Some(keeper.pid);
        target.kill();
        let code = victim.wait_for_end();
        range.expect_recovery(&victim, &known, &format!("process {index} of ours was killed"));
        let record = runs::load(&victim.run().unwrap()).unwrap().record;
        let outcome = record.verdict.expect("the client lives and ends its record").outcome;
        let told = (outcome.name(), code);
        let wanted = if needed { ("sandbox_error", Some(4)) } else { ("passed", Some(0)) };
        assert_eq!(told, wanted, "process {index} was killed");
    }
}

/// A server that takes a connection and never answers holds git for ever; the kill must end git as well.
#[test]
fn a_fetch_in_progress() {
    let ground = Ground::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://127.0.0.1:{}/project.git", silent.local_addr().unwrap().port());
    let source = json!({"repo": {"url": url, "commit": "0123456789012345678901234567890123456789"}});
    let task = ground.task("silent", "true", &source);
    let mut command = ground.belljar();
    command.arg("run").arg(&task).arg("--out").arg(ground.path("out"));
    let client = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("belljar starts");
    let mut victim = Victim { client, out: ground.path("out") };
    // The connection that is never answered.
    let (_held, _) = silent.accept().expect("git comes");
    let known = victim.kill();
    assert!(!known.is_empty(), "git was not running");
    remains::expect_gone(&known, &[url], "the client was killed while git fetched");
}

#[test]
fn what_a_kill_left_is_reaped_by_the_next_run() {
    let mut range = Range::new(Caller::Root);
    let mut victim = range.start();
    assert!(victim.wait_for(in_run));
    let keeper = remains::keeper_of(victim.pid()).expect("there is a keeper");
    let known = remains::descendants(victim.pid());
    keeper.kill();
    victim.kill_at_once();
    remains::expect_gone(&known, &[], "both were killed");
    assert_ne!(
        entries(&range.ground.path("home/cells")).len(),
        0,
        "there was nothing to reap; this proves nothing"
    );
    let mut next = range.start();
    assert!(next.client.wait().unwrap().success(), "the next run failed");
    assert_eq!(range.ground.cells(), [] as [PathBuf; 0], "the next run did not reap");
    assert_eq!(remains::groups_of(&cell_of(&victim.run().unwrap())), [] as [PathBuf; 0]);
}

//! Ctrl-C, with real children and real signals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::house::House;

/// Waits for something that must come soon.
fn eventually(what: &str, mut come: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !come() {
        assert!(Instant::now() < deadline, "{what} did not come");
        sleep(Duration::from_millis(20));
    }
}

/// A run whose guest sleeps for a time that no other test uses, so that it can be found.
struct Sleeper {
    house: House,
    child: Child,
    seconds: String,
}

impl Sleeper {
    fn start(seconds: &str) -> Sleeper {
        let house = House::new();
        let task = house.command_task("sleeper", &format!("setsid sleep {seconds} & sleep {seconds}"));
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("belljar"));
        command.env("BELLJAR_HOME", house.path().join("home")).current_dir(house.path());
        command.args(["run", &task]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let sleeper = Sleeper { house, child, seconds: seconds.to_owned() };
        eventually("the guest", || sleeper.guests() == 2);
        sleeper
    }

    /// How many processes of the guest are alive.
    fn guests(&self) -> usize {
        let wanted = format!("sleep\0{}\0", self.seconds);
        let lines = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
        lines.filter(|line| fs::read(line).is_ok_and(|text| text == wanted.as_bytes())).count()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The processes that hold its sandboxes, by their leases.
    fn keepers(&self) -> Vec<Pid> {
        let cells = fs::read_dir(self.house.path().join("home/cells")).unwrap().flatten();
        let leases = cells.map(|cell| fs::read(cell.path().join("lease.json")).unwrap());
        let pids =
            leases.map(|lease| serde_json::from_slice::<Value>(&lease).unwrap()["keeper"].as_i64().unwrap());
        pids.filter_map(|pid| Pid::from_raw(pid.try_into().unwrap())).collect()
    }

    fn run(&self) -> PathBuf {
        let runs = fs::read_dir(self.house.path().join("artifacts/runs")).unwrap();
        runs.flatten().next().unwrap().path()
    }

    fn record(&self) -> Value {
        serde_json::from_slice(&fs::read(self.run().join("run.json")).unwrap()).unwrap()
    }

    fn cells(&self) -> usize {
        let cells: &Path = &self.house.path().join("home/cells");
        fs::read_dir(cells).map_or(0, |cells| cells.flatten().filter(|cell| cell.path().is_dir()).count())
    }
}

fn ends_cleanly(signal: Signal, seconds: &str) {
    let mut sleeper = Sleeper::start(seconds);
    sleeper.signal(signal);
    let status = sleeper.child.wait().unwrap();
    assert_eq!((status.code(), sleeper.guests(), sleeper.cells()), (Some(130), 0, 0));
    let record = sleeper.record();
    assert_eq!(
        (&record["status"], &record["verdict"]["outcome"]),
        (&"finished".into(), &"interrupted".into())
    );
}

#[test]
fn once_ends_the_run_with_its_record() {
    ends_cleanly(Signal::INT, "7301");
}

#[test]
fn a_request_to_terminate_is_a_ctrl_c() {
    ends_cleanly(Signal::TERM, "7302");
}

#[test]
fn a_closed_terminal_is_a_ctrl_c() {
    ends_cleanly(Signal::HUP, "7303");
}

/// The keeper is held still, so that the first Ctrl-C cannot have its effect and the second one must.
#[test]
fn twice_ends_at_once_and_leaves_nothing_running() {
    let mut sleeper = Sleeper::start("7304");
    let keepers = sleeper.keepers();
    assert!(!keepers.is_empty());
    keepers.iter().for_each(|keeper| kill_process(*keeper, Signal::STOP).unwrap());
    sleeper.signal(Signal::INT);
    sleep(Duration::from_millis(500));
    assert_eq!(sleeper.child.try_wait().unwrap(), None);
    sleeper.signal(Signal::INT);
    assert_eq!(sleeper.child.wait().unwrap().code(), Some(130));
    keepers.iter().for_each(|keeper| kill_process(*keeper, Signal::CONT).unwrap());
    eventually("the end of the guest", || sleeper.guests() == 0);
    eventually("the end of the sandbox", || sleeper.cells() == 0);
    assert_eq!(sleeper.record()["status"], "running");
}

#[test]
fn a_kill_is_seen_in_the_list_and_leaves_nothing_running() {
    let mut sleeper = Sleeper::start("7305");
    sleeper.signal(Signal::KILL);
    sleeper.child.wait().unwrap();
    eventually("the end of the guest", || sleeper.guests() == 0);
    eventually("the end of the sandbox", || sleeper.cells() == 0);
    let told = sleeper.house.told(&["runs", "ls"]);
    assert!(told.contains("! ") && told.contains("cut short at run"), "{told}");
}

/// A server that takes the connection and never answers.
#[test]
fn planning_is_interrupted_too() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let house = House::new();
    let url = format!("http://{}/silent.git", server.local_addr().unwrap());
    let text =
        format!("id: t\nrepo: {{url: {url:?}, commit: {}}}\nrun: {{command: 'true'}}\n", "0".repeat(40));
    let task = house.file("t.yaml", &text);
    for (verb, runs) in [("plan", 0), ("run", 1)] {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("belljar"));
        command.env("BELLJAR_HOME", house.path().join("home")).current_dir(house.path());
        let mut child =
            command.args([verb, &task]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let _connection = server.accept().unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{verb}");
        let made = fs::read_dir(house.path().join("artifacts/runs")).map_or(0, Iterator::count);
        assert_eq!(made, runs, "{verb}");
    }
}

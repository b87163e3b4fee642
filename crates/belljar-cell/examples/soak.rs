//! Many cells, some of whose keepers and clients are killed at random moments: in the end nothing may be left, and no
//! answer may be wrong. `soak ROOT COUNT [SEED]` prints one JSON object and ends with 1 when something is amiss.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a measurement fails by panicking"
)]

mod shared;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_cell::cell::{CellSpec, Ended, ExecSpec, Limits};
use belljar_cell::client::{Cell, CellError};
use belljar_cell::lease;
use belljar_cell::spawner::{self, Spawner};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::shared::{exec, groups, left_since, lines_of, mounts, spec};

/// How many cells are made at the same time.
const WORKERS: u64 = 4;
/// What the commands of guests are called, so that one that is left can be found.
const MARK: &str = "86399";

fn main() {
    spawner::run_if_asked();
    let arguments: Vec<String> = std::env::args().collect();
    let word = |index: usize| arguments.get(index).map_or("", String::as_str);
    if word(1) == "client" {
        return be_client(Path::new(word(2)), Path::new(word(3)), word(4));
    }
    let seed = word(3).parse().unwrap_or_else(|_| u64::from(std::process::id()));
    let soak = Soak::new(Path::new(word(1)), word(2).parse().unwrap(), seed);
    std::process::exit(soak.run());
}

struct Soak {
    root: PathBuf,
    base: PathBuf,
    count: u64,
    seed: u64,
    next: AtomicU64,
    tally: [AtomicU64; 6],
}

/// What became of a cell: an index of the tally.
#[derive(Clone, Copy)]
enum Fate {
    Ran,
    KeeperKilled,
    RanAllTheSame,
    ClientKilled,
    Refused,
    Wrong,
}

impl Soak {
    fn new(root: &Path, count: u64, seed: u64) -> Soak {
        let base = PathBuf::from(format!("/dev/shm/belljar-soak-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        Soak { root: root.to_owned(), base, count, seed, next: AtomicU64::new(0), tally: Default::default() }
    }

    fn cells(&self) -> PathBuf {
        self.base.join("cells")
    }

    fn run(&self) -> i32 {
        let before = traces();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                scope.spawn(move || self.work(worker));
            }
        });
        let seconds = begun.elapsed().as_secs_f64();
        let reaped = self.reap();
        let left = left_since(&before, traces);
        let folders = fs::read_dir(self.cells()).unwrap().count();
        let told = |fate: Fate| self.tally[fate as usize].load(Ordering::Relaxed);
        println!(
            "{}",
            json!({"what": "soak", "count": self.count, "seed": self.seed, "seconds": seconds, "ran": told(Fate::Ran),
                "keepers_killed": told(Fate::KeeperKilled), "ran_before_the_kill": told(Fate::RanAllTheSame),
                "clients_killed": told(Fate::ClientKilled), "refused": told(Fate::Refused), "wrong": told(Fate::Wrong),
                "reaped_at_the_end": reaped, "folders_left": folders, "left": left})
        );
        let clean = left.is_empty() && folders == 0 && told(Fate::Wrong) == 0 && told(Fate::Refused) == 0;
        let _ = fs::remove_dir_all(&self.base);
        i32::from(!clean)
    }

    /// Cleans up as the next command of a user would.
    fn reap(&self) -> usize {
        let mut removed = 0;
        for _ in 0..100 {
            let reaped = lease::reap(&self.cells()).unwrap();
            removed += reaped.removed.len();
            if reaped.alive.is_empty() && reaped.failures.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        removed
    }

    fn work(&self, worker: u64) {
        let mut dice = Dice(self.seed ^ (worker + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut spawner = Spawner::start(Path::new("/proc/self/exe")).unwrap();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            if number % 500 == 499 {
                spawner = Spawner::start(Path::new("/proc/self/exe")).unwrap();
            }
            let fate = match dice.roll(20) {
                0..3 => self.lose_keeper(&spawner, number, &mut dice),
                3..6 => self.lose_client(number, &mut dice),
                _ => self.run_one(&spawner, number),
            };
            self.tally[fate as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn run_one(&self, spawner: &Spawner, number: u64) -> Fate {
        let made = Cell::start(spawner, &small(&self.root, &self.cells(), &format!("{number}")))
            .and_then(|pending| pending.wait());
        let Ok((mut cell, ..)) = made else { return Fate::Refused };
        let fate = match say(&mut cell, number) {
            Ok(true) => Fate::Ran,
            Ok(false) | Err(_) => Fate::Wrong,
        };
        match cell.destroy() {
            Ok(failures) if failures.is_empty() => fate,
            _ => Fate::Wrong,
        }
    }

    /// A right answer or none: never a wrong one.
    fn lose_keeper(&self, spawner: &Spawner, number: u64, dice: &mut Dice) -> Fate {
        let made = Cell::start(spawner, &small(&self.root, &self.cells(), &format!("{number}")))
            .and_then(|pending| pending.wait());
        let Ok((mut cell, ..)) = made else { return Fate::Refused };
        let keeper = cell.status().unwrap().keeper;
        let wait = Duration::from_micros(dice.roll(4000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            kill_process(Pid::from_raw(keeper.cast_signed()).unwrap(), Signal::KILL)
        });
        let said = say(&mut cell, number);
        killer.join().unwrap().unwrap();
        match said {
            Ok(true) => Fate::RanAllTheSame,
            Ok(false) => Fate::Wrong,
            Err(_) => Fate::KeeperKilled,
        }
    }

    fn lose_client(&self, number: u64, dice: &mut Dice) -> Fate {
        let mut client = Command::new("/proc/self/exe")
            .arg("client")
            .args([&self.root, &self.cells()])
            .arg(number.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(dice.roll(30_000)));
        client.kill().unwrap();
        client.wait().unwrap();
        Fate::ClientKilled
    }
}

/// Makes a cell and runs a command that never ends; somebody will kill this process.
fn be_client(root: &Path, cells: &Path, number: &str) {
    let (mut cell, ..) = Cell::start_here(&small(root, cells, number)).unwrap().wait().unwrap();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let script = format!("(setsid sleep {MARK} &) ; sleep {MARK}");
    cell.exec(&shell(&script), [null.as_fd(), null.as_fd(), null.as_fd()]).unwrap();
}

/// Whether a command said what it was told to, and ended as it should with nothing left.
fn say(cell: &mut Cell, number: u64) -> Result<bool, CellError> {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    let script = format!("(setsid sleep {MARK} >/dev/null 2>&1 &); echo {number}; exit {}", number % 100);
    let end = cell.exec(&shell(&script), [null.as_fd(), writer.as_fd(), null.as_fd()])?;
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let code = i32::try_from(number % 100).unwrap();
    Ok(text == format!("{number}\n") && end.ended == Ended::Exited(code) && end.survivors == 0)
}

fn shell(script: &str) -> ExecSpec {
    exec("/bin/sh", &["-c", script])
}

fn small(root: &Path, cells: &Path, number: &str) -> CellSpec {
    let limits = Limits { memory: 256 << 20, cpu_millis: 2000, pids: 64, disk: None };
    spec(format!("soak-{number}"), cells, root, limits)
}

/// What a machine has of each thing that a cell must not leave behind.
fn traces() -> BTreeMap<String, usize> {
    BTreeMap::from([
        ("guests".to_owned(), lines_of("pgrep", &["-f", &format!("sleep {MARK}")])),
        ("keepers".to_owned(), lines_of("pgrep", &["-f", "belljar-spawner"])),
        ("mounts".to_owned(), mounts()),
        ("groups".to_owned(), groups("soak-")),
        ("namespaces".to_owned(), lines_of("lsns", &["-n", "-t", "pid"])),
    ])
}

/// Chance that can be had again by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

//! What a run may have left on this machine: processes, control groups, mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long the kernel and a keeper may take to clear up before it counts as left behind. Not a measure of speed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process, safe against a reused number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    born: String,
}

impl Process {
    /// The process of this number, if it lives; a zombie does not.
    pub(crate) fn living(pid: i32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let dead = matches!(*fields.first()?, "Z" | "X");
        (!dead).then(|| Process { pid, born: fields.get(19).copied().unwrap_or_default().to_owned() })
    }

    /// Whether it still lives.
    pub(crate) fn lives(&self) -> bool {
        Process::living(self.pid).as_ref() == Some(self)
    }

    /// Kills it, if it still lives.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Stops it, if it still lives.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.lives()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Its command line and environment.
    pub(crate) fn words(&self) -> String {
        let read = |name: &str| fs::read(format!("/proc/{}/{name}", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&[read("cmdline"), read("environ")].concat()).into_owned()
    }

    /// A figure of its status, in kilobytes.
    pub(crate) fn kilobytes(&self, field: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find(|line| line.starts_with(field))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    fn groups(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default()
    }
}

/// Every process that lives now.
pub(crate) fn all() -> Vec<Process> {
    let names = crate::ground::entries(Path::new("/proc"));
    let pids = names.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    pids.filter_map(Process::living).collect()
}

/// The children of a process, and theirs.
pub(crate) fn descendants(pid: i32) -> Vec<Process> {
    let parents: Vec<(i32, Process)> =
        all().into_iter().filter_map(|process| Some((parent(&process)?, process))).collect();
    let mut found: Vec<Process> = Vec::new();
    let mut wanted = vec![pid];
    while let Some(above) = wanted.pop() {
        for (_, process) in parents.iter().filter(|(parent, _)| *parent == above) {
            wanted.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

pub(crate) fn parent(process: &Process) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The keeper in use below a client, once it has let a guest in.
pub(crate) fn keeper_of(client: i32) -> Option<Process> {
    (0..500).find_map(|_| {
        let found = keeper_now(client);
        if found.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        found
    })
}

/// The one of our own processes below a client that has a guest for a child at this moment.
pub(crate) fn keeper_now(client: i32) -> Option<Process> {
    let own = own_processes(client);
    let is_guest = |process: &Process| {
        own.iter().all(|other| other.pid != process.pid) && !process.words().contains("--belljar-spawner")
    };
    let guests = descendants(client).into_iter().filter(is_guest);
    let parents: Vec<i32> = guests.filter_map(|guest| parent(&guest)).collect();
    own.into_iter().find(|process| parents.contains(&process.pid))
}

/// The processes of Belljar's own below a client, oldest first: the spawner, the keeper and its init, the spare keeper
/// and its init.
pub(crate) fn own_processes(client: i32) -> Vec<Process> {
    // A guest that has not become its program yet still looks like its keeper, but is inside and not the first there.
    let is_ours = |process: &Process| {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let ids: Vec<&str> = ids.split_whitespace().collect();
        process.words().contains("--belljar-spawner") && (ids.len() == 1 || ids.last() == Some(&"1"))
    };
    let mut own: Vec<Process> = descendants(client).into_iter().filter(is_ours).collect();
    own.sort_by_key(|process| process.pid);
    own
}

/// The living processes that carry one of these marks in their command line, environment or groups.
pub(crate) fn marked(marks: &[String]) -> Vec<Process> {
    let carries = |process: &Process| {
        let (words, groups) = (process.words(), process.groups());
        marks.iter().any(|mark| words.contains(mark.as_str()) || groups.contains(mark.as_str()))
    };
    all().into_iter().filter(carries).collect()
}

/// Waits until none of these lives and nothing carries a mark; panics with what is left.
#[track_caller]
pub(crate) fn expect_gone(known: &[Process], marks: &[String], when: &str) {
    let left = wait_until_empty(|| {
        let mut left: Vec<Process> = known.iter().filter(|process| process.lives()).cloned().collect();
        left.extend(marked(marks));
        left
    });
    let words: Vec<String> = left
        .iter()
        .map(|process| format!("{}: {}", process.pid, process.words().replace('\0', " ")))
        .collect();
    assert!(left.is_empty(), "{when}: still running:\n{}", words.join("\n"));
}

/// Waits for an empty list; gives the last one.
pub(crate) fn wait_until_empty<T>(mut list: impl FnMut() -> Vec<T>) -> Vec<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = list();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The control groups of cells with this word in their name.
pub(crate) fn groups_of(word: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), &mut found, 8);
    found.retain(|path| path.to_string_lossy().contains(word));
    found
}

/// Cells are made at the top of a tree or in a folder that was handed over.
fn search(folder: &Path, found: &mut Vec<PathBuf>, depth: u32) {
    let folders = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in
        folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
    {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("belljar-cell-")) {
            found.push(path);
        } else if depth > 0 {
            search(&path, found, depth - 1);
        }
    }
}

/// The mounts of this machine below a path.
pub(crate) fn mounts_below(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = path.to_string_lossy().into_owned();
    table.lines().filter(|line| line.contains(&below)).map(str::to_owned).collect()
}

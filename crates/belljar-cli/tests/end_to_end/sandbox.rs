//! `belljar sandbox` from outside: each verb a process of its own, real users, the real kernel.

mod codes;
mod copies;
mod files;
mod life;
mod logs;
mod mapped;
mod output;
mod terminal;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::caller::Caller;
use crate::ground::{Ground, entries};
use crate::remains;

/// Against a hang only.
const PATIENCE: Duration = Duration::from_secs(60);

/// A place where sandboxes are made; at the end they are taken down.
struct Yard {
    ground: Ground,
}

/// What came of a verb.
#[derive(Debug)]
struct Told {
    code: i32,
    out: String,
    err: String,
}

impl Told {
    fn of(output: &Output) -> Told {
        Told {
            code: output.status.code().unwrap_or_else(|| 1000 + output.status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// What it printed, if it ended well.
    #[track_caller]
    fn fine(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out.trim_end().to_owned()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no object: {error}: {self:?}"))
    }
}

impl Yard {
    fn new() -> Yard {
        Yard::of(Caller::Root)
    }

    fn of(caller: Caller) -> Yard {
        Yard { ground: Ground::of(caller) }
    }

    /// `belljar sandbox` with arguments; a hang is ended.
    fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.ground.belljar();
        command.arg("sandbox").args(arguments);
        command
    }

    fn tell<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Told {
        let mut command = self.command(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("belljar starts");
        Told::of(&finished(child))
    }

    /// The same, written as a shell would have it, without quotes.
    #[track_caller]
    fn say(&self, words: &str) -> Told {
        self.tell(words.split_whitespace())
    }

    /// A new sandbox.
    #[track_caller]
    fn create(&self, options: &str) -> String {
        self.say(&format!("create {options}")).fine()
    }

    /// A shell command in a sandbox.
    fn sh(&self, id: &str, script: &str) -> Told {
        self.tell(["exec", id, "--", "sh", "-c", script])
    }

    /// A shell command in the background; gives its number.
    #[track_caller]
    fn background(&self, id: &str, script: &str) -> String {
        self.tell(["exec", "-d", id, "--", "sh", "-c", script]).fine()
    }

    /// A verb in the background.
    fn start<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("belljar starts")
    }

    /// A word that nobody else on this machine uses, as an argument that `sleep` takes for a time.
    fn span(&self) -> String {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("7{}.{number}", std::process::id())
    }

    fn inspect(&self, id: &str) -> Value {
        self.tell(["inspect", id, "--json"]).json()
    }

    /// Waits until nothing is left of any sandbox of this place.
    #[track_caller]
    fn expect_nothing_left(&self, ids: &[&str]) {
        let left = remains::wait_until_empty(|| entries(&self.ground.path("home/cells")));
        assert!(left.is_empty(), "left: {left:?}");
        for id in ids {
            let groups = remains::wait_until_empty(|| remains::groups_of(id));
            assert!(groups.is_empty(), "left: {groups:?}");
        }
        assert_eq!(remains::mounts_below(self.ground.base()), Vec::<String>::new());
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let _ = self.command(["rm", "--all"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// The guests' own processes that carry a mark; clients and keepers do, too, in their arguments.
fn guests(mark: &str) -> usize {
    let is_guest = |process: &remains::Process| {
        !process.words().split('\0').next().unwrap_or_default().ends_with("belljar")
    };
    remains::marked(&[mark.to_owned()]).iter().filter(|process| is_guest(process)).count()
}

/// The output of a child, which is killed if it does not end.
fn finished(child: Child) -> Output {
    let guard = Guard::over(&child);
    let output = child.wait_with_output().expect("the end of belljar");
    assert!(!guard.has_killed(), "it did not end by itself: {:?}", Told::of(&output));
    output
}

/// Kills a child that takes too long, so that a test which reads from it fails and does not hang.
struct Guard {
    done: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<bool>,
}

impl Guard {
    fn over(child: &Child) -> Guard {
        let watched = remains::Process::living(i32::try_from(child.id()).unwrap());
        let (done, ended) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let late = ended.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            watched.filter(|_| late).inspect(remains::Process::kill);
            late
        });
        Guard { done, thread }
    }

    /// Lets it go, and says whether it was too late for that.
    fn has_killed(self) -> bool {
        drop(self.done);
        self.thread.join().unwrap()
    }
}

/// Waits until something is so.
#[track_caller]
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! A place where one test runs Belljar: its folders, its task files, its caller.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::caller::{Account, Caller};
use crate::report::Report;

/// A place where one test runs Belljar.
pub(crate) struct Ground {
    base: TempDir,
    program: PathBuf,
    pub(crate) caller: Caller,
    pub(crate) account: Account,
}

impl Ground {
    /// A place of root's.
    pub(crate) fn new() -> Ground {
        Ground::of(Caller::Root)
    }

    /// A place of somebody's, with a plain directory `repo` in it.
    pub(crate) fn of(caller: Caller) -> Ground {
        let account = caller.account();
        let base = tempfile::Builder::new().prefix("belljar-ground-").tempdir().expect("a temporary folder");
        fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
        // A copy that every user can reach, wherever the workspace lies.
        let program = base.path().join("belljar");
        fs::copy(binary(), &program).expect("a copy of the program");
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let ground = Ground { base, program, caller, account };
        for folder in ["tasks", "repo", "home", "out"] {
            fs::create_dir(ground.path(folder)).unwrap();
        }
        fs::write(ground.path("repo/hello.txt"), "hello\n").unwrap();
        ground.give("");
        ground
    }

    /// A path in this place.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// What every path in this place begins with.
    pub(crate) fn base(&self) -> &Path {
        self.base.path()
    }

    /// Hands everything below a path to the caller.
    pub(crate) fn give(&self, name: &str) {
        let path = if name.is_empty() { self.base.path().to_owned() } else { self.path(name) };
        give(&path, &self.account);
    }

    /// Writes a file, with the folders it needs.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let top = name.split('/').next().unwrap();
        self.give(top);
        path
    }

    /// Writes a task that runs one command on the plain directory `repo`; `changes` is laid over it.
    pub(crate) fn task(&self, id: &str, command: &str, changes: &Value) -> PathBuf {
        let mut task = json!({
            "id": id,
            "repo": { "url": "../../repo" },
            "environment": { "timeout_sec": 120 },
            "run": { "command": command },
        });
        lay_over(&mut task, changes);
        self.write(&format!("tasks/{id}/task.json"), task.to_string())
    }

    /// Belljar with this place's home, and no more of this process's environment than the path.
    pub(crate) fn belljar(&self) -> Command {
        let mut command = self.caller.command(&self.program);
        command.env_clear().current_dir(self.base.path()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", &self.account.home).env("BELLJAR_HOME", self.path("home"));
        command
    }

    /// Runs a task to its end, with the runs in `out`.
    pub(crate) fn run(&self, task: &Path) -> Report {
        self.run_into(task, &self.path("out"))
    }

    /// The same with another output folder.
    pub(crate) fn run_into(&self, task: &Path, out: &Path) -> Report {
        let mut command = self.belljar();
        command.arg("run").arg(task).arg("--out").arg(out);
        let before = runs_in(out);
        let output = command.output().expect("belljar starts");
        let made: Vec<PathBuf> = runs_in(out).difference(&before).cloned().collect();
        assert!(made.len() < 2, "one run made several directories: {made:?}");
        Report::new(&output, made.into_iter().next())
    }

    /// Runs one command on the plain directory `repo`.
    pub(crate) fn run_command(&self, command: &str) -> Report {
        self.run(&self.task("one_command", command, &json!({})))
    }

    /// Runs another verb with `--json`; gives the exit code and the object.
    pub(crate) fn ask(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.belljar().args(arguments).arg("--json").output().expect("belljar starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let value = serde_json::from_str(&text).unwrap_or_else(|error| {
            let words = String::from_utf8_lossy(&output.stderr);
            panic!("`belljar {}` gave no object: {error}\n{text}\n{words}", arguments.join(" "))
        });
        (output.status.code().expect("an exit code"), value)
    }

    /// The cells that are left in this place's home.
    pub(crate) fn cells(&self) -> Vec<PathBuf> {
        entries(&self.path("home/cells"))
    }
}

/// The program that cargo built for this test, or another one that somebody wants to try.
fn binary() -> PathBuf {
    std::env::var_os("BELLJAR_TEST_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_belljar").into(), PathBuf::from)
}

/// The root of this project.
pub(crate) fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What is in a folder; nothing when it does not exist.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The run directories below an output folder.
pub(crate) fn runs_in(out: &Path) -> BTreeSet<PathBuf> {
    let hidden = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with('.');
    entries(&out.join("runs")).into_iter().filter(|path| !hidden(path)).collect()
}

/// Runs a program of the machine that must succeed; gives what it printed.
pub(crate) fn tool(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}: run scripts/test"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?} failed: {words}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// SHA-256 of what a shell command prints, by a program that is not Belljar.
pub(crate) fn sha256_of(script: &str, folder: &Path) -> String {
    let text = tool("bash", &["-c", &format!("({script}) | sha256sum")], folder);
    text.split_whitespace().next().unwrap().to_owned()
}

fn give(path: &Path, account: &Account) {
    let meta = path.symlink_metadata().unwrap();
    if meta.is_symlink() {
        return;
    }
    chown(path, Some(account.uid), Some(account.gid)).unwrap();
    if meta.is_dir() {
        entries(path).iter().for_each(|inner| give(inner, account));
    }
}

fn lay_over(task: &mut Value, changes: &Value) {
    match (task, changes) {
        (Value::Object(task), Value::Object(changes)) => {
            for (key, change) in changes {
                lay_over(task.entry(key).or_insert(Value::Null), change);
            }
        }
        (task, change) => *task = change.clone(),
    }
}

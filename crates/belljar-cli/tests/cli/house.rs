//! A place of its own for each test: home, output folder, a plain repository, tasks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// A folder with everything a test needs; gone with it.
pub(crate) struct House {
    folder: TempDir,
}

impl House {
    pub(crate) fn new() -> House {
        let folder = tempfile::Builder::new().prefix("belljar-cli-").tempdir().unwrap();
        fs::create_dir(folder.path().join("repo")).unwrap();
        fs::write(folder.path().join("repo/a.txt"), "hello\n").unwrap();
        House { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a task with these lines at its end; gives its path.
    pub(crate) fn task(&self, name: &str, rest: &str) -> String {
        let text = format!(
            "version: 1\nid: {name}\nrepo:\n  url: repo\nenvironment:\n  image: host\n  timeout_sec: 60\n{rest}\n"
        );
        self.file(&format!("{name}.yaml"), &text)
    }

    /// A task that runs one command.
    pub(crate) fn command_task(&self, name: &str, command: &str) -> String {
        self.task(name, &format!("run:\n  command: {command:?}"))
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.path().join(name), text).unwrap();
        name.to_owned()
    }

    pub(crate) fn belljar(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("belljar"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("BELLJAR_HOME", self.path().join("home"));
        command.current_dir(self.path()).args(arguments);
        command
    }

    /// Exit code, stdout and stderr as one text without what varies.
    pub(crate) fn told(&self, arguments: &[&str]) -> String {
        self.text(&self.belljar(arguments).output().unwrap())
    }

    pub(crate) fn text(&self, output: &Output) -> String {
        let text = format!(
            "exit {}\n--- stdout\n{}--- stderr\n{}",
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let real = self.path().canonicalize().unwrap();
        text.replace(real.to_str().unwrap(), "[HOUSE]").replace(self.path().to_str().unwrap(), "[HOUSE]")
    }

    /// The one JSON object on stdout, with the exit code.
    pub(crate) fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.belljar(arguments).output().unwrap();
        let object = serde_json::from_slice(&output.stdout).expect("exactly one JSON value on stdout");
        (output.status.code().unwrap(), object)
    }

    /// Runs a task and gives the folder of the run.
    pub(crate) fn run(&self, task: &str) -> PathBuf {
        let (_, object) = self.json(&["run", task, "--json"]);
        PathBuf::from(object["path"].as_str().unwrap())
    }
}

/// What varies from run to run, and what stands for it.
pub(crate) const VARYING: [(&str, &str); 9] = [
    (r"\d{8}T\d{6}Z__[0-9A-Z]{26}", "[RUN]"),
    (r"[0-9A-Z]{26}", "[ID]"),
    (r"show [0-9A-Z]{7}\b", "show [SHORT]"),
    (r"(?m)^([✓✗·!]) [0-9A-Z]{7}  ", "$1 [SHORT]  "),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "[WHEN]"),
    (r" +[0-9.]+ (ms|s)\b", " [TIME]"),
    (r"sha256:[0-9a-f]{64}|\b[0-9a-f]{40}\b", "[DIGEST]"),
    // As wide as the longest time below it.
    (r"started +took", "started  took"),
    (r"(?m)[ \t]+$", ""),
];

/// Compares what was told, without what varies, with what stands in the test.
macro_rules! assert_told {
    ($told:expr, @$expected:literal) => {
        insta::with_settings!({ filters => crate::house::VARYING.to_vec() }, {
            insta::assert_snapshot!($told, @$expected);
        });
    };
}
pub(crate) use assert_told;

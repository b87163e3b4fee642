//! What one `belljar run` left: its exit code and its run directory.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

/// What one `belljar run` left.
pub(crate) struct Report {
    /// The exit code of the program.
    pub(crate) code: Option<i32>,
    words: String,
    dir: Option<PathBuf>,
}

impl Report {
    pub(crate) fn new(output: &Output, dir: Option<PathBuf>) -> Report {
        let words = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        Report { code: output.status.code(), words: String::from_utf8_lossy(&words).into_owned(), dir }
    }

    /// Demands an outcome in the record and an exit code; panics with everything there is to know.
    #[track_caller]
    pub(crate) fn expect(self, outcome: &str, code: i32) -> Report {
        assert!(self.dir.is_some(), "there is no run directory, expected {outcome}\n{self}");
        let found = self.record()["verdict"]["outcome"].clone();
        assert!(found == outcome && self.code == Some(code), "expected {outcome} and exit {code}\n{self}");
        self
    }

    /// The run directory, if one was made.
    pub(crate) fn made(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// The run directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.as_deref().unwrap_or_else(|| panic!("there is no run directory\n{self}"))
    }

    /// The record.
    pub(crate) fn record(&self) -> Value {
        let bytes = fs::read(self.dir().join("run.json")).expect("run.json is there");
        serde_json::from_slice(&bytes).expect("run.json is JSON")
    }

    /// The events.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir().join("events.jsonl")).expect("events.jsonl is there");
        text.lines().map(|line| serde_json::from_str(line).expect("an event is JSON")).collect()
    }

    /// A stage of the record.
    pub(crate) fn stage(&self, name: &str) -> Value {
        let record = self.record();
        let found = record["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == name);
        found.unwrap_or_else(|| panic!("the stage {name} never began\n{self}")).clone()
    }

    /// The one command of the run stage.
    pub(crate) fn command(&self) -> Value {
        self.stage("run")["commands"][0].clone()
    }

    /// The bytes of a log.
    pub(crate) fn log(&self, name: &str) -> Vec<u8> {
        let path = self.dir().join("logs").join(name);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}\n{self}", path.display()))
    }

    /// A log as text.
    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&self.log(name)).into_owned()
    }

    /// What the run stage printed, as JSON.
    pub(crate) fn told(&self, name: &str) -> Value {
        let text = self.text(name);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name} is no JSON: {error}\n{self}"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit code: {:?}\n--- screen\n{}", self.code, excerpt(&self.words))?;
        let Some(dir) = &self.dir else { return writeln!(f, "--- no run directory") };
        writeln!(f, "--- {}", dir.display())?;
        let mut files = vec![dir.join("run.json"), dir.join("events.jsonl")];
        files.extend(crate::ground::entries(&dir.join("logs")));
        for file in files {
            let bytes = fs::read(&file).unwrap_or_default();
            writeln!(f, "--- {}\n{}", file.display(), excerpt(&String::from_utf8_lossy(&bytes)))?;
        }
        Ok(())
    }
}

/// The beginning and the end of a long text.
fn excerpt(text: &str) -> String {
    const SIDE: usize = 4000;
    let characters: Vec<char> = text.chars().take(4 << 20).collect();
    if characters.len() <= 2 * SIDE {
        return text.to_owned();
    }
    let (head, tail) = (&characters[..SIDE], &characters[characters.len() - SIDE..]);
    format!("{}\n[...]\n{}", head.iter().collect::<String>(), tail.iter().collect::<String>())
}

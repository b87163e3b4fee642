//! What the output of a test runner says about its tests.
//!
//! The guest writes this text, so it is only ever used to withhold "failed as expected", never to
//! grant a pass: a forged line can make a result worse, not better.

use std::io::Read;
use std::path::Path;

use crate::classify::TestRunner;
use crate::record::CommandRecord;
use crate::stream::StreamRecord;

/// What a test runner's own summary says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TestEvidence {
    /// Nothing that can be read.
    #[default]
    Silent,
    /// The runner is not installed.
    RunnerMissing,
    /// It ran no tests.
    NoTests,
    /// It counted.
    Counted {
        /// Tests that passed.
        passed: u64,
        /// Tests that failed.
        failed: u64,
        /// Tests that could not be set up.
        errors: u64,
    },
}

/// How much of the end of a stream is read.
const TAIL: u64 = 64 * 1024;

impl TestEvidence {
    /// The evidence in the kept output of a command, if it calls a known test runner.
    pub fn of(run_dir: &Path, command: &CommandRecord) -> TestEvidence {
        if TestRunner::of(&command.script).is_none() {
            return TestEvidence::Silent;
        }
        let stderr = tail(run_dir, &command.stderr);
        let stdout = tail(run_dir, &command.stdout);
        TestEvidence::in_text(&stdout, &stderr)
    }

    /// The evidence in the ends of both streams.
    pub fn in_text(stdout: &str, stderr: &str) -> TestEvidence {
        if stderr.lines().any(is_missing_runner) {
            return TestEvidence::RunnerMissing;
        }
        let lines = || stdout.lines().rev().chain(stderr.lines().rev());
        let unloaded = lines().filter(|line| is_unloaded(line)).count() as u64;
        lines()
            .find_map(pytest_summary)
            .or_else(|| lines().find_map(|line| unittest_summary(line, unloaded)))
            .unwrap_or_default()
    }
}

fn is_missing_runner(line: &str) -> bool {
    let Some((_, module)) = line.rsplit_once("No module named ") else { return false };
    matches!(module.trim_matches(['\'', '"', ' ']), "pytest" | "unittest")
}

/// `=== 1 failed, 2 passed in 0.02s ===`, with or without the frame.
fn pytest_summary(line: &str) -> Option<TestEvidence> {
    let line = line.trim_matches(['=', ' ']);
    let (counts, _) = line.rsplit_once(" in ")?;
    if counts == "no tests ran" {
        return Some(TestEvidence::NoTests);
    }
    let (mut passed, mut failed, mut errors) = (0, 0, 0);
    for part in counts.split(", ") {
        let (number, word) = part.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        match word {
            "passed" => passed = number,
            "failed" => failed = number,
            "error" | "errors" => errors = number,
            "skipped" | "deselected" | "xfailed" | "xpassed" | "warning" | "warnings" | "rerun" => {}
            _ => return None,
        }
    }
    Some(TestEvidence::Counted { passed, failed, errors })
}

/// What unittest writes for a test file it could not import.
fn is_unloaded(line: &str) -> bool {
    line.starts_with("ERROR: ") && line.contains("unittest.loader._FailedTest")
}

/// `FAILED (failures=1, errors=2)` or `NO TESTS RAN`.
///
/// unittest calls any exception in a test an error, so only files it could not load count as such.
fn unittest_summary(line: &str, unloaded: u64) -> Option<TestEvidence> {
    if line.starts_with("NO TESTS RAN") {
        return Some(TestEvidence::NoTests);
    }
    let counts = line.strip_prefix("FAILED (")?.strip_suffix(')')?;
    let count = |name: &str| -> u64 {
        let mut fields = counts.split(", ").filter_map(|field| field.split_once('='));
        fields.find(|(key, _)| *key == name).and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
    };
    let broken = count("failures") + count("errors") + count("unexpected successes");
    Some(TestEvidence::Counted { passed: 0, failed: broken.saturating_sub(unloaded), errors: unloaded })
}

fn tail(run_dir: &Path, stream: &StreamRecord) -> String {
    let mut bytes = Vec::new();
    let read = stream.open_tail(run_dir, TAIL).and_then(|mut kept| kept.read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

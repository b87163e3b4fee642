//! From what happened to one verdict: a pure function with one order of precedence.
//!
//! The first line that applies decides; everything below it is silent:
//!
//! | no. | evidence | outcome |
//! | --- | --- | --- |
//! | 1 | the run was interrupted | `interrupted` |
//! | 2 | Belljar or the machine failed | by code, then by stage: `internal`, `disk_full`, `environment_refused`, `drift`, `task_invalid`, `image_failed`, `git_clone_failed`, `git_checkout_failed`, `patch_failed`, `collect_failed`, `sandbox_error` |
//! | 3 | a command, in order: interrupted, not started, with survivors, or its output lost to a full disk | `interrupted`, `sandbox_error`, `sandbox_error`, `disk_full` |
//! | 4 | the first stage before `run` that failed | `git_clone_failed`, `git_checkout_failed`, `patch_failed`, `compat_failed`, `setup_*`, `agent_*` |
//! | 5 | the command that decides never ran | `not_run` |
//! | 6 | a limit or a signal ended it | `timeout`, `out_of_memory`, `output_limit`, `disk_limit`, `killed_by_signal` |
//! | 7 | its exit code says that nothing was judged | `command_not_found`, `command_not_executable`, `killed_by_signal`, `no_tests_collected`, `test_runner_failed`, `tests_not_run` |
//! | 8 | a failure was expected, and it passed or no test failed | `unexpected_pass`, `no_tests_collected`, `test_runner_failed`, `tests_not_run` |
//! | 9 | the exit code is not an expected one | `unexpected_exit_code`, `failed` |
//! | 10 | the output is not the expected one | `unexpected_output` |
//! | 11 | nothing of the above | `passed`, `failed_as_expected` |
//!
//! Line 7 gives way to a task that expects a pass and names that very exit code. A fault while the
//! sandbox is taken down never changes a verdict: it is kept beside it.

use std::collections::BTreeSet;

use crate::evidence::TestEvidence;
use crate::expectation::OutputMatch;
use crate::fault::{Code, Kind};
use crate::outcome::{Ending, Outcome, StageOutcome, Verdict};
use crate::record::{CommandRecord, RunRecord, StageRecord};
use crate::spec::{Expectation, ExpectedResult};
use crate::stage::Stage;
use crate::stream::Dropped;

/// Everything a verdict is made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Whether a person or a signal stopped the run.
    pub interrupted: bool,
    /// What failed in Belljar or the machine, and where.
    pub fault: Option<FaultFact>,
    /// The stages that began, in order.
    pub stages: Vec<StageFact>,
    /// What the task expects.
    pub expectation: Expectation,
    /// Whether standard output holds what was expected of it.
    pub stdout: OutputMatch,
    /// Whether standard error holds what was expected of it.
    pub stderr: OutputMatch,
    /// What the output of a test runner says about the tests.
    pub tests: TestEvidence,
}

/// A failure of Belljar or the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultFact {
    /// In which stage, if in one.
    pub stage: Option<Stage>,
    /// Its code.
    pub code: Code,
}

/// What a verdict needs to know of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageFact {
    /// Which.
    pub stage: Stage,
    /// How it ended, if it did.
    pub outcome: Option<StageOutcome>,
    /// Its commands, in order.
    pub commands: Vec<CommandFact>,
}

/// What a verdict needs to know of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandFact {
    /// The command as written in the task.
    pub script: String,
    /// How it ended.
    pub ending: Ending,
    /// Its exit code.
    pub exit_code: i32,
    /// Processes left after its tree was killed.
    pub survivors: Option<u32>,
    /// Whether output was lost because a log could not be written.
    pub output_lost: bool,
    /// Why it was never started, where that is known.
    pub not_started: Option<String>,
}

impl From<&CommandRecord> for CommandFact {
    fn from(command: &CommandRecord) -> CommandFact {
        let lost = |dropped: Option<Dropped>| match dropped {
            Some(Dropped::DiskFull | Dropped::Unwritable) => true,
            Some(Dropped::Cap) | None => false,
        };
        CommandFact {
            script: command.script.clone(),
            ending: command.ending,
            exit_code: command.exit_code,
            survivors: command.survivors,
            output_lost: lost(command.stdout.dropped_because) || lost(command.stderr.dropped_because),
            not_started: command.not_started.clone(),
        }
    }
}

impl From<&StageRecord> for StageFact {
    fn from(stage: &StageRecord) -> StageFact {
        let commands = stage.commands.iter().map(CommandFact::from).collect();
        StageFact { stage: stage.stage, outcome: stage.outcome, commands }
    }
}

impl Facts {
    /// The facts a record holds; interruption, fault and output are for the caller to add.
    pub fn of(record: &RunRecord) -> Facts {
        Facts {
            stages: record.stages.iter().map(StageFact::from).collect(),
            expectation: record.expectation.clone(),
            ..Facts::default()
        }
    }

    /// The command that decides: in the `run` stage the first that did not end with 0, or the last.
    pub fn deciding(&self) -> Option<&CommandFact> {
        let commands = &self.stages.iter().rev().find(|fact| fact.stage == Stage::Run)?.commands;
        commands.iter().find(|command| !command.is_clean()).or(commands.last())
    }
}

impl CommandFact {
    fn is_clean(&self) -> bool {
        self.ending == Ending::Exited && self.exit_code == 0
    }
}

/// One finding on the way to a verdict.
struct Finding {
    outcome: Outcome,
    summary: String,
}

fn finding(outcome: Outcome, summary: impl Into<String>) -> Option<Finding> {
    Some(Finding { outcome, summary: summary.into() })
}

/// The one verdict over these facts.
pub fn classify(facts: &Facts) -> Verdict {
    if let Some(found) = not_judged(facts) {
        return verdict(found, None);
    }
    let Some(command) = facts.deciding() else {
        return verdict(Finding { outcome: Outcome::NotRun, summary: never_ran() }, None);
    };
    match judged(facts, command) {
        Some(found) => verdict(found, Some(false)),
        None => verdict(success(facts, command), Some(true)),
    }
}

fn verdict(found: Finding, met_expectation: Option<bool>) -> Verdict {
    Verdict { outcome: found.outcome, owner: found.outcome.owner(), met_expectation, summary: found.summary }
}

fn never_ran() -> String {
    "the command that decides was never run".to_owned()
}

fn not_judged(facts: &Facts) -> Option<Finding> {
    interrupted(facts)
        .or_else(|| faulted(facts.fault?))
        .or_else(|| broken_command(facts))
        .or_else(|| failed_before_run(facts))
}

fn interrupted(facts: &Facts) -> Option<Finding> {
    let stopped = |fact: &StageFact| fact.outcome == Some(StageOutcome::Interrupted);
    if !facts.interrupted && !facts.stages.iter().any(stopped) {
        return None;
    }
    finding(Outcome::Interrupted, "the run was interrupted")
}

fn faulted(fault: FaultFact) -> Option<Finding> {
    if fault.stage == Some(Stage::Destroy) {
        return None;
    }
    let outcome = fault_outcome(fault);
    let place = fault.stage.map_or_else(String::new, |stage| format!(" in {stage}"));
    finding(outcome, format!("{}{place}: {}", fault.code, fault.code.cause()))
}

fn fault_outcome(fault: FaultFact) -> Outcome {
    match (fault.code, fault.code.kind()) {
        (Code::Internal, _) => Outcome::Internal,
        (Code::DiskFull, _) => Outcome::DiskFull,
        (_, Kind::Environment) => Outcome::EnvironmentRefused,
        (_, Kind::Drift) => Outcome::Drift,
        (_, Kind::Interrupted) => Outcome::Interrupted,
        (_, Kind::Usage) => Outcome::TaskInvalid,
        (_, Kind::Infrastructure | Kind::Failed | Kind::Unstable) => {
            fault.stage.map_or(Outcome::SandboxError, infrastructure_outcome)
        }
    }
}

fn infrastructure_outcome(stage: Stage) -> Outcome {
    match stage {
        Stage::PrepareImage => Outcome::ImageFailed,
        Stage::Clone => Outcome::GitCloneFailed,
        Stage::Checkout => Outcome::GitCheckoutFailed,
        Stage::Collect => Outcome::CollectFailed,
        Stage::Create
        | Stage::Patch
        | Stage::Compat
        | Stage::Setup
        | Stage::Agent
        | Stage::Run
        | Stage::Destroy => Outcome::SandboxError,
    }
}

fn broken_command(facts: &Facts) -> Option<Finding> {
    let commands = facts.stages.iter().flat_map(|fact| fact.commands.iter().map(|c| (fact.stage, c)));
    commands.into_iter().find_map(|(stage, command)| broken(stage, command))
}

fn broken(stage: Stage, command: &CommandFact) -> Option<Finding> {
    match command.ending {
        Ending::Interrupted => {
            return finding(Outcome::Interrupted, format!("the run was interrupted in {stage}"));
        }
        Ending::NotStarted => {
            return finding(Outcome::SandboxError, format!("a command of {stage} could not be started"));
        }
        Ending::Exited
        | Ending::Signalled
        | Ending::TimedOut
        | Ending::OutOfMemory
        | Ending::OutputLimit
        | Ending::DiskLimit
        | Ending::CpuTimeLimit => {}
    }
    if let Some(left @ 1..) = command.survivors {
        let summary = format!("{left} processes of a command in {stage} survived its end");
        return finding(Outcome::SandboxError, summary);
    }
    if command.output_lost {
        return finding(Outcome::DiskFull, format!("output of {stage} could not be kept"));
    }
    None
}

fn failed_before_run(facts: &Facts) -> Option<Finding> {
    facts.stages.iter().find_map(failed_stage)
}

fn failed_stage(fact: &StageFact) -> Option<Finding> {
    let failed = fact.outcome == Some(StageOutcome::Failed);
    let unclean = fact.commands.iter().find(|command| !command.is_clean());
    if !failed && (unclean.is_none() || fact.stage == Stage::Agent) {
        return None;
    }
    let outcome = match fact.stage {
        Stage::Run | Stage::Collect | Stage::Destroy => return None,
        Stage::PrepareImage => Outcome::ImageFailed,
        Stage::Create => Outcome::SandboxError,
        Stage::Clone => Outcome::GitCloneFailed,
        Stage::Checkout => Outcome::GitCheckoutFailed,
        Stage::Patch => Outcome::PatchFailed,
        Stage::Compat => Outcome::CompatFailed,
        Stage::Setup => setup_outcome(unclean),
        Stage::Agent => agent_outcome(unclean),
    };
    finding(outcome, stage_summary(fact, unclean))
}

fn stage_summary(fact: &StageFact, unclean: Option<&CommandFact>) -> String {
    let Some(command) = unclean else { return format!("{} failed", fact.stage) };
    let number = fact.commands.iter().position(|other| std::ptr::eq(other, command)).unwrap_or(0) + 1;
    format!("command {number} of {} {}", fact.stage, ended(command))
}

fn setup_outcome(unclean: Option<&CommandFact>) -> Outcome {
    match unclean.map(|command| command.ending) {
        Some(Ending::TimedOut) => Outcome::SetupTimeout,
        Some(Ending::OutOfMemory) => Outcome::SetupOutOfMemory,
        Some(
            Ending::Exited
            | Ending::Signalled
            | Ending::OutputLimit
            | Ending::DiskLimit
            | Ending::CpuTimeLimit
            | Ending::Interrupted
            | Ending::NotStarted,
        )
        | None => Outcome::SetupFailed,
    }
}

fn agent_outcome(unclean: Option<&CommandFact>) -> Outcome {
    match unclean.map(|command| command.ending) {
        Some(Ending::TimedOut) => Outcome::AgentTimeout,
        Some(
            Ending::Exited
            | Ending::Signalled
            | Ending::OutOfMemory
            | Ending::OutputLimit
            | Ending::DiskLimit
            | Ending::CpuTimeLimit
            | Ending::Interrupted
            | Ending::NotStarted,
        )
        | None => Outcome::AgentFailed,
    }
}

fn ended(command: &CommandFact) -> String {
    match command.ending {
        Ending::Exited => format!("exited with {}", command.exit_code),
        Ending::Signalled => format!("was ended by signal {}", command.exit_code - 128),
        Ending::TimedOut => "ran out of time".to_owned(),
        Ending::OutOfMemory => "ran out of memory".to_owned(),
        Ending::OutputLimit => "wrote more output than allowed".to_owned(),
        Ending::DiskLimit => "filled its disk allowance".to_owned(),
        Ending::CpuTimeLimit => "used up its processor time".to_owned(),
        Ending::Interrupted => "was interrupted".to_owned(),
        Ending::NotStarted => "could not be started".to_owned(),
    }
}

fn judged(facts: &Facts, command: &CommandFact) -> Option<Finding> {
    let expectation = &facts.expectation;
    ended_from_outside(command)
        .or_else(|| said_nothing(expectation, command))
        .or_else(|| failed_for_real(facts, command))
        .or_else(|| unexpected_code(expectation, command))
        .or_else(|| unexpected_output(facts))
}

fn ended_from_outside(command: &CommandFact) -> Option<Finding> {
    let outcome = match command.ending {
        Ending::TimedOut => Outcome::Timeout,
        Ending::OutOfMemory => Outcome::OutOfMemory,
        Ending::OutputLimit => Outcome::OutputLimit,
        Ending::DiskLimit => Outcome::DiskLimit,
        Ending::CpuTimeLimit => Outcome::CpuTimeLimit,
        Ending::Signalled => Outcome::KilledBySignal,
        Ending::Interrupted => Outcome::Interrupted,
        Ending::NotStarted => Outcome::SandboxError,
        Ending::Exited => return None,
    };
    finding(outcome, format!("the command {}", ended(command)))
}

/// Exit codes that say the program was not judged, unless a task that expects a pass names them.
fn said_nothing(expectation: &Expectation, command: &CommandFact) -> Option<Finding> {
    let named = names(expectation, command.exit_code);
    if named && expectation.result == ExpectedResult::Pass {
        return None;
    }
    let code = command.exit_code;
    match (code, TestRunner::of(&command.script)) {
        (126, _) => finding(Outcome::CommandNotExecutable, not_started(command, "cannot be executed")),
        (127, _) => finding(Outcome::CommandNotFound, not_started(command, "was not found")),
        (129..=159, _) if KILLING.contains(&(code - 128)) => {
            finding(Outcome::KilledBySignal, format!("the shell reports signal {} (exit {code})", code - 128))
        }
        (5, Some(_)) => finding(Outcome::NoTestsCollected, "the test runner found no tests (exit 5)"),
        (2, Some(TestRunner::Pytest)) => {
            finding(Outcome::TestsNotRun, "pytest stopped before judging: tests could not be loaded (exit 2)")
        }
        (3, Some(TestRunner::Pytest)) => finding(Outcome::TestRunnerFailed, "pytest failed inside (exit 3)"),
        (4, Some(TestRunner::Pytest)) => {
            finding(Outcome::TestRunnerFailed, "pytest was called wrongly (exit 4)")
        }
        (_, Some(TestRunner::Pytest | TestRunner::Unittest) | None) => None,
    }
}

fn not_started(command: &CommandFact, words: &str) -> String {
    match &command.not_started {
        Some(reason) => format!("the command could not be started: {reason}"),
        None => format!("the command {words} (exit {})", command.exit_code),
    }
}

/// Signals that end a program which does not expect them; only for these does a shell answer 128 and more.
const KILLING: [i32; 20] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 25, 27, 31];

/// A test runner whose exit codes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestRunner {
    /// pytest: 2 stopped, 3 internal, 4 usage, 5 nothing collected.
    Pytest,
    /// Python's own: 5 nothing ran.
    Unittest,
}

impl TestRunner {
    /// The runner a command calls, by the words in it.
    pub fn of(script: &str) -> Option<TestRunner> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
        let mut words = script.split(|c| !is_word(c));
        words.find_map(|word| match word {
            "pytest" | "py.test" | "pytest3" => Some(TestRunner::Pytest),
            "unittest" => Some(TestRunner::Unittest),
            _ => None,
        })
    }
}

fn failed_for_real(facts: &Facts, command: &CommandFact) -> Option<Finding> {
    match facts.expectation.result {
        ExpectedResult::Pass => return None,
        ExpectedResult::Fail => {}
    }
    if command.exit_code == 0 {
        return finding(Outcome::UnexpectedPass, "the command passed although a failure was expected");
    }
    match facts.tests {
        TestEvidence::RunnerMissing => {
            finding(Outcome::TestRunnerFailed, "the test runner is not installed in the image")
        }
        TestEvidence::NoTests => finding(Outcome::NoTestsCollected, "the test runner says that no tests ran"),
        TestEvidence::Counted { failed: 0, errors, .. } => {
            finding(Outcome::TestsNotRun, format!("no test failed; {errors} could not be set up"))
        }
        TestEvidence::Counted { .. } | TestEvidence::Silent => None,
    }
}

fn unexpected_code(expectation: &Expectation, command: &CommandFact) -> Option<Finding> {
    let code = command.exit_code;
    if names(expectation, code) {
        return None;
    }
    match (expectation.exit_codes.is_empty(), expectation.result) {
        (false, _) => finding(
            Outcome::UnexpectedExitCode,
            format!("the command exited with {code}, expected {}", list(&expectation.exit_codes)),
        ),
        (true, ExpectedResult::Pass) if code == 0 => None,
        (true, ExpectedResult::Pass) => finding(Outcome::Failed, format!("the command exited with {code}")),
        (true, ExpectedResult::Fail) => None,
    }
}

/// Whether the task names this very exit code.
fn names(expectation: &Expectation, code: i32) -> bool {
    expectation.exit_codes.iter().any(|named| i32::from(*named) == code)
}

fn list(codes: &BTreeSet<u8>) -> String {
    codes.iter().map(u8::to_string).collect::<Vec<_>>().join(" or ")
}

fn unexpected_output(facts: &Facts) -> Option<Finding> {
    let missing = |stream: &str| {
        finding(Outcome::UnexpectedOutput, format!("no line of {stream} matches the expected pattern"))
    };
    match (facts.stdout, facts.stderr) {
        (OutputMatch::Missing, _) => missing("stdout"),
        (_, OutputMatch::Missing) => missing("stderr"),
        (OutputMatch::NotAsked | OutputMatch::Found, OutputMatch::NotAsked | OutputMatch::Found) => None,
    }
}

fn success(facts: &Facts, command: &CommandFact) -> Finding {
    let code = command.exit_code;
    match facts.expectation.result {
        ExpectedResult::Pass => {
            Finding { outcome: Outcome::Passed, summary: format!("the command exited with {code}") }
        }
        ExpectedResult::Fail => Finding {
            outcome: Outcome::FailedAsExpected,
            summary: match TestRunner::of(&command.script) {
                Some(_) => format!("the tests failed as expected (exit {code})"),
                None => format!("the command failed as expected (exit {code})"),
            },
        },
    }
}

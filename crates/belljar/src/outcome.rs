//! The closed list of outcomes: one word for how a run ended, who owns it, and the exit code it means.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who has to act on an outcome; the three are never mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// The machine, the disk, the network, Belljar itself: says nothing about the program.
    Infrastructure,
    /// Whoever wrote the task: the program was never judged.
    Task,
    /// The program under glass: it was judged.
    Program,
}

macro_rules! outcomes {
    ($($variant:ident, $name:literal, $owner:expr, $exit:literal, $meaning:literal;)*) => {
        /// How a run ended, in one word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum Outcome { $(#[doc = $meaning] #[serde(rename = $name)] $variant,)* }

        impl Outcome {
            /// All outcomes, in the order of the catalogue.
            pub const ALL: &'static [Outcome] = &[$(Outcome::$variant,)*];
            /// The stable word.
            pub fn name(self) -> &'static str { match self { $(Outcome::$variant => $name,)* } }
            /// Who owns a failure; nobody owns a success.
            pub fn owner(self) -> Option<Owner> { match self { $(Outcome::$variant => $owner,)* } }
            /// The exit code of the command line for this outcome.
            pub fn exit_code(self) -> u8 { match self { $(Outcome::$variant => $exit,)* } }
            /// What the word means.
            pub fn meaning(self) -> &'static str { match self { $(Outcome::$variant => $meaning,)* } }
        }
    };
}

use Owner::{Infrastructure, Program, Task};

outcomes! {
    Passed, "passed", None, 0, "the command ran and ended as a pass, as expected";
    FailedAsExpected, "failed_as_expected", None, 0, "the tests really ran and failed, as expected";
    Interrupted, "interrupted", Some(Infrastructure), 130, "a person or a signal stopped the run";
    Internal, "internal", Some(Infrastructure), 4, "a fault in Belljar itself";
    DiskFull, "disk_full", Some(Infrastructure), 4, "the machine's disk filled up, so the record is not complete";
    EnvironmentRefused, "environment_refused", Some(Infrastructure), 3, "this machine cannot enforce or provide what the task asks for";
    Drift, "drift", Some(Infrastructure), 5, "bytes that were pinned are not the bytes found";
    TaskInvalid, "task_invalid", Some(Task), 2, "the task asks for something that does not exist or is refused";
    ImageFailed, "image_failed", Some(Infrastructure), 4, "the image could not be prepared";
    SandboxError, "sandbox_error", Some(Infrastructure), 4, "the sandbox could not be made, died, or let a process survive";
    GitCloneFailed, "git_clone_failed", Some(Infrastructure), 4, "the repository could not be fetched";
    GitCheckoutFailed, "git_checkout_failed", Some(Infrastructure), 4, "the pinned commit could not be checked out";
    PatchFailed, "patch_failed", Some(Task), 1, "a patch of the task did not apply";
    CompatFailed, "compat_failed", Some(Task), 1, "a compatibility step failed, timed out or was killed";
    SetupTimeout, "setup_timeout", Some(Task), 124, "a setup command ran out of time";
    SetupOutOfMemory, "setup_out_of_memory", Some(Task), 1, "a setup command ran out of memory";
    SetupFailed, "setup_failed", Some(Task), 1, "a setup command failed";
    AgentTimeout, "agent_timeout", Some(Program), 124, "the agent ran out of time";
    AgentFailed, "agent_failed", Some(Program), 1, "the agent failed before the tests could judge its work";
    CollectFailed, "collect_failed", Some(Infrastructure), 4, "what the task asked to keep could not be copied out";
    NotRun, "not_run", Some(Infrastructure), 4, "the command that decides was never run, and nothing says why";
    Timeout, "timeout", Some(Program), 124, "the command ran out of time";
    OutOfMemory, "out_of_memory", Some(Program), 1, "the kernel ended the command for memory";
    OutputLimit, "output_limit", Some(Program), 1, "the command was ended for writing too much output";
    DiskLimit, "disk_limit", Some(Program), 1, "the command failed with its disk allowance full";
    CpuTimeLimit, "cpu_time_limit", Some(Program), 1, "the command was ended for using up its processor time";
    KilledBySignal, "killed_by_signal", Some(Program), 1, "the command was ended by a signal";
    CommandNotFound, "command_not_found", Some(Task), 1, "the command does not exist in the image";
    CommandNotExecutable, "command_not_executable", Some(Task), 1, "the command exists and cannot be executed";
    NoTestsCollected, "no_tests_collected", Some(Task), 1, "the test runner found no test to run";
    TestRunnerFailed, "test_runner_failed", Some(Task), 1, "the test runner failed on its own: usage, internal error, or not installed";
    TestsNotRun, "tests_not_run", Some(Program), 1, "the tests could not be loaded or set up, so none was judged";
    UnexpectedPass, "unexpected_pass", Some(Program), 1, "the command passed although it was expected to fail";
    UnexpectedExitCode, "unexpected_exit_code", Some(Program), 1, "the exit code is not one of those expected";
    UnexpectedOutput, "unexpected_output", Some(Program), 1, "the exit is as expected, the output is not";
    Failed, "failed", Some(Program), 1, "the command ran and failed";
}

impl Outcome {
    /// Whether the task got what it expects.
    pub fn is_success(self) -> bool {
        self.owner().is_none()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How one command ended, by the evidence of the kernel and of the clock, never of the guest's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It exited on its own; `exit_code` is its own.
    Exited,
    /// A signal that Belljar did not send ended it; `exit_code` is 128 + `signal`.
    Signalled,
    /// Its time was up; `exit_code` is 124.
    TimedOut,
    /// The kernel killed in it for lack of memory, and it did not end well; `exit_code` is what came of that.
    OutOfMemory,
    /// It was ended for too much output; `exit_code` is 137. A task's output is never cut short so: beyond the cap it
    /// is dropped and counted.
    OutputLimit,
    /// It failed with its disk allowance full; `exit_code` is its own.
    DiskLimit,
    /// It was ended for using up its processor time; `exit_code` is 137.
    CpuTimeLimit,
    /// The run was interrupted; `exit_code` is 130.
    Interrupted,
    /// It could not be started: the sandbox failed; `exit_code` is 125.
    NotStarted,
}

/// How one stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageOutcome {
    /// It did what it is there for.
    Ok,
    /// It failed; a later stage that needs it does not run.
    Failed,
    /// There was nothing to do, or an earlier failure made it pointless.
    Skipped,
    /// The run was interrupted in it.
    Interrupted,
}

impl fmt::Display for StageOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StageOutcome::Ok => "ok",
            StageOutcome::Failed => "failed",
            StageOutcome::Skipped => "skipped",
            StageOutcome::Interrupted => "interrupted",
        })
    }
}

/// The judgement over a run: one outcome, its owner, and one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The one primary reason.
    pub outcome: Outcome,
    /// Who owns a failure; absent for a success.
    pub owner: Option<Owner>,
    /// Whether the task's expectation was met; absent when the program was never judged.
    pub met_expectation: Option<bool>,
    /// One sentence with the particulars: stage, command, number.
    pub summary: String,
}

impl Verdict {
    /// The exit code of the command line.
    pub fn exit_code(&self) -> u8 {
        self.outcome.exit_code()
    }
}

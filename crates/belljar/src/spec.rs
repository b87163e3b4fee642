//! The task as a person wrote it: typed, strict, with every alias already under its one name.

mod checks;
pub mod compat;
mod item;
pub(crate) mod keys;
mod load;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{Limits, Seconds};

pub use load::TASK_FILE_LIMIT;

/// The newest version of the task format that this Belljar reads.
pub const TASK_VERSION: u32 = 1;

/// One task: a repository at a commit, where it runs, what is run, and what should come of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Belljar task")]
pub struct TaskSpec {
    /// Version of the task format.
    #[serde(default = "newest")]
    #[schemars(range(min = 1, max = 1))]
    pub version: u32,
    /// Name of the task: letters, digits, `.`, `_` and `-`, at most 128, beginning with a letter or digit.
    #[schemars(regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"))]
    pub id: String,
    /// Suite the task belongs to; formed like an id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"))]
    pub suite: Option<String>,
    /// Words to select tasks by, such as `flaky`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")))]
    pub labels: Vec<String>,
    /// What the task is about, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The code under test.
    pub repo: RepoSpec,
    /// Where it runs.
    #[serde(default)]
    pub environment: EnvironmentSpec,
    /// What prepares it.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::setup_or_commands")]
    pub setup: SetupSpec,
    /// What is run.
    #[schemars(schema_with = "crate::schema::run_or_command")]
    pub run: RunSpec,
    /// What should come of it.
    #[serde(default)]
    pub expect: Expectation,
    /// Files and folders to keep after the run: paths or globs relative to the workdir.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub collect: Vec<String>,
}

fn newest() -> u32 {
    TASK_VERSION
}

/// The code under test: where it comes from and what is changed in it before setup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepoSpec {
    /// A path (relative to the task's folder, or absolute), a `file://` or git URL, or a git bundle.
    #[schemars(length(min = 1))]
    pub url: String,
    /// The commit, tag or branch to check out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::text_or_number")]
    pub commit: Option<String>,
    /// Patch files, relative to the task's folder, applied in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub patches: Vec<String>,
    /// Fixes that let old code run on newer tools, applied in this order after the patches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::compat_steps")]
    pub compat: Vec<CompatStep>,
}

/// A fix applied before setup: one of Belljar's own by name, or a command of the task's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum CompatStep {
    /// One of Belljar's own fixes.
    BuiltIn(String),
    /// A command of the task's.
    Command {
        /// Name of the fix, for logs.
        name: String,
        /// Shell command, run in the workdir.
        command: String,
    },
}

/// Where the task runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EnvironmentSpec {
    /// The root file system: `host`, or the path of a root directory.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Where the checkout is inside the sandbox, and the working directory of every command.
    #[schemars(regex(pattern = "^/[^/]"))]
    pub workdir: String,
    /// Network of the run phase; only `none` in this version.
    #[schemars(extend("const" = "none"))]
    pub network: Network,
    /// Time limit of the run phase.
    pub timeout_sec: Seconds,
    /// Variables for every command; they win over Belljar's defaults.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::schema::variables")]
    pub env: BTreeMap<String, String>,
    /// What happens when this machine cannot enforce something.
    pub isolation: Isolation,
    /// What the sandbox may use at most.
    pub limits: Limits,
}

impl Default for EnvironmentSpec {
    fn default() -> EnvironmentSpec {
        EnvironmentSpec {
            image: "host".to_owned(),
            workdir: "/workspace".to_owned(),
            network: Network::None,
            timeout_sec: Seconds::from_millis(300_000),
            env: BTreeMap::new(),
            isolation: Isolation::Full,
            limits: Limits::default(),
        }
    }
}

/// What a phase can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Nothing but itself.
    None,
    /// The outside, through Belljar's gateway; nothing can connect in.
    Outbound,
}

/// What happens when this machine cannot enforce something that the task asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Refuse to run.
    Full,
    /// Run without it, and record that.
    BestEffort,
}

/// What prepares the task: commands in order; the first that fails ends the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetupSpec {
    /// Shell commands, run in the workdir.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub commands: Vec<String>,
    /// Run all commands in one shell, so that `cd` and `export` carry over.
    pub joined: bool,
    /// Network of the compat and setup phases.
    pub network: Network,
    /// Time limit of the whole setup phase (and, separately, of the compat phase).
    pub timeout_sec: Seconds,
}

impl Default for SetupSpec {
    fn default() -> SetupSpec {
        SetupSpec {
            commands: Vec::new(),
            joined: false,
            network: Network::Outbound,
            timeout_sec: Seconds::from_millis(600_000),
        }
    }
}

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Shell command, run in the workdir.
    #[schemars(length(min = 1))]
    pub command: String,
}

/// What should come of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Expectation {
    /// Whether the command should pass (exit 0) or fail (run to its end and exit with another code).
    pub result: ExpectedResult,
    /// The exit codes that meet the expectation; empty means any that fits the result.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(schema_with = "crate::schema::exit_codes")]
    pub exit_codes: BTreeSet<u8>,
    /// A regular expression that must match somewhere in stdout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// A regular expression that must match somewhere in stderr.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

impl Default for Expectation {
    fn default() -> Expectation {
        Expectation { result: ExpectedResult::Pass, exit_codes: BTreeSet::new(), stdout: None, stderr: None }
    }
}

/// How the command should end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectedResult {
    /// With exit code 0.
    Pass,
    /// By itself, with another exit code; a timeout or a kill does not count.
    Fail,
}

/// A task together with the file it was read from.
#[derive(Debug, Clone)]
pub struct LoadedTask {
    /// What the file says.
    pub spec: TaskSpec,
    /// The file.
    pub path: PathBuf,
    /// The folder that holds the file; relative paths in the task start here.
    pub folder: PathBuf,
    /// The file's bytes, as they were read.
    pub bytes: Vec<u8>,
}

//! The plan: everything decided, nothing below it decides anything.

mod resolve;
mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use self::resolve::image_environment;
use crate::canonical::{self, CanonicalError};
use crate::fault::{Code, Fault};
use crate::limits::Limits;
use crate::spec::{Expectation, Isolation, Network};

/// The version of the plan's format.
pub const PLAN_FORMAT: u32 = 1;

/// Everything that will happen, decided and checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of this format.
    pub format: u32,
    /// The task's id.
    pub task_id: String,
    /// The task's suite.
    pub suite: Option<String>,
    /// The task's labels.
    pub labels: Vec<String>,
    /// The code, pinned.
    pub repo: PlannedRepo,
    /// The root file system.
    pub image: PlannedImage,
    /// Where the checkout is, and where every command starts.
    pub workdir: String,
    /// Who runs the commands.
    pub user: PlannedUser,
    /// The host name inside.
    pub hostname: String,
    /// The file mode mask inside, as octal digits.
    pub umask: String,
    /// The whole environment of every command; nothing else is passed on.
    pub env: BTreeMap<String, String>,
    /// How commands are started.
    pub shell: PlannedShell,
    /// Patches in the order they are applied.
    pub patches: Vec<PlannedPatch>,
    /// The phases in order; a phase without commands is left out.
    pub phases: Vec<PlannedPhase>,
    /// What the sandbox may use at most.
    pub limits: Limits,
    /// What happens when something cannot be enforced.
    pub isolation: Isolation,
    /// What the run is compared with.
    pub expectation: Expectation,
    /// What is kept: paths or globs relative to the workdir.
    pub collect: Vec<String>,
}

/// The code, pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedRepo {
    /// Where it comes from, as written in the task.
    pub url: String,
    /// The full id of the commit, or of the tree of a plain directory.
    pub commit: String,
    /// What the id is of.
    pub pinned_by: PinnedBy,
}

/// What a repository is pinned by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PinnedBy {
    /// A git commit.
    Commit,
    /// The content of a plain directory.
    Tree,
}

/// What the repository's source answered when it was asked for the task's commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedCommit {
    /// The full id.
    pub sha: String,
    /// Seconds since 1970 of the commit; the value of `SOURCE_DATE_EPOCH`.
    pub commit_time: i64,
    /// What the id is of.
    pub kind: PinnedBy,
}

/// The root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedImage {
    /// The image as it was asked for: `host`, a path, a name.
    pub reference: String,
    /// What it is.
    pub kind: ImageKind,
    /// What pins it, where something does: the digest of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
    /// What pins a root directory, where that was asked for: the digest of its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_digest: Option<String>,
}

/// What a root file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageKind {
    /// The machine's own system directories, read-only.
    Host,
    /// A root directory.
    Directory,
    /// An image in the store.
    Stored,
}

/// Who runs the commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedUser {
    /// User name.
    pub name: String,
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Home directory inside.
    pub home: String,
}

/// How a command's text is handed to a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedShell {
    /// Shells to try, the first that exists inside is used.
    pub candidates: Vec<String>,
    /// What stands between the shell and the command's text.
    pub flags: Vec<String>,
    /// What becomes of the planned environment once the profile has run.
    pub after_profile: AfterProfile,
}

/// What becomes of the planned environment once a login shell has read its profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterProfile {
    /// Every planned variable is set again, because a profile may drop it (Debian's drops PATH).
    ApplyEnvironmentAgain,
}

/// A patch with the bytes it must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedPatch {
    /// The file, relative to the task's folder.
    pub path: String,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
}

/// A run of commands under one network policy and one deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedPhase {
    /// Which phase.
    pub stage: PhaseStage,
    /// Its commands, in order; the first that fails ends the phase.
    pub commands: Vec<PlannedCommand>,
    /// Whether all commands share one shell.
    pub joined: bool,
    /// What the phase can reach.
    pub network: Network,
    /// Deadline of the whole phase.
    pub timeout_ms: u64,
}

/// Which phase it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseStage {
    /// Fixes that let old code run on newer tools.
    Compat,
    /// The task's preparation.
    Setup,
    /// What the task is about.
    Run,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedCommand {
    /// What the command is called in logs, where it has a name.
    pub name: Option<String>,
    /// The text handed to the shell.
    pub script: String,
}

impl PlannedShell {
    /// The argument list that runs `command` with `shell`, one of the candidates.
    pub fn argv(&self, shell: &str, command: &PlannedCommand) -> Vec<String> {
        let mut argv = vec![shell.to_owned()];
        argv.extend(self.flags.iter().cloned());
        argv.push(command.script.clone());
        argv
    }
}

/// The part of a plan that is the same on every machine.
///
/// Left out: where the repository comes from and, for an image that is a directory, its path.
#[derive(Serialize)]
struct Portable<'a> {
    format: u32,
    task_id: &'a str,
    suite: &'a Option<String>,
    labels: &'a [String],
    commit: &'a str,
    pinned_by: PinnedBy,
    image_kind: ImageKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    config_digest: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_digest: &'a Option<String>,
    workdir: &'a str,
    user: &'a PlannedUser,
    hostname: &'a str,
    umask: &'a str,
    env: &'a BTreeMap<String, String>,
    shell: &'a PlannedShell,
    patches: &'a [PlannedPatch],
    phases: &'a [PlannedPhase],
    limits: &'a Limits,
    isolation: Isolation,
    expectation: &'a Expectation,
    collect: &'a [String],
}

impl Plan {
    /// `sha256:` and the hash of the canonical JSON of the portable part.
    pub fn digest(&self) -> Result<String, Fault> {
        canonical::digest(&self.portable()).map_err(unwritable)
    }

    /// The whole plan as canonical JSON.
    pub fn to_json(&self) -> Result<String, Fault> {
        canonical::to_string(self).map_err(unwritable)
    }

    /// Reads a plan back from its JSON.
    pub fn from_json(text: &str) -> Result<Plan, Fault> {
        let plan: Plan = serde_json::from_str(text).map_err(|error| {
            Fault::new(Code::RecordUnreadable, "the plan cannot be read").caused_by(error)
        })?;
        match plan.format {
            PLAN_FORMAT => Ok(plan),
            other => Err(Fault::new(
                Code::RecordVersion,
                format!("the plan's format is {other}, not {PLAN_FORMAT}"),
            )),
        }
    }

    /// The phase of that stage, where the plan has one.
    pub fn phase(&self, stage: PhaseStage) -> Option<&PlannedPhase> {
        self.phases.iter().find(|phase| phase.stage == stage)
    }

    /// Taken apart without `..`: a new field must be put in or left out on purpose.
    #[rustfmt::skip]
    fn portable(&self) -> Portable<'_> {
        let Plan {
            format, task_id, suite, labels, workdir, user, hostname, umask, env, shell, patches, phases,
            limits, isolation, expectation, collect,
            repo: PlannedRepo { url: _, commit, pinned_by },
            image: PlannedImage { reference: _, kind, config_digest, content_digest },
        } = self;
        Portable {
            format: *format,
            task_id,
            suite,
            labels,
            commit,
            pinned_by: *pinned_by,
            image_kind: *kind,
            config_digest,
            content_digest,
            workdir,
            user,
            hostname,
            umask,
            env,
            shell,
            patches,
            phases,
            limits,
            isolation: *isolation,
            expectation,
            collect,
        }
    }
}

fn unwritable(error: CanonicalError) -> Fault {
    Fault::new(Code::Internal, "the plan has no canonical form").caused_by(error)
}

//! The record of a run: `run.json`, present from the first moment, replaced whole.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::canonical;
use crate::event::{Event, EventKind};
use crate::fault::{Code, Fault};
use crate::moment::{Millis, Moment};
use crate::outcome::{Ending, StageOutcome, Verdict};
use crate::spec::Expectation;
use crate::stage::{Actor, Stage};
use crate::stream::StreamRecord;

/// The newest format of `run.json` this library reads, and the one it writes.
pub const FORMAT: u32 = 1;

/// Everything known about one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// The format of this record.
    pub format: u32,
    /// The version of Belljar that wrote it.
    pub belljar: String,
    /// The run's ULID.
    pub run_id: String,
    /// Whether the run has ended.
    pub status: Status,
    /// The judgement; absent while the run goes on.
    pub verdict: Option<Verdict>,
    /// The task's id.
    pub task_id: String,
    /// The suite the task belongs to.
    pub suite: Option<String>,
    /// The task's labels.
    #[serde(default)]
    pub labels: Vec<String>,
    /// What the task expects of its command.
    pub expectation: Expectation,
    /// The digest of the plan's portable part.
    pub plan_digest: String,
    /// The digest of what was asked for; set when the run ends.
    pub run_digest: Option<String>,
    /// The digest of what was asked for and what came of it; set when the run ends.
    pub result_digest: Option<String>,
    /// Where the repository came from, without credentials.
    pub repo_url: Option<String>,
    /// The commit that was checked out.
    pub repo_commit: Option<String>,
    /// The image, once resolved.
    pub image: Option<ImageRecord>,
    /// The engine and facts of the machine, once known.
    pub engine: Option<EngineRecord>,
    /// What was asked for and what is enforced.
    pub isolation: IsolationRecord,
    /// The network policy of each stage that runs a guest.
    #[serde(default)]
    pub network: BTreeMap<Stage, Value>,
    /// The limits, by name.
    #[serde(default)]
    pub limits: BTreeMap<String, Value>,
    /// The guest's environment as set by Belljar.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The guest's user.
    pub user: Option<String>,
    /// The guest's umask, in octal.
    pub umask: Option<String>,
    /// When the run started.
    pub started: Moment,
    /// When it ended.
    pub finished: Option<Moment>,
    /// How long it took.
    pub duration_ms: Option<Millis>,
    /// The stages that began, in order.
    #[serde(default)]
    pub stages: Vec<StageRecord>,
    /// The tree the run left in its workspace.
    pub tree: Option<TreeRecord>,
    /// The files the task asked to keep.
    #[serde(default)]
    pub collected: Vec<CollectedFile>,
    /// How the sandbox's removal went; kept beside the run's own failure.
    pub cleanup: Option<CleanupRecord>,
    /// What failed in Belljar or the machine, if anything did.
    pub error: Option<ErrorRecord>,
    /// What the reader should know, in order.
    #[serde(default)]
    pub warnings: Vec<WarningRecord>,
}

/// Whether a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It goes on, or the process that ran it was killed.
    Running,
    /// It has ended and the record is complete.
    Finished,
}

/// The image a run used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageRecord {
    /// The reference as written in the task.
    pub reference: String,
    /// What kind of image it is: `host`, `directory`, `oci`, ...
    pub kind: String,
    /// What identifies its bytes, and is compared: `config_digest`, `diff_ids`, `fingerprint`.
    pub identity: BTreeMap<String, Value>,
    /// Where such bytes can be found, and is not compared: `manifest_digest`, `docker_image_id`, ...
    #[serde(default)]
    pub locators: BTreeMap<String, Value>,
    /// Whether the identity pins every byte; never for `host`.
    pub pinned: bool,
    /// What `belljar.lock` says of it, and what was done with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockRecord>,
}

/// Which lock and which entry of it a run used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LockRecord {
    /// The lock, as seen from the task's folder.
    pub path: String,
    /// The digest of its bytes as the run left them; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The entry's reference; absent for a path that means something on one machine only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The entry's platform.
    pub platform: String,
    /// What was done.
    pub state: LockState,
}

/// What was done with a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LockState {
    /// The image was new to the lock and is pinned now.
    Pinned,
    /// The image is the one that was pinned.
    Verified,
    /// Another image was pinned before, and this one is now, because that was asked for.
    Updated,
    /// The image would be pinned by a run.
    WouldPin,
    /// The image is not pinned: nobody asked for it, or it cannot be.
    Unpinned,
    /// The image should have been pinned, but the lock could not be written.
    NotWritten,
}

/// The engine and the machine it ran on: facts, never compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineRecord {
    /// `embedded`, `docker`, ...
    pub name: String,
    /// Its version.
    pub version: String,
    /// Kernel, cgroup flavour, user mode and whatever else the engine knows.
    #[serde(default)]
    pub facts: BTreeMap<String, Value>,
}

/// What isolation was asked for and what of it is enforced.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct IsolationRecord {
    /// The level the task asks for: `strict` or `best-effort`.
    pub level: String,
    /// One entry for each control.
    #[serde(default)]
    pub controls: Vec<ControlRecord>,
}

/// One control: asked for, enforced, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControlRecord {
    /// The control's name.
    pub control: String,
    /// What was asked for.
    pub requested: String,
    /// What is enforced; absent when nothing is.
    pub enforced: Option<String>,
    /// How that was checked.
    pub proof: String,
}

/// One stage and its commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageRecord {
    /// Which.
    pub stage: Stage,
    /// When it began.
    pub started: Moment,
    /// How long it took; absent while it goes on.
    pub duration_ms: Option<Millis>,
    /// How it ended; absent while it goes on.
    pub outcome: Option<StageOutcome>,
    /// Its commands, in order.
    #[serde(default)]
    pub commands: Vec<CommandRecord>,
}

/// One command and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandRecord {
    /// The command as written in the task.
    pub script: String,
    /// What was executed.
    pub argv: Vec<String>,
    /// The working directory, inside the sandbox for a guest.
    pub cwd: String,
    /// When it was started.
    pub started: Moment,
    /// How long it took.
    pub duration_ms: Millis,
    /// How it ended, by evidence from outside the sandbox.
    pub ending: Ending,
    /// The exit code as a shell would tell it: 124 for a timeout, 128 + n for signal n.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it was never started, where that is the guest's own doing; `exit_code` is then 126 or 127.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_started: Option<String>,
    /// Processes left after its tree was killed: 0 because it was checked, absent if it was not.
    pub survivors: Option<u32>,
    /// What it used.
    #[serde(default)]
    pub usage: Usage,
    /// Its standard output.
    pub stdout: StreamRecord,
    /// Its standard error.
    pub stderr: StreamRecord,
}

/// What a command used; absent where this machine cannot tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// CPU time in the program.
    pub user_ms: Option<Millis>,
    /// CPU time in the kernel.
    pub system_ms: Option<Millis>,
    /// The most memory it held at once.
    pub peak_memory_bytes: Option<u64>,
    /// The most processes it had at once.
    pub peak_processes: Option<u64>,
    /// Processes of its tree that were still there at its end, and were killed.
    pub killed_processes: Option<u64>,
    /// How often the kernel killed in the sandbox for lack of memory.
    pub memory_kills: Option<u64>,
    /// How long it was held back by its CPU limit.
    pub throttled_ms: Option<Millis>,
}

/// A tree of files as one digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeRecord {
    /// The digest.
    pub digest: String,
    /// How many files it holds.
    pub files: u64,
    /// How many bytes they hold.
    pub bytes: u64,
    /// Entries that could not be read or were too large to read: they count by name, type and size only.
    #[serde(default)]
    pub unread: u64,
}

/// A file the task asked to keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CollectedFile {
    /// Where it is, relative to the run directory.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
}

/// How the removal of the sandbox went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CleanupRecord {
    /// Whether nothing is left.
    pub ok: bool,
    /// What failed.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// A failure of Belljar or the machine, as the record keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorRecord {
    /// The stable code.
    pub code: String,
    /// One message.
    pub message: String,
    /// What to do next.
    #[serde(default)]
    pub hints: Vec<String>,
}

impl From<&Fault> for ErrorRecord {
    fn from(fault: &Fault) -> ErrorRecord {
        ErrorRecord {
            code: fault.code.name().to_owned(),
            message: fault.message.clone(),
            hints: fault.hints.clone(),
        }
    }
}

/// Something the reader should act on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WarningRecord {
    /// A stable word.
    pub code: String,
    /// One line.
    pub message: String,
}

impl RunRecord {
    /// The record of a run that starts now.
    pub fn starting(run_id: impl Into<String>, task_id: impl Into<String>, started: Moment) -> RunRecord {
        RunRecord {
            format: FORMAT,
            belljar: env!("CARGO_PKG_VERSION").to_owned(),
            run_id: run_id.into(),
            status: Status::Running,
            verdict: None,
            task_id: task_id.into(),
            suite: None,
            labels: Vec::new(),
            expectation: Expectation::default(),
            plan_digest: String::new(),
            run_digest: None,
            result_digest: None,
            repo_url: None,
            repo_commit: None,
            image: None,
            engine: None,
            isolation: IsolationRecord::default(),
            network: BTreeMap::new(),
            limits: BTreeMap::new(),
            environment: BTreeMap::new(),
            user: None,
            umask: None,
            started,
            finished: None,
            duration_ms: None,
            stages: Vec::new(),
            tree: None,
            collected: Vec::new(),
            cleanup: None,
            error: None,
            warnings: Vec::new(),
        }
    }

    /// Takes in one event; a record that was cut short is completed from its journal this way.
    pub fn apply(&mut self, event: &Event) {
        match &event.kind {
            EventKind::RunStarted { format: _, run_id, task_id, plan_digest, belljar } => {
                self.run_id.clone_from(run_id);
                self.task_id.clone_from(task_id);
                self.plan_digest.clone_from(plan_digest);
                self.belljar.clone_from(belljar);
            }
            EventKind::ImageResolved { image } => self.image = Some(image.clone()),
            EventKind::EngineReady { engine } => self.engine = Some(engine.clone()),
            EventKind::Enforced { controls } => self.isolation.controls.clone_from(controls),
            EventKind::StageStarted { stage } => self.stage_started(*stage, event.at),
            EventKind::CommandStarted { .. } | EventKind::Network { .. } | EventKind::Notice { .. } => {}
            EventKind::CommandFinished { stage, command, .. } => self.command_finished(*stage, command),
            EventKind::StageFinished { stage, outcome, duration_ms } => {
                self.stage_finished(*stage, *outcome, *duration_ms);
            }
            EventKind::TreeHashed { tree } => self.tree = Some(tree.clone()),
            EventKind::Collected { file } => self.collected.push(file.clone()),
            EventKind::Warning { code, message } => {
                self.warnings.push(WarningRecord { code: code.clone(), message: message.clone() });
            }
            EventKind::Failed { error, .. } => self.first_error(error),
            EventKind::CleanedUp { cleanup } => self.cleanup = Some(cleanup.clone()),
            EventKind::RunFinished { verdict } => self.finish(verdict.clone(), event),
        }
    }

    /// The record as its journal tells it: what the plan says is kept, what happened is taken from the events.
    #[must_use]
    pub fn rebuilt(mut self, events: &[Event]) -> RunRecord {
        self.error = None;
        self.isolation.controls.clear();
        self.stages.clear();
        self.collected.clear();
        self.warnings.clear();
        events.iter().for_each(|event| self.apply(event));
        self
    }

    /// What failed first is the run's failure; what fails after it is a consequence or in the journal.
    fn first_error(&mut self, error: &ErrorRecord) {
        self.error.get_or_insert_with(|| error.clone());
    }

    fn stage_started(&mut self, stage: Stage, started: Moment) {
        self.stages.push(StageRecord {
            stage,
            started,
            duration_ms: None,
            outcome: None,
            commands: Vec::new(),
        });
    }

    fn stage_mut(&mut self, stage: Stage) -> Option<&mut StageRecord> {
        self.stages.iter_mut().rev().find(|record| record.stage == stage)
    }

    fn command_finished(&mut self, stage: Stage, command: &CommandRecord) {
        if let Some(record) = self.stage_mut(stage) {
            record.commands.push(command.clone());
        }
    }

    fn stage_finished(&mut self, stage: Stage, outcome: StageOutcome, duration: Millis) {
        if let Some(record) = self.stage_mut(stage) {
            record.outcome = Some(outcome);
            record.duration_ms = Some(duration);
        }
    }

    fn finish(&mut self, verdict: Verdict, event: &Event) {
        self.status = Status::Finished;
        self.verdict = Some(verdict);
        self.finished = Some(event.at);
        self.duration_ms = Some(event.elapsed_ms);
        self.run_digest = canonical::digest(&self.asked()).ok();
        self.result_digest = canonical::digest(&self.compared()).ok();
    }

    /// The record of one stage, if it began.
    pub fn stage(&self, stage: Stage) -> Option<&StageRecord> {
        self.stages.iter().rev().find(|record| record.stage == stage)
    }

    /// Whether the output of this stage is compared between two runs.
    ///
    /// It is for guests that had no network: what a network answers is not in our hands, and what
    /// the programs of the machine print (git, an image store) is a fact about the machine.
    pub fn compares_output(&self, stage: Stage) -> bool {
        match stage.actor() {
            Actor::Host => false,
            Actor::Guest => self.network.get(&stage).is_some_and(|policy| policy == "none"),
        }
    }

    /// What was asked for: the compared part without the result; `run_digest` is its digest.
    pub fn asked(&self) -> Value {
        json!({
            "task_id": self.task_id,
            "plan_digest": self.plan_digest,
            "expectation": self.expectation,
            "repo_commit": self.repo_commit,
            "image": self.image.as_ref().map(|image| &image.identity),
            "isolation": self.isolation.level,
            "requested": self.isolation.controls.iter().map(|c| (&c.control, &c.requested)).collect::<BTreeMap<_, _>>(),
            "network": self.network,
            "limits": self.limits,
            "environment": self.environment,
            "user": self.user,
            "umask": self.umask,
        })
    }

    /// The whole compared part, with the result; `result_digest` is its digest.
    pub fn compared(&self) -> Value {
        json!({
            "asked": self.asked(),
            "outcome": self.verdict.as_ref().map(|verdict| verdict.outcome),
            "stages": self.stages.iter().map(|stage| self.compared_stage(stage)).collect::<Vec<_>>(),
            "tree": self.tree.as_ref().map(|tree| &tree.digest),
        })
    }

    fn compared_stage(&self, stage: &StageRecord) -> Value {
        let commands: Vec<Value> =
            stage.commands.iter().map(|command| self.compared_command(stage.stage, command)).collect();
        json!({ "stage": stage.stage, "outcome": stage.outcome, "commands": commands })
    }

    fn compared_command(&self, stage: Stage, command: &CommandRecord) -> Value {
        let mut value = json!({
            "ending": command.ending,
            "exit_code": command.exit_code,
            "signal": command.signal,
        });
        // A command of the host names this machine's folders; a guest's does not.
        if stage.actor() == Actor::Guest {
            value["argv"] = json!(command.argv);
            value["cwd"] = json!(command.cwd);
        }
        if self.compares_output(stage) {
            value["stdout"] = json!(compared_stream(&command.stdout));
            value["stderr"] = json!(compared_stream(&command.stderr));
        }
        value
    }

    /// The record from its bytes; a newer format is refused, an older one is read.
    pub fn from_slice(bytes: &[u8]) -> Result<RunRecord, Fault> {
        let value: Value = serde_json::from_slice(bytes).map_err(unreadable)?;
        match value.get("format").and_then(Value::as_u64) {
            Some(format) if format > u64::from(FORMAT) => Err(Fault::new(
                Code::RecordVersion,
                format!("the record has format {format}, this Belljar reads up to {FORMAT}"),
            )
            .hint("upgrade Belljar")),
            Some(1..) => serde_json::from_value(value).map_err(unreadable),
            Some(0) | None => {
                Err(Fault::new(Code::RecordUnreadable, "the record has no valid `format` number"))
            }
        }
    }

    /// The record as it is written to `run.json`.
    pub fn to_vec(&self) -> Result<Vec<u8>, Fault> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Fault::new(Code::Internal, "could not encode the record").caused_by(error))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// The JSON Schema of `run.json`.
    pub fn schema() -> Value {
        titled_schema::<RunRecord>(Cow::Borrowed("Belljar run record"))
    }
}

/// An address without what may be secret in it: name and password before the host, and the query.
pub fn redacted_url(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, ""), |(base, _)| (base, "?<redacted>"));
    let Some((scheme, rest)) = base.split_once("://") else { return format!("{base}{query}") };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(_, host)| ("<redacted>@", host));
    format!("{scheme}://{user}{host}{path}{query}")
}

fn unreadable(error: serde_json::Error) -> Fault {
    Fault::new(Code::RecordUnreadable, format!("the record cannot be read: {error}")).caused_by(error)
}

fn compared_stream(stream: &StreamRecord) -> (u64, &str) {
    let digest = stream.normalised.as_ref().map_or(&stream.sha256, |normalised| &normalised.sha256);
    (u64::from(stream.truncated()), digest)
}

pub(crate) fn titled_schema<T: JsonSchema>(title: Cow<'static, str>) -> Value {
    let mut schema = schemars::schema_for!(T);
    schema.insert("title".to_owned(), Value::String(title.into_owned()));
    schema.to_value()
}

//! The one ordered stream of events that feeds the screen, the journal and the record.
//!
//! Output bytes are not events: they go to the log files, and to the screen through the
//! capture's own tail. An event is only ever written by Belljar, never by the guest.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::moment::{Millis, Moment};
use crate::outcome::{StageOutcome, Verdict};
use crate::record::{
    CleanupRecord, CollectedFile, CommandRecord, ControlRecord, EngineRecord, ErrorRecord, ImageRecord,
    TreeRecord,
};
use crate::stage::Stage;

/// One thing that happened, with its number and its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// The number of the event in its run, from 0 without gaps.
    pub seq: u64,
    /// When, by the wall clock.
    pub at: Moment,
    /// How long after the start of the run, by a clock that never jumps.
    pub elapsed_ms: Millis,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What can happen in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The run directory exists and the plan is decided; always the first event.
    RunStarted {
        /// The format of the journal.
        #[serde(default = "first_format")]
        format: u32,
        /// The run's ULID.
        run_id: String,
        /// The task's id.
        task_id: String,
        /// The digest of the plan's portable part.
        plan_digest: String,
        /// The version of Belljar that runs it.
        belljar: String,
    },
    /// The image is known to the byte.
    ImageResolved {
        /// What it is.
        image: ImageRecord,
    },
    /// The engine said what it and this machine are.
    EngineReady {
        /// Engine, version and facts of the machine.
        engine: EngineRecord,
    },
    /// What was asked for and what is really enforced, probed before user code runs.
    Enforced {
        /// One entry for each control.
        controls: Vec<ControlRecord>,
    },
    /// A stage begins.
    StageStarted {
        /// Which.
        stage: Stage,
    },
    /// A command begins.
    CommandStarted {
        /// In which stage.
        stage: Stage,
        /// Its number in the stage, from 0.
        index: u32,
        /// What is run, as written in the task.
        script: String,
    },
    /// A command ended and nothing of it is left running.
    CommandFinished {
        /// In which stage.
        stage: Stage,
        /// Its number in the stage, from 0.
        index: u32,
        /// How it ended.
        command: Box<CommandRecord>,
    },
    /// The gateway allowed or refused something; the payload is the gateway's own event.
    Network {
        /// In which stage.
        stage: Stage,
        /// The gateway's event.
        detail: serde_json::Value,
    },
    /// A stage ended.
    StageFinished {
        /// Which.
        stage: Stage,
        /// How.
        outcome: StageOutcome,
        /// How long it took.
        duration_ms: Millis,
    },
    /// The written tree was hashed.
    TreeHashed {
        /// Its digest and size.
        tree: TreeRecord,
    },
    /// A file the task asked for was copied out.
    Collected {
        /// The file.
        file: CollectedFile,
    },
    /// Something worth telling that changes nothing.
    Notice {
        /// One line.
        message: String,
    },
    /// Something the reader should act on, though the run goes on.
    Warning {
        /// A stable word for it.
        code: String,
        /// One line.
        message: String,
    },
    /// Belljar or the machine failed; the run ends.
    Failed {
        /// In which stage, if in one.
        stage: Option<Stage>,
        /// The failure.
        error: ErrorRecord,
    },
    /// The sandbox was taken down, or what of that failed.
    CleanedUp {
        /// How it went.
        cleanup: CleanupRecord,
    },
    /// The verdict is in; always the last event.
    RunFinished {
        /// The verdict.
        verdict: Verdict,
    },
}

/// The format of the journal that this library writes.
pub const JOURNAL_FORMAT: u32 = 1;

/// Journals without a number are of the first format.
fn first_format() -> u32 {
    1
}

impl Event {
    /// The event as its line in the journal, newline included.
    pub fn to_line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// The JSON Schema of one line of the journal.
    pub fn schema() -> serde_json::Value {
        crate::record::titled_schema::<Event>(Cow::Borrowed("Belljar event"))
    }
}

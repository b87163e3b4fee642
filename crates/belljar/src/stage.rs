//! The stages of a run, in their order, with the names they have everywhere.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One stage of a run; the order of the variants is the order of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The image is resolved, fetched and pinned.
    PrepareImage,
    /// The sandbox is made.
    Create,
    /// The repository is fetched.
    Clone,
    /// The pinned commit is checked out.
    Checkout,
    /// Patches are applied.
    Patch,
    /// Compatibility rewrites are made.
    Compat,
    /// The setup commands run, with the network setup was given.
    Setup,
    /// The agent works.
    Agent,
    /// The command that decides the verdict runs.
    Run,
    /// What the task asked to keep is copied out.
    Collect,
    /// The sandbox is taken down.
    Destroy,
}

impl Stage {
    /// All stages in their order.
    pub const ALL: [Stage; 11] = [
        Stage::PrepareImage,
        Stage::Create,
        Stage::Clone,
        Stage::Checkout,
        Stage::Patch,
        Stage::Compat,
        Stage::Setup,
        Stage::Agent,
        Stage::Run,
        Stage::Collect,
        Stage::Destroy,
    ];

    /// The name in records, events and messages.
    pub fn name(self) -> &'static str {
        match self {
            Stage::PrepareImage => "prepare_image",
            Stage::Create => "create",
            Stage::Clone => "clone",
            Stage::Checkout => "checkout",
            Stage::Patch => "patch",
            Stage::Compat => "compat",
            Stage::Setup => "setup",
            Stage::Agent => "agent",
            Stage::Run => "run",
            Stage::Collect => "collect",
            Stage::Destroy => "destroy",
        }
    }

    /// What the stage's log files begin with.
    pub fn log_name(self) -> &'static str {
        match self {
            Stage::Clone => "git_clone",
            Stage::Checkout => "git_checkout",
            Stage::PrepareImage
            | Stage::Create
            | Stage::Patch
            | Stage::Compat
            | Stage::Setup
            | Stage::Agent
            | Stage::Run
            | Stage::Collect
            | Stage::Destroy => self.name(),
        }
    }

    /// The stage's log of one stream, relative to the run directory.
    pub fn log_path(self, stream: Stream) -> String {
        format!("logs/{}_{}.txt", self.log_name(), stream.name())
    }

    /// Who runs in this stage, which decides whether its output can be compared at all.
    pub fn actor(self) -> Actor {
        match self {
            Stage::Compat | Stage::Setup | Stage::Agent | Stage::Run => Actor::Guest,
            Stage::PrepareImage
            | Stage::Create
            | Stage::Clone
            | Stage::Checkout
            | Stage::Patch
            | Stage::Collect
            | Stage::Destroy => Actor::Host,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who does the work of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// Belljar and the programs of this machine; what they print is a fact about the machine.
    Host,
    /// The code under glass.
    Guest,
}

/// One of the two streams a command writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// `stdout` or `stderr`.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

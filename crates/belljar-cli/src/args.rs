//! The command line as typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Runs code nobody has reviewed, under glass: isolated, observed, repeatable.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// How answers are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// For machines: one object.
    Json,
}

impl Arguments {
    /// How answers are printed.
    pub(crate) fn output(&self) -> Output {
        if self.json { Output::Json } else { Output::Text }
    }
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a task and leave a record.
    Run(RunArguments),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// A task.yaml, or the folder that holds one.
    pub(crate) task: PathBuf,
    /// The folder that holds `runs/`.
    #[arg(long, default_value = "artifacts")]
    pub(crate) out: PathBuf,
}

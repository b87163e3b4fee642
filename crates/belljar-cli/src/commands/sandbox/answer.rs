//! How the end of a command is told.

use std::borrow::Cow;

use belljar::Fault;
use belljar::sandbox::{Ending, Execution, Finish};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::encoding::base64;
use super::relay::Captured;
use crate::voice::{Output, Voice, data, json as line, talk};
use crate::{guest, words};

/// A command that has ended.
#[derive(Debug, Serialize)]
pub(crate) struct Ended<'a> {
    /// The sandbox.
    pub(crate) sandbox: &'a str,
    /// Its number in the sandbox.
    pub(crate) number: u32,
    /// How it ended and what it used.
    #[serde(flatten)]
    pub(crate) finish: &'a Finish,
}

/// The same with its output.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    ended: &'a Ended<'a>,
    #[serde(flatten)]
    output: Map<String, Value>,
}

impl Ended<'_> {
    /// Tells the end: for machines all of it and the output, for people what the exit code does not say.
    pub(crate) fn tell(
        &self,
        execution: Option<&Execution>,
        output: &[Captured],
        voice: Voice,
    ) -> Result<u8, Fault> {
        match voice.output {
            Output::Text => self.explain(execution),
            Output::Json => data(&line(&Whole { ended: self, output: streams(output) })?).map(drop)?,
        }
        Ok(self.finish.code())
    }

    /// The guest's own exit needs no words.
    fn explain(&self, execution: Option<&Execution>) {
        let took = words::span(self.finish.wall_ms);
        let words = match self.finish.ending {
            Ending::Exited | Ending::Signalled | Ending::Interrupted => return,
            Ending::NotStarted => not_started(self.finish, execution),
            Ending::TimedOut => format!("its time was up after {took}; everything it started was killed"),
            Ending::OutOfMemory => format!("out of memory{}", at_most(self.finish.peak_memory_bytes)),
            Ending::OutputLimit => "it wrote more output than it may, and was killed".to_owned(),
            Ending::DiskLimit => "the disk of the sandbox is full".to_owned(),
            Ending::CpuTimeLimit => "it used more processor time than it may, and was killed".to_owned(),
            Ending::Killed => "somebody killed it".to_owned(),
            Ending::SandboxEnded => "the sandbox ended before the command did".to_owned(),
        };
        talk(&format!("belljar: {}", guest::line(&words)));
    }
}

fn at_most(peak: Option<u64>) -> String {
    peak.map(|bytes| format!(": it had {}", words::size(bytes))).unwrap_or_default()
}

fn not_started(finish: &Finish, execution: Option<&Execution>) -> String {
    let program = execution.and_then(|execution| execution.command.first()).map_or("", String::as_str);
    match finish.exit_code {
        // The cause names the last place that was looked at, which is only one of many.
        127 if !program.is_empty() && !program.contains('/') => {
            format!("{program}: not found in the sandbox")
        }
        _ => finish
            .cause
            .as_ref()
            .map_or_else(|| "not started".to_owned(), |cause| format!("could not {cause}")),
    }
}

fn streams(output: &[Captured]) -> Map<String, Value> {
    let mut object = Map::new();
    for (name, captured) in ["stdout", "stderr"].into_iter().zip(output) {
        let mut add = |suffix: &str, value: Value| object.insert(format!("{name}{suffix}"), value);
        let text = String::from_utf8_lossy(&captured.bytes);
        add("", json!(text));
        add("_bytes", json!(captured.total));
        add("_cut", json!(captured.unread || captured.total > captured.bytes.len() as u64));
        if matches!(text, Cow::Owned(_)) {
            add("_base64", json!(base64(&captured.bytes)));
        }
    }
    object
}

//! `belljar runs ls`: the runs, newest first.

use std::collections::BTreeSet;

use belljar::Fault;
use belljar::runs::{RunEntry, RunState, list};
use serde_json::json;

use crate::args::ListArguments;
use crate::screen::line::{Mark, cut};
use crate::table::{self, Side};
use crate::voice::Voice;
use crate::{folder, guest, words};

/// The widest that a task's id is shown.
const TASK: usize = 40;

/// Prints the list.
pub(crate) fn perform(arguments: &ListArguments, voice: Voice) -> Result<u8, Fault> {
    let out = &arguments.out.out;
    let runs = list(out)?;
    voice.answer(&json!({ "runs": runs }), || match runs.as_slice() {
        [] => format!("no runs in {}\n", folder::shown(&out.join("runs"))),
        runs => table(runs),
    })?;
    Ok(0)
}

fn table(runs: &[RunEntry]) -> String {
    let length = unique_length(runs);
    let rows: Vec<_> = runs.iter().map(|run| (mark(run).shown(), row(run, length))).collect();
    let head = [
        ("run", Side::Left),
        ("task", Side::Left),
        ("outcome", Side::Left),
        ("exit", Side::Right),
        ("started", Side::Left),
        ("took", Side::Right),
    ];
    table::text(head, &rows)
}

fn row(run: &RunEntry, length: usize) -> [String; 6] {
    [
        folder::short(&run.run_id, length).to_owned(),
        run.task_id.as_deref().map(|task| cut(&guest::line(task), TASK)).unwrap_or_default(),
        standing(run),
        run.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        run.started.map(words::moment).unwrap_or_default(),
        run.duration_ms.map(words::span).unwrap_or_default(),
    ]
}

/// The outcome, or where the run stands without one.
fn standing(run: &RunEntry) -> String {
    match (run.state, run.outcome) {
        (_, Some(outcome)) => words::outcome(outcome),
        (RunState::Running, None) => format!("running{}", at(run, ": ")),
        (RunState::Abandoned | RunState::Finished, None) => format!("cut short{}", at(run, " at ")),
        (RunState::Damaged, None) => "damaged record".to_owned(),
    }
}

fn at(run: &RunEntry, joint: &str) -> String {
    run.reached.map(|stage| format!("{joint}{}", words::stage(stage))).unwrap_or_default()
}

fn mark(run: &RunEntry) -> Mark {
    match (run.state, run.outcome) {
        (_, Some(outcome)) if outcome.is_success() => Mark::Good,
        (_, Some(_)) | (RunState::Damaged, None) => Mark::Bad,
        (RunState::Running, None) => Mark::Plain,
        (RunState::Abandoned | RunState::Finished, None) => Mark::Doubtful,
    }
}

/// The length at which the ends of all ids differ.
fn unique_length(runs: &[RunEntry]) -> usize {
    let differ = |length: &usize| {
        let ends: BTreeSet<&str> = runs.iter().map(|run| folder::short(&run.run_id, *length)).collect();
        ends.len() == runs.len()
    };
    (folder::SHORT..26).find(differ).unwrap_or(26)
}

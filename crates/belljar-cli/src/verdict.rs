//! The end of a run for people: one word, one sentence, and what to do next.

use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use belljar::Fault;
use belljar::capture::Tail;
use belljar::outcome::{StageOutcome, Verdict};
use belljar::record::{CommandRecord, RunRecord};
use belljar::stage::Actor;
use belljar::stream::StreamRecord;
use owo_colors::OwoColorize;

use crate::screen::line::{Mark, broken};
use crate::voice::width;
use crate::{folder, guest, words};

/// How many lines of the command that decided are shown.
const LINES: usize = 10;
/// How much of the end of a log is looked at for them.
const TAIL: u64 = 8 * 1024;

/// The code of a warning that says what may help; it is told with the verdict.
pub(crate) const ADVICE: &str = "advice";

/// The verdict with the path of the record; after a failure also its owner, last output and advice.
pub(crate) fn text(record: &RunRecord, path: &Path) -> Result<String, Fault> {
    let clean = guest::harmless(record)?;
    let Some(verdict) = &clean.verdict else {
        return Ok(format!("{} the run has no verdict\n", Mark::Bad.shown()));
    };
    let mut text = headline(verdict, &clean);
    if !verdict.outcome.is_success() {
        text.push_str(&failure(verdict, record, path));
    }
    for advice in clean.warnings.iter().filter(|warning| warning.code == ADVICE) {
        let _ = writeln!(text, "  {} {}", "! advice:".yellow(), advice.message);
    }
    text.push_str(&next(record, path, verdict));
    Ok(text)
}

/// The word and the sentence.
pub(crate) fn headline(verdict: &Verdict, record: &RunRecord) -> String {
    let word = words::outcome(verdict.outcome);
    let (mark, word) = match verdict.outcome.is_success() {
        true => (Mark::Good, word.green().bold().to_string()),
        false => (Mark::Bad, word.red().bold().to_string()),
    };
    let took = record.duration_ms.map(|took| format!(" in {}", words::span(took))).unwrap_or_default();
    format!("{} {word}{took}\n  {}\n", mark.shown(), verdict.summary)
}

fn failure(verdict: &Verdict, record: &RunRecord, path: &Path) -> String {
    let mut text = String::new();
    if let Some(owner) = verdict.owner {
        let _ = writeln!(text, "  owner   {}", words::owner(owner));
    }
    if let Some(error) = &record.error {
        text.push_str(&error_text(&error.code, &error.message, &error.hints));
    }
    if let Some(command) = deciding(record) {
        text.push_str(&last_lines("stderr", &command.stderr, path));
        text.push_str(&last_lines("stdout", &command.stdout, path));
    }
    text
}

/// A failure of Belljar or the machine as the record keeps it.
pub(crate) fn error_text(code: &str, message: &str, hints: &[String]) -> String {
    let mut text = String::new();
    let room = width().map(|columns| columns.saturating_sub(10));
    let lines: Vec<String> = guest::lines(message).flat_map(|line| broken(&line, room)).collect();
    for (index, line) in lines.iter().enumerate() {
        let label = if index == 0 { format!("  {} ", "error:".red()) } else { "    ".to_owned() };
        let _ = writeln!(text, "{label}{line}");
    }
    for hint in hints {
        let _ = writeln!(text, "  {} {}", "hint:".cyan(), guest::line(hint));
    }
    let _ = writeln!(text, "  {}", format!("[{}]", guest::line(code)).dimmed());
    text
}

/// The command that decided: the last one of the last guest stage that did not end well, or of the last at all.
fn deciding(record: &RunRecord) -> Option<&CommandRecord> {
    let guests = || record.stages.iter().rev().filter(|stage| stage.stage.actor() == Actor::Guest);
    let bad = guests().find(|stage| stage.outcome != Some(StageOutcome::Ok));
    bad.or_else(|| guests().next())?.commands.last()
}

fn last_lines(name: &str, stream: &StreamRecord, path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = stream.open_tail(path, TAIL).and_then(|mut kept| kept.read_to_end(&mut bytes));
    let mut tail = Tail::new(LINES);
    tail.push(&bytes);
    let lines = tail.lines();
    if read.is_err() || lines.iter().all(|line| line.trim().is_empty()) {
        return String::new();
    }
    let mut text = format!("  last lines of {name}:\n");
    let room = width().map(|columns| columns.saturating_sub(7));
    for piece in lines.iter().flat_map(|line| broken(&guest::line(line), room)) {
        let _ = writeln!(text, "    {} {piece}", "│".dimmed());
    }
    text
}

fn next(record: &RunRecord, path: &Path, verdict: &Verdict) -> String {
    let mut text = String::new();
    if let Some(command) = deciding(record).filter(|_| !verdict.outcome.is_success()) {
        for stream in [&command.stderr, &command.stdout].into_iter().filter(|stream| stream.bytes > 0) {
            let _ = writeln!(text, "  log     {}", folder::shown(&path.join(&stream.path)));
        }
    }
    let _ = writeln!(text, "  show    {}", folder::show_command(path, &record.run_id));
    let _ = writeln!(text, "  record  {}", folder::shown(&path.join("run.json")));
    text
}

//! `belljar runs show`: one run, all of it.

use std::fmt::{self, Write};
use std::path::Path;

use belljar::Fault;
use belljar::event::EventKind;
use belljar::journal::replay;
use belljar::outcome::StageOutcome;
use belljar::record::{CommandRecord, ControlRecord, RunRecord, StageRecord};
use belljar::rundir::JOURNAL;
use belljar::runs::{LoadedRun, RunState, find, load};
use belljar::stage::{Stage, Stream};
use owo_colors::OwoColorize;
use serde::Serialize;
use serde_json::Value;

use super::follow::follow;
use super::log::Log;
use crate::args::ShowArguments;
use crate::network::{self, Traffic};
use crate::screen::line::{Line, Mark, broken};
use crate::voice::{Detail, Voice, width};
use crate::{folder, guest, verdict, words};

/// The column in which a command's script begins.
const SCRIPT: usize = 48;

/// A run as `--json` answers it.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    record: &'a RunRecord,
    path: &'a Path,
    state: RunState,
    traffic: Traffic,
}

/// Prints one run, or one log of it.
pub(crate) fn perform(arguments: &ShowArguments, voice: Voice) -> Result<u8, Fault> {
    let path = find(&arguments.out.out, &arguments.run)?;
    let path = path.canonicalize().unwrap_or(path);
    if let Some(name) = &arguments.log {
        Log::named(name)?.print(&path, voice)?;
        return Ok(0);
    }
    if arguments.follow {
        follow(&path, voice)?;
    }
    let run = load(&path)?;
    let network = Network::read(&path)?;
    let text = Page::new(&run, &path, &network, voice.detail)?.to_string();
    let answer = Answer { record: &run.record, path: &path, state: run.state, traffic: network.traffic };
    voice.answer(&answer, || text)?;
    Ok(0)
}

/// What the journal says about the network.
struct Network {
    traffic: Traffic,
    events: Vec<Value>,
}

impl Network {
    fn read(path: &Path) -> Result<Network, Fault> {
        let mut network = Network { traffic: Traffic::default(), events: Vec::new() };
        for event in replay(&path.join(JOURNAL))?.events {
            if let EventKind::Network { detail, .. } = event.kind {
                network.traffic.take(&detail);
                network.events.push(guest::harmless(&detail)?);
            }
        }
        Ok(network)
    }
}

/// A run for people; everything in it was made harmless first.
struct Page<'a> {
    /// Harmless.
    record: RunRecord,
    /// As it is, for what has its own way of being made harmless.
    original: &'a RunRecord,
    state: RunState,
    path: &'a Path,
    network: &'a Network,
    detail: Detail,
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        self.write_stages(f)?;
        self.write_network(f)?;
        self.write_controls(f)?;
        self.write_environment(f)?;
        self.write_trouble(f)?;
        self.write_files(f)
    }
}

impl<'a> Page<'a> {
    fn new(
        run: &'a LoadedRun,
        path: &'a Path,
        network: &'a Network,
        detail: Detail,
    ) -> Result<Page<'a>, Fault> {
        let record = guest::harmless(&run.record)?;
        Ok(Page { record, original: &run.record, state: run.state, path, network, detail })
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = &self.record;
        f.write_str(&self.standing())?;
        field(f, "task", &[&record.task_id, record.suite.as_deref().unwrap_or_default()])?;
        field(f, "run", &[&record.run_id])?;
        field(f, "started", &[&words::moment(record.started)])?;
        field(
            f,
            "code",
            &[
                record.repo_url.as_deref().unwrap_or_default(),
                record.repo_commit.as_deref().unwrap_or_default(),
            ],
        )?;
        if let Some(image) = &record.image {
            let pinned = if image.pinned { "pinned" } else { "not pinned" };
            field(f, "image", &[&image.reference, pinned])?;
        }
        if let Some(engine) = &record.engine {
            field(f, "engine", &[&engine.name, &engine.version])?;
        }
        field(f, "plan", &[&record.plan_digest])?;
        field(f, "result", &[record.result_digest.as_deref().unwrap_or_default()])
    }

    fn standing(&self) -> String {
        if let Some(verdict) = &self.record.verdict {
            let owner =
                verdict.owner.map(|owner| format!("  owner   {}\n", words::owner(owner))).unwrap_or_default();
            return verdict::headline(verdict, &self.record) + &owner;
        }
        let stage = self.record.stages.last().map(|stage| words::stage(stage.stage));
        let stage = stage.unwrap_or_else(|| "its beginning".to_owned());
        match self.state {
            RunState::Running => format!("{} {} at {stage}\n", Mark::Plain.shown(), "running".bold()),
            RunState::Abandoned | RunState::Finished | RunState::Damaged => {
                let why = "the process that ran it is gone and left no verdict";
                format!("{} {} at {stage}\n  {why}\n", Mark::Doubtful.shown(), "cut short".yellow().bold())
            }
        }
    }

    fn write_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        title(f, "stages")?;
        for stage in &self.record.stages {
            writeln!(f, "{}", self.stage_line(stage).shown(None))?;
            for command in &stage.commands {
                self.write_command(f, command)?;
            }
        }
        Ok(())
    }

    fn stage_line(&self, stage: &StageRecord) -> Line {
        let network = self.record.network.get(&stage.stage).and_then(Value::as_str);
        Line {
            mark: self.mark(stage),
            name: words::stage(stage.stage),
            word: stage.outcome.map_or_else(|| "not ended".to_owned(), |outcome| outcome.to_string()),
            time: stage.duration_ms.map(words::span).unwrap_or_default(),
            note: network.map(|network| format!("network {network}")).unwrap_or_default(),
        }
    }

    /// A failure that the task expects is not marked as bad.
    fn mark(&self, stage: &StageRecord) -> Mark {
        let expected = self.record.verdict.as_ref().is_some_and(|verdict| verdict.outcome.is_success());
        match stage.outcome {
            Some(StageOutcome::Failed) if expected => Mark::Plain,
            Some(outcome) => Mark::from(outcome),
            None => Mark::Doubtful,
        }
    }

    fn write_command(&self, f: &mut fmt::Formatter<'_>, command: &CommandRecord) -> fmt::Result {
        let (ending, took) = (words::ending(command), words::span(command.duration_ms));
        let room = width().map(|columns| columns.saturating_sub(SCRIPT));
        for (index, piece) in broken(&command.script, room).iter().enumerate() {
            match index {
                0 => writeln!(f, "                   {ending:<13} {took:>11}  $ {piece}")?,
                _ => writeln!(f, "{:SCRIPT$}{piece}", "")?,
            }
        }
        if self.detail == Detail::Full {
            let memory =
                command.usage.peak_memory_bytes.map(words::size).unwrap_or_else(|| "unknown".to_owned());
            let survivors =
                command.survivors.map_or_else(|| "unchecked".to_owned(), |count| count.to_string());
            let usage = format!("cwd {}, peak memory {memory}, survivors {survivors}", command.cwd);
            writeln!(f, "                   {}", usage.dimmed())?;
        }
        Ok(())
    }

    fn write_network(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.network.traffic.words();
        if words.is_empty() {
            return Ok(());
        }
        title(f, "network")?;
        writeln!(f, "  {words}")?;
        let shown = |event: &&Value| {
            self.detail == Detail::Full || event["kind"] == "opened" || event["kind"] == "denied"
        };
        self.network
            .events
            .iter()
            .filter(shown)
            .try_for_each(|event| writeln!(f, "    {}", network::line(event)))
    }

    fn write_controls(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let isolation = &self.record.isolation;
        if isolation.controls.is_empty() {
            return Ok(());
        }
        title(f, &format!("controls (isolation {}): asked for, enforced", isolation.level))?;
        isolation.controls.iter().try_for_each(|control| self.write_control(f, control))
    }

    fn write_control(&self, f: &mut fmt::Formatter<'_>, control: &ControlRecord) -> fmt::Result {
        let mark = if control.enforced.is_some() { Mark::Good } else { Mark::Doubtful };
        let enforced = control.enforced.as_deref().unwrap_or("not enforced");
        let proof = match (self.detail, &control.enforced) {
            (Detail::Brief, Some(_)) => String::new(),
            (Detail::Full, _) | (_, None) => control.proof.clone(),
        };
        let columns =
            format!("  {} {:<16} {:<12} {enforced:<12}", mark.shown(), control.control, control.requested);
        match proof.as_str() {
            "" => writeln!(f, "{}", columns.trim_end()),
            proof => writeln!(f, "{columns}  {}", proof.dimmed()),
        }
    }

    fn write_environment(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail == Detail::Brief || self.record.environment.is_empty() {
            return Ok(());
        }
        title(f, "environment of the guest")?;
        self.record.environment.iter().try_for_each(|(name, value)| writeln!(f, "  {name}={value}"))
    }

    fn write_trouble(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = &self.record;
        let left = record.cleanup.iter().flat_map(|cleanup| &cleanup.errors);
        let warnings: Vec<String> =
            record.warnings.iter().map(|w| format!("{} [{}]", w.message, w.code)).collect();
        let all: Vec<String> =
            warnings.into_iter().chain(left.map(|error| format!("cleanup: {error}"))).collect();
        if !all.is_empty() {
            title(f, "warnings")?;
            all.iter().try_for_each(|warning| writeln!(f, "  {} {warning}", Mark::Doubtful.shown()))?;
        }
        match &self.original.error {
            Some(error) => {
                title(f, "error")?;
                f.write_str(&verdict::error_text(&error.code, &error.message, &error.hints))
            }
            None => Ok(()),
        }
    }

    fn write_files(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        title(f, "files")?;
        writeln!(f, "  {}", folder::shown(self.path))?;
        for (log, bytes) in self.logs() {
            writeln!(f, "  {:<30} {:>9}", log, words::size(bytes))?;
        }
        for file in &self.record.collected {
            writeln!(f, "  {:<30} {:>9}", file.path, words::size(file.bytes))?;
        }
        Ok(())
    }

    /// The logs that are there, with their sizes.
    fn logs(&self) -> Vec<(String, u64)> {
        let streams = [Stream::Stdout, Stream::Stderr];
        let all = Stage::ALL.into_iter().flat_map(|stage| streams.map(|stream| stage.log_path(stream)));
        let size = |log: &String| self.path.join(log).symlink_metadata().ok().map(|meta| meta.len());
        all.filter_map(|log| size(&log).map(|bytes| (log, bytes))).collect()
    }
}

fn title(f: &mut fmt::Formatter<'_>, words: &str) -> fmt::Result {
    writeln!(f, "\n{}", words.bold())
}

/// A label and what there is of its values; nothing when there is nothing.
fn field(f: &mut impl Write, label: &str, values: &[&str]) -> fmt::Result {
    let values: Vec<&str> = values.iter().copied().filter(|value| !value.is_empty()).collect();
    if values.is_empty() {
        return Ok(());
    }
    writeln!(f, "  {label:<7} {}", values.join("  "))
}

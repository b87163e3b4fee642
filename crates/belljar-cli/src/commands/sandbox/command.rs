//! `belljar sandbox ps`, `wait` and `signal`: the commands of a sandbox.

use belljar::moment::Moment;
use belljar::sandbox::{Ending, Finish, Hand, moment};
use belljar::{Code, Fault};
use belljar_cell::cell::ExecInfo;
use serde::Serialize;
use serde_json::json;

use super::answer::Ended;
use super::list::age;
use super::order;
use crate::args::{CommandArguments, OneArguments, SignalArguments};
use crate::screen::line::Mark;
use crate::table::{self, Side};
use crate::typed::SignalNumber;
use crate::voice::Voice;
use crate::{guest, words};

/// A command as a list shows it.
#[derive(Debug, Serialize)]
struct Entry {
    number: u32,
    state: &'static str,
    command: Vec<String>,
    started: Option<Moment>,
    /// Whether `logs` has its output.
    output_kept: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Finish>,
    #[serde(skip)]
    age: u64,
}

impl From<ExecInfo> for Entry {
    fn from(info: ExecInfo) -> Entry {
        Entry {
            number: info.exec,
            state: if info.end.is_some() { "ended" } else { "running" },
            started: moment(info.started_ms.saturating_mul(1000)),
            output_kept: info.kept,
            age: age(info.started_ms),
            end: info.end.as_ref().map(|end| Finish::of(end, Hand::Other)),
            command: info.command,
        }
    }
}

/// Lists the commands, oldest first.
pub(crate) fn list(arguments: &OneArguments, voice: Voice) -> Result<u8, Fault> {
    let mut live = order::sandboxes()?.open(&arguments.sandbox)?;
    let all: Vec<Entry> = live.execs()?.into_iter().map(Entry::from).collect();
    voice.answer(&json!({ "sandbox": live.id, "commands": all }), || match all.as_slice() {
        [] => "no commands\n".to_owned(),
        all => text(all),
    })?;
    Ok(0)
}

fn text(all: &[Entry]) -> String {
    let head = [
        ("no", Side::Right),
        ("state", Side::Left),
        ("age", Side::Right),
        ("took", Side::Right),
        ("output", Side::Left),
        ("command", Side::Left),
    ];
    table::text(head, &all.iter().map(row).collect::<Vec<_>>())
}

fn row(entry: &Entry) -> (String, [String; 6]) {
    let mark = match &entry.end {
        None => Mark::Doubtful,
        Some(end) if end.exit_code == 0 => Mark::Good,
        Some(_) => Mark::Bad,
    };
    let cells = [
        entry.number.to_string(),
        entry.end.as_ref().map_or_else(|| "running".to_owned(), ending),
        words::seconds(entry.age),
        entry.end.as_ref().map(|end| words::span(end.wall_ms)).unwrap_or_default(),
        if entry.output_kept { "kept" } else { "" }.to_owned(),
        guest::line(&entry.command.join(" ")),
    ];
    (mark.shown(), cells)
}

fn ending(end: &Finish) -> String {
    match end.ending {
        Ending::Exited => format!("exit {}", end.exit_code),
        Ending::Signalled => {
            format!("signal {}", end.signal.map(|signal| SignalNumber(signal).name()).unwrap_or_default())
        }
        Ending::TimedOut => "timed out".to_owned(),
        Ending::OutOfMemory => "out of memory".to_owned(),
        Ending::OutputLimit => "output limit".to_owned(),
        Ending::DiskLimit => "disk full".to_owned(),
        Ending::CpuTimeLimit => "processor time limit".to_owned(),
        Ending::Interrupted | Ending::Killed => "killed".to_owned(),
        Ending::SandboxEnded => "sandbox ended".to_owned(),
        Ending::NotStarted => format!("not started ({})", end.exit_code),
    }
}

/// Waits for the end of a command and passes its exit code on.
pub(crate) fn wait(arguments: &CommandArguments, voice: Voice) -> Result<u8, Fault> {
    let mut live = order::sandboxes()?.open(&arguments.sandbox)?;
    let finish = Finish::of(&live.wait(arguments.command)?, Hand::Other);
    Ended { sandbox: &live.id, number: arguments.command, finish: &finish }.tell(None, &[], voice)
}

/// Sends a signal, or kills the whole tree.
pub(crate) fn signal(arguments: &SignalArguments, voice: Voice) -> Result<u8, Fault> {
    let mut live = order::sandboxes()?.open(&arguments.of.sandbox)?;
    let number = arguments.of.command;
    let whole = arguments.tree || arguments.signal == SignalNumber::KILL;
    match whole {
        true => live.kill(number),
        false => live.signal(number, arguments.signal.0),
    }
    .map_err(|fault| explained(fault, number))?;
    let signal = if whole { SignalNumber::KILL } else { arguments.signal };
    let answer = json!({ "sandbox": live.id, "number": number, "signal": signal.name(), "tree": whole });
    voice.answer(&answer, String::new)?;
    Ok(0)
}

/// To the keeper, one that has ended is as unknown as one that never was.
fn explained(fault: Fault, number: u32) -> Fault {
    match fault.code {
        Code::ExecUnknown => Fault::new(Code::ExecUnknown, format!("command {number} does not run"))
            .hint(Code::ExecUnknown.remedy()),
        _ => fault,
    }
}

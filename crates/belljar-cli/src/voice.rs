//! Where words go: stdout is data, stderr is talk.

use std::io::{self, ErrorKind, Write};

use belljar::{Code, Fault};
use serde::Serialize;

use crate::guest;

/// How answers are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Voice {
    /// For whom.
    pub(crate) output: Output,
    /// How much is told.
    pub(crate) detail: Detail,
}

/// For whom an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// For machines: one object.
    Json,
}

/// How much is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What most people want.
    Brief,
    /// Everything.
    Full,
}

/// Whether anybody still reads what goes to stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Somebody does.
    Listening,
    /// The reader closed its end (`| head -1`), which is no failure.
    Gone,
}

impl Voice {
    /// Gives the answer in the form that was asked for.
    pub(crate) fn answer(self, object: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Fault> {
        match self.output {
            Output::Text => data(&text()),
            Output::Json => data(&json(object)?),
        }
        .map(drop)
    }
}

/// One JSON object on one line, with nothing in it that a terminal would obey.
pub(crate) fn json(object: &impl Serialize) -> Result<String, Fault> {
    let text = serde_json::to_string(object)
        .map_err(|error| Fault::new(Code::Internal, "could not encode the answer").caused_by(error))?;
    Ok(guest::json_escaped(&text) + "\n")
}

/// Writes data to stdout.
pub(crate) fn data(text: &str) -> Result<Audience, Fault> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Audience::Listening),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Audience::Gone),
        Err(error) => Err(unwritten(error)),
    }
}

fn unwritten(error: io::Error) -> Fault {
    Fault::new(Code::OutputUnwritable, format!("could not write to stdout: {error}")).caused_by(error)
}

/// The columns of the terminal that stdout is, if it is one.
pub(crate) fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Writes a line of talk to stderr; nobody fails because nobody listens.
pub(crate) fn talk(line: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

//! `belljar sandbox logs`: the kept output of a command, from any point on.

use std::io::{self, ErrorKind, Write};

use belljar::moment::Moment;
use belljar::sandbox::{Finish, Hand, Live, moment};
use belljar::{Code, Fault};
use belljar_cell::log::{Record, Stream};
use serde::Serialize;
use serde_json::json;

use super::encoding::base64;
use super::order;
use crate::args::LogsArguments;
use crate::guest::Plain;
use crate::voice::{Output, Voice, json as line};

/// One piece of output, for machines.
#[derive(Debug, Serialize)]
struct Piece<'a> {
    seq: u64,
    stream: &'static str,
    time: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// Prints what there is, or follows the command to its end.
pub(crate) fn perform(arguments: &LogsArguments, voice: Voice) -> Result<u8, Fault> {
    let mut live = order::sandboxes()?.open(&arguments.of.sandbox)?;
    let number = arguments.of.command;
    let mut printer = Printer {
        manner: manner(arguments, voice),
        started_us: started(&mut live, number)?.saturating_mul(1000),
        plain: [Plain::default(), Plain::default()],
        at_start: [true, true],
    };
    let end = live.follow(number, arguments.follow, |record| match record.number > arguments.since {
        true => listening(printer.print(&record)),
        false => Ok(true),
    })?;
    let last = match end.filter(|_| voice.output == Output::Json) {
        Some(end) => line(&json!({ "end": Finish::of(&end, Hand::Other) }))?.into_bytes(),
        None => Vec::new(),
    };
    listening(printer.finish(&last)).map_err(|error| {
        Fault::new(Code::OutputUnwritable, format!("could not write to stdout: {error}")).caused_by(error)
    })?;
    Ok(0)
}

/// A reader that went away is no failure.
fn listening(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// When the command began, in milliseconds since 1970.
fn started(live: &mut Live, number: u32) -> Result<u64, Fault> {
    let info = live.execs()?.into_iter().find(|info| info.exec == number);
    info.map(|info| info.started_ms).ok_or_else(|| {
        let message = format!("the sandbox has no command {number}");
        Fault::new(Code::ExecUnknown, message).hint(Code::ExecUnknown.remedy())
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// As it is.
    Exact,
    /// Harmless.
    Plain,
    /// Each line behind its moment, harmless.
    Stamped,
    /// One object per piece.
    Json,
}

fn manner(arguments: &LogsArguments, voice: Voice) -> Manner {
    match (voice.output, arguments.timestamps, arguments.plain) {
        (Output::Json, _, _) => Manner::Json,
        (Output::Text, true, _) => Manner::Stamped,
        (Output::Text, false, true) => Manner::Plain,
        (Output::Text, false, false) => Manner::Exact,
    }
}

struct Printer {
    manner: Manner,
    started_us: u64,
    plain: [Plain; 2],
    /// Whether the next byte of the stream begins a line.
    at_start: [bool; 2],
}

impl Printer {
    fn print(&mut self, record: &Record) -> io::Result<()> {
        let index = usize::from(record.stream == Stream::Error);
        let bytes = match self.manner {
            Manner::Exact => return write(record.stream, &record.bytes),
            Manner::Plain => self.plain[index].shown(&record.bytes),
            Manner::Stamped => self.stamped(record, index),
            Manner::Json => return write(Stream::Out, self.object(record)?.as_bytes()),
        };
        write(record.stream, &bytes)
    }

    fn moment(&self, record: &Record) -> Option<Moment> {
        moment(self.started_us.saturating_add(record.at_us))
    }

    fn object(&self, record: &Record) -> io::Result<String> {
        let text = std::str::from_utf8(&record.bytes).ok();
        let piece = Piece {
            seq: record.number,
            stream: name(record.stream),
            time: self.moment(record),
            text,
            base64: if text.is_none() { Some(base64(&record.bytes)) } else { None },
        };
        line(&piece).map_err(|fault| io::Error::other(fault.message))
    }

    fn stamped(&mut self, record: &Record, index: usize) -> Vec<u8> {
        let moment = self.moment(record).map(|moment| moment.to_string()).unwrap_or_default();
        let stamp = format!("{moment} {} {} ", record.number, name(record.stream));
        let shown = self.plain[index].shown(&record.bytes);
        let mut text = Vec::with_capacity(shown.len() + stamp.len());
        for line in shown.split_inclusive(|byte| *byte == b'\n') {
            if self.at_start[index] {
                text.extend_from_slice(stamp.as_bytes());
            }
            text.extend_from_slice(line);
            self.at_start[index] = line.ends_with(b"\n");
        }
        text
    }

    fn finish(&mut self, last: &[u8]) -> io::Result<()> {
        if matches!(self.manner, Manner::Plain | Manner::Stamped) {
            write(Stream::Out, &self.plain[0].rest())?;
            write(Stream::Error, &self.plain[1].rest())?;
        }
        write(Stream::Out, last)
    }
}

fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Out => "stdout",
        Stream::Error => "stderr",
    }
}

/// Byte for byte and at once: whoever follows wants to see it now.
fn write(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Out => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        }
        Stream::Error => io::stderr().lock().write_all(bytes),
    }
}

//! `belljar runs show --log`: one log of a run, harmless to read.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use belljar::stage::{Stage, Stream};
use belljar::stream::StreamRecord;
use belljar::{Code, Fault};
use serde_json::json;

use crate::guest;
use crate::voice::{Audience, Output, Voice, data, json};

/// A line longer than this is printed in pieces.
const PIECE: u64 = 64 * 1024;

/// A log of a run.
pub(crate) struct Log {
    stage: Stage,
    stream: Stream,
}

impl Log {
    /// The log with this name, such as `run_stdout`.
    pub(crate) fn named(name: &str) -> Result<Log, Fault> {
        let wanted = name.strip_suffix(".txt").unwrap_or(name);
        let found = all().find(|log| log.name() == wanted);
        found.ok_or_else(|| {
            Fault::new(Code::Usage, format!("there is no log {name:?}"))
                .hint("use the name of a stage and of a stream, such as run_stdout, setup_stderr or git_clone_stderr")
        })
    }

    /// The log of one stream of a stage.
    pub(crate) fn of(stage: Stage, stream: Stream) -> Log {
        Log { stage, stream }
    }

    fn name(&self) -> String {
        format!("{}_{}", self.stage.log_name(), self.stream.name())
    }

    /// The bytes of the log from this one on, at most so many; a link out of the run is refused.
    pub(crate) fn bytes(&self, run: &Path, offset: u64, most: u64) -> io::Result<impl Read + use<>> {
        let path = self.stage.log_path(self.stream);
        StreamRecord { path, offset, kept_bytes: most, ..StreamRecord::default() }.open(run)
    }

    fn path(&self, run: &Path) -> PathBuf {
        run.join(self.stage.log_path(self.stream))
    }

    /// Prints the log; for machines, where it is.
    pub(crate) fn print(&self, run: &Path, voice: Voice) -> Result<(), Fault> {
        let path = self.path(run);
        match voice.output {
            Output::Json => data(&json(&json!({ "log": self.name(), "path": path }))?).map(drop),
            Output::Text => self.print_text(run).map_err(|error| match error {
                Trouble::Reading(error) => unreadable(&path, error),
                Trouble::Writing(fault) => fault,
            }),
        }
    }

    fn print_text(&self, run: &Path) -> Result<(), Trouble> {
        let mut log = BufReader::new(self.bytes(run, 0, u64::MAX).map_err(Trouble::Reading)?);
        let mut piece = Vec::new();
        loop {
            piece.clear();
            let count = (&mut log).take(PIECE).read_until(b'\n', &mut piece).map_err(Trouble::Reading)?;
            if count == 0 {
                return Ok(());
            }
            let end = if piece.ends_with(b"\n") { "\n" } else { "" };
            let line = guest::line(&String::from_utf8_lossy(&piece)) + end;
            if data(&line).map_err(Trouble::Writing)? == Audience::Gone {
                return Ok(());
            }
        }
    }
}

enum Trouble {
    Reading(io::Error),
    Writing(Fault),
}

fn unreadable(path: &Path, error: io::Error) -> Fault {
    let code =
        if error.kind() == io::ErrorKind::NotFound { Code::RunUnknown } else { Code::RecordUnreadable };
    Fault::new(code, format!("could not read {}: {error}", path.display()))
        .hint("belljar runs show lists the logs of a run")
        .caused_by(error)
}

fn all() -> impl Iterator<Item = Log> {
    let streams = [Stream::Stdout, Stream::Stderr];
    Stage::ALL.into_iter().flat_map(move |stage| streams.map(|stream| Log { stage, stream }))
}

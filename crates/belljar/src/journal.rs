//! The journal of a run: `events.jsonl`, one write for each event, readable while it grows.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::event::Event;
use crate::fault::{Code, Fault};
use crate::foreign::open_plain;
use crate::rundir::unwritable;

/// A line longer than this is not an event; it is skipped without being held in memory.
const MAX_LINE: usize = 8 * 1024 * 1024;

/// The journal as its one writer holds it.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    length: u64,
}

impl Journal {
    /// Starts a journal that must not exist yet.
    pub fn create(path: &Path) -> Result<Journal, Fault> {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o644).open(path);
        let file = file.map_err(|error| unwritable(path, error))?;
        Ok(Journal { file, path: path.to_path_buf(), length: 0 })
    }

    /// Appends one event with one write; when this returns, no death of a process can lose it.
    pub fn append(&mut self, event: &Event) -> Result<(), Fault> {
        let line = event
            .to_line()
            .map_err(|error| Fault::new(Code::Internal, "could not encode an event").caused_by(error))?;
        self.write_whole(&line).map_err(|error| unwritable(&self.path, error))
    }

    fn write_whole(&mut self, line: &[u8]) -> io::Result<()> {
        let written = loop {
            match self.file.write(line) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if written < line.len() {
            // A disk that fills up cuts the line: take the piece back, or the next event would be glued to it.
            self.file.set_len(self.length)?;
            return Err(ErrorKind::StorageFull.into());
        }
        self.length += line.len() as u64;
        Ok(())
    }

    /// Waits until the disk has every event, so that even a loss of power keeps them.
    pub fn sync(&self) -> Result<(), Fault> {
        self.file.sync_data().map_err(|error| unwritable(&self.path, error))
    }
}

/// What a journal on disk holds, as far as it can be read.
#[derive(Debug, Default, PartialEq)]
pub struct Replay {
    /// The events, in the order of the file.
    pub events: Vec<Event>,
    /// Whole lines that are not events of this version: their numbers, from 1.
    pub skipped: Vec<u64>,
    /// Bytes after the last newline: a line that was cut off, or is being written.
    pub torn_bytes: u64,
}

/// Reads a journal, whole or damaged; a journal that is missing is an empty one.
pub fn replay(path: &Path) -> Result<Replay, Fault> {
    let mut follower = Follower::new(path);
    let mut replay = Replay::default();
    loop {
        let batch = follower.read()?;
        if batch.events.is_empty() && batch.skipped.is_empty() && !follower.behind {
            replay.torn_bytes = follower.pending_bytes();
            return Ok(replay);
        }
        replay.events.extend(batch.events);
        replay.skipped.extend(batch.skipped);
    }
}

/// Reads a journal that may still grow, each event once.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    file: Option<File>,
    pending: Vec<u8>,
    overlong: u64,
    lines: u64,
    behind: bool,
}

/// What a follower found since it last looked.
#[derive(Debug, Default, PartialEq)]
pub struct Batch {
    /// New events.
    pub events: Vec<Event>,
    /// Numbers of new lines that are not events of this version.
    pub skipped: Vec<u64>,
}

impl Follower {
    /// A follower at the beginning of the journal, which need not exist yet.
    pub fn new(path: &Path) -> Follower {
        Follower {
            path: path.to_path_buf(),
            file: None,
            pending: Vec::new(),
            overlong: 0,
            lines: 0,
            behind: false,
        }
    }

    /// The whole lines that came since the last call; never waits.
    pub fn read(&mut self) -> Result<Batch, Fault> {
        let mut batch = Batch::default();
        let mut piece = vec![0; 64 * 1024];
        let count = self.read_piece(&mut piece).map_err(|error| {
            let message = format!("could not read {}: {error}", self.path.display());
            Fault::new(Code::RecordUnreadable, message).caused_by(error)
        })?;
        self.behind = count > 0;
        for part in piece[..count].split_inclusive(|byte| *byte == b'\n') {
            self.take(part, &mut batch);
        }
        Ok(batch)
    }

    fn read_piece(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        if self.file.is_none() {
            match open_plain(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
                Err(error) => return Err(error),
            }
        }
        self.file.as_mut().map_or(Ok(0), |file| file.read(piece))
    }

    fn take(&mut self, part: &[u8], batch: &mut Batch) {
        if self.overlong > 0 || self.pending.len() + part.len() > MAX_LINE {
            self.overlong += (self.pending.len() + part.len()) as u64;
            self.pending.clear();
        } else {
            self.pending.extend_from_slice(part);
        }
        if part.last() != Some(&b'\n') {
            return;
        }
        self.lines += 1;
        match serde_json::from_slice(&self.pending) {
            Ok(event) if self.overlong == 0 => batch.events.push(event),
            Ok(_) | Err(_) => batch.skipped.push(self.lines),
        }
        self.overlong = 0;
        self.pending.clear();
    }

    fn pending_bytes(&self) -> u64 {
        self.pending.len() as u64 + self.overlong
    }
}

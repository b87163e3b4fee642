//! One stream of one command on its way to its log: exact up to a cap, counted beyond it.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use sha2::{Digest, Sha256};

use crate::digest::hexadecimal;
use crate::fault::Fault;
use crate::rundir::unwritable;
use crate::stage::{Stage, Stream};
use crate::stream::{Dropped, Preview, StreamRecord};

const BUFFER: usize = 64 * 1024;
const PREVIEW: usize = 2 * 1024;

/// A capture that has not begun: where the bytes go and how many are kept.
#[derive(Debug, Clone)]
pub struct Capture {
    run_dir: PathBuf,
    relative: String,
    cap: u64,
}

impl Capture {
    /// A capture into the log of a stage; a second command of the stage is appended to the first.
    pub fn new(run_dir: &Path, stage: Stage, stream: Stream, cap: u64) -> Capture {
        Capture { run_dir: run_dir.to_path_buf(), relative: stage.log_path(stream), cap }
    }

    /// Copies until the end of the source, telling `live` of every piece as it comes.
    ///
    /// Always drains the source: a full disk or a reached cap stops the keeping, never the reading.
    pub fn copy(self, mut source: impl Read, mut live: impl FnMut(&[u8])) -> StreamRecord {
        let mut log = Log::open(&self.run_dir.join(&self.relative), self.cap);
        let mut buffer = vec![0; BUFFER];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    log.take(&buffer[..count]);
                    live(&buffer[..count]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nothing more can come: the other end is gone (a terminal's end looks like this).
                Err(_) => break,
            }
        }
        log.into_record(self.relative)
    }

    /// The same in a thread of its own, from a pipe.
    pub fn spawn(
        self,
        source: OwnedFd,
        live: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<JoinHandle<StreamRecord>> {
        let name = self.relative.clone();
        std::thread::Builder::new().name(name).spawn(move || self.copy(File::from(source), live))
    }
}

/// Appends words of Belljar's own after the guest's last byte, outside its sizes and hashes.
pub fn append_marker(run_dir: &Path, stream: &StreamRecord, text: &str) -> Result<(), Fault> {
    let path = run_dir.join(&stream.path);
    let written = open_log(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| unwritable(&path, error))
}

fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o644).open(path)
}

/// The log being written, with everything that is counted on the way.
struct Log {
    file: Option<File>,
    offset: u64,
    cap: u64,
    bytes: u64,
    kept: u64,
    dropped_because: Option<Dropped>,
    hasher: Sha256,
    head: Vec<u8>,
    tail: VecDeque<u8>,
}

impl Log {
    fn open(path: &Path, cap: u64) -> Log {
        let opened = open_log(path).and_then(|mut file| {
            let offset = file.seek(SeekFrom::End(0))?;
            Ok((file, offset))
        });
        let (file, offset, dropped_because) = match opened {
            Ok((file, offset)) => (Some(file), offset, None),
            Err(error) => (None, 0, Some(reason(&error))),
        };
        Log {
            file,
            offset,
            cap,
            bytes: 0,
            kept: 0,
            dropped_because,
            hasher: Sha256::new(),
            head: Vec::new(),
            tail: VecDeque::new(),
        }
    }

    fn take(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        let room = usize::try_from(self.cap - self.kept).unwrap_or(usize::MAX);
        let wanted = &piece[..piece.len().min(room)];
        if wanted.len() < piece.len() {
            self.dropped_because.get_or_insert(Dropped::Cap);
        }
        let kept = self.keep(wanted);
        self.kept += kept as u64;
        self.hasher.update(&wanted[..kept]);
        self.preview(&wanted[..kept]);
    }

    /// Writes what it can and says how much that was; after the first failure it keeps nothing more.
    fn keep(&mut self, mut wanted: &[u8]) -> usize {
        let Some(file) = &mut self.file else { return 0 };
        let mut kept = 0;
        while !wanted.is_empty() {
            match file.write(wanted) {
                Ok(count) => {
                    kept += count;
                    wanted = &wanted[count..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.dropped_because = Some(reason(&error));
                    self.file = None;
                    break;
                }
            }
        }
        kept
    }

    fn preview(&mut self, kept: &[u8]) {
        let (first, rest) = kept.split_at(kept.len().min(PREVIEW - self.head.len()));
        self.head.extend_from_slice(first);
        let last = &rest[rest.len().saturating_sub(PREVIEW)..];
        let excess = (self.tail.len() + last.len()).saturating_sub(PREVIEW);
        self.tail.drain(..excess);
        self.tail.extend(last);
    }

    fn into_record(self, path: String) -> StreamRecord {
        StreamRecord {
            path,
            offset: self.offset,
            bytes: self.bytes,
            kept_bytes: self.kept,
            dropped_bytes: self.bytes - self.kept,
            dropped_because: self.dropped_because.filter(|_| self.bytes > self.kept),
            sha256: hexadecimal(&self.hasher.finalize()),
            normalised: None,
            preview: preview(&self.head, Vec::from(self.tail), self.kept),
        }
    }
}

fn reason(error: &io::Error) -> Dropped {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Dropped::DiskFull,
        _ => Dropped::Unwritable,
    }
}

fn preview(head: &[u8], tail: Vec<u8>, kept: u64) -> Preview {
    let omitted_bytes = kept - head.len() as u64 - tail.len() as u64;
    if omitted_bytes > 0 {
        return Preview { head: escape(head), tail: escape(&tail), omitted_bytes };
    }
    // Head and tail touch: escape them as one, so that no character is cut in two.
    let whole = [head, &tail].concat();
    Preview { head: escape(&whole), tail: String::new(), omitted_bytes }
}

/// Bytes as text without loss: `\xNN` for what is not UTF-8, `\\` for a backslash.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', r"\\"));
        for byte in chunk.invalid() {
            text.push_str(&format!(r"\x{byte:02x}"));
        }
    }
    text
}

/// Text that cannot steer a terminal: each control character, a tab apart, is shown as `·`.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '·' } else { c }).collect()
}

/// The last lines of a stream for a screen: bounded, and without control characters.
#[derive(Debug, Clone)]
pub struct Tail {
    lines: usize,
    bytes: VecDeque<u8>,
}

impl Tail {
    /// How many bytes are held at most, however long the lines are.
    const MAX_BYTES: usize = 8 * 1024;

    /// A tail of at most this many lines.
    pub fn new(lines: usize) -> Tail {
        Tail { lines, bytes: VecDeque::new() }
    }

    /// Takes in the next piece.
    pub fn push(&mut self, piece: &[u8]) {
        let last = &piece[piece.len().saturating_sub(Tail::MAX_BYTES)..];
        let excess = (self.bytes.len() + last.len()).saturating_sub(Tail::MAX_BYTES);
        self.bytes.drain(..excess);
        self.bytes.extend(last);
    }

    /// The last lines, safe to print.
    pub fn lines(&self) -> Vec<String> {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(self.lines)..].iter().map(|line| plain(line)).collect()
    }
}

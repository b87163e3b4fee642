//! Kept output: the log of one command, written by its keeper and read by anybody of the same user, from any point.
//!
//! A log is a file of records. Each has a number that follows on the last one's, so that a reader who went away can
//! come back and go on where it stopped. A record is a head of 24 bytes and its bytes of output.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The bytes of a record's head: number, microseconds since the start, stream, length.
const HEAD: usize = 24;
/// The most bytes of one record.
const MOST: usize = 64 << 10;

/// Which of its streams a command wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number, from 1 on.
    pub number: u64,
    /// When it was read, in microseconds since the command began.
    pub at_us: u64,
    /// Where it was written.
    pub stream: Stream,
    /// What was written.
    pub bytes: Vec<u8>,
}

/// The keeper's end of a log.
#[derive(Debug)]
pub(crate) struct LogWriter {
    file: File,
    next: u64,
}

impl LogWriter {
    /// Makes a log.
    pub(crate) fn create(path: &Path) -> io::Result<LogWriter> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
        Ok(LogWriter { file: File::from(file), next: 1 })
    }

    /// Adds a record, in one write: a reader never sees half a head that will not be completed.
    pub(crate) fn append(&mut self, at_us: u64, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let mut record = Vec::with_capacity(HEAD + bytes.len());
        record.extend_from_slice(&self.next.to_le_bytes());
        record.extend_from_slice(&at_us.to_le_bytes());
        record.extend_from_slice(&u32::from(stream == Stream::Error).to_le_bytes());
        record.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        record.extend_from_slice(bytes);
        io::Write::write_all(&mut &self.file, &record)?;
        self.next += 1;
        Ok(())
    }
}

/// A reader of a log, at its own pace.
#[derive(Debug)]
pub struct LogReader {
    file: File,
    /// What was read and is not a whole record yet.
    rest: Vec<u8>,
}

impl LogReader {
    /// Reads from the beginning of an open log.
    pub fn new(file: File) -> LogReader {
        LogReader { file, rest: Vec::new() }
    }

    /// Opens a log by its path.
    pub fn open(path: &Path) -> io::Result<LogReader> {
        Ok(LogReader::new(File::open(path)?))
    }

    /// The next whole record, if the log has one by now.
    pub fn read(&mut self) -> io::Result<Option<Record>> {
        if !self.fill(HEAD)? {
            return Ok(None);
        }
        let number = |from: usize, length: usize| -> u64 {
            let mut bytes = [0; 8];
            bytes[..length].copy_from_slice(&self.rest[from..from + length]);
            u64::from_le_bytes(bytes)
        };
        let (sequence, at_us, stream) = (number(0, 8), number(8, 8), number(16, 4));
        let length = usize::try_from(number(20, 4)).unwrap_or(usize::MAX);
        if length > MOST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a log of a command"));
        }
        if !self.fill(HEAD + length)? {
            return Ok(None);
        }
        let bytes = self.rest[HEAD..HEAD + length].to_vec();
        self.rest.drain(..HEAD + length);
        let stream = if stream == 0 { Stream::Out } else { Stream::Error };
        Ok(Some(Record { number: sequence, at_us, stream, bytes }))
    }

    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        while self.rest.len() < wanted {
            let mut buffer = vec![0; MOST];
            let count = self.file.read(&mut buffer)?;
            if count == 0 {
                return Ok(false);
            }
            self.rest.extend_from_slice(&buffer[..count]);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_follows_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = LogWriter::create(&path).unwrap();
        let mut reader = LogReader::open(&path).unwrap();
        assert_eq!(reader.read().unwrap(), None);
        log.append(5, Stream::Out, b"one\xff\0").unwrap();
        log.append(9, Stream::Error, &vec![b'x'; MOST]).unwrap();
        let first = reader.read().unwrap().unwrap();
        assert_eq!(
            (first.number, first.at_us, first.stream, first.bytes.as_slice()),
            (1, 5, Stream::Out, &b"one\xff\0"[..])
        );
        let second = reader.read().unwrap().unwrap();
        assert_eq!((second.number, second.stream, second.bytes.len()), (2, Stream::Error, MOST));
        assert_eq!(reader.read().unwrap(), None);
        log.append(11, Stream::Out, b"late").unwrap();
        assert_eq!(reader.read().unwrap().unwrap().number, 3);
        let mut again = LogReader::open(&path).unwrap();
        let numbers: Vec<u64> =
            std::iter::from_fn(|| again.read().unwrap()).map(|record| record.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
    }

    #[test]
    fn what_is_not_a_log_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, [0xff; 100]).unwrap();
        assert!(LogReader::open(&path).unwrap().read().is_err());
    }
}

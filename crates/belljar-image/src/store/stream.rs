//! A compressed layer on its way: what came before a crash is read again, what comes now is kept beside being used.

use std::fs::File;
use std::io::{self, Read, Write};

/// Where a copy of the stream is kept.
pub(super) struct Kept<W, R> {
    /// What an earlier try has left, to be read first.
    earlier: io::Take<File>,
    /// What follows it.
    fresh: R,
    pub(super) copy: W,
    /// What the source of the stream said when it failed, as opposed to those who use it.
    pub(super) broken: Option<io::Error>,
}

impl<W: Write, R: Read> Kept<W, R> {
    pub(super) fn new(earlier: io::Take<File>, fresh: R, copy: W) -> Kept<W, R> {
        Kept { earlier, fresh, copy, broken: None }
    }

    fn read_fresh(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fresh.read(buffer)?;
        self.copy.write_all(&buffer[..count])?;
        Ok(count)
    }
}

impl<W: Write, R: Read> Read for Kept<W, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.earlier.limit() > 0 && !buffer.is_empty() {
            let count = self.earlier.read(buffer)?;
            if count > 0 {
                return Ok(count);
            }
        }
        self.read_fresh(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.broken = Some(io::Error::new(error.kind(), error.to_string()));
            }
        })
    }
}

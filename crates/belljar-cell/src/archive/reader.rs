//! Reads a tar stream that anybody may have made up.

use std::io::{ErrorKind, Read};

use super::header::{BLOCK, Entry, Header, Kind, Overrides, check_global, until_zero};
use super::{ArchiveError, MOST_NAME};

/// The most bytes in an extended header: two long names and change.
const MOST_RECORDS: u64 = 2 * MOST_NAME as u64 + (64 << 10);

/// A tar stream from its start on. Reads not one byte past the end mark.
#[derive(Debug)]
pub(super) struct Reader<R> {
    from: R,
    /// How many bytes were read.
    at: u64,
    most: u64,
    /// What is left of the content of the last entry, and of the padding after it.
    content: u64,
    padding: u64,
}

impl<R: Read> Reader<R> {
    /// Will not read more than `most` bytes.
    pub(super) fn new(from: R, most: u64) -> Reader<R> {
        Reader { from, at: 0, most, content: 0, padding: 0 }
    }

    /// The next entry; `None` at the end mark. What is left of the last entry's content is skipped.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, ArchiveError> {
        self.skip()?;
        let mut overrides = Overrides::default();
        loop {
            let start = self.at;
            let malformed = |what| ArchiveError::Malformed { at: start, what };
            let block = self.block()?;
            if is_zero(&block) {
                return self.end(&overrides).map(|()| None);
            }
            let header = Header::decode(&block).map_err(malformed)?;
            match header.type_byte {
                b'x' => overrides.read(&self.records(&header)?).map_err(malformed)?,
                b'g' => check_global(&self.records(&header)?).map_err(malformed)?,
                b'L' => overrides.path = Some(until_zero(&self.records(&header)?).to_vec()),
                b'K' => overrides.link = Some(until_zero(&self.records(&header)?).to_vec()),
                _ => return self.begin(overrides.apply(header), start).map(Some),
            }
        }
    }

    /// Reads on in the content of the last entry; 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let wanted = usize::try_from(self.content).unwrap_or(usize::MAX).min(buffer.len());
        self.fill(&mut buffer[..wanted])?;
        self.content -= wanted as u64;
        Ok(wanted)
    }

    fn begin(&mut self, entry: Entry, start: u64) -> Result<Entry, ArchiveError> {
        let malformed = |what| Err(ArchiveError::Malformed { at: start, what });
        match entry.kind {
            // More headers may follow one of GNU's sparse files, so there is no telling where the next entry begins.
            Kind::Sparse => return malformed("a sparse file, which is not supported"),
            Kind::HardLink | Kind::Link | Kind::Folder | Kind::Special if entry.size > 0 => {
                return malformed("an entry that can have no content announces some");
            }
            _ => {}
        }
        if entry.size > self.most - self.at {
            return Err(self.too_long());
        }
        self.content = entry.size;
        self.padding = padding(entry.size);
        Ok(entry)
    }

    /// The content of an extended header.
    fn records(&mut self, header: &Header) -> Result<Vec<u8>, ArchiveError> {
        if header.size > MOST_RECORDS {
            return Err(ArchiveError::Malformed { at: self.at, what: "an extended header is too long" });
        }
        let length = usize::try_from(header.size).unwrap_or(usize::MAX);
        let mut records = vec![0; length.next_multiple_of(BLOCK)];
        self.fill(&mut records)?;
        records.truncate(length);
        Ok(records)
    }

    fn end(&mut self, overrides: &Overrides) -> Result<(), ArchiveError> {
        let start = self.at;
        if !overrides.is_empty() {
            return Err(ArchiveError::Malformed { at: start, what: "an extended header has no entry" });
        }
        if !is_zero(&self.block()?) {
            return Err(ArchiveError::Malformed { at: start, what: "half an end mark" });
        }
        Ok(())
    }

    fn skip(&mut self) -> Result<(), ArchiveError> {
        let mut left = self.content + self.padding;
        let mut buffer = [0; 16 << 10];
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            self.fill(&mut buffer[..length])?;
            left -= length as u64;
        }
        (self.content, self.padding) = (0, 0);
        Ok(())
    }

    fn block(&mut self) -> Result<[u8; BLOCK], ArchiveError> {
        let mut block = [0; BLOCK];
        self.fill(&mut block)?;
        Ok(block)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        if buffer.len() as u64 > self.most - self.at {
            return Err(self.too_long());
        }
        let mut done = 0;
        while done < buffer.len() {
            match self.from.read(&mut buffer[done..]) {
                Ok(0) => return Err(ArchiveError::Truncated { at: self.at }),
                Ok(count) => {
                    done += count;
                    self.at += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(ArchiveError::ReadArchive { source }),
            }
        }
        Ok(())
    }

    fn too_long(&self) -> ArchiveError {
        ArchiveError::Limit { most: self.most, what: "bytes in the archive" }
    }
}

/// How many bytes fill up the last block of a content.
pub(super) fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

fn is_zero(block: &[u8; BLOCK]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

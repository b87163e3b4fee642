//! Writes a tar whose bytes depend on what is in it and on nothing else.

use std::io::{self, BufWriter, Write};

use crate::digest::{Digest, Hashed};

const BLOCK: usize = 512;
/// How much is gathered before it is written.
const BUFFER: usize = 256 << 10;
/// The name of every header that is about another; nobody sees it.
const EXTENSION: &[u8] = b"././@PaxHeader";

/// What an entry is, as the format marks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File = b'0' as isize,
    HardLink = b'1' as isize,
    Link = b'2' as isize,
    Folder = b'5' as isize,
    Fifo = b'6' as isize,
}

/// All that is said of an entry.
pub(super) struct Entry<'a> {
    pub(super) kind: Kind,
    pub(super) path: &'a [u8],
    pub(super) link: &'a [u8],
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) mtime: (i64, u32),
    pub(super) size: u64,
    /// In the order they are written.
    pub(super) xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// A tar that is being written.
pub(super) struct Tar<W: Write> {
    out: BufWriter<Hashed<W>>,
    /// Bytes of the current body that have not come.
    left: u64,
    padding: usize,
    pub(super) entries: u64,
}

impl<W: Write> Tar<W> {
    pub(super) fn new(out: W) -> Tar<W> {
        let out = BufWriter::with_capacity(BUFFER, Hashed::new(out));
        Tar { out, left: 0, padding: 0, entries: 0 }
    }

    /// Writes what stands before a body of `entry.size` bytes.
    pub(super) fn begin(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let records = records(entry);
        if !records.is_empty() {
            self.out.write_all(&header(&extension(records.len() as u64)))?;
            self.out.write_all(&records)?;
            self.pad(records.len() as u64)?;
        }
        self.out.write_all(&header(entry))?;
        self.entries += 1;
        self.left = entry.size;
        self.padding = padding(entry.size);
        Ok(())
    }

    /// How much of the body is to come.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Writes a part of the body; what is beyond what was announced is not taken.
    pub(super) fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        let count = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.out.write_all(&bytes[..count])?;
        self.left -= count as u64;
        if self.left == 0 {
            self.out.write_all(&[0; BLOCK][..self.padding])?;
            self.padding = 0;
        }
        Ok(())
    }

    /// Writes the end.
    pub(super) fn finish(mut self) -> io::Result<(Digest, u64)> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        let hashed = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        let (digest, bytes, mut out) = hashed.finish();
        out.flush()?;
        Ok((digest, bytes))
    }

    fn pad(&mut self, length: u64) -> io::Result<()> {
        self.out.write_all(&[0; BLOCK][..padding(length)])
    }
}

fn padding(length: u64) -> usize {
    let beyond = usize::try_from(length % BLOCK as u64).unwrap_or_default();
    (BLOCK - beyond) % BLOCK
}

fn extension(size: u64) -> Entry<'static> {
    Entry {
        kind: Kind::File,
        path: EXTENSION,
        link: b"",
        mode: 0o644,
        owner: (0, 0),
        mtime: (0, 0),
        size,
        xattrs: &[],
    }
}

/// What a header has no room for.
fn records(entry: &Entry<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    let mut add = |key: &[u8], value: &[u8]| record(&mut records, key, value);
    if entry.path.len() > 100 {
        add(b"path", entry.path);
    }
    if entry.link.len() > 100 {
        add(b"linkpath", entry.link);
    }
    if !fits(entry.size, 12) {
        add(b"size", entry.size.to_string().as_bytes());
    }
    if !fits(entry.owner.0.into(), 8) {
        add(b"uid", entry.owner.0.to_string().as_bytes());
    }
    if !fits(entry.owner.1.into(), 8) {
        add(b"gid", entry.owner.1.to_string().as_bytes());
    }
    if whole_seconds(entry.mtime).is_none() {
        add(b"mtime", decimal(entry.mtime).as_bytes());
    }
    for (name, value) in entry.xattrs {
        add(&[b"SCHILY.xattr.", &name[..]].concat(), value);
    }
    records
}

/// The length of a record counts the digits that it is written with.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length += 1;
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    for part in [key, b"=", value, b"\n"] {
        records.extend_from_slice(part);
    }
}

/// Seconds with as much of a fraction as there is, below 1970 too.
fn decimal((seconds, nanoseconds): (i64, u32)) -> String {
    let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let sign = if total < 0 { "-" } else { "" };
    let (whole, fraction) = (total.abs() / 1_000_000_000, total.abs() % 1_000_000_000);
    let text = format!("{sign}{whole}.{fraction:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn whole_seconds(mtime: (i64, u32)) -> Option<u64> {
    let seconds = u64::try_from(mtime.0).ok()?;
    (mtime.1 == 0 && fits(seconds, 12)).then_some(seconds)
}

/// Whether a field of that many bytes has room for the digits of a number and the zero behind them.
fn fits(number: u64, field: u32) -> bool {
    number < 1 << (3 * (field - 1))
}

/// What does not fit is 0 here, and stands in a record.
fn header(entry: &Entry<'_>) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    text(&mut block[..100], entry.path);
    octal(&mut block[100..108], entry.mode.into());
    octal(&mut block[108..116], entry.owner.0.into());
    octal(&mut block[116..124], entry.owner.1.into());
    octal(&mut block[124..136], entry.size);
    octal(&mut block[136..148], whole_seconds(entry.mtime).unwrap_or(0));
    block[156] = if entry.path == EXTENSION { b'x' } else { entry.kind as u8 };
    text(&mut block[157..257], entry.link);
    block[257..265].copy_from_slice(b"ustar\x0000");
    octal(&mut block[329..337], 0);
    octal(&mut block[337..345], 0);
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block[148..155], sum);
    block
}

fn text(field: &mut [u8], value: &[u8]) {
    let count = value.len().min(field.len());
    field[..count].copy_from_slice(&value[..count]);
}

fn octal(field: &mut [u8], number: u64) {
    let digits = field.len() - 1;
    let number = if fits(number, u32::try_from(field.len()).unwrap_or(8)) { number } else { 0 };
    field[..digits].copy_from_slice(format!("{number:0digits$o}").as_bytes());
    field[digits] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_itself() {
        let written = |key: &[u8], value: &[u8]| {
            let mut records = Vec::new();
            record(&mut records, key, value);
            records
        };
        assert_eq!(written(b"path", b"a"), b"9 path=a\n");
        for length in [1, 2, 3, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 985, 990, 995, 1000] {
            let record = written(b"path", &vec![b'x'; length]);
            let space = record.iter().position(|byte| *byte == b' ').unwrap();
            let stated: usize = std::str::from_utf8(&record[..space]).unwrap().parse().unwrap();
            assert_eq!(stated, record.len());
        }
    }

    #[test]
    fn times_are_written_as_people_read_them() {
        assert_eq!(decimal((1, 500_000_000)), "1.5");
        assert_eq!(decimal((-2, 750_000_000)), "-1.25");
        assert_eq!(decimal((-3, 0)), "-3");
        assert_eq!(decimal((100, 0)), "100");
        assert_eq!(decimal((0, 1)), "0.000000001");
    }
}

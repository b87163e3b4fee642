//! The table of an archive: which files lie where in it. Nothing is unpacked, and names are only compared.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const BLOCK: u64 = 512;
/// An archive of images has a file per layer and a few documents.
const MOST_ENTRIES: usize = 100_000;
/// Long names and extended headers.
const EXTENSION_LIMIT: u64 = 1 << 20;
/// How many links lead to a file at most.
const MOST_LINKS: usize = 16;

/// Bytes that can be read anywhere.
pub(super) trait Bytes {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;
}

impl Bytes for File {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, at)
    }
}

impl Bytes for [u8] {
    fn read_at(&self, mut buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(self.len());
        io::Write::write(&mut buffer, &self[from..])
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    File,
    /// A symbolic link, from the folder it lies in.
    Link(String),
    /// Another name of a file, from the top.
    HardLink(String),
    Other,
}

#[derive(Debug, Clone)]
struct Entry {
    path: Vec<u8>,
    at: u64,
    size: u64,
    kind: Kind,
}

/// What stands before a header and changes it.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Goes from header to header.
struct Headers<'a, B: Bytes + ?Sized> {
    bytes: &'a B,
    at: u64,
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<B: Bytes + ?Sized> Headers<'_, B> {
    fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut extension = Extension::default();
        loop {
            let Some(block) = self.block()? else { return Ok(None) };
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            check_sum(&block)?;
            let size = number(&block[124..136])?;
            match block[156] {
                b'L' => extension.path = Some(until_nul(&self.extension(size)?).to_vec()),
                b'K' => extension.link = Some(until_nul(&self.extension(size)?).to_vec()),
                b'x' => extension.read(&self.extension(size)?)?,
                b'g' => drop(self.extension(size)?),
                b'S' => return Err(malformed("a file with holes has no place in an archive of images")),
                _ => return self.entry(&block, size, extension).map(Some),
            }
        }
    }

    fn entry(&mut self, block: &[u8; 512], size: u64, extension: Extension) -> io::Result<Entry> {
        let text = |bytes: Option<Vec<u8>>, field: &[u8]| {
            String::from_utf8_lossy(&bytes.unwrap_or_else(|| until_nul(field).to_vec())).into_owned()
        };
        let path = extension.path.unwrap_or_else(|| name(block));
        let kind = match block[156] {
            0 | b'0' if path.ends_with(b"/") => Kind::Other,
            0 | b'0' | b'7' => Kind::File,
            b'1' => Kind::HardLink(text(extension.link, &block[157..257])),
            b'2' => Kind::Link(text(extension.link, &block[157..257])),
            _ => Kind::Other,
        };
        let size = if kind == Kind::File { extension.size.unwrap_or(size) } else { 0 };
        let entry = Entry { path, at: self.at, size, kind };
        self.skip(size)?;
        Ok(entry)
    }

    fn block(&mut self) -> io::Result<Option<[u8; 512]>> {
        let mut block = [0; 512];
        if !fill(self.bytes, &mut block, self.at)? {
            return Ok(None);
        }
        self.at += BLOCK;
        Ok(Some(block))
    }

    fn extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > EXTENSION_LIMIT {
            return Err(malformed("an extended header is too long"));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
        if !fill(self.bytes, &mut bytes, self.at)? {
            return Err(malformed("the archive ends too early"));
        }
        self.skip(size)?;
        Ok(bytes)
    }

    fn skip(&mut self, size: u64) -> io::Result<()> {
        let length = size.checked_next_multiple_of(BLOCK).and_then(|length| self.at.checked_add(length));
        self.at = length.ok_or_else(|| malformed("a size is too large"))?;
        Ok(())
    }
}

/// Fills the buffer, or says that there is not as much.
fn fill(bytes: &(impl Bytes + ?Sized), buffer: &mut [u8], at: u64) -> io::Result<bool> {
    let mut done = 0;
    while done < buffer.len() {
        match bytes.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => return Ok(false),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn check_sum(block: &[u8; 512]) -> io::Result<()> {
    let sum = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) });
    if sum.sum::<u64>() == number(&block[148..156])? {
        Ok(())
    } else {
        Err(malformed("it is not a tar archive"))
    }
}

/// Octal, or with the first bit set a large number.
fn number(field: &[u8]) -> io::Result<u64> {
    if field[0] & 0x80 != 0 {
        let wide = field.iter().skip(1).try_fold(u64::from(field[0] & 0x7f), |value, byte| {
            value.checked_mul(256).and_then(|value| value.checked_add(u64::from(*byte)))
        });
        return wide.ok_or_else(|| malformed("a number is too large"));
    }
    let text = std::str::from_utf8(until_nul(field)).unwrap_or("-").trim();
    if text.is_empty() {
        Ok(0)
    } else {
        u64::from_str_radix(text, 8).map_err(|_| malformed("a number cannot be read"))
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn name(block: &[u8; 512]) -> Vec<u8> {
    let prefix = if &block[257..263] == b"ustar\0" { until_nul(&block[345..500]) } else { &[] };
    let name = until_nul(&block[..100]);
    if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
}

impl Extension {
    /// Lines of `length key=value`.
    fn read(&mut self, mut records: &[u8]) -> io::Result<()> {
        let broken = || malformed("an extended header cannot be read");
        while !until_nul(records).is_empty() {
            let digits = records.split(|byte| *byte == b' ').next().unwrap_or_default();
            let length: Option<usize> = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            let line = length.and_then(|length| records.get(digits.len() + 1..length)).ok_or_else(broken)?;
            records = &records[digits.len() + 1 + line.len()..];
            let line = line.strip_suffix(b"\n").ok_or_else(broken)?;
            let at = line.iter().position(|byte| *byte == b'=').ok_or_else(broken)?;
            let (key, value) = (&line[..at], &line[at + 1..]);
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => {
                    let text = std::str::from_utf8(value).ok();
                    self.size = Some(text.and_then(|text| text.parse().ok()).ok_or_else(broken)?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The top-most name of an archive's first entry that has one.
pub(super) fn first_name(beginning: &[u8]) -> Option<String> {
    let mut headers = Headers { bytes: beginning, at: 0 };
    while let Ok(Some(entry)) = headers.next() {
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        if let Some(first) = path.split('/').find(|part| !matches!(*part, "" | ".")) {
            return Some(first.to_owned());
        }
    }
    None
}

/// An archive in a file.
#[derive(Debug)]
pub(super) struct Table {
    file: Arc<File>,
    entries: BTreeMap<String, Entry>,
}

impl Table {
    pub(super) fn read(file: File) -> io::Result<Table> {
        let mut entries = BTreeMap::new();
        let mut headers = Headers { bytes: &file, at: 0 };
        while let Some(entry) = headers.next()? {
            let Some(path) = std::str::from_utf8(&entry.path).ok().and_then(|path| plain("", path)) else {
                continue;
            };
            entries.insert(path, entry);
            if entries.len() > MOST_ENTRIES {
                return Err(malformed("it has too many entries for an archive of images"));
            }
        }
        Ok(Table { file: Arc::new(file), entries })
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.find(path).is_some()
    }

    /// The bytes of a file, from an offset on, and its whole length.
    pub(super) fn open(&self, path: &str, offset: u64) -> Option<(Section, u64)> {
        let entry = self.find(path)?;
        let left = entry.size.saturating_sub(offset);
        Some((
            Section { file: Arc::clone(&self.file), at: entry.at + offset.min(entry.size), left },
            entry.size,
        ))
    }

    /// Links are followed within the table only.
    fn find(&self, path: &str) -> Option<&Entry> {
        let mut path = plain("", path)?;
        for _ in 0..MOST_LINKS {
            let entry = self.entries.get(&path)?;
            path = match &entry.kind {
                Kind::File => return Some(entry),
                Kind::Link(target) => plain(path.rsplit_once('/').map_or("", |(folder, _)| folder), target)?,
                Kind::HardLink(target) => plain("", target)?,
                Kind::Other => return None,
            };
        }
        None
    }
}

/// A path from the top without `.` and `..`; nothing for one that leads out.
fn plain(folder: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// A part of a file.
#[derive(Debug)]
pub(super) struct Section {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let count = FileExt::read_at(&*self.file, &mut buffer[..most], self.at)?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends too early"));
        }
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        assert_eq!(plain("", "./a//b/").as_deref(), Some("a/b"));
        assert_eq!(plain("x/y", "../z/layer.tar").as_deref(), Some("x/z/layer.tar"));
        for outside in ["/etc/passwd", "..", "../x", "a/../../b", "", "."] {
            assert_eq!(plain("", outside), None, "{outside}");
        }
    }

    #[test]
    fn numbers_that_overflow_are_refused() {
        assert_eq!(number(b"0000644\0").unwrap(), 0o644);
        assert!(number(&[0xff; 12]).is_err());
        assert!(number(b"9999999\0").is_err());
    }
}

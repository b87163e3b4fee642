//! The entries of a tar, one after the other, with all that the several dialects say of them brought together.
//!
//! Where tars disagree about what bytes mean, this one reads them as Docker does, because that is what people who made
//! the layer have seen.

use super::UnpackError;
use super::feed::Feed;
use super::header::{BLOCK, Dialect, Header};
use super::pax::Records;
use super::sparse;

/// The most bytes of one header that is about another one.
const LONGEST_EXTENSION: u64 = 1 << 20;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    HardLink,
    Link,
    Folder,
    Fifo,
    /// With its numbers, which are both 0 for what overlays call a whiteout.
    CharacterDevice(i64, i64),
    BlockDevice,
}

impl Kind {
    fn has_body(self) -> bool {
        self == Kind::File
    }
}

/// One entry, whose body has not been read yet.
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: (i64, u32),
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its length once it is unpacked.
    pub(super) size: u64,
    /// Where its bytes belong, if it has holes.
    pub(super) map: Option<Vec<sparse::Piece>>,
}

/// What stood before an entry and is about it.
#[derive(Default)]
struct Preface {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Option<Records>,
}

/// A tar that is being read.
pub(super) struct Archive<'a> {
    feed: Feed<'a>,
    /// What is left of the current entry's body.
    left: u64,
    /// What follows the body up to the next block.
    padding: u64,
}

impl<'a> Archive<'a> {
    pub(super) fn new(feed: Feed<'a>) -> Archive<'a> {
        Archive { feed, left: 0, padding: 0 }
    }

    /// The next entry, past whatever was not read of the last one; nothing at the archive's end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, UnpackError> {
        self.skip_body()?;
        let mut preface = Preface::default();
        let mut alone = true;
        loop {
            let Some(block) = self.block()? else {
                return if alone { Ok(None) } else { Err(UnpackError::Truncated) };
            };
            if block.iter().all(|byte| *byte == 0) {
                return self.end(alone);
            }
            let header = Header::read(&block).map_err(|what| self.malformed(what))?;
            match header.flag() {
                b'g' => drop(self.extension(&header)?),
                b'x' => {
                    let records = Records::read(&self.extension(&header)?);
                    preface.records = Some(records.map_err(|what| self.malformed(what))?);
                }
                b'L' => preface.path = Some(until_nul(self.extension(&header)?)),
                b'K' => preface.link = Some(until_nul(self.extension(&header)?)),
                _ => return self.entry(&header, preface).map(Some),
            }
            alone = header.flag() == b'g' && alone;
        }
    }

    /// Hands the next `count` bytes of the body on, in the pieces they come in.
    pub(super) fn body(
        &mut self,
        count: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), UnpackError>,
    ) -> Result<(), UnpackError> {
        let mut wanted = count.min(self.left);
        while wanted > 0 {
            let there = self.feed.peek();
            let step = usize::try_from(wanted).unwrap_or(usize::MAX).min(there.len());
            if step == 0 {
                return Err(UnpackError::Truncated);
            }
            take(&there[..step])?;
            self.feed.take(step);
            self.left -= step as u64;
            wanted -= step as u64;
        }
        Ok(())
    }

    /// Takes everything that is left, so that it is hashed too.
    pub(super) fn drain(&mut self) {
        self.feed.drain();
    }

    fn skip_body(&mut self) -> Result<(), UnpackError> {
        let rest = self.left + self.padding;
        (self.left, self.padding) = (0, 0);
        self.feed.skip(rest)
    }

    fn announce(&mut self, size: u64) -> Result<(), UnpackError> {
        // Nothing is as long, and sums of it stay numbers.
        if size > u64::MAX / 4 {
            return Err(self.malformed("a size is too large"));
        }
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        Ok(())
    }

    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, UnpackError> {
        let mut block = [0; BLOCK];
        match self.feed.fill(&mut block) {
            0 => Ok(None),
            BLOCK => Ok(Some(block)),
            _ => Err(UnpackError::Truncated),
        }
    }

    /// Two blocks of zeros end an archive, and so does the end of the stream; one block alone does not.
    fn end(&mut self, alone: bool) -> Result<Option<Entry>, UnpackError> {
        let zeros = |block: [u8; BLOCK]| block.iter().all(|byte| *byte == 0);
        match self.block()? {
            _ if !alone => Err(self.malformed("an extended header has nothing to extend")),
            Some(block) if !zeros(block) => Err(self.malformed("something follows the end")),
            _ => Ok(None),
        }
    }

    fn extension(&mut self, header: &Header<'_>) -> Result<Vec<u8>, UnpackError> {
        let size = header.size().map_err(|what| self.malformed(what))?;
        if size > LONGEST_EXTENSION {
            return Err(self.malformed("an extended header is too long"));
        }
        self.announce(size)?;
        let mut bytes = Vec::new();
        self.body(size, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        self.skip_body()?;
        Ok(bytes)
    }

    fn entry(&mut self, header: &Header<'_>, preface: Preface) -> Result<Entry, UnpackError> {
        let mut records = preface.records.unwrap_or_default();
        let fields = Fields::read(header, &records).map_err(|what| self.malformed(what))?;
        let path = preface.path.or(records.path.take()).unwrap_or_else(|| header.path());
        let path = records.sparse.name.take().unwrap_or(path);
        let kind = kind(header, &path)
            .map_err(|what| self.malformed(what))?
            .ok_or_else(|| UnpackError::UnknownKind { path: super::shown(&path), flag: header.flag() })?;
        let mut entry = Entry {
            kind,
            link: preface.link.or(records.link.take()).unwrap_or_else(|| header.link()),
            mode: fields.mode,
            uid: fields.uid,
            gid: fields.gid,
            mtime: fields.mtime,
            xattrs: std::mem::take(&mut records.xattrs),
            size: 0,
            map: None,
            path,
        };
        if kind.has_body() {
            self.announce(fields.size)?;
            entry.size = fields.size;
            self.find_holes(header, &records.sparse, &mut entry)?;
        }
        Ok(entry)
    }

    fn find_holes(
        &mut self,
        header: &Header<'_>,
        records: &super::pax::Sparse,
        entry: &mut Entry,
    ) -> Result<(), UnpackError> {
        let found = if header.flag() == b'S' {
            if header.dialect() != Dialect::Gnu {
                return Err(self.malformed("a file with holes is stored in an unknown way"));
            }
            Some((self.old_map(header)?, header.real_size().map_err(|what| self.malformed(what))?))
        } else {
            self.recorded_map(records)?
        };
        if let Some((numbers, real_size)) = found {
            let map = sparse::pieces(&numbers, real_size, self.left).map_err(|what| self.malformed(what))?;
            entry.map = Some(map);
            entry.size = real_size;
        }
        Ok(())
    }

    /// GNU's old way: four pieces in the header and 21 in each block that follows it, before the body.
    fn old_map(&mut self, header: &Header<'_>) -> Result<Vec<u64>, UnpackError> {
        let mut numbers = Vec::new();
        let (pieces, mut more) = header.pieces();
        sparse::read_old(pieces, &mut numbers).map_err(|what| self.malformed(what))?;
        while more {
            let block = self.block()?.ok_or(UnpackError::Truncated)?;
            sparse::read_old(&block[..504], &mut numbers).map_err(|what| self.malformed(what))?;
            more = block[504] != 0;
            if numbers.len() as u64 > LONGEST_EXTENSION / 8 {
                return Err(self.malformed("the map of a file with holes is too long"));
            }
        }
        Ok(numbers)
    }

    /// The ways with records; in the newest of them the map itself is the beginning of the body.
    fn recorded_map(&mut self, records: &super::pax::Sparse) -> Result<Option<(Vec<u64>, u64)>, UnpackError> {
        let numbers = match (records.major, records.minor, &records.map) {
            (Some(1), Some(0), _) => self.leading_map()?,
            (Some(0), Some(0 | 1), Some(map)) | (None, None, Some(map)) => map.clone(),
            (None, None, None) => return Ok(None),
            _ => return Err(self.malformed("a file with holes is stored in an unknown way")),
        };
        let real_size = records.real_size.ok_or_else(|| self.malformed("a file with holes has no size"))?;
        Ok(Some((numbers, real_size)))
    }

    /// Lines of numbers, filled up to whole blocks: how many pieces, then the offset and length of each.
    fn leading_map(&mut self) -> Result<Vec<u64>, UnpackError> {
        let mut text = Vec::new();
        let mut scan = sparse::Lines::default();
        while !scan.done() {
            if self.left < BLOCK as u64 || text.len() as u64 >= LONGEST_EXTENSION {
                return Err(self.malformed("the map of a file with holes does not end"));
            }
            self.body(BLOCK as u64, |piece| {
                text.extend_from_slice(piece);
                Ok(())
            })?;
            scan.read(&text).map_err(|what| self.malformed(what))?;
        }
        Ok(scan.numbers())
    }

    fn malformed(&self, what: &'static str) -> UnpackError {
        UnpackError::Malformed { at: self.feed.position(), what }
    }
}

/// The numbers of an entry.
struct Fields {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, u32),
    size: u64,
}

impl Fields {
    fn read(header: &Header<'_>, records: &Records) -> Result<Fields, &'static str> {
        let (uid, gid) = (header.uid()?, header.gid()?);
        let (mtime, size) = (header.mtime()?, header.size()?);
        Ok(Fields {
            mode: (header.mode()? & 0o7777).try_into().unwrap_or_default(),
            uid: owner(records.uid.unwrap_or(uid))?,
            gid: owner(records.gid.unwrap_or(gid))?,
            mtime: records.mtime.unwrap_or((mtime, 0)),
            size: records.size.unwrap_or(size),
        })
    }
}

/// The last number of all means nobody to the kernel.
fn owner(id: i64) -> Result<u32, &'static str> {
    let id = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    id.ok_or("an owner is out of range")
}

fn kind(header: &Header<'_>, path: &[u8]) -> Result<Option<Kind>, &'static str> {
    Ok(Some(match header.flag() {
        0 if path.ends_with(b"/") => Kind::Folder,
        0 | b'0' | b'7' | b'S' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::Link,
        b'3' => {
            let (major, minor) = header.device()?;
            Kind::CharacterDevice(major, minor)
        }
        b'4' => Kind::BlockDevice,
        b'5' => Kind::Folder,
        b'6' => Kind::Fifo,
        _ => return Ok(None),
    }))
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

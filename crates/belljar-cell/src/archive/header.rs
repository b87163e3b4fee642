//! The headers of a tar stream: ustar, with PAX records for what does not fit into it.

use super::times::{Mtime, decimal};

/// Everything in a tar stream comes in blocks of this length.
pub(super) const BLOCK: usize = 512;
/// The largest number in a field of eleven octal digits.
const MOST_OCTAL: u64 = 0o777_7777_7777;

const NAME: Field = Field(0, 100);
const MODE: Field = Field(100, 8);
const USER: Field = Field(108, 8);
const GROUP: Field = Field(116, 8);
const SIZE: Field = Field(124, 12);
const MTIME: Field = Field(136, 12);
const CHECKSUM: Field = Field(148, 8);
const TYPE: usize = 156;
const LINK: Field = Field(157, 100);
const MAGIC: Field = Field(257, 8);
const PREFIX: Field = Field(345, 155);

/// Where a field begins and how long it is.
#[derive(Clone, Copy)]
struct Field(usize, usize);

impl Field {
    fn of(self, block: &[u8; BLOCK]) -> &[u8] {
        &block[self.0..self.0 + self.1]
    }

    fn set(self, block: &mut [u8; BLOCK], value: &[u8]) {
        let length = value.len().min(self.1);
        block[self.0..self.0 + length].copy_from_slice(&value[..length]);
    }

    fn set_octal(self, block: &mut [u8; BLOCK], value: u64) {
        let digits = self.1 - 1;
        self.set(block, format!("{value:0digits$o}").as_bytes());
    }

    fn text(self, block: &[u8; BLOCK]) -> &[u8] {
        until_zero(self.of(block))
    }

    fn number(self, block: &[u8; BLOCK]) -> Option<i64> {
        number(self.of(block))
    }
}

/// What an entry of an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A plain file.
    File,
    /// Another name of a file that came before.
    HardLink,
    /// A symbolic link.
    Link,
    /// A folder.
    Folder,
    /// A pipe or a device.
    Special,
    /// A file of which the archive holds only parts.
    Sparse,
    /// Anything else.
    Other,
}

/// An entry of an archive, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    /// Where a link of either kind leads.
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) mtime: Mtime,
    /// The length of the content that follows.
    pub(super) size: u64,
}

impl Entry {
    /// Appends the header, and before it the PAX records it needs.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let records = self.records();
        if !records.is_empty() {
            let size = records.len() as u64;
            let extension = RawEntry { name: b"././@PaxHeader", link: b"", mode: 0o644, mtime: 0, size };
            out.extend_from_slice(&extension.encode(b'x'));
            out.extend_from_slice(&records);
            out.resize(out.len().next_multiple_of(BLOCK), 0);
        }
        let plain = RawEntry {
            name: &self.name,
            link: &self.link,
            mode: self.mode,
            mtime: u64::try_from(self.mtime.seconds).ok().filter(fits).unwrap_or(0),
            size: Some(self.size).filter(fits).unwrap_or(0),
        };
        out.extend_from_slice(&plain.encode(self.type_byte()));
    }

    fn type_byte(&self) -> u8 {
        match self.kind {
            Kind::HardLink => b'1',
            Kind::Link => b'2',
            Kind::Folder => b'5',
            Kind::File | Kind::Special | Kind::Sparse | Kind::Other => b'0',
        }
    }

    fn records(&self) -> Vec<u8> {
        let mut records = Vec::new();
        let long_name = self.name.len() > NAME.1;
        let long_link = self.link.len() > LINK.1;
        let odd = |long: bool, bytes: &[u8]| long && std::str::from_utf8(bytes).is_err();
        if odd(long_name, &self.name) || odd(long_link, &self.link) {
            record(&mut records, b"hdrcharset", b"BINARY");
        }
        if long_name {
            record(&mut records, b"path", &self.name);
        }
        if long_link {
            record(&mut records, b"linkpath", &self.link);
        }
        if !fits(&self.size) {
            record(&mut records, b"size", self.size.to_string().as_bytes());
        }
        if self.mtime.nanoseconds != 0 || !u64::try_from(self.mtime.seconds).is_ok_and(|value| fits(&value)) {
            record(&mut records, b"mtime", self.mtime.to_decimal().as_bytes());
        }
        records
    }
}

fn fits(value: &u64) -> bool {
    *value <= MOST_OCTAL
}

/// Appends a PAX record: its own length, a key and a value.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    // The length counts its own digits, so it may have to grow for having grown.
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    let digits = length.to_string();
    let pieces: [&[u8]; 6] = [digits.as_bytes(), b" ", key, b"=", value, b"\n"];
    pieces.iter().for_each(|piece| records.extend_from_slice(piece));
}

/// What goes into the fields of a header; what does not fit is cut.
struct RawEntry<'a> {
    name: &'a [u8],
    link: &'a [u8],
    mode: u32,
    mtime: u64,
    size: u64,
}

impl RawEntry<'_> {
    fn encode(&self, type_byte: u8) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        NAME.set(&mut block, self.name);
        MODE.set_octal(&mut block, u64::from(self.mode));
        USER.set_octal(&mut block, 0);
        GROUP.set_octal(&mut block, 0);
        SIZE.set_octal(&mut block, self.size);
        MTIME.set_octal(&mut block, self.mtime);
        block[TYPE] = type_byte;
        LINK.set(&mut block, self.link);
        MAGIC.set(&mut block, b"ustar\x0000");
        let sum = checksum(&block);
        CHECKSUM.set(&mut block, format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

/// The sum of all bytes, those of the sum itself taken as spaces.
fn checksum(block: &[u8; BLOCK]) -> i64 {
    let all: i64 = block.iter().copied().map(i64::from).sum();
    let own: i64 = CHECKSUM.of(block).iter().copied().map(i64::from).sum();
    all - own + 8 * i64::from(b' ')
}

/// A header as it was read, its fields checked but not yet understood.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) type_byte: u8,
    pub(super) mode: u32,
    pub(super) mtime: Mtime,
    pub(super) size: u64,
}

impl Header {
    /// Reads a block; the error says what is wrong with it.
    pub(super) fn decode(block: &[u8; BLOCK]) -> Result<Header, &'static str> {
        if CHECKSUM.number(block) != Some(checksum(block)) {
            return Err("the checksum of a header is wrong");
        }
        let mode =
            MODE.number(block).and_then(|mode| u32::try_from(mode).ok()).ok_or("a mode is no number")?;
        let seconds = MTIME.number(block).ok_or("a time is no number")?;
        let size =
            SIZE.number(block).and_then(|size| u64::try_from(size).ok()).ok_or("a size is no number")?;
        Ok(Header {
            name: full_name(block),
            link: LINK.text(block).to_vec(),
            type_byte: block[TYPE],
            mode,
            mtime: Mtime { seconds, nanoseconds: 0 },
            size,
        })
    }

    /// What kind of entry this is, once its final name is known.
    pub(super) fn kind(&self, name: &[u8]) -> Kind {
        match self.type_byte {
            // Before there was a type for folders, a slash at the end made one.
            0 | b'0' if name.ends_with(b"/") => Kind::Folder,
            0 | b'0' | b'7' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Link,
            b'3' | b'4' | b'6' => Kind::Special,
            b'5' => Kind::Folder,
            b'S' => Kind::Sparse,
            _ => Kind::Other,
        }
    }
}

/// The name with its prefix; GNU's own format has other things in the prefix's place.
fn full_name(block: &[u8; BLOCK]) -> Vec<u8> {
    let (name, prefix) = (NAME.text(block), PREFIX.text(block));
    if !MAGIC.of(block).starts_with(b"ustar\0") || prefix.is_empty() {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

/// The bytes before the first zero.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(bytes)
}

/// A number in octal digits, or in binary when the first bit says so.
fn number(field: &[u8]) -> Option<i64> {
    match field.first()? {
        first if first & 0x80 != 0 => binary(field),
        _ => octal(field),
    }
}

/// Two's complement over the whole field; its first bit is the mark and the second the sign.
fn binary(field: &[u8]) -> Option<i64> {
    let first = i128::from(field[0] & 0x7f);
    let start = if first & 0x40 != 0 { first - 0x80 } else { first };
    let value = field[1..].iter().fold(start, |value, byte| value << 8 | i128::from(*byte));
    i64::try_from(value).ok()
}

fn octal(field: &[u8]) -> Option<i64> {
    let is_filler = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| *byte != b' ').unwrap_or(field.len());
    let rest = &field[start..];
    let end = rest.iter().position(is_filler).unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    if !digits.iter().all(|byte| (b'0'..=b'7').contains(byte)) || !after.iter().all(is_filler) {
        return None;
    }
    // At most twelve digits: no overflow.
    Some(digits.iter().fold(0, |value, digit| value << 3 | i64::from(digit - b'0')))
}

/// What PAX records and GNU's long names say about the next entry, instead of its header.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    size: Option<u64>,
    mtime: Option<Mtime>,
    sparse: bool,
}

impl Overrides {
    /// Takes in the records of a PAX header.
    pub(super) fn read(&mut self, records: &[u8]) -> Result<(), &'static str> {
        for_each_record(records, |key, value| {
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(decimal(value).ok_or("a size is no number")?),
                b"mtime" => self.mtime = Some(Mtime::from_decimal(value).ok_or("a time is no number")?),
                _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                _ => {}
            }
            Ok(())
        })
    }

    /// Whether anything was said.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Overrides { path: None, link: None, size: None, mtime: None, sparse: false })
    }

    /// The entry that a header and these make together.
    pub(super) fn apply(self, header: Header) -> Entry {
        let name = self.path.unwrap_or_else(|| header.name.clone());
        let kind = if self.sparse { Kind::Sparse } else { header.kind(&name) };
        Entry {
            kind,
            name,
            link: self.link.unwrap_or(header.link),
            mode: header.mode,
            mtime: self.mtime.unwrap_or(header.mtime),
            size: self.size.unwrap_or(header.size),
        }
    }
}

/// Checks records that hold for all entries to come: none of those that would change what they mean is accepted.
pub(super) fn check_global(records: &[u8]) -> Result<(), &'static str> {
    for_each_record(records, |key, _| match key {
        b"path" | b"linkpath" | b"size" => Err("a global header changes the names or sizes of entries"),
        _ if key.starts_with(b"GNU.sparse.") => Err("a global header makes entries sparse"),
        _ => Ok(()),
    })
}

fn for_each_record(
    mut records: &[u8],
    mut take: impl FnMut(&[u8], &[u8]) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    const BAD: &str = "an extended header is garbled";
    while !records.is_empty() {
        let space = records.iter().take(20).position(|byte| *byte == b' ').ok_or(BAD)?;
        let length = decimal(&records[..space]).and_then(|length| usize::try_from(length).ok()).ok_or(BAD)?;
        let body = records.get(space + 1..length).and_then(|body| body.strip_suffix(b"\n")).ok_or(BAD)?;
        let equals = body.iter().position(|byte| *byte == b'=').ok_or(BAD)?;
        take(&body[..equals], &body[equals + 1..])?;
        records = &records[length..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_digits() {
        for length in 0..2000 {
            let mut records = Vec::new();
            record(&mut records, b"path", &vec![b'x'; length]);
            let digits = records.iter().position(|byte| *byte == b' ').unwrap();
            assert_eq!(decimal(&records[..digits]), Some(records.len() as u64), "{length}");
        }
    }

    #[test]
    fn numbers_are_read_in_every_form_and_nothing_else_is() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"777777777777", Some(0o7777_7777_7777)),
            (b"\0\0\0\0", Some(0)),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"12x4\0", None),
            (b"8", None),
            (b"-1\0", None),
            (b"1\0 2", None),
        ] {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }

    #[test]
    fn garbled_records_are_errors() {
        for records in [
            &b"5\n"[..],
            b" a=b\n",
            b"0 a=b\n",
            b"3 a=b\n",
            b"99 a=b\n",
            b"6 a=b",
            b"6 abc\n",
            b"18446744073709551615 a=b\n",
            b"99999999999999999999999 a=b\n",
            b"6 a=b\n6 a=b",
        ] {
            assert!(Overrides::default().read(records).is_err(), "{records:?}");
        }
        let mut overrides = Overrides::default();
        overrides.read(b"12 path=a\nb\n12 path=c=d\n").unwrap();
        assert_eq!(overrides.path, Some(b"c=d".to_vec()));
    }
}

//! One block of 512 bytes that says what follows it.

/// The unit of everything in a tar.
pub(super) const BLOCK: usize = 512;

/// A header as it stands in the archive, with its sum found right.
pub(super) struct Header<'a>(&'a [u8; BLOCK]);

/// Which tar wrote a header; they differ in what the end of it means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Old,
    Posix,
    Star,
    Gnu,
}

impl<'a> Header<'a> {
    /// Checks the sum, which old systems made of signed bytes.
    pub(super) fn read(block: &'a [u8; BLOCK]) -> Result<Header<'a>, &'static str> {
        let header = Header(block);
        let stated = header.number(148..156)?;
        let blank = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { b' ' } else { *byte };
        let unsigned: i64 = block.iter().enumerate().map(blank).map(i64::from).sum();
        let signed: i64 = block.iter().enumerate().map(blank).map(|byte| i64::from(byte.cast_signed())).sum();
        if stated == unsigned || stated == signed { Ok(header) } else { Err("the sum of a header is wrong") }
    }

    /// Which kind of entry it is.
    pub(super) fn flag(&self) -> u8 {
        self.0[156]
    }

    pub(super) fn dialect(&self) -> Dialect {
        match (&self.0[257..265], &self.0[508..512]) {
            (b"ustar  \0", _) => Dialect::Gnu,
            ([b'u', b's', b't', b'a', b'r', 0, ..], b"tar\0") => Dialect::Star,
            ([b'u', b's', b't', b'a', b'r', 0, ..], _) => Dialect::Posix,
            _ => Dialect::Old,
        }
    }

    /// The name, with what of it stands at the header's end.
    pub(super) fn path(&self) -> Vec<u8> {
        let prefix = match self.dialect() {
            Dialect::Old | Dialect::Gnu => &[],
            Dialect::Posix => self.text(345..500),
            Dialect::Star => self.text(345..476),
        };
        let name = self.text(0..100);
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    /// Where a link leads.
    pub(super) fn link(&self) -> Vec<u8> {
        self.text(157..257).to_vec()
    }

    pub(super) fn mode(&self) -> Result<i64, &'static str> {
        self.number(100..108)
    }

    pub(super) fn uid(&self) -> Result<i64, &'static str> {
        self.number(108..116)
    }

    pub(super) fn gid(&self) -> Result<i64, &'static str> {
        self.number(116..124)
    }

    pub(super) fn size(&self) -> Result<u64, &'static str> {
        u64::try_from(self.number(124..136)?).map_err(|_| "a size is negative")
    }

    pub(super) fn mtime(&self) -> Result<i64, &'static str> {
        self.number(136..148)
    }

    /// The numbers of a device; old headers have none.
    pub(super) fn device(&self) -> Result<(i64, i64), &'static str> {
        if self.dialect() == Dialect::Old {
            return Ok((0, 0));
        }
        Ok((self.number(329..337)?, self.number(337..345)?))
    }

    /// The real size of a file with holes, in GNU's old way.
    pub(super) fn real_size(&self) -> Result<u64, &'static str> {
        u64::try_from(self.number(483..495)?).map_err(|_| "a size is negative")
    }

    /// The first four pieces of a file with holes, and whether there are more.
    pub(super) fn pieces(&self) -> (&'a [u8], bool) {
        (&self.0[386..482], self.0[482] != 0)
    }

    fn text(&self, range: std::ops::Range<usize>) -> &'a [u8] {
        let field = &self.0[range];
        &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
    }

    fn number(&self, range: std::ops::Range<usize>) -> Result<i64, &'static str> {
        number(&self.0[range])
    }
}

/// A number of a header: octal digits, or binary where the first bit is set.
pub(super) fn number(field: &[u8]) -> Result<i64, &'static str> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => binary(field),
        _ => octal(field),
    }
}

fn binary(field: &[u8]) -> Result<i64, &'static str> {
    let negative = field[0] & 0x40 != 0;
    let first = if negative { field[0] } else { field[0] & 0x7f };
    let fold = |value: i128, byte: u8| value.checked_mul(256).map(|value| value | i128::from(byte));
    let start = if negative { i128::from(first.cast_signed()) } else { i128::from(first) };
    let value = field[1..].iter().try_fold(start, |value, byte| fold(value, *byte));
    value.and_then(|value| i64::try_from(value).ok()).ok_or("a number is too large")
}

fn octal(field: &[u8]) -> Result<i64, &'static str> {
    let blank = |byte: &u8| *byte == b' ' || *byte == 0;
    let start = field.iter().position(|byte| !blank(byte)).unwrap_or(field.len());
    let digits = &field[start..];
    let digits = &digits[..digits.iter().position(blank).unwrap_or(digits.len())];
    digits.iter().try_fold(0_i64, |value, digit| match digit {
        b'0'..=b'7' => Ok(value << 3 | i64::from(digit - b'0')),
        _ => Err("a number is not octal"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0"), Ok(0o644));
        assert_eq!(number(b"  644 \0\0"), Ok(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Ok(0));
        assert_eq!(number(b"777777777777"), Ok(0o777_777_777_777));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 1, 0]), Ok(256));
        assert_eq!(number(&[0xff; 12]), Ok(-1));
        assert_eq!(number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]), Ok(-2));
        assert!(number(&[0xbf; 12]).is_err());
        assert!(number(b"12345678").is_err());
        assert!(number(b"-000001\0").is_err());
    }
}

//! Records that override or add to a header: `length key=value`.

/// What records said about one entry.
#[derive(Default)]
pub(super) struct Records {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) sparse: Sparse,
}

/// What they said about holes, in the three ways that GNU tar has had.
#[derive(Default)]
pub(super) struct Sparse {
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    pub(super) name: Option<Vec<u8>>,
    pub(super) real_size: Option<u64>,
    /// Offsets and lengths by turns.
    pub(super) map: Option<Vec<u64>>,
}

impl Records {
    /// Reads all records of one extended header.
    pub(super) fn read(mut bytes: &[u8]) -> Result<Records, &'static str> {
        let mut records = Records::default();
        while !bytes.is_empty() {
            let (key, value, rest) = record(bytes)?;
            records.take(key, value)?;
            bytes = rest;
        }
        Ok(records)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            return self.take_xattr(name, value);
        }
        if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            return self.sparse.take(key, value);
        }
        // An empty value takes back what was said before.
        match key {
            b"path" => self.path = said(value).map(text).transpose()?,
            b"linkpath" => self.link = said(value).map(text).transpose()?,
            b"size" => self.size = said(value).map(decimal).transpose()?,
            b"uid" => self.uid = said(value).map(signed).transpose()?,
            b"gid" => self.gid = said(value).map(signed).transpose()?,
            b"mtime" => self.mtime = said(value).map(time).transpose()?,
            _ => {}
        }
        Ok(())
    }

    fn take_xattr(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if name.is_empty() {
            return Err("an extended attribute has no name");
        }
        self.xattrs.retain(|(known, _)| known != name);
        self.xattrs.push((name.to_vec(), value.to_vec()));
        if self.xattrs.len() > MOST_XATTRS {
            Err("an entry has too many extended attributes")
        } else {
            Ok(())
        }
    }
}

/// Far more than any file system holds.
const MOST_XATTRS: usize = 1024;

impl Sparse {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"major" => self.major = Some(decimal(value)?),
            b"minor" => self.minor = Some(decimal(value)?),
            b"name" => self.name = Some(text(value)?),
            b"size" | b"realsize" => self.real_size = Some(decimal(value)?),
            b"offset" => self.push(decimal(value)?, 0)?,
            b"numbytes" => self.push(decimal(value)?, 1)?,
            b"map" => self.map = Some(list(value)?),
            _ => {}
        }
        Ok(())
    }

    /// In the oldest way every piece has records of its own, which come by turns.
    fn push(&mut self, number: u64, turn: usize) -> Result<(), &'static str> {
        let map = self.map.get_or_insert_with(Vec::new);
        if map.len() % 2 != turn {
            return Err("the map of a file with holes is out of order");
        }
        map.push(number);
        Ok(())
    }
}

/// One record: its key, its value, and what follows it.
type Record<'a> = (&'a [u8], &'a [u8], &'a [u8]);

fn record(bytes: &[u8]) -> Result<Record<'_>, &'static str> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ').ok_or("a record has no length")?;
    let length = usize::try_from(decimal(&bytes[..space])?).map_err(|_| "a record is too long")?;
    if length > bytes.len() || length < space + 2 {
        return Err("the length of a record is wrong");
    }
    let (record, rest) = bytes.split_at(length);
    let (body, end) = record[space + 1..].split_at(length - space - 2);
    let equals = body.iter().position(|byte| *byte == b'=').ok_or("a record has no value")?;
    let key = &body[..equals];
    if end != b"\n" || key.is_empty() || key.contains(&0) {
        return Err("a record is malformed");
    }
    Ok((key, &body[equals + 1..], rest))
}

fn said(value: &[u8]) -> Option<&[u8]> {
    Some(value).filter(|value| !value.is_empty())
}

fn text(value: &[u8]) -> Result<Vec<u8>, &'static str> {
    if value.contains(&0) { Err("a name has a NUL in it") } else { Ok(value.to_vec()) }
}

/// Digits alone: no sign and no blank.
pub(super) fn decimal(value: &[u8]) -> Result<u64, &'static str> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or("a number is not one")
}

fn signed(value: &[u8]) -> Result<i64, &'static str> {
    let (negative, digits) = sign(value);
    let number = i64::try_from(decimal(digits)?).map_err(|_| "a number is too large")?;
    Ok(if negative { -number } else { number })
}

fn sign(value: &[u8]) -> (bool, &[u8]) {
    match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    }
}

fn list(value: &[u8]) -> Result<Vec<u64>, &'static str> {
    if value.is_empty() {
        return Ok(Vec::new());
    }
    value.split(|byte| *byte == b',').map(decimal).collect()
}

/// Seconds and what is beyond them; nanoseconds count upwards for times before 1970 too.
fn time(value: &[u8]) -> Result<(i64, u32), &'static str> {
    let (negative, value) = sign(value);
    let dot = value.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = dot.map_or((value, &b""[..]), |dot| (&value[..dot], &value[dot + 1..]));
    let seconds = i64::try_from(decimal(whole)?).map_err(|_| "a time is too large")?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err("a time is not one");
    }
    let digit = |at: usize| u32::from(fraction.get(at).map_or(0, |digit| digit - b'0'));
    let nanoseconds = (0..9).fold(0, |value, at| value * 10 + digit(at));
    Ok(match (negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let records = Records::read(b"9 path=a\n14 uid=100000\n22 mtime=1700000000.5\n10 gid=-1\n").unwrap();
        assert_eq!(records.path.as_deref(), Some(&b"a"[..]));
        assert_eq!(records.uid, Some(100_000));
        assert_eq!(records.gid, Some(-1));
        assert_eq!(records.mtime, Some((1_700_000_000, 500_000_000)));
    }

    #[test]
    fn an_empty_value_takes_back() {
        let records = Records::read(b"9 path=a\n8 path=\n").unwrap();
        assert_eq!(records.path, None);
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let wrong: [&[u8]; 12] = [
            b"x",
            b"9 path=a",
            b"11 path=a\n",
            b"8 path=a\n",
            b"3 \n",
            b"6 path",
            b"5 =a\n",
            b"99999999999999999999 path=a\n",
            b"11 path=\0a\n",
            b"11 size=-1\n",
            b"12 mtime=1e\n",
            b"11 p\0ath=a\n",
        ];
        for bytes in wrong {
            assert!(Records::read(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn times_before_1970_keep_their_fraction() {
        assert_eq!(time(b"-1.25"), Ok((-2, 750_000_000)));
        assert_eq!(time(b"-3"), Ok((-3, 0)));
        assert_eq!(time(b"1.1234567899"), Ok((1, 123_456_789)));
        assert_eq!(time(b"-0.5"), Ok((-1, 500_000_000)));
        assert!(time(b"").is_err());
        assert!(time(b"99999999999999999999").is_err());
    }
}

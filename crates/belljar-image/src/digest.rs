//! Names of content: SHA-256, and streams that are hashed as they pass.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The name of some bytes, written `sha256:` and 64 digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

/// Why a text names no content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a digest: it is written `sha256:` and 64 lowercase hexadecimal digits")]
pub struct DigestError(String);

impl Digest {
    /// The name of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// The digits alone, as they are used for file names.
    pub fn hex(self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
        self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
    }

    /// From the digits alone.
    pub fn from_hex(hex: &str) -> Option<Digest> {
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let bytes: &[u8; 64] = hex.as_bytes().try_into().ok()?;
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(bytes.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Digest(digest))
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Digest, DigestError> {
        let hex = text.strip_prefix("sha256:");
        hex.and_then(Digest::from_hex).ok_or_else(|| DigestError(text.to_owned()))
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Digest, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A stream that knows the name and the length of what has passed through it, to read from or to write to.
pub struct Hashed<S> {
    stream: S,
    hasher: Sha256,
    bytes: u64,
}

impl<S> Hashed<S> {
    /// Nothing has passed yet.
    pub fn new(stream: S) -> Hashed<S> {
        Hashed { stream, hasher: Sha256::new(), bytes: 0 }
    }

    /// How many bytes have passed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The name of all that has passed, its length, and the stream itself.
    pub fn finish(self) -> (Digest, u64, S) {
        (Digest(self.hasher.finalize().into()), self.bytes, self.stream)
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<S: Read> Read for Hashed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.pass(&buffer[..count]);
        Ok(count)
    }
}

impl<S: Write> Write for Hashed<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(buffer)?;
        self.pass(&buffer[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_are_read_as_they_are_written() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>().unwrap(), Digest::of(b""));
        for wrong in ["", "sha256:", "sha512:00", &EMPTY[..70], &EMPTY.to_uppercase(), &format!("{EMPTY}0")] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_passes_is_hashed_both_ways() {
        let mut reader = Hashed::new(&b"some bytes"[..]);
        let mut writer = Hashed::new(Vec::new());
        io::copy(&mut reader, &mut writer).unwrap();
        let (read, written) = (reader.finish(), writer.finish());
        assert_eq!((read.0, read.1), (Digest::of(b"some bytes"), 10));
        assert_eq!((written.0, written.1, written.2.as_slice()), (read.0, 10, &b"some bytes"[..]));
    }
}

//! The closed, versioned list of normalisers: what two honest runs may print differently.
//!
//! Bytes are taken line by line; bytes that are not UTF-8 pass through as they are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::LazyLock;

use regex_lite::{Captures, Regex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::digest::hexadecimal;
use crate::fault::{Code, Fault};
use crate::stream::{NormalisedStream, StreamRecord};

/// The version of the list; any change to a normaliser raises it.
pub const VERSION: u32 = 1;

/// Lines longer than this are normalised in pieces, so that memory stays bounded.
const MAX_LINE: u64 = 64 * 1024;

/// Only this much of a stream is normalised, the rest is taken as it is: a guest that prints for its
/// whole allowance must not keep the machine busy for minutes afterwards.
const MAX_STREAM: u64 = 8 * 1024 * 1024;

/// One normaliser; the order of the variants is the order in which they are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normaliser {
    /// Spans of time: `0.02s`, `12 ms`, `1m 3s`, and the frame that pytest fits around one.
    Duration,
    /// Points in time: dates with a time of day, and times of day.
    Timestamp,
    /// Names of temporary files and folders.
    TempPath,
    /// Addresses of memory: `0x7f...`.
    Address,
    /// Numbers of processes.
    Pid,
}

impl Normaliser {
    /// All normalisers, in the order in which they are applied.
    pub const ALL: [Normaliser; 5] = [
        Normaliser::Duration,
        Normaliser::Timestamp,
        Normaliser::TempPath,
        Normaliser::Address,
        Normaliser::Pid,
    ];

    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Normaliser::Duration => "duration",
            Normaliser::Timestamp => "timestamp",
            Normaliser::TempPath => "temp_path",
            Normaliser::Address => "address",
            Normaliser::Pid => "pid",
        }
    }

    /// What it looks for, as a regular expression; the group `keep` stays in front of what is put instead.
    pub fn pattern(self) -> &'static str {
        match self {
            Normaliser::Duration => {
                r"\b(?:\d+(?:h|m|min) ?)*\d+(?:\.\d+)? ?(?:s|sec|secs|seconds?|ms|msec|milliseconds?|us|µs|μs|ns|minutes?)\b(?: \(\d+:\d\d:\d\d\))?"
            }
            Normaliser::Timestamp => {
                r"\b(?:\d{4}-\d\d-\d\d[T ]|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? (?:[A-Z][a-z][a-z] +\d{1,2}|\d{1,2} [A-Z][a-z][a-z] \d{4}) )?\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:Z\b| ?[+-]\d\d:?\d\d\b| (?:UTC|GMT)\b)?(?: \d{4}\b)?"
            }
            Normaliser::TempPath => {
                r"(?P<keep>/tmp/)(?:pytest-of-[^/\s]+/pytest-\d+|tmp[a-z0-9_]{8}\b|[\w-]*\.[A-Za-z0-9]{6,12}\b)"
            }
            Normaliser::Address => r"\b0x[0-9a-fA-F]{6,16}\b",
            Normaliser::Pid => r"\b(?P<keep>(?:pid|PID|Pid|process|Process)(?: id)?[ =:#]{1,2})\d+\b",
        }
    }

    /// Whether the pattern can match at all; a cheap look before the costly one.
    fn may_match(self, text: &str) -> bool {
        let bytes = text.as_bytes();
        match self {
            Normaliser::Duration => digit_before(bytes, |next| b"smunh\xc2\xce".contains(&next)),
            Normaliser::Timestamp => digit_before(bytes, |next| next == b':'),
            Normaliser::TempPath => text.contains("/tmp/"),
            Normaliser::Address => text.contains("0x"),
            Normaliser::Pid => ["pid", "PID", "Pid", "rocess"].iter().any(|word| text.contains(word)),
        }
    }
}

/// Whether a digit stands before such a byte, at once or after one space.
fn digit_before(bytes: &[u8], wanted: impl Fn(u8) -> bool) -> bool {
    bytes.iter().enumerate().filter(|(_, byte)| byte.is_ascii_digit()).any(|(at, _)| {
        match (bytes.get(at + 1), bytes.get(at + 2)) {
            (Some(b' '), Some(next)) | (Some(next), _) => wanted(*next),
            (None, _) => false,
        }
    })
}

static COMPILED: LazyLock<Vec<(Normaliser, Regex)>> = LazyLock::new(|| {
    // A pattern that does not compile would be left out; a test demands that all five are here.
    let compile = |normaliser: Normaliser| Some((normaliser, Regex::new(normaliser.pattern()).ok()?));
    Normaliser::ALL.into_iter().filter_map(compile).collect()
});

/// How often each normaliser replaced something.
pub type Uses = BTreeMap<Normaliser, u64>;

/// One line (or piece of one) after the normalisers; counts what was replaced.
pub fn line<'a>(bytes: &'a [u8], uses: &mut Uses) -> Cow<'a, [u8]> {
    match std::str::from_utf8(bytes) {
        Ok(whole) => match text(whole, uses) {
            Cow::Borrowed(_) => Cow::Borrowed(bytes),
            Cow::Owned(changed) => Cow::Owned(changed.into_bytes()),
        },
        Err(_) => Cow::Owned(mixed(bytes, uses)),
    }
}

fn mixed(bytes: &[u8], uses: &mut Uses) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.extend_from_slice(text(chunk.valid(), uses).as_bytes());
        out.extend_from_slice(chunk.invalid());
    }
    out
}

fn text<'a>(whole: &'a str, uses: &mut Uses) -> Cow<'a, str> {
    let mut current = Cow::Borrowed(whole);
    for (normaliser, regex) in COMPILED.iter() {
        if !normaliser.may_match(&current) {
            continue;
        }
        let (changed, count) = replace(&current, *normaliser, regex);
        if count > 0 {
            *uses.entry(*normaliser).or_default() += count;
            current = Cow::Owned(changed);
        }
    }
    current
}

fn replace(text: &str, normaliser: Normaliser, regex: &Regex) -> (String, u64) {
    let mut count = 0;
    let changed = regex.replace_all(text, |found: &Captures<'_>| {
        count += 1;
        let keep = found.name("keep").map_or("", |kept| kept.as_str());
        format!("{keep}<{}>", normaliser.name())
    });
    if normaliser == Normaliser::Duration && count > 0 {
        return (unframed(&changed), count);
    }
    (changed.into_owned(), count)
}

/// pytest fills a line with `=` up to a width, so a longer duration makes a shorter frame.
fn unframed(line: &str) -> String {
    let bare = line.trim_end_matches(['\n', '\r']);
    match bare.strip_prefix("==").and_then(|rest| rest.strip_suffix("==")) {
        Some(inner) => format!("== {} =={}", inner.trim_matches(['=', ' ']), &line[bare.len()..]),
        None => line.to_owned(),
    }
}

/// Lines of a stream, in pieces of bounded length, each with its newline.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    consumed: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(source: R) -> Lines<R> {
        Lines { reader: BufReader::with_capacity(64 * 1024, source), consumed: 0 }
    }

    /// The next line in `line`; false at the end.
    pub(crate) fn next(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        line.clear();
        let count = self.reader.by_ref().take(MAX_LINE).read_until(b'\n', line)?;
        self.consumed += count as u64;
        Ok(count > 0)
    }

    /// The line just read after the normalisers, as far as the stream is normalised.
    pub(crate) fn normalised<'a>(&self, read: &'a [u8], uses: &mut Uses) -> Cow<'a, [u8]> {
        if self.consumed > MAX_STREAM { Cow::Borrowed(read) } else { line(read, uses) }
    }
}

/// The digest of a kept stream after the normalisers, read with bounded memory.
pub fn stream(run_dir: &Path, stream: &StreamRecord) -> Result<NormalisedStream, Fault> {
    digest(run_dir, stream).map_err(|error| {
        Fault::new(Code::RecordUnreadable, format!("could not read {}: {error}", stream.path))
            .caused_by(error)
    })
}

fn digest(run_dir: &Path, stream: &StreamRecord) -> io::Result<NormalisedStream> {
    let mut uses = Uses::new();
    let mut hasher = Sha256::new();
    if stream.kept_bytes > 0 {
        let mut lines = Lines::new(stream.open(run_dir)?);
        let mut buffer = Vec::new();
        while lines.next(&mut buffer)? {
            hasher.update(lines.normalised(&buffer, &mut uses).as_ref());
        }
    }
    Ok(NormalisedStream { version: VERSION, sha256: hexadecimal(&hasher.finalize()), uses })
}

//! What is known of one stream of one command.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::foreign::open_beneath;
use crate::normalise::Normaliser;

/// One stream of one command: where its bytes are, how many, and their hashes.
///
/// Sizes and hashes cover the guest's bytes only, never a marker that Belljar appended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StreamRecord {
    /// The log file, relative to the run directory.
    pub path: String,
    /// Where this command's bytes begin in that file (one file holds a whole stage).
    pub offset: u64,
    /// How many bytes the guest wrote.
    pub bytes: u64,
    /// How many of them are in the file: the first ones.
    pub kept_bytes: u64,
    /// How many were counted and dropped.
    pub dropped_bytes: u64,
    /// Why bytes were dropped; absent when none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_because: Option<Dropped>,
    /// SHA-256 of the kept bytes, in hexadecimal.
    pub sha256: String,
    /// The digest after the normalisers, for streams that are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalised: Option<NormalisedStream>,
    /// The beginning and the end of the stream, readable.
    pub preview: Preview,
}

impl StreamRecord {
    /// Whether the file holds less than the guest wrote.
    pub fn truncated(&self) -> bool {
        self.dropped_bytes > 0
    }

    /// The kept bytes as they are on disk now; a path that leads out of the run directory is refused.
    pub fn open(&self, run_dir: &Path) -> io::Result<io::Take<File>> {
        self.open_tail(run_dir, self.kept_bytes)
    }

    /// The last kept bytes, at most this many.
    pub fn open_tail(&self, run_dir: &Path, most: u64) -> io::Result<io::Take<File>> {
        let length = self.kept_bytes.min(most);
        let mut file = open_beneath(run_dir, &self.path)?;
        file.seek(SeekFrom::Start(self.offset.saturating_add(self.kept_bytes - length)))?;
        Ok(file.take(length))
    }
}

/// Why bytes of a stream were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// The cap on kept output was reached.
    Cap,
    /// The machine's disk was full.
    DiskFull,
    /// The log file could not be written for another reason.
    Unwritable,
}

/// A stream's digest after the normalisers, and how often each was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NormalisedStream {
    /// The version of the list of normalisers.
    pub version: u32,
    /// SHA-256 of the kept bytes after normalisation, in hexadecimal.
    pub sha256: String,
    /// How often each normaliser replaced something.
    pub uses: BTreeMap<Normaliser, u64>,
}

/// The first and the last bytes of a stream as text, without loss.
///
/// Bytes that are not UTF-8 are written `\xNN`, a backslash is written `\\`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Preview {
    /// The first 2 KiB of the kept bytes; all of them when there are no more than 4 KiB.
    pub head: String,
    /// The last 2 KiB of the kept bytes, when the head does not hold them all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
    /// Kept bytes between head and tail, not shown here.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_bytes: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

//! Whether the output of the command that decides holds what the task expects.

use std::io;
use std::path::Path;

use regex_lite::Regex;

use crate::fault::{Code, Fault};
use crate::normalise::Lines;
use crate::stream::StreamRecord;

/// Whether a stream holds what was expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputMatch {
    /// Nothing was expected of it.
    #[default]
    NotAsked,
    /// A line matches.
    Found,
    /// No line matches.
    Missing,
}

/// Looks for a line of a kept stream that matches the pattern.
pub fn search(run_dir: &Path, stream: &StreamRecord, pattern: Option<&str>) -> Result<OutputMatch, Fault> {
    let Some(pattern) = pattern else { return Ok(OutputMatch::NotAsked) };
    let regex = Regex::new(pattern).map_err(|error| {
        Fault::new(Code::SpecValue, format!("the pattern {pattern:?} is not a regular expression: {error}"))
    })?;
    find_line(run_dir, stream, &regex).map_err(|error| {
        Fault::new(Code::RecordUnreadable, format!("could not read {}: {error}", stream.path))
            .caused_by(error)
    })
}

fn find_line(run_dir: &Path, stream: &StreamRecord, regex: &Regex) -> io::Result<OutputMatch> {
    if stream.kept_bytes == 0 {
        return Ok(if regex.is_match("") { OutputMatch::Found } else { OutputMatch::Missing });
    }
    let mut lines = Lines::new(stream.open(run_dir)?);
    let mut line = Vec::new();
    while lines.next(&mut line)? {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
        if regex.is_match(&text) {
            return Ok(OutputMatch::Found);
        }
    }
    Ok(OutputMatch::Missing)
}

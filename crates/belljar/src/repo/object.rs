//! Objects read in one git process.

use std::path::Path;

use super::error::RepoError;
use super::git::{Call, Git};

/// What stands behind one name.
#[derive(Debug)]
pub(super) enum Found {
    Object { sha: String, bytes: Vec<u8> },
    Missing,
}

/// Reads objects by name, in order.
pub(super) fn read_all(git: &Git, git_dir: &Path, names: &[String]) -> Result<Vec<Found>, RepoError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let answer = git.run(Call::new(git_dir, &["cat-file", "--batch"]).input(names.join("\n") + "\n"))?;
    // A damaged pack makes git end early; what it did print is still told apart below.
    let mut rest = answer.stdout.as_slice();
    let mut found = Vec::with_capacity(names.len());
    while let Some(object) = next(&mut rest) {
        found.push(object);
    }
    if found.len() == names.len() {
        return Ok(found);
    }
    Err(RepoError::Git { operation: "read objects", message: answer.message() })
}

fn next(rest: &mut &[u8]) -> Option<Found> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let head = String::from_utf8_lossy(&rest[..end]).into_owned();
    let after = &rest[end + 1..];
    if head.ends_with(" missing") {
        *rest = after;
        return Some(Found::Missing);
    }
    let mut words = head.split(' ');
    let sha = words.next()?.to_owned();
    let size = words.nth(1)?.parse::<usize>().ok()?;
    let bytes = after.get(..size)?.to_vec();
    *rest = after.get(size + 1..)?;
    Some(Found::Object { sha, bytes })
}

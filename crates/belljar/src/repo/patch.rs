//! Patches laid over a checkout.

use std::fs;
use std::path::Path;

use super::Repositories;
use super::error::RepoError;
use super::git::{Call, GitLogs};
use super::scratch::Scratch;
use super::skeleton::{self, ObjectFormat, Shape};

/// Applies a patch to the files of a checkout.
pub(super) fn apply(
    repositories: &Repositories,
    checkout: &Path,
    patch: &Path,
    logs: &GitLogs,
) -> Result<(), RepoError> {
    let bytes = fs::read(patch).map_err(RepoError::io("read", patch))?;
    // An empty patch changes nothing; git calls it an error.
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return logs.append(b"", b"");
    }
    let checkout = std::path::absolute(checkout).map_err(RepoError::io("resolve", checkout))?;
    // The guest may have written to the checkout's .git, and git apply runs filters that a
    // configuration names: so it is given a repository of ours.
    let scratch = Scratch::new(&repositories.cache)?;
    skeleton::write(scratch.path(), ObjectFormat::Sha1, Shape::Bare, "ref: refs/heads/none")?;
    let call = Call::new(scratch.path(), &["apply", "--whitespace=nowarn", "-"]).in_tree(&checkout);
    let answer = repositories.logging(logs).git.run(call.configure("core.bare=false").input(bytes))?;
    if answer.success {
        return Ok(());
    }
    Err(RepoError::Patch { patch: patch.to_path_buf(), message: answer.message() })
}

//! The second step of a checkout: the files of the commit.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps, chmodat, utimensat};

use super::Repositories;
use super::commit::ResolvedCommit;
use super::error::RepoError;
use super::git::{Call, GitLogs};
use super::source::Source;
use super::walk::{Descend, Entry, Visitor, walk};

/// A work tree at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkout {
    /// The folder.
    pub path: PathBuf,
    /// The commit.
    pub sha: String,
    /// The number of files and links in it.
    pub files: u64,
}

/// Fills the work tree, and writes what happened to the logs.
pub(super) fn checkout(
    repositories: &Repositories,
    source: &Source,
    resolved: &ResolvedCommit,
    into: &Path,
    logs: &GitLogs,
) -> Result<Checkout, RepoError> {
    let filled = fill(&repositories.logging(logs), resolved, into);
    match &filled {
        Ok(_) => logs.append(format!("{source}: HEAD is at {}\n", resolved.sha).as_bytes(), b"")?,
        Err(error) => logs.append(b"", format!("belljar: {error}\n").as_bytes())?,
    }
    filled.map(|files| Checkout { path: into.to_path_buf(), sha: resolved.sha.clone(), files })
}

fn fill(repositories: &Repositories, resolved: &ResolvedCommit, into: &Path) -> Result<u64, RepoError> {
    let into = std::path::absolute(into).map_err(RepoError::io("resolve", into))?;
    let git_dir = into.join(".git");
    let read = Call::new(&git_dir, &["read-tree", "--reset", "-u"]).argument(&resolved.sha).in_tree(&into);
    repositories.git.run(read)?.demand("check out the commit")?;
    let mut settle = Settle { time: resolved.commit_time, files: 0 };
    walk(&into, &mut settle).map_err(RepoError::io("set the times of", &into))?;
    settle.set_time(rustix::fs::CWD, &into).map_err(RepoError::io("set the time of", &into))?;
    // The index learns the new times, so that git inside need not read every file again.
    let refresh = Call::new(&git_dir, &["update-index", "-q", "--refresh"]).in_tree(&into);
    repositories.git.run(refresh)?;
    Ok(settle.files)
}

/// Gives every file the commit's time, and a mode that does not depend on the caller's umask.
struct Settle {
    time: i64,
    files: u64,
}

impl Settle {
    fn set_time(
        &self,
        folder: impl std::os::fd::AsFd,
        name: impl rustix::path::Arg,
    ) -> rustix::io::Result<()> {
        let time = Timespec { tv_sec: self.time, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn set_mode(entry: &Entry<'_>) -> rustix::io::Result<()> {
        let executable = entry.kind == FileType::Directory || entry.mode.contains(Mode::XUSR);
        let wanted = Mode::from_raw_mode(if executable { 0o755 } else { 0o644 });
        if entry.kind == FileType::Symlink || entry.mode == wanted {
            return Ok(());
        }
        chmodat(entry.folder, entry.name, wanted, AtFlags::empty())
    }
}

impl Visitor for Settle {
    fn visit(&mut self, entry: &Entry<'_>) -> std::io::Result<Descend> {
        if entry.path == b".git" {
            return Ok(Descend::Past);
        }
        Settle::set_mode(entry)?;
        if entry.kind == FileType::Directory {
            return Ok(Descend::Into);
        }
        self.files += 1;
        self.set_time(entry.folder, entry.name)?;
        Ok(Descend::Past)
    }

    fn leave(&mut self, entry: &Entry<'_>) -> std::io::Result<()> {
        Ok(self.set_time(entry.folder, entry.name)?)
    }
}

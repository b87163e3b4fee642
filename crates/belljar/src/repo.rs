//! Repositories: where a task's code comes from, and how one commit of it becomes a work tree.
//!
//! Everything read here was written by strangers. Git is therefore run with a cleared environment
//! and with configuration of our own only; no configuration, hook, filter or attribute driver of a
//! repository ever takes effect on the host. A checkout holds one commit and its history, nothing later.

mod checkout;
mod commit;
mod directory;
mod error;
mod git;
mod history;
mod inspection;
mod local;
mod mirror;
mod name;
mod object;
mod patch;
mod redaction;
mod refs;
mod scratch;
mod skeleton;
mod source;
mod store;
mod tree;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use checkout::Checkout;
pub use commit::ResolvedCommit;
pub use error::RepoError;
pub use git::{GitEnvironment, GitLimits, GitLogs, PASSED_VARIABLES};
pub use history::Cloned;
pub use local::LocalRepository;
pub use source::{Remote, Source, SourceKind, Transport};
pub use tree::{EntryKind, TreeDigest, TreeEntry, TreeError, files_in_tree, tree_digest, tree_entries};

use crate::interrupt::Interrupt;
use git::Git;
use store::Store;

/// The door of this room: a cache folder, the git program and the caller's credentials.
#[derive(Debug, Clone)]
pub struct Repositories {
    cache: PathBuf,
    git: Git,
}

impl Repositories {
    /// Opens the cache below `cache` (its `git` folder), making it where it is missing.
    pub fn open(cache: &Path, environment: GitEnvironment) -> Result<Repositories, RepoError> {
        Repositories::open_with_limits(cache, environment, GitLimits::default())
    }

    /// The same, with other time limits for git.
    pub fn open_with_limits(
        cache: &Path,
        environment: GitEnvironment,
        limits: GitLimits,
    ) -> Result<Repositories, RepoError> {
        let cache = std::path::absolute(cache).map_err(RepoError::io("resolve", cache))?.join("git");
        let home = cache.join("home");
        store::private_folder(&cache)?;
        store::private_folder(&home)?;
        Ok(Repositories { cache, git: Git::new(environment, limits, home) })
    }

    /// The same repositories, whose git is stopped when somebody asks for it.
    #[must_use]
    pub fn interruptible(&self, interrupt: Arc<Interrupt>) -> Repositories {
        Repositories { cache: self.cache.clone(), git: self.git.interruptible(interrupt) }
    }

    /// Decides which commit a source and a pin mean; a full SHA that is in the cache costs no git process.
    ///
    /// For a plain directory the commit is a pure function of its content and the pin may be left out.
    pub fn resolve(&self, source: &Source, commit: Option<&str>) -> Result<ResolvedCommit, RepoError> {
        match source {
            Source::Directory(path) => directory::resolve(self, path, commit),
            Source::Repository(_) | Source::Bundle(_) | Source::Remote(_) => {
                let pin = commit.ok_or_else(|| RepoError::CommitMissing {
                    address: source.to_string(),
                    head: source.head(),
                })?;
                commit::resolve(self, source, &name::Name::parse(pin)?)
            }
        }
    }

    /// Makes `into/.git`: the commit and its history, no remote, no ref but a detached HEAD.
    ///
    /// `into` must be missing or empty.
    pub fn clone_history(
        &self,
        source: &Source,
        resolved: &ResolvedCommit,
        into: &Path,
        logs: &GitLogs,
    ) -> Result<Cloned, RepoError> {
        history::clone(self, source, resolved, into, logs)
    }

    /// Fills the work tree of a folder that [`Repositories::clone_history`] made.
    pub fn checkout(
        &self,
        source: &Source,
        resolved: &ResolvedCommit,
        into: &Path,
        logs: &GitLogs,
    ) -> Result<Checkout, RepoError> {
        checkout::checkout(self, source, resolved, into, logs)
    }

    /// Applies a patch file to a checkout, which the guest may have changed meanwhile.
    pub fn apply_patch(&self, checkout: &Path, patch: &Path, logs: &GitLogs) -> Result<(), RepoError> {
        patch::apply(self, checkout, patch, logs)
    }

    fn logging(&self, logs: &GitLogs) -> Repositories {
        Repositories { cache: self.cache.clone(), git: self.git.logging(logs) }
    }

    fn store(&self, key: &str) -> Store {
        Store::new(&self.cache, key)
    }
}

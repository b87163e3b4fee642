//! What can go wrong with a repository.

use std::io;
use std::path::{Path, PathBuf};

use crate::fault::{Code, Fault};

/// A failure of this room; addresses in it are already redacted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepoError {
    /// The address is not one of the known forms.
    #[error("the repository address {address:?} {reason}")]
    Address {
        /// The address, redacted.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address asks for a transport that is never used.
    #[error("the repository address {address:?} uses {transport:?}, which is not an allowed transport")]
    Transport {
        /// The address, redacted.
        address: String,
        /// The transport it names.
        transport: String,
    },
    /// A local source does not exist or cannot be read.
    #[error("the repository {} cannot be read", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A local source is there, and is no repository.
    #[error("{} is not usable as a repository: {reason}", path.display())]
    NotRepository {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A git source without a pin.
    #[error("repo.commit is missing for the git repository {address}")]
    CommitMissing {
        /// The address, redacted.
        address: String,
        /// The commit the source stands at now, where that is known.
        head: Option<String>,
    },
    /// The pin is not a name Belljar takes.
    #[error("repo.commit {commit:?} {reason}")]
    CommitName {
        /// The pin as written.
        commit: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The pin names nothing in the source.
    #[error("the commit {commit:?} is not in {address}")]
    CommitUnknown {
        /// The address, redacted.
        address: String,
        /// The pin.
        commit: String,
    },
    /// The pin names more than one commit.
    #[error("the commit {commit:?} is ambiguous in {address}: {}", candidates.join(", "))]
    CommitAmbiguous {
        /// The address, redacted.
        address: String,
        /// The pin.
        commit: String,
        /// What it could mean.
        candidates: Vec<String>,
    },
    /// The source uses something Belljar refuses.
    #[error("{address} is refused: {what}")]
    Refused {
        /// The address, redacted.
        address: String,
        /// What is refused.
        what: String,
        /// What to do instead.
        remedy: String,
    },
    /// A fetch failed.
    #[error("failed to fetch {address}: {message}")]
    Unreachable {
        /// The address, redacted.
        address: String,
        /// Git's own words.
        message: String,
    },
    /// A fetch was stopped by the clock.
    #[error("fetching {address} was stopped after {seconds} s")]
    FetchTimeout {
        /// The address, redacted.
        address: String,
        /// The limit.
        seconds: u64,
    },
    /// A plain directory is not what was pinned.
    #[error("the content of {} is commit {found}, pinned was {pinned}", path.display())]
    Drift {
        /// The directory.
        path: PathBuf,
        /// The pin.
        pinned: String,
        /// The commit its content makes now.
        found: String,
    },
    /// The git program could not be started.
    #[error("failed to start {}", program.display())]
    GitStart {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody asked for the end while git ran.
    #[error("the work of git was interrupted")]
    Interrupted,
    /// Git ran and failed.
    #[error("git failed to {operation}: {message}")]
    Git {
        /// What it was asked to do.
        operation: &'static str,
        /// Its own words.
        message: String,
    },
    /// A patch does not apply.
    #[error("the patch {} does not apply: {message}", patch.display())]
    Patch {
        /// The patch file.
        patch: PathBuf,
        /// Git's own words.
        message: String,
    },
    /// A file operation failed.
    #[error("failed to {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl RepoError {
    /// Turns an I/O error into ours, for `map_err`.
    pub(super) fn io<E: Into<io::Error>>(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> RepoError {
        let path = path.to_path_buf();
        move |source| RepoError::Io { operation, path, source: source.into() }
    }

    /// The stable code of this failure.
    pub fn code(&self) -> Code {
        match self {
            RepoError::Address { .. } | RepoError::Unreadable { .. } | RepoError::NotRepository { .. } => {
                Code::RepoSource
            }
            RepoError::Transport { .. }
            | RepoError::CommitName { .. }
            | RepoError::CommitAmbiguous { .. }
            | RepoError::Refused { .. } => Code::RepoRefused,
            RepoError::CommitMissing { .. } => Code::RepoCommitMissing,
            RepoError::CommitUnknown { .. } => Code::RepoCommitUnknown,
            RepoError::Unreachable { .. } | RepoError::FetchTimeout { .. } => Code::RepoUnreachable,
            RepoError::Drift { .. } => Code::RepoDrift,
            RepoError::Interrupted => Code::Interrupted,
            RepoError::Patch { .. } => Code::RepoPatch,
            RepoError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => Code::DiskFull,
            RepoError::GitStart { .. } | RepoError::Git { .. } | RepoError::Io { .. } => Code::RepoFailed,
        }
    }

    /// What to do next, where this error knows better than the catalogue.
    fn advice(&self) -> Option<String> {
        match self {
            RepoError::Transport { .. } => Some("use https, ssh, git@host:path, http, git or a path".into()),
            RepoError::CommitMissing { head: Some(sha), .. } => {
                Some(format!("pin what the source stands at now (git rev-parse HEAD): commit: {sha}"))
            }
            RepoError::CommitName { .. } => {
                Some("give a full SHA (git rev-parse HEAD), an abbreviated one, a tag or a branch".into())
            }
            RepoError::CommitAmbiguous { .. } => Some("give the full SHA".into()),
            RepoError::Refused { remedy, .. } => Some(remedy.clone()),
            RepoError::FetchTimeout { .. } => {
                Some("try again; what is slow is the network or the server".into())
            }
            RepoError::Drift { found, .. } => {
                Some(format!("restore the content, or pin what is there now: commit: {found}"))
            }
            RepoError::GitStart { .. } => Some("install git, or put it on PATH".into()),
            RepoError::Address { .. }
            | RepoError::Unreadable { .. }
            | RepoError::NotRepository { .. }
            | RepoError::CommitMissing { head: None, .. }
            | RepoError::CommitUnknown { .. }
            | RepoError::Unreachable { .. }
            | RepoError::Interrupted
            | RepoError::Git { .. }
            | RepoError::Patch { .. }
            | RepoError::Io { .. } => None,
        }
    }
}

impl From<RepoError> for Fault {
    fn from(error: RepoError) -> Fault {
        let code = error.code();
        let hint = error.advice().unwrap_or_else(|| code.remedy().to_owned());
        let message = match &error {
            RepoError::Unreadable { source, .. }
            | RepoError::GitStart { source, .. }
            | RepoError::Io { source, .. } => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        Fault::new(code, message).hint(hint).caused_by(error)
    }
}

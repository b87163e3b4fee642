//! A git repository on this machine, seen only as objects and refs.
//!
//! Its configuration is never given to git: Belljar's own empty repository borrows the objects and
//! reads the refs. So nothing that a configuration can start (hooks, filters, helpers, lazy fetches)
//! exists, and git's ownership check has nothing to protect.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::RepoError;
use super::refs;

/// Where the parts of a local repository are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRepository {
    path: PathBuf,
    git_dir: PathBuf,
    common_dir: PathBuf,
}

impl LocalRepository {
    /// The folder as it was given, made absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder with objects and refs.
    pub(super) fn common_dir(&self) -> &Path {
        &self.common_dir
    }

    /// The object store to borrow from.
    pub(super) fn objects(&self) -> PathBuf {
        self.common_dir.join("objects")
    }

    /// The commit HEAD stands at.
    pub(super) fn head(&self) -> Option<String> {
        refs::head(&self.git_dir, &self.common_dir)
    }

    /// Finds the repository in a folder; nothing where the folder is a plain directory.
    pub(super) fn open(path: &Path) -> Result<Option<LocalRepository>, RepoError> {
        let inner = path.join(".git");
        let repository = match fs::symlink_metadata(&inner) {
            Ok(metadata) if metadata.is_dir() => LocalRepository::at(path, &inner, &inner),
            Ok(metadata) if metadata.is_file() => linked_worktree(path, &inner)?,
            Ok(_) => return Err(unusable(path, "its .git is neither a folder nor a file")),
            Err(_) if looks_bare(path) => LocalRepository::at(path, path, path),
            Err(_) => return Ok(None),
        };
        repository.check().map(|()| Some(repository))
    }

    fn at(path: &Path, git_dir: &Path, common_dir: &Path) -> LocalRepository {
        LocalRepository {
            path: path.to_path_buf(),
            git_dir: git_dir.to_path_buf(),
            common_dir: common_dir.to_path_buf(),
        }
    }

    fn check(&self) -> Result<(), RepoError> {
        if !looks_bare(&self.common_dir) {
            return Err(unusable(&self.path, "its .git has no HEAD, objects and refs"));
        }
        fs::read_dir(self.objects())
            .map_err(|source| RepoError::Unreadable { path: self.objects(), source })?;
        self.check_borrowing()
    }

    // Objects borrowed from elsewhere could be another repository of the caller, chosen by a stranger.
    fn check_borrowing(&self) -> Result<(), RepoError> {
        let objects = self.objects();
        let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let linked = ["", "pack", "info"].iter().any(|part| is_link(objects.join(part).as_path()))
            || is_link(&self.common_dir.join("objects"));
        let alternates = ["info/alternates", "info/http-alternates"];
        if linked || alternates.iter().any(|name| fs::symlink_metadata(objects.join(name)).is_ok()) {
            return Err(RepoError::Refused {
                address: self.path.display().to_string(),
                what: "it borrows objects from another folder (objects/info/alternates or a link)".into(),
                remedy: "copy the objects in: git repack -a -d, then remove objects/info/alternates".into(),
            });
        }
        Ok(())
    }
}

fn looks_bare(path: &Path) -> bool {
    path.join("HEAD").symlink_metadata().is_ok()
        && path.join("objects").is_dir()
        && path.join("refs").is_dir()
}

fn unusable(path: &Path, reason: &str) -> RepoError {
    RepoError::NotRepository { path: path.to_path_buf(), reason: reason.into() }
}

// A .git file can point anywhere. A worktree that git made is also named by the repository it points to.
fn linked_worktree(path: &Path, inner: &Path) -> Result<LocalRepository, RepoError> {
    let git_dir = read_line(inner)
        .and_then(|line| line.strip_prefix("gitdir: ").map(PathBuf::from))
        .and_then(|target| fs::canonicalize(path.join(target)).ok())
        .ok_or_else(|| unusable(path, "its .git file points to nothing"))?;
    let back = read_line(&git_dir.join("gitdir"))
        .and_then(|target| fs::canonicalize(git_dir.join(target)).ok())
        .filter(|target| fs::canonicalize(inner).is_ok_and(|inner| inner == *target));
    let common_dir = read_line(&git_dir.join("commondir"))
        .and_then(|target| fs::canonicalize(git_dir.join(target)).ok())
        .filter(|common| git_dir.starts_with(common.join("worktrees")));
    match (back, common_dir) {
        (Some(_), Some(common_dir)) => Ok(LocalRepository::at(path, &git_dir, &common_dir)),
        _ => Err(RepoError::Refused {
            address: path.display().to_string(),
            what: "its .git file points to a repository that does not know this worktree".into(),
            remedy: format!("give that repository itself as the address: {}", git_dir.display()),
        }),
    }
}

fn read_line(path: &Path) -> Option<String> {
    refs::read_small(path).map(|text| text.trim_end_matches(['\n', '\r']).to_owned())
}

//! The first step of a checkout: a `.git` that holds one commit and its history.

use std::fs;
use std::path::{Path, PathBuf};

use super::Repositories;
use super::commit::ResolvedCommit;
use super::directory;
use super::error::RepoError;
use super::git::{Call, Git, GitLogs};
use super::mirror::{self, Mirror};
use super::name::Name;
use super::scratch::Scratch;
use super::skeleton::{self, ObjectFormat, Shape};
use super::source::{Source, SourceKind};
use super::store::{Pack, Store};

/// A folder with a `.git` and no files yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cloned {
    /// The folder.
    pub path: PathBuf,
    /// The commit its HEAD stands at.
    pub sha: String,
}

/// Makes `into/.git`, and writes what happened to the logs.
pub(super) fn clone(
    repositories: &Repositories,
    source: &Source,
    resolved: &ResolvedCommit,
    into: &Path,
    logs: &GitLogs,
) -> Result<Cloned, RepoError> {
    let repositories = repositories.logging(logs);
    let made = make(&repositories, source, resolved, into);
    match &made {
        Ok(_) => {
            logs.append(format!("{source}: commit {} and its history\n", resolved.sha).as_bytes(), b"")?
        }
        Err(error) => logs.append(b"", format!("belljar: {error}\n").as_bytes())?,
    }
    made.map(|()| Cloned { path: into.to_path_buf(), sha: resolved.sha.clone() })
}

fn make(
    repositories: &Repositories,
    source: &Source,
    resolved: &ResolvedCommit,
    into: &Path,
) -> Result<(), RepoError> {
    let git_dir = into.join(".git");
    demand_empty(into)?;
    skeleton::write(&git_dir, ObjectFormat::of_sha(&resolved.sha), Shape::WorkTree, &resolved.sha)?;
    if resolved.kind == SourceKind::Directory {
        skeleton::keep_bytes(&git_dir)?;
    }
    let pack = provide(repositories, source, resolved, &git_dir.join("objects"))?;
    match pack.shallow {
        Some(shallow) => skeleton::write_file(&git_dir.join("shallow"), shallow.as_bytes()),
        None => Ok(()),
    }
}

fn demand_empty(into: &Path) -> Result<(), RepoError> {
    fs::create_dir_all(into).map_err(RepoError::io("make", into))?;
    let mut entries = fs::read_dir(into).map_err(RepoError::io("read", into))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => {
            let full = std::io::Error::from(std::io::ErrorKind::DirectoryNotEmpty);
            Err(RepoError::io("clone into", into)(full))
        }
    }
}

fn provide(
    repositories: &Repositories,
    source: &Source,
    resolved: &ResolvedCommit,
    objects: &Path,
) -> Result<Pack, RepoError> {
    let store = store_of(repositories, source, resolved)?;
    let copied = {
        let _held = store.lock_shared()?;
        store.copy_pack(&resolved.sha, objects)?
    };
    if let Some(pack) = copied {
        return Ok(pack);
    }
    build(repositories, source, resolved)?;
    let _held = store.lock_shared()?;
    store.copy_pack(&resolved.sha, objects)?.ok_or_else(|| RepoError::Git {
        operation: "pack the history",
        message: "the pack in the cache is not the one that was written".into(),
    })
}

fn store_of(
    repositories: &Repositories,
    source: &Source,
    resolved: &ResolvedCommit,
) -> Result<Store, RepoError> {
    match source {
        Source::Directory(path) => Ok(directory::store(repositories, path)),
        _ => Ok(Mirror::of(repositories, source, &Name::Sha(resolved.sha.clone()))?.store().clone()),
    }
}

fn build(repositories: &Repositories, source: &Source, resolved: &ResolvedCommit) -> Result<(), RepoError> {
    if let Source::Directory(path) = source {
        return directory::rebuild(repositories, path, &resolved.sha);
    }
    let name = Name::Sha(resolved.sha.clone());
    let mirror = Mirror::of(repositories, source, &name)?;
    let (mirror, held, _) = mirror::find(repositories, mirror, source, &name)?;
    drop(held);
    let held = mirror.store().lock_exclusive()?;
    let packed = pack(&repositories.git, mirror.store(), mirror.git_dir(), &resolved.sha, mirror.shallow());
    match packed {
        Ok(()) => Ok(()),
        // A local repository is only borrowed: its damage is its own.
        Err(error) if matches!(source, Source::Repository(_)) => Err(error),
        Err(_) => {
            let mirror = mirror::renew(repositories, mirror, source, &name, &held)?;
            pack(&repositories.git, mirror.store(), mirror.git_dir(), &resolved.sha, mirror.shallow())
        }
    }
}

/// Packs one commit and its history into the store. Needs the exclusive lock.
pub(super) fn pack(
    git: &Git,
    store: &Store,
    git_dir: &Path,
    sha: &str,
    shallow: Option<&str>,
) -> Result<(), RepoError> {
    let scratch = Scratch::new(store.cache())?;
    let stem = scratch.path().join("pack");
    // Deltas that are there are used again; looking for new ones costs more than it saves here.
    let options = ["pack-objects", "--quiet", "--revs", "--window=0", "--delta-base-offset"];
    let mut call = Call::new(git_dir, &options).input(format!("{sha}\n"));
    if shallow.is_some() {
        call = call.argument("--shallow");
    }
    let answer = git.run(call.argument(&stem))?.demand("pack the history")?;
    let name = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    store.take_pack(sha, &stem, &name, shallow.map(str::to_owned))
}

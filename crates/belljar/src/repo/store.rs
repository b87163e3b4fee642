//! The cache of one repository: a mirror, packs of single commits, and what is known of each commit.
//!
//! `<key>.git` is the mirror, `<key>.packs/<sha>.{pack,idx,pack.json,json}` the packs and facts,
//! `<key>.lock` the lock over both: shared to read, exclusive to write.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::RepoError;
use crate::digest;

/// Packs kept for one repository: this many, and beyond the newest no more than this many bytes.
const PACKS_KEPT: usize = 8;
const PACK_BYTES_KEPT: u64 = 2 << 30;

/// The cache entry of one source.
#[derive(Debug, Clone)]
pub(super) struct Store {
    cache: PathBuf,
    key: String,
}

/// What is known of a commit that passed inspection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) sha: String,
    pub(super) tree: String,
    pub(super) commit_time: i64,
}

/// A pack of one commit and its history, with the digests its copy must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pack {
    pub(super) name: String,
    pub(super) pack_sha256: String,
    pub(super) index_sha256: String,
    pub(super) shallow: Option<String>,
}

/// A held lock; dropping it lets go.
#[derive(Debug)]
pub(super) struct Held(File);

impl Held {
    /// Another handle on the same lock, for a child that must keep it while it lives.
    pub(super) fn share(&self) -> Result<File, RepoError> {
        self.0.try_clone().map_err(RepoError::io("share", Path::new("the cache lock")))
    }
}

impl Store {
    pub(super) fn new(cache: &Path, key: &str) -> Store {
        Store { cache: cache.to_path_buf(), key: digest::sha256(key.as_bytes()) }
    }

    pub(super) fn cache(&self) -> &Path {
        &self.cache
    }

    pub(super) fn mirror(&self) -> PathBuf {
        self.cache.join(format!("{}.git", self.key))
    }

    fn packs(&self) -> PathBuf {
        self.cache.join(format!("{}.packs", self.key))
    }

    fn part(&self, sha: &str, extension: &str) -> PathBuf {
        self.packs().join(format!("{sha}.{extension}"))
    }

    pub(super) fn lock_shared(&self) -> Result<Held, RepoError> {
        let (path, file) = self.lock_file()?;
        file.lock_shared().map_err(RepoError::io("lock", &path))?;
        Ok(Held(file))
    }

    pub(super) fn lock_exclusive(&self) -> Result<Held, RepoError> {
        let (path, file) = self.lock_file()?;
        file.lock().map_err(RepoError::io("lock", &path))?;
        Ok(Held(file))
    }

    fn lock_file(&self) -> Result<(PathBuf, File), RepoError> {
        let path = self.cache.join(format!("{}.lock", self.key));
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(RepoError::io("open", &path))?;
        Ok((path, file))
    }

    /// What is known of a commit. Files are replaced whole, so no lock is needed to read one.
    pub(super) fn facts(&self, sha: &str) -> Option<Facts> {
        read_json::<Facts>(&self.part(sha, "json")).filter(|facts| facts.sha == sha)
    }

    pub(super) fn save_facts(&self, facts: &Facts) -> Result<(), RepoError> {
        private_folder(&self.packs())?;
        write_json(&self.part(&facts.sha, "json"), facts)
    }

    /// Takes in a pack that git wrote to `<stem>-<name>.pack` and `.idx`. Needs the exclusive lock.
    pub(super) fn take_pack(
        &self,
        sha: &str,
        stem: &Path,
        name: &str,
        shallow: Option<String>,
    ) -> Result<(), RepoError> {
        private_folder(&self.packs())?;
        let mut digests = Vec::new();
        for extension in ["pack", "idx"] {
            let mut made = stem.as_os_str().to_owned();
            made.push(format!("-{name}.{extension}"));
            let made = PathBuf::from(made);
            digests.push(digest::sha256_file(&made).map_err(RepoError::io("read", &made))?);
            fs::rename(&made, self.part(sha, extension)).map_err(RepoError::io("move", &made))?;
        }
        let index_sha256 = digests.pop().unwrap_or_default();
        let pack_sha256 = digests.pop().unwrap_or_default();
        let pack = Pack { name: name.to_owned(), pack_sha256, index_sha256, shallow };
        write_json(&self.part(sha, "pack.json"), &pack)?;
        self.evict(sha);
        Ok(())
    }

    /// Copies the pack of a commit into an object store, or says that there is none that is whole.
    /// A copy, never a link: the guest may write to its own. Needs the shared lock.
    pub(super) fn copy_pack(&self, sha: &str, objects: &Path) -> Result<Option<Pack>, RepoError> {
        let Some(pack) = read_json::<Pack>(&self.part(sha, "pack.json")) else { return Ok(None) };
        let stem = objects.join("pack").join(format!("pack-{}", pack.name));
        for (extension, expected) in [("pack", &pack.pack_sha256), ("idx", &pack.index_sha256)] {
            let Ok(mut from) = File::open(self.part(sha, extension)) else { return Ok(None) };
            let target = stem.with_extension(extension);
            let mut to = File::create(&target).map_err(RepoError::io("make", &target))?;
            let copied =
                digest::copy_hashed(&mut from, &mut to).map_err(RepoError::io("copy to", &target))?;
            if copied != *expected {
                return Ok(None);
            }
        }
        self.touch(sha);
        Ok(Some(pack))
    }

    fn touch(&self, sha: &str) {
        let marked = File::options().append(true).open(self.part(sha, "pack.json"));
        marked.and_then(|file| file.set_modified(SystemTime::now())).ok();
    }

    // A reader holds its files open, so removing a pack under it does no harm.
    fn evict(&self, keep: &str) {
        let mut bytes = 0;
        for (number, sha) in self.packs_by_age().into_iter().filter(|sha| sha != keep).enumerate() {
            bytes += fs::metadata(self.part(&sha, "pack")).map_or(0, |metadata| metadata.len());
            if number + 1 >= PACKS_KEPT || bytes > PACK_BYTES_KEPT {
                for extension in ["pack.json", "pack", "idx"] {
                    fs::remove_file(self.part(&sha, extension)).ok();
                }
            }
        }
    }

    fn packs_by_age(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.packs()) else { return Vec::new() };
        let used = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let sha = entry.file_name().to_str()?.strip_suffix(".pack.json")?.to_owned();
            Some((entry.metadata().ok()?.modified().ok()?, sha))
        };
        let mut found: Vec<_> = entries.filter_map(used).collect();
        found.sort_by(|left, right| right.cmp(left));
        found.into_iter().map(|(_, sha)| sha).collect()
    }
}

/// A folder only the caller can enter: private repositories are kept here.
pub(super) fn private_folder(path: &Path) -> Result<(), RepoError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(RepoError::io("make", path))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), RepoError> {
    let text = serde_json::to_vec(value).map_err(io::Error::from).map_err(RepoError::io("encode", path))?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}-{:?}", std::process::id(), std::thread::current().id()));
    let temporary = PathBuf::from(temporary);
    let written = File::create(&temporary).and_then(|mut file| file.write_all(&text));
    written.and_then(|()| fs::rename(&temporary, path)).map_err(RepoError::io("write", path))
}

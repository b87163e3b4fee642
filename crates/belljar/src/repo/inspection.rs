//! What a commit's tree holds that Belljar refuses: submodules, and files kept in Git LFS.

use std::path::Path;

use super::error::RepoError;
use super::git::{Call, Git};
use super::object::{Found, read_all};

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1";
const POINTER_SIZES: std::ops::RangeInclusive<u64> = 60..=1024;

struct Blob {
    sha: String,
    size: u64,
    path: String,
}

/// Refuses a tree whose files would not be what the author meant.
pub(super) fn inspect(git: &Git, git_dir: &Path, sha: &str, address: &str) -> Result<(), RepoError> {
    let call = Call::new(git_dir, &["ls-tree", "-r", "-l", "-z", "--full-tree"]).argument(sha);
    let answer = git.run(call)?.demand("list the tree")?;
    let mut blobs = Vec::new();
    for record in answer.stdout.split(|byte| *byte == 0).filter(|record| !record.is_empty()) {
        match parse(record) {
            Some(Entry::Blob(blob)) => blobs.push(blob),
            Some(Entry::Submodule(path)) => return Err(submodule(address, &path)),
            None => {}
        }
    }
    if uses_lfs(git, git_dir, &blobs)? { refuse_pointers(git, git_dir, &blobs, address) } else { Ok(()) }
}

enum Entry {
    Blob(Blob),
    Submodule(String),
}

fn parse(record: &[u8]) -> Option<Entry> {
    let text = String::from_utf8_lossy(record);
    let (facts, path) = text.split_once('\t')?;
    let words: Vec<&str> = facts.split_whitespace().collect();
    match words.as_slice() {
        [_, "commit", ..] => Some(Entry::Submodule(path.to_owned())),
        [_, "blob", sha, size] => {
            let size = size.parse().ok()?;
            Some(Entry::Blob(Blob { sha: (*sha).to_owned(), size, path: path.to_owned() }))
        }
        _ => None,
    }
}

fn submodule(address: &str, path: &str) -> RepoError {
    RepoError::Refused {
        address: address.to_owned(),
        what: format!("it has a submodule at {path:?}, which is not fetched"),
        remedy: "use a repository without submodules, or a plain directory with their files in it".into(),
    }
}

fn uses_lfs(git: &Git, git_dir: &Path, blobs: &[Blob]) -> Result<bool, RepoError> {
    let is_attributes = |path: &str| path == ".gitattributes" || path.ends_with("/.gitattributes");
    let wanted: Vec<String> =
        blobs.iter().filter(|blob| is_attributes(&blob.path)).map(|blob| blob.sha.clone()).collect();
    let mentions = |object: &Found| match object {
        Found::Object { bytes, .. } => bytes.windows(10).any(|window| window == b"filter=lfs"),
        Found::Missing => false,
    };
    Ok(read_all(git, git_dir, &wanted)?.iter().any(mentions))
}

fn refuse_pointers(git: &Git, git_dir: &Path, blobs: &[Blob], address: &str) -> Result<(), RepoError> {
    let small: Vec<&Blob> = blobs.iter().filter(|blob| POINTER_SIZES.contains(&blob.size)).collect();
    let names: Vec<String> = small.iter().map(|blob| blob.sha.clone()).collect();
    let objects = read_all(git, git_dir, &names)?;
    let is_pointer =
        |object: &Found| matches!(object, Found::Object { bytes, .. } if bytes.starts_with(POINTER));
    match small.iter().zip(&objects).find(|(_, object)| is_pointer(object)) {
        None => Ok(()),
        Some((blob, _)) => Err(RepoError::Refused {
            address: address.to_owned(),
            what: format!("{:?} is kept in Git LFS; the repository holds only a pointer to it", blob.path),
            remedy: "pin a commit without LFS files, or a plain directory with the files in it".into(),
        }),
    }
}

//! Refs read without git, so that a repository's configuration is not needed to name a commit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

use super::name::is_full_sha;

const SMALL: u64 = 4096;
const PACKED_LIMIT: u64 = 256 << 20;
const INDIRECTIONS: usize = 5;

/// The object ids that a tag or branch of this name has, by full ref name.
pub(super) fn lookup(common_dir: &Path, name: &str) -> BTreeMap<String, String> {
    let candidates = if name.starts_with("refs/") {
        vec![name.to_owned()]
    } else {
        vec![format!("refs/tags/{name}"), format!("refs/heads/{name}")]
    };
    let found = |full: String| read(common_dir, common_dir, &full).map(|sha| (full, sha));
    candidates.into_iter().filter_map(found).collect()
}

/// The object id HEAD stands at.
pub(super) fn head(git_dir: &Path, common_dir: &Path) -> Option<String> {
    read(git_dir, common_dir, "HEAD")
}

/// Whether the refs are in a form that only git can read.
pub(super) fn uses_reftable(common_dir: &Path) -> bool {
    common_dir.join("reftable").is_dir()
}

fn read(git_dir: &Path, common_dir: &Path, name: &str) -> Option<String> {
    let mut name = name.to_owned();
    for _ in 0..INDIRECTIONS {
        let folder = if name.starts_with("refs/") { common_dir } else { git_dir };
        let Some(text) = read_small(&folder.join(&name)) else { return packed(common_dir, &name) };
        let text = text.trim();
        match text.strip_prefix("ref: ") {
            Some(target) if target.starts_with("refs/") && !target.contains("..") => {
                target.clone_into(&mut name)
            }
            Some(_) => return None,
            None => return is_full_sha(text).then(|| text.to_owned()),
        }
    }
    None
}

fn packed(common_dir: &Path, name: &str) -> Option<String> {
    let text = read_bounded(&common_dir.join("packed-refs"), PACKED_LIMIT)?;
    let entry = |line: &str| {
        let (sha, found) = line.split_once(' ')?;
        (found == name && is_full_sha(sha)).then(|| sha.to_owned())
    };
    text.lines().find_map(entry)
}

/// A small text file; never through a link at its end, never waiting on a fifo.
pub(super) fn read_small(path: &Path) -> Option<String> {
    read_bounded(path, SMALL)
}

pub(super) fn read_bounded(path: &Path, limit: u64) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

//! Copies out what the task asked to keep, from a workspace that the guest filled as it pleased.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::canonical::hexadecimal;
use crate::fault::{Code, Fault};
use crate::foreign::open_beneath;
use crate::record::CollectedFile;
use crate::repo::{EntryKind, tree_entries};
use crate::rundir::unwritable;

/// The most bytes that one run keeps.
const LIMIT: u64 = 1 << 30;

/// Copies every file of `workspace` that matches a pattern into `collected`; links are never followed.
pub(crate) fn collect(
    workspace: &Path,
    collected: &Path,
    patterns: &[String],
) -> Result<Vec<CollectedFile>, Fault> {
    let entries = tree_entries(workspace)
        .map_err(|error| Fault::new(Code::SandboxFailed, format!("could not read the workspace: {error}")))?;
    let mut files = Vec::new();
    let mut left = LIMIT;
    for entry in entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File | EntryKind::Executable))
    {
        let Some(path) = entry.path.to_str() else { continue };
        if patterns.iter().any(|pattern| matches(pattern, path)) {
            let file = copy(workspace, collected, path, left)?;
            left -= file.bytes;
            files.push(file);
        }
    }
    Ok(files)
}

fn copy(workspace: &Path, collected: &Path, path: &str, left: u64) -> Result<CollectedFile, Fault> {
    let unreadable =
        |error: io::Error| Fault::new(Code::SandboxFailed, format!("could not collect {path}: {error}"));
    let mut from = open_beneath(workspace, path).map_err(unreadable)?.take(left + 1);
    let target = collected.join(path);
    let parent = target.parent().unwrap_or(collected);
    fs::create_dir_all(parent).map_err(|error| unwritable(parent, error))?;
    let mut to = File::create_new(&target).map_err(|error| unwritable(&target, error))?;
    let (mut hasher, mut bytes, mut buffer) = (Sha256::new(), 0_u64, vec![0_u8; 1 << 16]);
    loop {
        let count = from.read(&mut buffer).map_err(unreadable)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        if bytes > left {
            return Err(Fault::new(
                Code::SandboxFailed,
                format!("{path} exceeds the {LIMIT} bytes a run keeps"),
            ));
        }
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count]).map_err(|error| unwritable(&target, error))?;
    }
    let sha256 = hexadecimal(&hasher.finalize());
    Ok(CollectedFile { path: format!("collected/{path}"), bytes, sha256 })
}

/// Whether a path matches a pattern of `*`, `?` and `**`; a pattern that names a folder takes all below it.
fn matches(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let path: Vec<&str> = path.split('/').collect();
    match_parts(&pattern, &path)
}

fn match_parts(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, _) => true,
        (Some((&"**", rest)), _) => (0..=path.len()).any(|skip| match_parts(rest, &path[skip..])),
        (Some((first, rest)), Some((name, below))) => {
            match_name(first.as_bytes(), name.as_bytes()) && match_parts(rest, below)
        }
        (Some(_), None) => false,
    }
}

/// Linear in practice: on a mismatch only the last star is tried again.
fn match_name(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut seen, mut star) = (0, 0, None);
    while seen < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => match star {
                Some((place, taken)) => {
                    star = Some((place, taken + 1));
                    at = place + 1;
                    seen = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_people_expect() {
        for (pattern, path, expected) in [
            ("report.xml", "report.xml", true),
            ("report.xml", "a/report.xml", false),
            ("**/report.xml", "a/b/report.xml", true),
            ("**/report.xml", "report.xml", true),
            ("*.xml", "a.xml", true),
            ("*.xml", "a/b.xml", false),
            ("out", "out/deep/file", true),
            ("out/*", "out/deep/file", true),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXbYY", false),
            ("?.txt", "ab.txt", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn links_are_not_followed_and_matches_are_copied() {
        let base = tempfile::tempdir().unwrap();
        let (workspace, collected) = (base.path().join("w"), base.path().join("c"));
        fs::create_dir_all(workspace.join("out/deep")).unwrap();
        fs::create_dir(&collected).unwrap();
        fs::write(base.path().join("secret"), "s").unwrap();
        fs::write(workspace.join("out/deep/a.txt"), "hello").unwrap();
        std::os::unix::fs::symlink(base.path().join("secret"), workspace.join("out/link.txt")).unwrap();
        std::os::unix::fs::symlink(base.path(), workspace.join("out/dir")).unwrap();
        let files = collect(&workspace, &collected, &["out/**".to_owned()]).unwrap();
        assert_eq!(files.len(), 1);
        assert_eq!((files[0].path.as_str(), files[0].bytes), ("collected/out/deep/a.txt", 5));
    }
}

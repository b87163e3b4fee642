//! Copies out what the task asked to keep, from a workspace that the guest filled as it pleased.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::digest::hexadecimal;
use crate::fault::{Code, Fault};
use crate::foreign::open_beneath;
use crate::record::CollectedFile;
use crate::repo::files_in_tree;
use crate::rundir::unwritable;

/// The most bytes that one run keeps.
const MOST_BYTES: u64 = 1 << 30;
/// The most files that one run keeps.
const MOST_FILES: usize = 10_000;

/// What was kept, and what was not and why.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) files: Vec<CollectedFile>,
    pub(crate) refused: Vec<String>,
}

/// Copies every file of `workspace` that matches a pattern into `collected`; links are never followed.
///
/// What the guest made too large, too many or unreadable is its own affair and left out, with a word about it.
pub(crate) fn collect(workspace: &Path, collected: &Path, patterns: &[String]) -> Result<Collected, Fault> {
    let mut wanted =
        |path: &Path| path.to_str().is_some_and(|path| patterns.iter().any(|pattern| matches(pattern, path)));
    let paths = files_in_tree(workspace, MOST_FILES + 1, &mut wanted)
        .map_err(|error| Fault::new(Code::SandboxFailed, format!("could not read the workspace: {error}")))?;
    let mut kept = Collected::default();
    if paths.len() > MOST_FILES {
        kept.refused.push(format!("more than {MOST_FILES} files match; the first are kept"));
    }
    let mut left = MOST_BYTES;
    for path in paths.iter().take(MOST_FILES).filter_map(|path| path.to_str()) {
        match copy(workspace, collected, path, left) {
            Ok(file) => {
                left -= file.bytes;
                kept.files.push(file);
            }
            Err(Copy::Guest(reason)) => kept.refused.push(format!("{path}: {reason}")),
            Err(Copy::Machine(fault)) => return Err(fault),
        }
    }
    Ok(kept)
}

/// Why a file was not copied.
enum Copy {
    /// What the guest made cannot be kept.
    Guest(String),
    /// The machine failed.
    Machine(Fault),
}

fn copy(workspace: &Path, collected: &Path, path: &str, left: u64) -> Result<CollectedFile, Copy> {
    let unreadable = |error: io::Error| Copy::Guest(error.to_string());
    let mut from = open_beneath(workspace, path).map_err(unreadable)?;
    if from.metadata().map_err(unreadable)?.len() > left {
        return Err(Copy::Guest(format!("it exceeds the {MOST_BYTES} bytes that a run keeps")));
    }
    let target = collected.join(path);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidFilename => Copy::Guest("its path is too long".to_owned()),
        _ => Copy::Machine(unwritable(&target, error)),
    };
    fs::create_dir_all(target.parent().unwrap_or(collected)).map_err(failed)?;
    let mut to = File::create_new(&target).map_err(failed)?;
    let (mut hasher, mut bytes, mut buffer) = (Sha256::new(), 0_u64, vec![0_u8; 1 << 16]);
    let mut bounded = (&mut from).take(left);
    loop {
        let count = bounded.read(&mut buffer).map_err(unreadable)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count]).map_err(failed)?;
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

/// Keeps every place in the path that the pattern so far can have reached, so the work is the product of their
/// lengths whatever the guest calls its folders.
fn match_parts(pattern: &[&str], path: &[&str]) -> bool {
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    for part in pattern {
        let mut next = vec![false; path.len() + 1];
        for at in (0..=path.len()).filter(|at| reached[*at]) {
            match path.get(at) {
                _ if *part == "**" => next[at..].fill(true),
                Some(name) if match_name(part.as_bytes(), name.as_bytes()) => next[at + 1] = true,
                Some(_) | None => {}
            }
        }
        reached = next;
    }
    reached.contains(&true)
}

/// Linear in practice: on a mismatch only the last star is tried again.
pub(crate) fn match_name(pattern: &[u8], name: &[u8]) -> bool {
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
            ("a/**/b/**/c", "a/x/b/y/z/c", true),
            ("a/**/b/**/c", "a/x/y/z/c", false),
            ("**", "a/b", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_time() {
        let path = vec!["x"; 240].join("/");
        let pattern = ["**/x"; 20].join("/") + "/**/*.xml";
        assert!((0..100).all(|_| !matches(&pattern, &path)));
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
        let long = ["d".repeat(200).as_str(); 30].join("/");
        fs::create_dir_all(workspace.join("out/big")).unwrap();
        File::create(workspace.join("out/big/sparse")).unwrap().set_len(MOST_BYTES + 1).unwrap();
        deep_file(&workspace, &long);
        let Collected { files, refused } = collect(&workspace, &collected, &["out".to_owned()]).unwrap();
        assert_eq!(files.len(), 1, "{files:?}");
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert_eq!((files[0].path.as_str(), files[0].bytes), ("collected/out/deep/a.txt", 5));
    }

    /// A file whose path is longer than any call takes.
    fn deep_file(workspace: &Path, path: &str) {
        use rustix::fs::{Mode, OFlags, mkdirat, openat};
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(rustix::fs::CWD, workspace.join("out"), flags, Mode::empty()).unwrap();
        for part in path.split('/') {
            mkdirat(&at, part, Mode::RWXU).unwrap();
            at = openat(&at, part, flags, Mode::empty()).unwrap();
        }
        openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
    }
}

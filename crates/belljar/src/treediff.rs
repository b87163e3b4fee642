//! The first files in which two written trees differ, `.git` apart; no link is followed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::capture::{escape, plain};
use crate::compare::Difference;
use crate::foreign::open_plain;

/// How many files are named.
const NAMED: usize = 5;
/// How many bytes of a file are compared: a sparse one can be larger than anybody can read.
const READ: u64 = 1 << 30;

/// The first differing files of two trees, in the order of a walk by name.
pub fn first_differences(a: &Path, b: &Path) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let mut inner = Vec::new();
        for name in names(&a.join(&folder), &b.join(&folder)) {
            let relative = folder.join(name);
            if relative == Path::new(".git") {
                continue;
            }
            match pair(&a.join(&relative), &b.join(&relative)) {
                Pair::Folders => inner.push(relative),
                Pair::Same => {}
                Pair::Different { a, b } => found.push(difference(&relative, a, b)),
            }
            if found.len() == NAMED {
                return found;
            }
        }
        folders.extend(inner.into_iter().rev());
    }
    found
}

fn difference(relative: &Path, a: String, b: String) -> Difference {
    let name = plain(&escape(relative.as_os_str().as_encoded_bytes()));
    Difference { what: format!("file {name}"), a, b, note: None }
}

fn names(a: &Path, b: &Path) -> BTreeSet<OsString> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    entries(a).chain(entries(b)).map(|entry| entry.file_name()).collect()
}

/// What two entries of the same name are to each other.
enum Pair {
    Folders,
    Same,
    Different { a: String, b: String },
}

fn pair(a: &Path, b: &Path) -> Pair {
    let (left, right) = (a.symlink_metadata().ok(), b.symlink_metadata().ok());
    let described = (describe(a, left.as_ref()), describe(b, right.as_ref()));
    if described.0 != described.1 {
        return Pair::Different { a: described.0, b: described.1 };
    }
    match left {
        Some(meta) if meta.is_dir() => Pair::Folders,
        Some(meta) if meta.is_file() => contents(a, b),
        Some(_) | None => Pair::Same,
    }
}

fn describe(path: &Path, meta: Option<&Metadata>) -> String {
    let Some(meta) = meta else { return "absent".to_owned() };
    let kind = meta.file_type();
    if kind.is_file() {
        let executable = if meta.mode() & 0o111 == 0 { "" } else { ", executable" };
        return format!("file, {} bytes{executable}", meta.len());
    }
    if kind.is_symlink() {
        let target = fs::read_link(path).map(|target| escape(target.as_os_str().as_encoded_bytes()));
        return format!("link to {}", plain(&target.unwrap_or_default()));
    }
    let word = match (kind.is_dir(), kind.is_fifo(), kind.is_socket()) {
        (true, _, _) => "folder",
        (_, true, _) => "pipe",
        (_, _, true) => "socket",
        (false, false, false) => "device",
    };
    word.to_owned()
}

fn contents(a: &Path, b: &Path) -> Pair {
    match first_differing_byte(a, b) {
        Ok(None) => Pair::Same,
        Ok(Some(at)) => {
            let words = format!("differs from byte {at}");
            Pair::Different { a: words.clone(), b: words }
        }
        Err(error) => Pair::Different { a: error.to_string(), b: error.to_string() },
    }
}

fn first_differing_byte(a: &Path, b: &Path) -> io::Result<Option<u64>> {
    let mut left = io::BufReader::new(open_plain(a)?.take(READ)).bytes();
    let mut right = io::BufReader::new(open_plain(b)?.take(READ)).bytes();
    let mut at = 0;
    loop {
        match (left.next().transpose()?, right.next().transpose()?) {
            (None, None) => return Ok(None),
            (left, right) if left != right => return Ok(Some(at)),
            (Some(_) | None, Some(_) | None) => at += 1,
        }
    }
}

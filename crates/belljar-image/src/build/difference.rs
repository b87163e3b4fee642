//! What differs first between two trees.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The first path, in the order of names, that is not the same in both, and what about it is not.
pub(super) fn first(trees: [&Path; 2]) -> io::Result<Option<(PathBuf, &'static str)>> {
    below(trees, Path::new(""))
}

fn below(trees: [&Path; 2], folder: &Path) -> io::Result<Option<(PathBuf, &'static str)>> {
    let mut names = BTreeSet::new();
    for tree in trees {
        for entry in fs::read_dir(tree.join(folder))? {
            names.insert(entry?.file_name());
        }
    }
    for name in names {
        let path = folder.join(name);
        let [Ok(one), Ok(other)] = trees.map(|tree| fs::symlink_metadata(tree.join(&path))) else {
            return Ok(Some((path, "is in only one of them")));
        };
        if let Some(what) = compare(trees, &path, &one, &other)? {
            return Ok(Some((path, what)));
        }
        if one.is_dir() {
            match below(trees, &path)? {
                None => {}
                found => return Ok(found),
            }
        }
    }
    Ok(None)
}

fn compare(
    trees: [&Path; 2],
    path: &Path,
    one: &Metadata,
    other: &Metadata,
) -> io::Result<Option<&'static str>> {
    let both = |of: fn(&Metadata) -> u32| of(one) == of(other);
    if !both(MetadataExt::mode) {
        return Ok(Some("has another type or mode"));
    }
    if !both(MetadataExt::uid) || !both(MetadataExt::gid) {
        return Ok(Some("has another owner"));
    }
    let same = if one.is_symlink() {
        fs::read_link(trees[0].join(path))? == fs::read_link(trees[1].join(path))?
    } else if one.is_file() {
        one.len() == other.len() && same_bytes(trees.map(|tree| tree.join(path)))?
    } else {
        true
    };
    Ok((!same).then_some("has other content"))
}

fn same_bytes(paths: [PathBuf; 2]) -> io::Result<bool> {
    let [one, other] = paths;
    let (mut one, mut other) =
        (io::BufReader::new(File::open(one)?).bytes(), io::BufReader::new(File::open(other)?).bytes());
    loop {
        match (one.next().transpose()?, other.next().transpose()?) {
            (None, None) => return Ok(true),
            (one, other) if one != other => return Ok(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let trees = ["one", "other"].map(|name| folder.path().join(name));
        for tree in &trees {
            fs::create_dir_all(tree.join("a/b")).unwrap();
            fs::write(tree.join("a/b/c"), "same").unwrap();
        }
        let trees = trees.each_ref().map(PathBuf::as_path);
        assert_eq!(first(trees).unwrap(), None);
        fs::write(trees[0].join("z"), "").unwrap();
        assert_eq!(first(trees).unwrap(), Some(("z".into(), "is in only one of them")));
        fs::write(trees[0].join("a/b/c"), "SAME").unwrap();
        assert_eq!(first(trees).unwrap(), Some(("a/b/c".into(), "has other content")));
    }
}

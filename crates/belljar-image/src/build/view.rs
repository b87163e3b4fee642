//! What a container of some layers would see, read without mounting anything.
//!
//! Layers come from strangers and a context changes while it is read, so no link is ever followed by the system: each
//! is read here and stays inside, and files are opened in a way that refuses links.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};

/// How many links one path may go through, as for the kernel.
const MOST_LINKS: usize = 40;

/// Trees, lowest first.
#[derive(Debug, Clone)]
pub(super) struct View {
    trees: Vec<PathBuf>,
}

/// One entry: the trees that have it, the highest first, and its path in them.
#[derive(Debug, Clone)]
pub(super) struct Found {
    trees: Vec<PathBuf>,
    pub(super) path: String,
    pub(super) meta: Metadata,
}

impl View {
    pub(super) fn new(trees: &[PathBuf]) -> View {
        View { trees: trees.to_vec() }
    }

    /// An entry by a path without `.`, `..` and leading slash; links in it are not followed.
    pub(super) fn find(&self, path: &str) -> io::Result<Option<Found>> {
        let mut trees: Vec<PathBuf> = self.trees.iter().rev().cloned().collect();
        let (mut walked, mut meta) = (String::new(), None);
        for part in std::iter::once("").chain(path.split('/').filter(|part| !part.is_empty())) {
            walked = join(&walked, part);
            let (next, found) = visible(&trees, &walked)?;
            let Some(found) = found else { return Ok(None) };
            (trees, meta) = (next, Some(found));
        }
        Ok(meta.map(|meta| Found { trees, path: walked, meta }))
    }

    /// Where a path leads when links are followed inside of the view; the end need not exist.
    pub(super) fn resolve(&self, path: &str) -> io::Result<String> {
        let mut left: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let (mut done, mut links) = (String::new(), 0);
        while let Some(part) = left.pop() {
            match part.as_str() {
                "" | "." => {}
                ".." => done.truncate(done.rfind('/').unwrap_or(0)),
                part => {
                    let next = join(&done, part);
                    let Some(target) = self.link(&next)? else {
                        done = next;
                        continue;
                    };
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(io::Error::other(format!("`{path}` goes through too many links")));
                    }
                    if target.starts_with('/') {
                        done.clear();
                    }
                    left.extend(target.split('/').rev().map(str::to_owned));
                }
            }
        }
        Ok(done)
    }

    fn link(&self, path: &str) -> io::Result<Option<String>> {
        match self.find(path)? {
            Some(found) if found.meta.is_symlink() => found.target().map(Some),
            _ => Ok(None),
        }
    }

    /// The names in a folder, in order.
    pub(super) fn names(&self, folder: &Found) -> io::Result<Vec<String>> {
        let mut names: BTreeMap<String, bool> = BTreeMap::new();
        for tree in &folder.trees {
            for entry in fs::read_dir(tree.join(&folder.path))? {
                let entry = entry?;
                let name = entry
                    .file_name()
                    .into_string()
                    .map_err(|name| io::Error::other(format!("the name {} is not text", name.display())))?;
                let there = !is_whiteout(&entry.metadata()?);
                names.entry(name).or_insert(there);
            }
        }
        Ok(names.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect())
    }

    /// A small file's text, found through links.
    pub(super) fn text(&self, path: &str, most: u64) -> io::Result<Option<String>> {
        let Some(found) = self.find(&self.resolve(path)?)?.filter(|found| found.meta.is_file()) else {
            return Ok(None);
        };
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(found.open()?, most), &mut text)?;
        Ok(Some(text))
    }
}

impl Found {
    fn tree(&self) -> &Path {
        self.trees.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// A link's target as it is written.
    pub(super) fn target(&self) -> io::Result<String> {
        let target = fs::read_link(self.tree().join(&self.path))?;
        target
            .into_os_string()
            .into_string()
            .map_err(|_| io::Error::other(format!("the link `{}` is not text", self.path)))
    }

    /// The file's bytes; a link that took its place meanwhile is refused.
    pub(super) fn open(&self) -> io::Result<File> {
        let folder =
            rustix::fs::open(self.tree(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file =
            File::from(rustix::fs::openat2(folder, self.path.as_str(), flags, Mode::empty(), resolve)?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::other(format!("`{}` changed", self.path)))
        }
    }
}

pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() || name.is_empty() { format!("{folder}{name}") } else { format!("{folder}/{name}") }
}

/// Which of these trees, the highest first, show an entry, and what it is.
fn visible(trees: &[PathBuf], path: &str) -> io::Result<(Vec<PathBuf>, Option<Metadata>)> {
    let mut shown = Vec::new();
    let mut first: Option<Metadata> = None;
    for tree in trees {
        let place = tree.join(path);
        let meta = match fs::symlink_metadata(&place) {
            Ok(meta) => meta,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        // What is no folder ends the search, and is itself the answer only when nothing lies above it.
        if !meta.is_dir() {
            if first.is_none() && !is_whiteout(&meta) {
                (shown, first) = (vec![tree.clone()], Some(meta));
            }
            break;
        }
        shown.push(tree.clone());
        first.get_or_insert(meta);
        if is_opaque(&place) {
            break;
        }
    }
    Ok((shown, first))
}

fn is_whiteout(meta: &Metadata) -> bool {
    meta.file_type().is_char_device() && meta.rdev() == 0
}

fn is_opaque(folder: &Path) -> bool {
    let mut value = [0u8; 8];
    ["user.overlay.opaque", "trusted.overlay.opaque"].iter().any(|name| {
        rustix::fs::lgetxattr(folder, *name, &mut value[..]).is_ok_and(|length| value[..length] == *b"y")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_trees_hide_lower_ones_and_links_stay_inside() {
        let folder = tempfile::tempdir().unwrap();
        let trees = [folder.path().join("low"), folder.path().join("high")];
        fs::create_dir_all(trees[0].join("a/b")).unwrap();
        fs::create_dir_all(trees[1].join("a")).unwrap();
        fs::write(trees[0].join("a/file"), "low").unwrap();
        fs::write(trees[0].join("a/below"), "").unwrap();
        fs::write(trees[1].join("a/file"), "high").unwrap();
        fs::write(trees[1].join("a/b"), "a file over a folder").unwrap();
        std::os::unix::fs::symlink("/../../a", trees[1].join("link")).unwrap();
        std::os::unix::fs::symlink("loop", trees[1].join("loop")).unwrap();
        let view = View::new(&trees);
        assert_eq!(view.text("a/file", 99).unwrap().as_deref(), Some("high"));
        assert_eq!(view.text("link/file", 99).unwrap().as_deref(), Some("high"));
        assert_eq!(view.text("link/file", 2).unwrap().as_deref(), Some("hi"));
        assert_eq!(view.names(&view.find("a").unwrap().unwrap()).unwrap(), ["b", "below", "file"]);
        assert!(view.find("a/b/c").unwrap().is_none() && view.find("link/file").unwrap().is_none());
        assert_eq!(view.resolve("x/../link/none/../y").unwrap(), "a/y");
        assert!(view.resolve("loop").is_err());
    }
}

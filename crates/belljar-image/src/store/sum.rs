//! The sum of a tree: one line per file, so that damage is found. `looks` are had without reading any file.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};

use crate::unpack::seen::{Seen, content, escaped, lend};

/// How much of a tree is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Kinds, modes, owners, sizes and times.
    Looks,
    /// And every byte.
    Contents,
}

/// What a tree is.
pub(super) struct Sums {
    /// By path.
    lines: BTreeMap<Vec<u8>, Rc<Seen>>,
}

/// Looks at every file of a tree. No link is followed, and no path leads out.
pub(super) fn of_tree(tree: &Path, reading: Reading) -> io::Result<Sums> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, tree, flags, Mode::empty())?;
    let mut walk = Walk { reading, sums: Sums { lines: BTreeMap::new() }, twins: HashMap::new() };
    walk.sums.add(b".".to_vec(), Rc::new(Seen::new(&rustix::fs::fstat(&top)?, Seen::nothing())));
    walk.below(top.as_fd(), PathBuf::from("."))?;
    Ok(walk.sums)
}

struct Walk {
    reading: Reading,
    sums: Sums,
    /// Files with several names are read once.
    twins: HashMap<u64, Seen>,
}

impl Walk {
    fn below(&mut self, top: BorrowedFd<'_>, folder: PathBuf) -> io::Result<()> {
        let mut pending = vec![folder];
        while let Some(folder) = pending.pop() {
            let handle = open_folder(top, &folder, OFlags::PATH)?;
            if !is_shut(&rustix::fs::fstat(&handle)?) {
                pending.extend(self.list(open_folder(top, &folder, OFlags::empty())?, &folder)?);
                continue;
            }
            // Everything in it is looked at before it is shut again.
            lend(&handle, || {
                let inner = self.list(open_folder(top, &folder, OFlags::empty())?, &folder)?;
                inner.into_iter().try_for_each(|folder| self.below(top, folder))
            })?;
        }
        Ok(())
    }

    /// Visits everything in a folder, and gives the folders among it.
    fn list(&mut self, folder: OwnedFd, path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            if self.visit(folder.as_fd(), name, &path)? == FileType::Directory {
                folders.push(path);
            }
        }
        Ok(folders)
    }

    fn visit(&mut self, folder: BorrowedFd<'_>, name: &CStr, path: &Path) -> io::Result<FileType> {
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let has_twins = stat.st_nlink > 1 && kind == FileType::RegularFile;
        let twin = self.twins.get(&stat.st_ino).filter(|_| has_twins);
        let seen = match (self.reading, twin) {
            (_, Some(twin)) => Seen { disk: 0, ..twin.clone() },
            (Reading::Looks, None) => Seen::new(&stat, String::new()),
            (Reading::Contents, None) => Seen::new(&stat, content(folder, name, &stat)?),
        };
        if has_twins {
            self.twins.insert(stat.st_ino, seen.clone());
        }
        self.sums.add(path.as_os_str().as_bytes().to_vec(), Rc::new(seen));
        Ok(kind)
    }
}

fn open_folder(top: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = flags | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(top, path, flags, Mode::empty(), resolve)?)
}

/// Whether a folder keeps even its owner out; nothing does that to root.
fn is_shut(stat: &Stat) -> bool {
    !Mode::from_raw_mode(stat.st_mode).contains(Mode::RUSR | Mode::XUSR)
        && !rustix::process::geteuid().is_root()
}

impl Sums {
    fn add(&mut self, path: Vec<u8>, seen: Rc<Seen>) {
        self.lines.insert(path, seen);
    }

    /// The first difference from what was stored, in words.
    pub(super) fn difference(&self, stored: &[u8], reading: Reading) -> Option<String> {
        let stored = String::from_utf8_lossy(stored);
        let mut expected: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
        for line in stored.lines() {
            let mut columns = line.splitn(3, '\t');
            let mut next = || columns.next().unwrap_or_default();
            expected.insert(next(), (next(), next()));
        }
        for (path, seen) in &self.lines {
            let Seen { looks, content, .. } = &**seen;
            let path = escaped(path);
            match expected.remove(path.as_str()) {
                None => return Some(format!("{path} was added")),
                Some((before, _)) if before != looks => {
                    return Some(format!("{path} was changed: {before} is now {looks}"));
                }
                Some((_, before)) if reading == Reading::Contents && before != content => {
                    return Some(format!("the contents of {path} were changed"));
                }
                Some(_) => {}
            }
        }
        expected.keys().next().map(|path| format!("{path} is missing"))
    }
}

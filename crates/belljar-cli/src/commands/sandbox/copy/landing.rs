//! The landing: a folder beside the destination where files of a guest arrive, before they take their place.
//!
//! The archive comes out of a sandbox, so it may hold anything. It is unpacked here, away from everything else; only
//! what was asked for is moved on, by its own name, and nothing of the rest ever touches the destination.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar::{Code, Fault};
use belljar_cell::remove::remove_tree;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, mkdirat, openat, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;

/// How a folder is opened: never through a link.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// How many levels of two trees are merged.
const DEPTH: usize = 500;

/// A folder where files arrive; gone with this value.
#[derive(Debug)]
pub(crate) struct Landing {
    path: PathBuf,
    beside: OwnedFd,
    folder: OwnedFd,
}

/// Where files go in the end: a folder, and the name they get in it.
#[derive(Debug)]
pub(crate) struct Place {
    /// The folder, which exists.
    pub(crate) folder: PathBuf,
    /// The name in it; nothing means that the content goes straight into the folder.
    pub(crate) name: Option<OsString>,
}

impl Place {
    /// As `cp -r` understands a destination: into a folder that exists, or under a name that does not.
    pub(crate) fn find(destination: &Path, name: Option<&OsStr>) -> Result<Place, Fault> {
        if destination.is_dir() {
            return Ok(Place { folder: destination.to_owned(), name: name.map(OsStr::to_owned) });
        }
        let ends_as_folder = destination.as_os_str().as_bytes().ends_with(b"/");
        match (destination.parent(), destination.file_name()) {
            (Some(parent), Some(new)) if !ends_as_folder => {
                let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                Ok(Place { folder: folder.to_owned(), name: Some(new.to_owned()) })
            }
            _ => Err(Fault::new(Code::Usage, format!("{} is not a folder", destination.display()))
                .hint("make it first, or leave out the slash at its end")),
        }
    }
}

impl Landing {
    /// Makes one in a folder.
    pub(crate) fn make(folder: &Path) -> Result<Landing, Fault> {
        let failed = |error: Errno| unwritable(folder, error);
        // The way there is the caller's own, links and all.
        let beside = openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let beside = beside.map_err(failed)?;
        let mut number = std::process::id();
        loop {
            let name = format!(".belljar-cp-{number}");
            match mkdirat(&beside, name.as_str(), Mode::RWXU) {
                Err(Errno::EXIST) => number = number.wrapping_add(1),
                other => {
                    other.map_err(failed)?;
                    let inside = openat(&beside, name.as_str(), FOLDER, Mode::empty()).map_err(failed)?;
                    return Ok(Landing { path: folder.join(name), beside, folder: inside });
                }
            }
        }
    }

    /// The folder to unpack into.
    pub(crate) fn folder(&self) -> io::Result<OwnedFd> {
        self.folder.try_clone()
    }

    /// Moves what arrived as `arrived` to its place; with nothing there, all that arrived goes straight into the
    /// folder. Anything else that arrived was not asked for.
    pub(crate) fn settle(self, arrived: Option<&OsStr>, place: &Place) -> Result<(), Fault> {
        let Some(arrived) = arrived else {
            return merge(self.folder.as_fd(), self.beside.as_fd(), 0)
                .map_err(|trouble| trouble.fault(&place.folder));
        };
        let names = names(self.folder.as_fd()).map_err(|error| unwritable(&self.path, error))?;
        if let Some(other) = names.iter().find(|name| *name != arrived) {
            let message = format!("the sandbox sent {other:?}, which was not asked for; nothing was copied");
            return Err(
                Fault::new(Code::ArchiveRefused, message).hint("something inside plays with the copy")
            );
        }
        if names.is_empty() {
            let message = format!("{arrived:?} was gone before it could be copied");
            return Err(
                Fault::new(Code::ArchiveRefused, message).hint("something inside removed it meanwhile")
            );
        }
        let Some(name) = &place.name else {
            let inner = openat(&self.folder, arrived, FOLDER, Mode::empty());
            let inner = inner.map_err(|error| unwritable(&place.folder, error))?;
            return merge(inner.as_fd(), self.beside.as_fd(), 0)
                .map_err(|trouble| trouble.fault(&place.folder));
        };
        put(self.folder.as_fd(), arrived, self.beside.as_fd(), name, 0)
            .map_err(|trouble| trouble.fault(&place.folder.join(name)))
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        // What stays is a folder of the caller's own, with a name that says whose it was.
        let _ = remove_tree(&self.path);
    }
}

/// Why something could not take its place.
#[derive(Debug)]
enum Trouble {
    Failed(Errno),
    FolderInPlace,
    NoFolderInPlace,
    TooDeep,
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Trouble {
        Trouble::Failed(error)
    }
}

impl Trouble {
    fn fault(self, path: &Path) -> Fault {
        let refused = |why: &str| {
            Fault::new(Code::ArchiveRefused, format!("{}: {why}", path.display()))
                .hint("choose another destination")
        };
        match self {
            Trouble::Failed(error) => unwritable(path, error),
            Trouble::FolderInPlace => refused("a folder is in the place of a file"),
            Trouble::NoFolderInPlace => refused("a file is in the place of a folder"),
            Trouble::TooDeep => refused("the folders that are merged are too deep"),
        }
    }
}

/// Moves one entry to a place by renaming; a folder that is there takes in what the new one has.
fn put(
    from: BorrowedFd<'_>,
    name: &OsStr,
    to: BorrowedFd<'_>,
    new: &OsStr,
    depth: usize,
) -> Result<(), Trouble> {
    match rename_new(from, name, to, new) {
        Err(Errno::EXIST) => {}
        other => return Ok(other?),
    }
    let is_folder = |folder: BorrowedFd<'_>, name: &OsStr| {
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok::<bool, Errno>(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    };
    match (is_folder(from, name)?, is_folder(to, new)?) {
        (false, false) => Ok(renameat(from, name, to, new)?),
        (false, true) => Err(Trouble::FolderInPlace),
        (true, false) => Err(Trouble::NoFolderInPlace),
        (true, true) => {
            let (source, target) =
                (openat(from, name, FOLDER, Mode::empty())?, openat(to, new, FOLDER, Mode::empty())?);
            merge(source.as_fd(), target.as_fd(), depth + 1)?;
            drop(source);
            Ok(unlinkat(from, name, AtFlags::REMOVEDIR)?)
        }
    }
}

/// Renames to a name that is not taken. Not every file system knows that by itself.
fn rename_new(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, new: &OsStr) -> rustix::io::Result<()> {
    match renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => match statat(to, new, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => renameat(from, name, to, new),
            Err(error) => Err(error),
            Ok(_) => Err(Errno::EXIST),
        },
        other => other,
    }
}

fn merge(from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: usize) -> Result<(), Trouble> {
    if depth > DEPTH {
        return Err(Trouble::TooDeep);
    }
    names(from)?.iter().try_for_each(|name| put(from, name, to, name, depth))
}

fn names(folder: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn unwritable(path: &Path, error: Errno) -> Fault {
    let message = format!("could not write to {}: {error}", path.display());
    Fault::new(Code::OutputUnwritable, message)
        .hint("choose another destination, or mend its permissions")
        .caused_by(io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Ground {
        folder: tempfile::TempDir,
    }

    impl Ground {
        fn new() -> Ground {
            Ground { folder: tempfile::tempdir().unwrap() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// Lets an entry `got` arrive and settle at a destination.
        fn settle(&self, destination: &str, arrive: impl FnOnce(&Path)) -> Result<(), Fault> {
            let place = Place::find(&self.path(destination), Some(OsStr::new("got")))?;
            let landing = Landing::make(&place.folder)?;
            arrive(&landing.path);
            landing.settle(Some(OsStr::new("got")), &place)
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.path(name)).unwrap()
        }

        fn is_clean(&self) -> bool {
            !names(fs::File::open(self.folder.path()).unwrap().as_fd())
                .unwrap()
                .iter()
                .any(|name| name.to_string_lossy().starts_with(".belljar"))
        }
    }

    fn file(landing: &Path) {
        fs::write(landing.join("got"), "new").unwrap();
    }

    fn tree(landing: &Path) {
        fs::create_dir_all(landing.join("got/inner")).unwrap();
        fs::write(landing.join("got/inner/a"), "new").unwrap();
    }

    #[test]
    fn into_a_folder_or_under_a_new_name() {
        let ground = Ground::new();
        fs::create_dir(ground.path("there")).unwrap();
        ground.settle("there", file).unwrap();
        ground.settle("new", file).unwrap();
        ground.settle("there", |landing| fs::write(landing.join("got"), "newer").unwrap()).unwrap();
        assert_eq!((ground.read("there/got"), ground.read("new")), ("newer".into(), "new".into()));
        assert!(ground.settle("none/", file).is_err() && ground.settle("none/new", file).is_err());
        assert!(ground.is_clean());
    }

    #[test]
    fn folders_are_merged_and_nothing_else_is() {
        let ground = Ground::new();
        fs::create_dir_all(ground.path("got/inner")).unwrap();
        fs::write(ground.path("got/inner/b"), "old").unwrap();
        ground.settle("", tree).unwrap();
        assert_eq!((ground.read("got/inner/a"), ground.read("got/inner/b")), ("new".into(), "old".into()));
        assert_eq!(ground.settle("", file).unwrap_err().code, Code::ArchiveRefused);
        assert_eq!(ground.settle("got/inner/b", tree).unwrap_err().code, Code::ArchiveRefused);
        assert!(ground.is_clean());
    }

    #[test]
    fn links_in_the_way_are_replaced_or_refused_and_never_followed() {
        let ground = Ground::new();
        fs::create_dir_all(ground.path("elsewhere/inner")).unwrap();
        fs::write(ground.path("elsewhere/precious"), "old").unwrap();
        fs::create_dir(ground.path("there")).unwrap();
        symlink(ground.path("elsewhere/precious"), ground.path("there/got")).unwrap();
        ground.settle("there", file).unwrap();
        assert_eq!(
            (ground.read("there/got"), ground.read("elsewhere/precious")),
            ("new".into(), "old".into())
        );
        fs::remove_file(ground.path("there/got")).unwrap();
        symlink(ground.path("elsewhere"), ground.path("there/got")).unwrap();
        assert_eq!(ground.settle("there", tree).unwrap_err().code, Code::ArchiveRefused);
        assert!(!ground.path("elsewhere/inner/a").exists());
    }

    #[test]
    fn what_was_not_asked_for_stays_out() {
        let ground = Ground::new();
        let fault = ground.settle("", |landing| {
            file(landing);
            fs::write(landing.join(".bashrc"), "evil").unwrap();
        });
        assert!(fault.unwrap_err().message.contains(".bashrc"));
        assert!(!ground.path(".bashrc").exists() && !ground.path("got").exists() && ground.is_clean());
        assert!(ground.settle("", |_| {}).unwrap_err().message.contains("was gone"));
    }
}

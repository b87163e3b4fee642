//! Trees as tar streams, in both directions, with a stranger on the other side.
//!
//! [`pack()`] reads a tree that somebody else may be changing; [`unpack()`] writes one from bytes that somebody else made
//! up. Neither ever follows a link, and neither works with paths: each step is one name in a folder that is held open,
//! so nothing that is renamed or swapped meanwhile can lead them out of the folder they were given. They need no call
//! that a guest's filter forbids, so they work inside a sandbox as well as outside.

mod hardlinks;
mod header;
pub(crate) mod ladder;
mod pack;
mod reader;
mod shown;
mod times;
mod unpack;
pub(crate) mod walk;
mod way;

use std::io;

use serde::{Deserialize, Serialize};

pub(crate) use hardlinks::FirstNames;
pub use pack::pack;
pub(crate) use shown::shown;
pub(crate) use times::Mtime;
pub use unpack::unpack;
pub(crate) use way::descend;

/// The most bytes in the path of an entry. Calls take 4096, but a walk by descriptors has no such bound.
pub const MOST_NAME: usize = 1 << 20;

/// How much is packed or unpacked at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The length of the archive, headers and padding included.
    pub bytes: u64,
    /// Files, folders and everything else; also what is left out, and folders that are only implied.
    pub entries: u64,
}

/// What an archive may do to the folder it is unpacked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// How much is unpacked at most.
    pub limits: Limits,
    /// What happens at an entry that is not allowed.
    pub refused: OnRefusal,
    /// Where symbolic links may lead.
    pub links: Links,
    /// Mode bits that no file or folder gets, like a umask. Set-user-id and set-group-id are never given.
    pub mask: u32,
}

impl Rules {
    /// The rules for an archive from a stranger: end at the first bad entry, and let nobody else write to the files.
    pub fn strict(limits: Limits) -> Rules {
        Rules { limits, refused: OnRefusal::End, links: Links::Any, mask: 0o022 }
    }
}

/// What happens at an entry that is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnRefusal {
    /// Unpacking ends with an error that names the entry.
    End,
    /// It is left out and counted.
    Count,
}

/// Where symbolic links may lead. They are never followed here; this is for whoever uses the tree afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Links {
    /// Anywhere.
    Any,
    /// Not out of the folder that is unpacked into: relative, with every `..` at the front and no more of them than
    /// there are folders above.
    Inside,
}

/// What was packed or unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Plain files.
    pub files: u64,
    /// Folders that the archive names.
    pub folders: u64,
    /// Symbolic links.
    pub links: u64,
    /// Further names of a file that was there already.
    pub hard_links: u64,
    /// The bytes of all files.
    pub bytes: u64,
    /// Pipes, sockets, devices, and the kernel's own file systems: not packed.
    pub left_out: u64,
    /// Entries that were gone or replaced before they could be packed.
    pub vanished: u64,
    /// Files that shrank while they were packed; zeros stand for what was missing.
    pub cut_short: u64,
    /// Entries that were refused and left out, where the rules say so.
    pub refused: u64,
}

/// Why a tree could not be packed or unpacked. Names in it are safe to print.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Something of the tree cannot be read.
    #[error("could not read {name}: {source}")]
    ReadTree {
        /// Its name in the tree.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The subject itself cannot be packed.
    #[error("{name} is neither a file, a folder nor a link")]
    Unfit {
        /// Its name.
        name: String,
    },
    /// The archive cannot be written.
    #[error("could not write the archive: {source}")]
    WriteArchive {
        /// What the system said.
        source: io::Error,
    },
    /// The archive cannot be read.
    #[error("could not read the archive: {source}")]
    ReadArchive {
        /// What the system said.
        source: io::Error,
    },
    /// Something cannot be created.
    #[error("could not create {name}: {source}")]
    WriteTree {
        /// Its name in the archive.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// An entry is not allowed.
    #[error("the entry {name} is refused: {reason}")]
    Refused {
        /// Its name in the archive.
        name: String,
        /// Why.
        reason: Refusal,
    },
    /// This is not an archive, or a damaged one.
    #[error("the archive is malformed at byte {at}: {what}")]
    Malformed {
        /// Where the block in question begins.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The archive ends before its end mark.
    #[error("the archive is cut short: it ends at byte {at}")]
    Truncated {
        /// How many bytes there were.
        at: u64,
    },
    /// A limit is exceeded.
    #[error("there are more than {most} {what}")]
    Limit {
        /// The limit.
        most: u64,
        /// What it counts.
        what: &'static str,
    },
}

/// Why an entry is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Begins with a slash.
    #[error("its name is absolute")]
    Absolute,
    /// Has `..` in it.
    #[error("its name goes up with `..`")]
    Upwards,
    /// Names nothing, or leads to nothing.
    #[error("its name or target is empty")]
    Empty,
    /// Holds a zero byte.
    #[error("its name or target holds a zero byte")]
    ZeroByte,
    /// Longer than [`MOST_NAME`] or than a file system takes, or more levels than are supported.
    #[error("its name or target is too long or too deep")]
    TooLong,
    /// A link or a file is where a folder has to be.
    #[error("a part of its path is not a folder")]
    NotAFolder,
    /// A folder is where a file or a link would go.
    #[error("a folder is in its place")]
    FolderInPlace,
    /// A hard link whose target is not a plain file in the folder.
    #[error("it is a hard link to something other than a file of the same folder")]
    HardLink,
    /// A symbolic link that leads out, where the rules forbid it.
    #[error("it is a link that leads outside")]
    LinkOutside,
    /// A pipe or a device.
    #[error("it is a pipe or a device")]
    Special,
    /// A kind of entry that is not supported.
    #[error("it is of a kind that is not supported")]
    Kind,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;
    use crate::kernel;
    use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid, openat2};
    use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
    use std::ffi::OsStr;
    use std::fs::{self, File};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::fs::{chown, symlink};
    use std::path::Path;

    const STRANGER: u32 = 54_321;

    /// Makes this thread, and no other, as weak as a guest.
    fn become_weak() {
        rustix::thread::set_thread_groups(&[]).unwrap();
        let (user, group) = (Uid::from_raw(STRANGER), Gid::from_raw(STRANGER));
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).unwrap();
        Filter::compile().install().unwrap();
        let newer = openat2(CWD, "/", OFlags::PATH, Mode::empty(), ResolveFlags::empty());
        assert_eq!(newer.unwrap_err(), rustix::io::Errno::NOSYS);
    }

    #[test]
    fn both_directions_work_for_a_guest_behind_the_filter() {
        assert!(rustix::process::geteuid().is_root(), "this test gives up root's rights, so it needs them");
        let base = tempfile::tempdir().unwrap();
        let (from, into) = (base.path().join("from"), base.path().join("into"));
        fs::create_dir_all(from.join("d/e")).unwrap();
        fs::create_dir(&into).unwrap();
        fs::write(from.join("d/e/file"), "content").unwrap();
        fs::hard_link(from.join("d/e/file"), from.join("d/again")).unwrap();
        symlink("/anywhere", from.join("d/link")).unwrap();
        for path in [&into, &from, &from.join("d"), &from.join("d/e"), &from.join("d/e/file")] {
            chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
        }
        let (root, folder) = (File::open(&from).unwrap(), OwnedFd::from(File::open(&into).unwrap()));
        let limits = Limits { bytes: 1 << 20, entries: 100 };
        let (packed, unpacked) = std::thread::spawn(move || {
            become_weak();
            let mut bytes = Vec::new();
            let packed = pack(root.as_fd(), Path::new("d"), OsStr::new("d"), &mut bytes, limits).unwrap();
            (packed, unpack(bytes.as_slice(), folder, Rules { mask: 0, ..Rules::strict(limits) }).unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(packed, unpacked);
        assert_eq!((packed.files, packed.hard_links, packed.links, packed.folders), (1, 1, 1, 2));
        assert_eq!(fs::read(into.join("d/again")).unwrap(), b"content");
    }

    #[test]
    fn other_file_systems_are_packed_but_not_those_the_kernel_makes_up() {
        assert!(rustix::process::geteuid().is_root(), "this test mounts something, so it needs root");
        std::thread::spawn(|| {
            // SAFETY: gives this thread a mount namespace of its own and touches no memory; others are not affected.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            let base = tempfile::tempdir().unwrap();
            for kind in ["proc", "sysfs", "tmpfs"] {
                let folder = base.path().join(kind);
                fs::create_dir(&folder).unwrap();
                mount(kind, &folder, kind, MountFlags::empty(), c"").unwrap();
            }
            fs::write(base.path().join("tmpfs/file"), "x").unwrap();
            let root = File::open(base.path()).unwrap();
            let limits = Limits { bytes: 1 << 20, entries: 100 };
            let packed = pack(root.as_fd(), Path::new("."), OsStr::new(""), std::io::sink(), limits).unwrap();
            assert_eq!((packed.left_out, packed.folders, packed.files), (2, 2, 1));
            for kind in ["proc", "sysfs", "tmpfs"] {
                unmount(base.path().join(kind), UnmountFlags::DETACH).unwrap();
            }
        })
        .join()
        .unwrap();
    }
}

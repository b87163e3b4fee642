//! Who is who: how ids inside a cell map to ids outside.

use std::fs;

use rustix::process::Pid;

use crate::cell::{Guest, User};
use crate::failure::{Failure, Step};
use crate::kernel;

/// How many ids a cell of root has.
const COUNT: u32 = 65_536;
/// Where the ranges for cells begin: far above what systems hand out to people and to other container tools.
const FIRST: u32 = 0x4000_0000;
/// How many ranges there are.
const SLOTS: u32 = 8_192;

/// How ids inside a cell map to ids outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Root made the cell: ids 0 to 65535 inside are a range of nobody's outside.
    Range {
        /// The first id outside.
        base: u32,
    },
    /// An ordinary user made the cell: the guest inside is the caller outside, and nobody else exists.
    Caller {
        /// The caller's user.
        uid: u32,
        /// The caller's group.
        gid: u32,
    },
}

impl Ids {
    /// What this process may use; `slot` spreads cells of root over ranges.
    pub fn for_this_process(slot: u32) -> Ids {
        let uid = rustix::process::geteuid().as_raw();
        let powerful =
            kernel::permitted_capabilities().is_ok_and(|set| set & (1 << kernel::CAP_SYS_ADMIN) != 0);
        if uid == 0 && powerful {
            return Ids::Range { base: FIRST + (slot % SLOTS) * COUNT };
        }
        Ids::Caller { uid, gid: rustix::process::getegid().as_raw() }
    }

    /// Whether root made the cell.
    pub fn is_range(self) -> bool {
        matches!(self, Ids::Range { .. })
    }

    /// The id outside of user `inside`.
    pub fn outside_user(self, inside: u32) -> u32 {
        match self {
            Ids::Range { base } => base + inside,
            Ids::Caller { uid, .. } => uid,
        }
    }

    /// The id outside of group `inside`.
    pub fn outside_group(self, inside: u32) -> u32 {
        match self {
            Ids::Range { base } => base + inside,
            Ids::Caller { gid, .. } => gid,
        }
    }

    /// Who the cell's own init is inside.
    pub fn init_user(self, guest: &Guest) -> (u32, u32) {
        match self {
            Ids::Range { .. } => (0, 0),
            Ids::Caller { .. } => (guest.uid, guest.gid),
        }
    }

    /// Whether a user of this number exists inside, and is not root.
    pub(crate) fn check(self, user: User, guest: &Guest) -> Result<(), Failure> {
        if user.uid == 0 || user.gid == 0 {
            return Err(Failure::new("no command is root inside"));
        }
        match self {
            Ids::Range { .. } if user.uid < COUNT && user.gid < COUNT => Ok(()),
            Ids::Caller { .. } if (user.uid, user.gid) == (guest.uid, guest.gid) => Ok(()),
            Ids::Range { .. } => Err(Failure::new(format!("user ids inside go from 0 to {}", COUNT - 1))),
            Ids::Caller { .. } => Err(Failure::new(format!(
                "a sandbox of an ordinary user has one user inside, {}:{}",
                guest.uid, guest.gid
            ))),
        }
    }

    /// A user inside as the owner of a file outside.
    pub(crate) fn owner(self, user: User) -> (rustix::fs::Uid, rustix::fs::Gid) {
        let uid = rustix::fs::Uid::from_raw(self.outside_user(user.uid));
        (uid, rustix::fs::Gid::from_raw(self.outside_group(user.gid)))
    }

    /// The first id outside, of a range.
    pub(crate) fn base(self) -> Option<u32> {
        match self {
            Ids::Range { base } => Some(base),
            Ids::Caller { .. } => None,
        }
    }

    /// Writes the maps of a process that just got its user namespace.
    pub fn write_maps(self, pid: Pid, guest: &Guest) -> Result<(), Failure> {
        let (users, groups) = match self {
            Ids::Range { base } => (format!("0 {base} {COUNT}"), format!("0 {base} {COUNT}")),
            Ids::Caller { uid, gid } => {
                put(pid, "setgroups", "deny")?;
                (format!("{} {uid} 1", guest.uid), format!("{} {gid} 1", guest.gid))
            }
        };
        put(pid, "uid_map", &users)?;
        put(pid, "gid_map", &groups)
    }

    /// Writes the maps for idmapped mounts: who owns a file on disk, and as whom the guest sees it.
    ///
    /// The guest's own id stands for the caller's, so that what the guest writes comes back as the caller's.
    pub fn write_workspace_maps(self, pid: Pid, guest: &Guest) -> Result<(), Failure> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        put(pid, "uid_map", &format!("{uid} {} 1", self.outside_user(guest.uid)))?;
        put(pid, "gid_map", &format!("{gid} {} 1", self.outside_group(guest.gid)))
    }
}

/// Moves this process, an ordinary user's, into a user namespace of its own in which it is still itself.
///
/// There it has the powers over the cell's namespaces that root has anywhere, and none it did not have over the host.
pub fn enter_lobby() -> Result<(), Failure> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: this process has one thread; a user namespace changes no memory.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER) }
        .step(|| "create a user namespace".to_owned())?;
    let own = rustix::process::getpid();
    put(own, "setgroups", "deny")?;
    put(own, "uid_map", &format!("{uid} {uid} 1"))?;
    put(own, "gid_map", &format!("{gid} {gid} 1"))
}

fn put(pid: Pid, file: &str, text: &str) -> Result<(), Failure> {
    let path = format!("/proc/{}/{file}", pid.as_raw_nonzero());
    fs::write(&path, text).step(|| format!("write {file} of the cell"))
}

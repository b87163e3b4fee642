//! Who is who: how ids inside a cell map to ids outside.

use std::fs;

use rustix::process::Pid;

use crate::cell::{Guest, User};
use crate::failure::{Failure, Step};
use crate::kernel;
use crate::powers::Role;
use crate::subids::{COUNT, Line, SubIds};

/// The mode of a cell in which an ordinary user's subordinate ids are used, as it is recorded.
pub const MAPPED: &str = "user, subordinate ids";
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
    /// An ordinary user with subordinate ids made the cell: the guest inside is the caller outside, and everybody else
    /// is one of the ids that are lent to the caller.
    Mapped(SubIds),
}

impl Ids {
    /// What this process may use without help; `slot` spreads cells of root over ranges.
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

    /// Whether there is anybody inside beside the guest.
    pub fn has_others(self) -> bool {
        !matches!(self, Ids::Caller { .. })
    }

    /// The owner outside of what belongs to a user and a group inside. Who does not exist inside is the caller.
    pub(crate) fn outside(self, user: User, guest: &Guest) -> (u32, u32) {
        match self {
            Ids::Range { base } => (base + user.uid, base + user.gid),
            Ids::Caller { uid, gid } => (uid, gid),
            Ids::Mapped(SubIds { uid, gid, users, groups }) => (
                if user.uid == guest.uid { uid } else { users.nth(user.uid).unwrap_or(uid) },
                if user.gid == guest.gid { gid } else { groups.nth(user.gid).unwrap_or(gid) },
            ),
        }
    }

    /// Who the cell's own init is inside.
    pub fn init_user(self, guest: &Guest) -> (u32, u32) {
        match self {
            Ids::Range { .. } | Ids::Mapped(_) => (0, 0),
            Ids::Caller { .. } => (guest.uid, guest.gid),
        }
    }

    /// Whether a user of this number exists inside, and is not root unless it is allowed to be.
    pub(crate) fn check(self, user: User, guest: &Guest, role: Role) -> Result<(), Failure> {
        if (user.uid == 0 || user.gid == 0) && role == Role::Guest {
            return Err(Failure::new("no command is root inside"));
        }
        let none = |most: u32| Err(Failure::new(format!("user ids inside go from 0 to {}", most - 1)));
        match self {
            Ids::Range { .. } if user.uid < COUNT && user.gid < COUNT => Ok(()),
            Ids::Range { .. } => none(COUNT),
            Ids::Mapped(SubIds { users, groups, .. }) => {
                let known = |id: u32, guest: u32, count: u32| id == guest || id < count;
                let (users, groups) = (users.count(), groups.count());
                let exists = known(user.uid, guest.uid, users) && known(user.gid, guest.gid, groups);
                if exists { Ok(()) } else { none(users.min(groups)) }
            }
            Ids::Caller { .. } if (user.uid, user.gid) == (guest.uid, guest.gid) => Ok(()),
            Ids::Caller { .. } => Err(Failure::new(format!(
                "a sandbox of an ordinary user without subordinate ids has one user inside, {}:{}",
                guest.uid, guest.gid
            ))),
        }
    }

    /// A user inside as the owner of a file outside.
    pub(crate) fn owner(self, user: User, guest: &Guest) -> (rustix::fs::Uid, rustix::fs::Gid) {
        let (uid, gid) = self.outside(user, guest);
        (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid))
    }

    /// The first id outside, of a range.
    pub(crate) fn base(self) -> Option<u32> {
        match self {
            Ids::Range { base } => Some(base),
            Ids::Caller { .. } | Ids::Mapped(_) => None,
        }
    }

    /// The maps of a cell, of users and of groups.
    pub fn maps(self, guest: &Guest) -> [Vec<Line>; 2] {
        match self {
            Ids::Range { base } => [vec![[0, base, COUNT]], vec![[0, base, COUNT]]],
            Ids::Caller { uid, gid } => [vec![[guest.uid, uid, 1]], vec![[guest.gid, gid, 1]]],
            Ids::Mapped(SubIds { uid, gid, users, groups }) => {
                [users.cell_map(guest.uid, uid), groups.cell_map(guest.gid, gid)]
            }
        }
    }

    /// Writes the maps of a process that just got its user namespace.
    pub fn write_maps(self, pid: Pid, guest: &Guest) -> Result<(), Failure> {
        if !self.has_others() {
            put(pid, "setgroups", "deny")?;
        }
        let [users, groups] = self.maps(guest).map(|lines| text(&lines));
        put(pid, "uid_map", &users)?;
        put(pid, "gid_map", &groups)
    }

    /// Writes the maps for idmapped mounts: who owns a file on disk, and as whom the guest sees it.
    ///
    /// The guest's own id stands for the caller's, so that what the guest writes comes back as the caller's.
    pub fn write_workspace_maps(self, pid: Pid, guest: &Guest) -> Result<(), Failure> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let (user, group) = self.outside(User { uid: guest.uid, gid: guest.gid }, guest);
        put(pid, "uid_map", &format!("{uid} {user} 1"))?;
        put(pid, "gid_map", &format!("{gid} {group} 1"))
    }
}

/// Moves this process, an ordinary user's without subordinate ids, into a user namespace of its own in which it is still itself.
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

fn text(lines: &[Line]) -> String {
    lines.iter().map(|[inside, outside, count]| format!("{inside} {outside} {count}\n")).collect()
}

fn put(pid: Pid, file: &str, text: &str) -> Result<(), Failure> {
    let path = format!("/proc/{}/{file}", pid.as_raw_nonzero());
    fs::write(&path, text).step(|| format!("write {file} of the cell"))
}

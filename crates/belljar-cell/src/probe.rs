//! Tries what a guest must not be able to do, from where the guest is: cheaply in every command, in full once in a while.

use std::io;

use serde::{Deserialize, Serialize};

use crate::cell::{CellSpec, Network};
use crate::ids::Ids;
use crate::kernel;
use crate::link;
use crate::policy::{self, BUILD_CAPABILITIES, GUEST_OOM_SCORE, Promise, Proof};
use crate::powers::Role;
use crate::scratch::is_sealed;
use crate::subids::Line;

mod attempt;
#[cfg(test)]
pub(crate) mod trial;
mod view;

/// One thing that was tried or looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The control that it belongs to, one of [`crate::policy::CONTROLS`].
    pub control: String,
    /// Whether it is as it should be.
    pub holds: bool,
    /// What was tried and what the kernel said, e.g. `mount: Operation not permitted`.
    pub proof: String,
    /// Who found it and when, e.g. `full, boot 4f3c…`; empty until somebody says so.
    #[serde(default)]
    pub probe: String,
}

impl Finding {
    /// A finding that does not say yet who found it.
    pub fn new(control: &str, holds: bool, proof: String) -> Finding {
        Finding { control: control.to_owned(), holds, proof, probe: String::new() }
    }

    /// The same, found by somebody.
    pub fn by(self, probe: &str) -> Finding {
        Finding { probe: probe.to_owned(), ..self }
    }
}

/// What the cheap check says of itself.
pub const CHEAP: &str = "cheap, this command";

/// What the guest of a cell must be and see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// What it is allowed to be.
    pub role: Role,
    /// Its user inside.
    pub uid: u32,
    /// Its group inside.
    pub gid: u32,
    /// The users of the cell: first inside, first outside, how many.
    pub uid_map: Vec<Line>,
    /// The groups likewise.
    pub gid_map: Vec<Line>,
    /// The name of the machine inside.
    pub hostname: String,
    /// The host's namespaces, as [`namespaces`] told them outside.
    pub outside: Vec<Namespace>,
    /// The network interfaces it may see; `lo` alone means no way out.
    pub interfaces: Vec<String>,
    /// Folders beside `/dev`, `/proc` and `/sys` in which it must not be able to make a file.
    pub read_only: Vec<String>,
    /// How many processes it may see, the cell's init and itself among them.
    pub processes: usize,
    /// What it is worth to the kernel when memory runs out.
    pub oom_score: String,
}

impl Expected {
    /// What the guest of a fresh cell must be and see; `outside` was taken by a process that is not in the cell.
    pub fn of(spec: &CellSpec, ids: Ids, outside: Vec<Namespace>) -> Expected {
        let guest = &spec.guest;
        let [uid_map, gid_map] = ids.maps(guest);
        let link = (spec.network == Network::Link).then_some(link::DEVICE_NAME);
        let sealed: &[&str] = if is_sealed(spec, ids) { &["/", "/usr", "/etc"] } else { &[] };
        Expected {
            role: spec.role(),
            uid: guest.uid,
            gid: guest.gid,
            uid_map,
            gid_map,
            hostname: spec.hostname.clone(),
            outside,
            interfaces: ["lo"].into_iter().chain(link).map(str::to_owned).collect(),
            read_only: sealed.iter().map(|path| (*path).to_owned()).collect(),
            processes: 2,
            oom_score: GUEST_OOM_SCORE.to_owned(),
        }
    }
}

/// A namespace: its kind as in `/proc/self/ns`, and its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// E.g. `net`.
    pub kind: String,
    /// What tells it from others of its kind.
    pub number: u64,
}

/// The namespaces of this process, as far as the kernel has them.
pub fn namespaces() -> Vec<Namespace> {
    view::NAMESPACES.iter().filter_map(|kind| view::namespace(kind)).collect()
}

/// Checks this process in a few microseconds, without a file or another process; the first thing that is wrong is told.
///
/// Every command runs it on itself after the filter is on, just before it becomes the program. `kept` are the
/// capabilities that it is to have, as a mask: none, but for root in a cell for building.
pub fn cheap(uid: u32, gid: u32, kept: u32) -> Result<(), Finding> {
    let wrong = user(uid, gid)
        .or_else(|| capabilities(Sets::OfThread, kept))
        .or_else(no_new_privileges)
        .or_else(filter)
        .or_else(dumpable)
        .or_else(descriptors);
    wrong.map_or(Ok(()), |finding| Err(finding.by(CHEAP)))
}

/// Findings of the full probe after a command's cheap check passed as well: it is the newer witness of what it checked.
pub fn confirmed(mut findings: Vec<Finding>) -> Vec<Finding> {
    let cheap = |control: &str| Promise::named(control).is_some_and(|promise| promise.proof == Proof::Cheap);
    for finding in findings.iter_mut().filter(|finding| cheap(&finding.control)) {
        CHEAP.clone_into(&mut finding.probe);
    }
    findings
}

/// Tries each forbidden thing and looks at everything a guest sees; runs in a process of its own, after the cage was
/// entered, and that process must do nothing else afterwards.
pub fn full(expected: &Expected) -> Vec<Finding> {
    let mut findings = passed(expected);
    // As a guest's program would be: what it may do to itself must be tried with its own files open to it.
    let _ = kernel::prctl(libc::PR_SET_DUMPABLE, 1);
    findings.extend(attempt::all(expected.role));
    findings.extend(view::all(expected));
    findings
}

/// The cheap checks once more, as findings.
fn passed(expected: &Expected) -> Vec<Finding> {
    let good = |control, words: String| move || Finding::new(control, true, words);
    let &Expected { role, uid, gid, .. } = expected;
    let kept = policy::capabilities(role, uid);
    vec![
        not_root(role, uid, gid)
            .or_else(|| user(uid, gid))
            .unwrap_or_else(good("user", format!("all ids are {uid} and {gid}"))),
        capabilities(Sets::AndBounding, kept)
            .unwrap_or_else(good("capabilities", format!("capget and prctl: {}", sets(kept)))),
        no_new_privileges().unwrap_or_else(good("no_new_privs", "prctl: it is set".to_owned())),
        filter().unwrap_or_else(good("syscall_filter", "prctl: a filter is on".to_owned())),
        dumpable().unwrap_or_else(good("dumpable", "prctl: it is off".to_owned())),
        descriptors()
            .unwrap_or_else(good("descriptors", "close_range: all but three close at exec".to_owned())),
    ]
}

fn broken(control: &str, proof: String) -> Option<Finding> {
    Some(Finding::new(control, false, proof))
}

fn sets(kept: u32) -> String {
    if kept == 0 {
        return "all sets are empty".to_owned();
    }
    let names: Vec<&str> = BUILD_CAPABILITIES.iter().map(|(name, _)| *name).collect();
    format!("over the cell's own files and processes, as a build needs: {}", names.join(", "))
}

/// A cell's guest is never root inside, unless the cell is for building.
fn not_root(role: Role, uid: u32, gid: u32) -> Option<Finding> {
    if role == Role::Guest && (uid == 0 || gid == 0) {
        broken("user", format!("the guest is {uid}:{gid}"))
    } else {
        None
    }
}

fn user(uid: u32, gid: u32) -> Option<Finding> {
    let (mut users, mut groups) = ([u32::MAX; 3], [u32::MAX; 3]);
    let [real, effective, saved] = users.each_mut().map(std::ptr::from_mut);
    // SAFETY: the three pointers are valid during the call.
    let failed = unsafe { libc::getresuid(real, effective, saved) } != 0;
    let [real, effective, saved] = groups.each_mut().map(std::ptr::from_mut);
    // SAFETY: the three pointers are valid during the call.
    let failed = unsafe { libc::getresgid(real, effective, saved) } != 0 || failed;
    if failed || users != [uid; 3] || groups != [gid; 3] {
        return broken(
            "user",
            format!("users are {users:?} and groups {groups:?} instead of {uid} and {gid}"),
        );
    }
    None
}

/// Which sets of capabilities are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sets {
    /// Permitted, effective, inheritable; the ambient set is never larger than these.
    OfThread,
    /// The bounding set as well.
    AndBounding,
}

fn capabilities(sets: Sets, kept: u32) -> Option<Finding> {
    // Version 3, this thread; then effective, permitted and inheritable, in two halves.
    let mut header = [0x2008_0522_u32, 0];
    let mut held = [u32::MAX; 6];
    // SAFETY: header and data have the layout of version 3 and live during the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), held.as_mut_ptr()) };
    if result != 0 || held != [kept, kept, 0, 0, 0, 0] {
        return broken("capabilities", format!("capget: sets are {held:x?}"));
    }
    if sets == Sets::AndBounding {
        let mut others = (0..64).filter(|number| u64::from(kept) & (1 << number) == 0);
        let bounded = others.find(|number| matches!(kernel::prctl(libc::PR_CAPBSET_READ, *number), Ok(1)));
        return bounded
            .and_then(|number| broken("capabilities", format!("prctl: {number} is in the bounding set")));
    }
    None
}

fn answers(control: &str, option: libc::c_int, good: impl Fn(libc::c_int) -> bool) -> Option<Finding> {
    match kernel::prctl(option, 0) {
        Ok(value) if good(value) => None,
        Ok(value) => broken(control, format!("prctl: {value}")),
        Err(error) => broken(control, format!("prctl: {}", words(&error))),
    }
}

fn no_new_privileges() -> Option<Finding> {
    answers("no_new_privs", libc::PR_GET_NO_NEW_PRIVS, |value| value == 1)
}

fn filter() -> Option<Finding> {
    answers("syscall_filter", libc::PR_GET_SECCOMP, |value| value == 2)
}

/// Until it is the guest's program, a command is ours: its memory and descriptors are not for its neighbours.
fn dumpable() -> Option<Finding> {
    answers("dumpable", libc::PR_GET_DUMPABLE, |value| value != 1)
}

/// Marks them anew: that this succeeds is the proof.
fn descriptors() -> Option<Finding> {
    kernel::close_on_exec_from(3)
        .err()
        .and_then(|error| broken("descriptors", format!("close_range: {}", words(&error))))
}

/// The finding that something was refused, with one of the answers that mean a refusal.
fn refused<T>(control: &str, what: &str, result: io::Result<T>, good: &[i32]) -> Finding {
    match result {
        Ok(_) => Finding::new(control, false, format!("{what} succeeded")),
        Err(error) => {
            let holds = error.raw_os_error().is_some_and(|number| good.contains(&number));
            Finding::new(control, holds, format!("{what}: {}", words(&error)))
        }
    }
}

/// The kernel's answer without its number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Answers that mean a refusal.
const REFUSALS: &[i32] = &[libc::EPERM, libc::EACCES, libc::ENOSYS];
/// The same where something is to be written.
const UNWRITABLE: &[i32] = &[libc::EPERM, libc::EACCES, libc::EROFS, libc::ENOENT];

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit};

    use super::*;
    use crate::filter::Filter;
    use crate::policy::{CONTROLS, IsolationLevel};
    use trial::{as_anybody, in_namespaces};

    /// What a guest would have to be for this process to be one, the host's namespaces aside.
    fn expected(uid: u32) -> Expected {
        Expected {
            role: Role::Guest,
            uid,
            gid: uid,
            uid_map: vec![[uid, uid, 1]],
            gid_map: vec![[uid, uid, 1]],
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            outside: namespaces(),
            interfaces: vec!["lo".to_owned()],
            read_only: Vec::new(),
            processes: 2,
            oom_score: "500".to_owned(),
        }
    }

    fn give_up_powers() {
        for (resource, most) in [(Resource::Nofile, 1024), (Resource::Nproc, 4096), (Resource::Core, 1)] {
            let limit = Rlimit { current: Some(most), maximum: Some(most) };
            rustix::process::setrlimit(resource, limit).unwrap();
        }
        kernel::prctl(libc::PR_SET_DUMPABLE, 0).unwrap();
        kernel::keep_capabilities(0).unwrap();
        kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).unwrap();
        kernel::close_on_exec_from(3).unwrap();
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn broken(findings: &[Finding]) -> Vec<&str> {
        let mut names: Vec<&str> = findings
            .iter()
            .filter(|finding| !finding.holds)
            .map(|finding| finding.control.as_str())
            .collect();
        names.dedup();
        names
    }

    /// The filter and the loss of all powers are enough for all that is tried by calls; what is seen is the host's.
    #[test]
    fn calls_are_refused_behind_the_filter_and_the_host_is_recognised() {
        let findings = as_anybody(|| {
            give_up_powers();
            Filter::compile().install().unwrap();
            full(&expected(own_uid()))
        });
        let tried = [
            "user",
            "no_new_privs",
            "syscall_filter",
            "dumpable",
            "descriptors",
            "mounts",
            "namespaces",
            "machine",
            "kernel_interfaces",
            "keyring",
            "terminal",
            "set_id",
            "identity",
            "raised_limits",
        ];
        for control in tried {
            let promise = Promise::named(control).unwrap();
            assert!(promise.is_kept(&findings), "{control}: {findings:#?}");
        }
        for control in ["own_namespaces", "processes", "hidden_files", "network", "memory_order"] {
            assert!(broken(&findings).contains(&control), "{control}: {findings:#?}");
        }
        assert_eq!(IsolationLevel::of(&findings), IsolationLevel::Broken);
    }

    /// Powers over namespaces of one's own and no filter: the probe must notice each thing that works.
    #[test]
    fn what_works_without_the_filter_is_noticed() {
        let findings = in_namespaces(0, || full(&expected(0)));
        let broken = broken(&findings);
        for control in [
            "user",
            "capabilities",
            "no_new_privs",
            "syscall_filter",
            "dumpable",
            "mounts",
            "namespaces",
            "machine",
            "kernel_interfaces",
            "terminal",
            "set_id",
            "network",
            "raised_limits",
            "hidden_files",
            "memory_order",
        ] {
            assert!(broken.contains(&control), "{control}: {findings:#?}");
        }
        let worked = |proof: &str| findings.iter().any(|finding| finding.proof == proof && !finding.holds);
        for proof in ["mount succeeded", "new mount namespace succeeded", "raw socket succeeded"] {
            assert!(worked(proof), "{proof}: {findings:#?}");
        }
    }

    #[test]
    fn every_promise_of_a_probe_is_looked_at_and_nothing_else_is() {
        let findings = as_anybody(|| full(&expected(own_uid())));
        for finding in &findings {
            let promise = Promise::named(&finding.control);
            assert!(promise.is_some_and(|promise| promise.proof != Proof::ReadBack), "{finding:?}");
        }
        for promise in CONTROLS.iter().filter(|promise| promise.proof != Proof::ReadBack) {
            assert!(findings.iter().any(|finding| finding.control == promise.control), "{}", promise.control);
        }
    }

    #[test]
    fn the_cheap_check_passes_a_caged_process_and_finds_what_is_missing() {
        let check = |prepare: fn(), uid: u32| {
            as_anybody(move || {
                prepare();
                cheap(own_uid().wrapping_add(uid), own_uid(), 0).map_err(|finding| finding.control)
            })
        };
        let caged = || {
            give_up_powers();
            Filter::compile().install().unwrap();
        };
        assert_eq!(check(caged, 0), Ok(()));
        assert_eq!(check(caged, 1), Err("user".to_owned()));
        assert_eq!(check(give_up_powers, 0), Err("syscall_filter".to_owned()));
        assert_eq!(check(|| (), 0), Err("no_new_privs".to_owned()));
        let dumpable = || {
            give_up_powers();
            Filter::compile().install().unwrap();
            kernel::prctl(libc::PR_SET_DUMPABLE, 1).unwrap();
        };
        assert_eq!(check(dumpable, 0), Err("dumpable".to_owned()));
        let powerful = in_namespaces(7, || cheap(7, 7, 0).map_err(|finding| finding.control));
        assert_eq!(powerful, Err("capabilities".to_owned()));
    }

    #[test]
    fn a_confirmed_finding_names_the_newer_witness() {
        let found = vec![
            Finding::new("user", true, String::new()).by("full, boot 1"),
            Finding::new("mounts", true, String::new()).by("full, boot 1"),
        ];
        let probes: Vec<String> = confirmed(found).into_iter().map(|finding| finding.probe).collect();
        assert_eq!(probes, [CHEAP, "full, boot 1"]);
    }
}

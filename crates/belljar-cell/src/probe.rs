//! Tries what a guest must not be able to do, from where the guest is: cheaply in every command, in full once in a while.

use std::io;

use serde::{Deserialize, Serialize};

use crate::kernel;
use crate::policy::{Promise, Proof};

mod attempt;
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
    /// Its user inside.
    pub uid: u32,
    /// Its group inside.
    pub gid: u32,
    /// The users of the cell: first inside, first outside, how many.
    pub uid_map: [u32; 3],
    /// The groups likewise.
    pub gid_map: [u32; 3],
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
/// Every command runs it on itself after the filter is on, just before it becomes the program.
pub fn cheap(uid: u32, gid: u32) -> Result<(), Finding> {
    let wrong = user(uid, gid)
        .or_else(|| capabilities(Sets::OfThread))
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
    let mut findings = passed(expected.uid, expected.gid);
    // As a guest's program would be: what it may do to itself must be tried with its own files open to it.
    let _ = kernel::prctl(libc::PR_SET_DUMPABLE, 1);
    findings.extend(attempt::all());
    findings.extend(view::all(expected));
    findings
}

/// The cheap checks once more, as findings.
fn passed(uid: u32, gid: u32) -> Vec<Finding> {
    let good = |control, words: String| move || Finding::new(control, true, words);
    vec![
        user(uid, gid).unwrap_or_else(good("user", format!("all ids are {uid} and {gid}"))),
        capabilities(Sets::AndBounding)
            .unwrap_or_else(good("capabilities", "capget and prctl: all sets are empty".to_owned())),
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

fn user(uid: u32, gid: u32) -> Option<Finding> {
    let (mut users, mut groups) = ([u32::MAX; 3], [u32::MAX; 3]);
    let [real, effective, saved] = users.each_mut().map(std::ptr::from_mut);
    // SAFETY: the three pointers are valid during the call.
    let failed = unsafe { libc::getresuid(real, effective, saved) } != 0;
    let [real, effective, saved] = groups.each_mut().map(std::ptr::from_mut);
    // SAFETY: the three pointers are valid during the call.
    let failed = unsafe { libc::getresgid(real, effective, saved) } != 0 || failed;
    if failed || users != [uid; 3] || groups != [gid; 3] || uid == 0 || gid == 0 {
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

fn capabilities(sets: Sets) -> Option<Finding> {
    // Version 3, this thread; then effective, permitted and inheritable, in two halves.
    let mut header = [0x2008_0522_u32, 0];
    let mut held = [u32::MAX; 6];
    // SAFETY: header and data have the layout of version 3 and live during the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), held.as_mut_ptr()) };
    if result != 0 || held != [0; 6] {
        return broken("capabilities", format!("capget: sets are {held:x?}"));
    }
    if sets == Sets::AndBounding {
        let bounded = (0..64).find(|number| matches!(kernel::prctl(libc::PR_CAPBSET_READ, *number), Ok(1)));
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

/// The check of a fresh cell by a process of its own, until every command checks itself.
pub(crate) fn examine(uid: u32) -> Vec<Finding> {
    let gid = rustix::process::getegid().as_raw();
    let mut findings = passed(uid, gid);
    findings.truncate(4);
    findings.extend(["mounts", "namespaces"].iter().filter_map(|control| attempt::first(control)));
    findings.extend(view::fresh(2, crate::doorman::GUEST_OOM_SCORE));
    findings
}

//! What isolation consists of: every control, what it promises, who proves it, and what its absence means.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::powers::Role;
use crate::probe::Finding;

/// One control: a promise that can be proven or found broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// Its name in records, e.g. `namespaces`.
    pub control: &'static str,
    /// What it promises.
    pub words: &'static str,
    /// Who proves it.
    pub proof: Proof,
    /// What its absence means.
    pub need: Need,
}

/// Who proves a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Every command checks it on itself, just before it becomes the program.
    Cheap,
    /// A process as weak as a guest tries it, once per boot, engine and policy.
    Full,
    /// The keeper reads it back from the kernel, in every cell.
    ReadBack,
}

/// What the absence of a control means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// No isolation worth the name: nothing is run.
    Wall,
    /// The guest may use up the machine, though it cannot get out.
    Limit,
    /// Outside, the guest is the caller rather than nobody.
    Apart,
    /// Good to have; some kernels do not offer it.
    Extra,
}

const fn promise(control: &'static str, proof: Proof, need: Need, words: &'static str) -> Promise {
    Promise { control, words, proof, need }
}

use Need::{Apart, Extra, Limit, Wall};
use Proof::{Cheap, Full, ReadBack};

/// Every control there is.
#[rustfmt::skip]
pub const CONTROLS: &[Promise] = &[
    promise("user", Cheap, Wall, "the guest is the user it should be, and not root, inside the cell"),
    promise("capabilities", Cheap, Wall, "the guest has no capability in any set"),
    promise("no_new_privs", Cheap, Wall, "no program makes the guest more powerful than it is"),
    promise("syscall_filter", Cheap, Wall, "only system calls on the allow list reach the kernel"),
    promise("descriptors", Cheap, Wall, "a program gets no open file but its three streams"),
    promise("dumpable", Cheap, Wall, "no neighbour looks into a command before it is the guest's program"),
    promise("mounts", Full, Wall, "the guest changes no mount, and no handle leads it out of its root"),
    promise("namespaces", Full, Wall, "the guest makes no namespace and enters none"),
    promise("own_namespaces", Full, Wall, "users, mounts, processes, network, IPC, host name and control groups are the cell's own"),
    promise("processes", Full, Wall, "the guest sees no process but its cell's, and cannot reach the cell's init"),
    promise("machine", Full, Wall, "clock, modules, memory, power, ports and names of the machine are out of reach"),
    promise("kernel_interfaces", Full, Wall, "interfaces that open the kernel to programs are shut"),
    promise("kernel_secrets", Full, Wall, "the kernel's memory, addresses and log cannot be read"),
    promise("hidden_files", Full, Wall, "files of /proc that tell about the machine are not there or empty"),
    promise("keyring", Full, Wall, "the guest reads and writes no key"),
    promise("read_only", Full, Wall, "what is shared with the machine or with our own processes cannot be written"),
    promise("devices", Full, Wall, "six harmless devices and no others, and none can be made"),
    promise("set_id", Full, Wall, "no file gets a set-user-id or set-group-id bit"),
    promise("terminal", Full, Wall, "the guest types nothing into a terminal"),
    promise("network", Full, Wall, "no network but the one the phase allows, and no raw packets"),
    promise("raised_limits", Full, Wall, "the guest cannot raise its own limits"),
    promise("identity", Full, Wall, "the guest becomes no other user and joins no group"),
    promise("id_map", Full, Wall, "ids inside stand for the ids outside that they should"),
    promise("host_name", Full, Wall, "the guest sees the cell's name, not the machine's"),
    promise("memory_order", Full, Wall, "when memory runs out the guest is killed before what holds its cell, and cannot change that"),
    promise("memory", ReadBack, Limit, "the cell uses no more memory than it was given"),
    promise("swap", ReadBack, Limit, "the cell uses no swap"),
    promise("cpu_millis", ReadBack, Limit, "the cell uses no more processors than it was given"),
    promise("pids", ReadBack, Limit, "the cell has no more processes and threads than it was given"),
    promise("ids_of_nobody", Full, Apart, "outside, the guest's ids belong to nobody"),
    promise("groups", Full, Apart, "the guest is in no group beside its own"),
    promise("time_namespace", Full, Extra, "the cell's clocks since start are its own"),
];

/// How strong the isolation of a cell is, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationLevel {
    /// A wall does not stand, or nobody knows whether it does. Nothing is run.
    Broken,
    /// Every wall stands; the guest may use up the machine. What an ordinary user gets without control groups.
    WithoutLimits,
    /// Every wall stands and every limit is set; outside, the guest is the caller. What an ordinary user gets with
    /// control groups that were handed over.
    Full,
    /// Full, and outside the guest is nobody. What root gets.
    Strict,
}

impl fmt::Display for IsolationLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IsolationLevel::Broken => "broken",
            IsolationLevel::WithoutLimits => "without limits",
            IsolationLevel::Full => "full",
            IsolationLevel::Strict => "strict",
        })
    }
}

impl IsolationLevel {
    /// The level that findings amount to. A control nobody looked at is not in force.
    pub fn of(findings: &[Finding]) -> IsolationLevel {
        let missing =
            |need| CONTROLS.iter().any(|promise| promise.need == need && !promise.is_kept(findings));
        if missing(Wall) {
            IsolationLevel::Broken
        } else if missing(Limit) {
            IsolationLevel::WithoutLimits
        } else if missing(Apart) {
            IsolationLevel::Full
        } else {
            IsolationLevel::Strict
        }
    }

    /// The controls that a cell of this level has in force.
    pub fn controls(self) -> impl Iterator<Item = &'static Promise> {
        CONTROLS.iter().filter(move |promise| promise.level() <= self)
    }
}

impl Promise {
    /// The control of that name.
    pub fn named(control: &str) -> Option<&'static Promise> {
        CONTROLS.iter().find(|promise| promise.control == control)
    }

    /// Whether it was looked at and never found broken.
    pub fn is_kept(&self, findings: &[Finding]) -> bool {
        let mut own = findings.iter().filter(|finding| finding.control == self.control).peekable();
        own.peek().is_some() && own.all(|finding| finding.holds)
    }

    /// The lowest level that needs it; `Strict` also for those that no level needs.
    fn level(&self) -> IsolationLevel {
        match self.need {
            Wall => IsolationLevel::WithoutLimits,
            Limit => IsolationLevel::Full,
            Apart | Extra => IsolationLevel::Strict,
        }
    }
}

/// Why a cell has a lower level than was asked for: the first control that is not in force, in words.
pub fn shortfall(asked: IsolationLevel, findings: &[Finding]) -> Option<String> {
    let lacking = |promise: &&Promise| promise.need != Extra && !promise.is_kept(findings);
    let promise = asked.controls().find(lacking)?;
    let broken = findings.iter().find(|finding| finding.control == promise.control && !finding.holds);
    let proof = broken.map_or("nobody looked at it", |finding| finding.proof.as_str());
    Some(format!("`{}` is not in force ({}): {proof}", promise.control, promise.words))
}

/// One finding for each control, in the order of [`CONTROLS`]: what holds is joined, what is broken is told alone.
pub fn summary(findings: &[Finding]) -> Vec<Finding> {
    CONTROLS.iter().filter_map(|promise| joined(promise, findings)).collect()
}

fn joined(promise: &Promise, findings: &[Finding]) -> Option<Finding> {
    let own = || findings.iter().filter(|finding| finding.control == promise.control);
    let first = own().next()?;
    let holds = own().all(|finding| finding.holds);
    let told = own().filter(|finding| finding.holds == holds).map(|finding| finding.proof.as_str());
    Some(Finding { holds, proof: by_answer(told), ..first.clone() })
}

/// Joins proofs, what was tried with the same answer together: `mount, chroot: Operation not permitted; clone3: …`.
fn by_answer<'a>(proofs: impl Iterator<Item = &'a str>) -> String {
    let mut answers: Vec<(Option<&str>, Vec<&str>)> = Vec::new();
    for proof in proofs {
        let (what, answer) =
            proof.rsplit_once(": ").map_or((proof, None), |(what, answer)| (what, Some(answer)));
        match answers.iter_mut().find(|(known, _)| answer.is_some() && *known == answer) {
            Some((_, tried)) => tried.push(what),
            None => answers.push((answer, vec![what])),
        }
    }
    let told = |(answer, tried): (Option<&str>, Vec<&str>)| match answer {
        Some(answer) => format!("{}: {answer}", tried.join(", ")),
        None => tried.join(", "),
    };
    answers.into_iter().map(told).collect::<Vec<_>>().join("; ")
}

/// The capabilities of root in a cell for building: what Docker gives a RUN, without raw packets and device nodes.
/// They count for the cell's own files and processes only.
pub const BUILD_CAPABILITIES: &[(&str, u32)] = &[
    ("chown", 0),
    ("dac_override", 1),
    ("fowner", 3),
    ("fsetid", 4),
    ("kill", 5),
    ("setgid", 6),
    ("setuid", 7),
    ("setpcap", 8),
    ("net_bind_service", 10),
    ("sys_chroot", 18),
    ("audit_write", 29),
    ("setfcap", 31),
];

/// The capabilities that a process of such a cell has.
pub(crate) fn capabilities(role: Role, uid: u32) -> u32 {
    match role {
        Role::Builder if uid == 0 => {
            BUILD_CAPABILITIES.iter().fold(0, |mask, (_, number)| mask | 1 << number)
        }
        Role::Builder | Role::Guest => 0,
    }
}

/// What guests are worth to the kernel when memory runs out: more than anything that holds the cell.
pub const GUEST_OOM_SCORE: &str = "500";

/// How a file of /proc that tells about the machine is kept from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// Everybody may read it, so something empty is put over it.
    Covered,
    /// Only the machine's root may open it, or no kernel that will do has it any more, so nothing needs to be done;
    /// the full probe tries.
    Shut,
}

/// Files of /proc that tell about the machine or its kernel, Docker's masked files among them.
pub(crate) const HIDDEN_FILES: &[(&str, Hidden)] = &[
    ("/proc/cmdline", Hidden::Covered),
    ("/proc/config.gz", Hidden::Covered),
    ("/proc/interrupts", Hidden::Covered),
    ("/proc/iomem", Hidden::Covered),
    ("/proc/ioports", Hidden::Covered),
    ("/proc/kallsyms", Hidden::Covered),
    ("/proc/keys", Hidden::Covered),
    ("/proc/latency_stats", Hidden::Covered),
    ("/proc/modules", Hidden::Covered),
    ("/proc/kcore", Hidden::Shut),
    ("/proc/kmsg", Hidden::Shut),
    ("/proc/kpagecgroup", Hidden::Shut),
    ("/proc/kpagecount", Hidden::Shut),
    ("/proc/kpageflags", Hidden::Shut),
    ("/proc/pagetypeinfo", Hidden::Shut),
    ("/proc/sched_debug", Hidden::Shut),
    ("/proc/slabinfo", Hidden::Shut),
    ("/proc/timer_list", Hidden::Shut),
    ("/proc/timer_stats", Hidden::Shut),
    ("/proc/vmallocinfo", Hidden::Shut),
];

/// Folders of /proc that tell about the machine.
pub(crate) const HIDDEN_FOLDERS: &[&str] = &["/proc/acpi", "/proc/asound", "/proc/scsi"];

#[cfg(test)]
mod tests {
    use super::*;

    fn all(holds: impl Fn(&Promise) -> bool) -> Vec<Finding> {
        let finding = |promise: &Promise| Finding::new(promise.control, holds(promise), "tried".to_owned());
        CONTROLS.iter().map(finding).collect()
    }

    #[test]
    fn the_level_follows_from_what_is_in_force() {
        assert_eq!(IsolationLevel::of(&all(|_| true)), IsolationLevel::Strict);
        assert_eq!(IsolationLevel::of(&all(|promise| promise.need != Extra)), IsolationLevel::Strict);
        assert_eq!(IsolationLevel::of(&all(|promise| promise.control != "groups")), IsolationLevel::Full);
        assert_eq!(IsolationLevel::of(&all(|promise| promise.need != Limit)), IsolationLevel::WithoutLimits);
        assert_eq!(
            IsolationLevel::of(&all(|promise| promise.control != "pids")),
            IsolationLevel::WithoutLimits
        );
        assert_eq!(IsolationLevel::of(&all(|promise| promise.control != "mounts")), IsolationLevel::Broken);
        assert_eq!(IsolationLevel::of(&[]), IsolationLevel::Broken);
    }

    #[test]
    fn each_wall_counts_and_a_control_that_nobody_looked_at_is_not_in_force() {
        for wall in CONTROLS.iter().filter(|promise| promise.need == Wall) {
            let mut findings = all(|_| true);
            findings.retain(|finding| finding.control != wall.control);
            assert_eq!(IsolationLevel::of(&findings), IsolationLevel::Broken, "{}", wall.control);
            let asked = IsolationLevel::WithoutLimits;
            assert!(shortfall(asked, &findings).unwrap().contains("nobody looked at it"), "{}", wall.control);
        }
    }

    #[test]
    fn one_broken_attempt_breaks_its_control() {
        let mut findings = all(|_| true);
        findings.push(Finding::new("mounts", false, "umount2 succeeded".to_owned()));
        assert_eq!(IsolationLevel::of(&findings), IsolationLevel::Broken);
        let told = summary(&findings);
        let mounts = told.iter().find(|finding| finding.control == "mounts").unwrap();
        assert_eq!((mounts.holds, mounts.proof.as_str()), (false, "umount2 succeeded"));
        assert_eq!(told.len(), CONTROLS.len());
    }

    #[test]
    fn a_shortfall_is_told_for_the_level_that_was_asked_for() {
        let findings = all(|promise| promise.need != Limit && promise.control != "ids_of_nobody");
        assert_eq!(shortfall(IsolationLevel::WithoutLimits, &findings), None);
        assert_eq!(shortfall(IsolationLevel::Broken, &[]), None);
        assert!(shortfall(IsolationLevel::Full, &findings).unwrap().starts_with("`memory` is not in force"));
        let findings = all(|promise| promise.control != "ids_of_nobody");
        assert_eq!(shortfall(IsolationLevel::Full, &findings), None);
        assert!(shortfall(IsolationLevel::Strict, &findings).unwrap().starts_with("`ids_of_nobody`"));
        let findings = all(|promise| promise.need != Extra);
        assert_eq!(shortfall(IsolationLevel::Strict, &findings), None);
    }

    #[test]
    fn a_summary_joins_what_had_the_same_answer() {
        let findings = [
            ("mounts", "mount: Operation not permitted"),
            ("namespaces", "setns: Operation not permitted"),
            ("mounts", "openat2: Function not implemented"),
            ("mounts", "chroot: Operation not permitted"),
            ("mounts", "the root is its own"),
        ]
        .map(|(control, proof)| Finding::new(control, true, proof.to_owned()));
        let told: Vec<String> = summary(&findings).into_iter().map(|finding| finding.proof).collect();
        let mounts =
            "mount, chroot: Operation not permitted; openat2: Function not implemented; the root is its own";
        assert_eq!(told, [mounts, "setns: Operation not permitted"]);
    }

    /// Whatever is found: a shortfall is told exactly when the level is lower than the one asked for.
    #[test]
    fn level_and_shortfall_agree() {
        let levels = [
            IsolationLevel::Broken,
            IsolationLevel::WithoutLimits,
            IsolationLevel::Full,
            IsolationLevel::Strict,
        ];
        for broken in CONTROLS {
            let findings = all(|promise| promise.control != broken.control);
            for asked in levels {
                let lower = IsolationLevel::of(&findings) < asked;
                assert_eq!(shortfall(asked, &findings).is_some(), lower, "{} {asked}", broken.control);
            }
        }
    }

    #[test]
    fn names_are_single() {
        let mut names: Vec<&str> = CONTROLS.iter().map(|promise| promise.control).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

//! Forbidden calls, made. Each is chosen so that it does no harm should it succeed.

use std::ffi::CStr;
use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit};

use super::{Finding, REFUSALS, refused};
use crate::kernel;
use crate::powers::Role;
use crate::syscalls::{CALLS, Machine};

/// One call, as data.
struct Attempt {
    control: &'static str,
    /// What it is called in the proof.
    what: &'static str,
    call: &'static str,
    arguments: &'static [Argument],
}

/// An argument of a call.
#[derive(Clone, Copy)]
enum Argument {
    Number(i64),
    Text(&'static CStr),
    /// Some memory, all zero, for the call to read or to write.
    Memory,
}

use Argument::{Memory, Number, Text};

const fn attempt(
    control: &'static str,
    what: &'static str,
    call: &'static str,
    arguments: &'static [Argument],
) -> Attempt {
    Attempt { control, what, call, arguments }
}

const NULL: Argument = Number(0);
const HERE: Argument = Number(libc::AT_FDCWD as i64);
const NOBODY: Argument = Number(-1);
/// A file of the probe's own, and one that is not there.
const OWN: &CStr = c"/tmp/.belljar-probe";
const FRESH: &CStr = c"/tmp/.belljar-fresh";
/// The cell's init.
const INIT: Argument = Number(1);

#[rustfmt::skip]
const ATTEMPTS: &[Attempt] = &[
    attempt("mounts", "mount", "mount", &[Text(c"none"), Text(c"/tmp"), Text(c"tmpfs"), NULL, NULL]),
    attempt("mounts", "remount the root", "mount", &[Text(c"none"), Text(c"/"), NULL, Number((libc::MS_REMOUNT | libc::MS_BIND) as i64), NULL]),
    attempt("mounts", "unmount /proc", "umount2", &[Text(c"/proc"), Number(libc::MNT_DETACH as i64)]),
    attempt("mounts", "pivot_root", "pivot_root", &[Text(c"."), Text(c".")]),
    attempt("mounts", "chroot", "chroot", &[Text(c"/")]),
    attempt("mounts", "fsopen", "fsopen", &[Text(c"tmpfs"), NULL]),
    attempt("mounts", "open_tree", "open_tree", &[HERE, Text(c"/"), Number(1)]),
    attempt("mounts", "move_mount", "move_mount", &[HERE, Text(c"/proc"), HERE, Text(c"/tmp"), NULL]),
    attempt("mounts", "mount_setattr", "mount_setattr", &[HERE, Text(c"/"), NULL, Memory, Number(32)]),
    attempt("mounts", "open_by_handle_at", "open_by_handle_at", &[HERE, Memory, NULL]),
    attempt("namespaces", "new user namespace", "unshare", &[Number(libc::CLONE_NEWUSER as i64)]),
    attempt("namespaces", "new mount namespace", "unshare", &[Number(libc::CLONE_NEWNS as i64)]),
    attempt("namespaces", "new process namespace", "unshare", &[Number(libc::CLONE_NEWPID as i64)]),
    attempt("namespaces", "new network namespace", "unshare", &[Number(libc::CLONE_NEWNET as i64)]),
    attempt("namespaces", "new IPC namespace", "unshare", &[Number(libc::CLONE_NEWIPC as i64)]),
    attempt("namespaces", "new host name namespace", "unshare", &[Number(libc::CLONE_NEWUTS as i64)]),
    attempt("namespaces", "new control group namespace", "unshare", &[Number(libc::CLONE_NEWCGROUP as i64)]),
    attempt("namespaces", "new time namespace", "unshare", &[Number(0x80)]),
    attempt("namespaces", "setns", "setns", &[NOBODY, NULL]),
    attempt("namespaces", "clone3", "clone3", &[NULL, NULL]),
    attempt("processes", "ptrace of the cell's init", "ptrace", &[Number(0x4206), INIT, NULL, NULL]),
    attempt("processes", "prlimit of the cell's init", "prlimit64", &[INIT, Number(libc::RLIMIT_NOFILE as i64), Memory, NULL]),
    attempt("machine", "reboot", "reboot", &[NULL, NULL, NULL, NULL]),
    attempt("machine", "kexec_load", "kexec_load", &[NULL, NULL, NULL, Number(0xffff)]),
    attempt("machine", "kexec_file_load", "kexec_file_load", &[NOBODY, NOBODY, NULL, NULL, Number(0xffff)]),
    attempt("machine", "init_module", "init_module", &[NULL, NULL, Text(c"")]),
    attempt("machine", "finit_module", "finit_module", &[NOBODY, Text(c""), NULL]),
    attempt("machine", "delete_module", "delete_module", &[Text(c"belljar-has-none"), Number(libc::O_NONBLOCK as i64)]),
    attempt("machine", "swapon", "swapon", &[Text(c"/belljar-has-none"), NULL]),
    attempt("machine", "swapoff", "swapoff", &[Text(c"/belljar-has-none")]),
    attempt("machine", "sethostname", "sethostname", &[Memory, Number(-1)]),
    attempt("machine", "setdomainname", "setdomainname", &[Memory, Number(-1)]),
    attempt("machine", "acct", "acct", &[Text(c"/belljar-has-none")]),
    attempt("machine", "quotactl", "quotactl", &[Number(0x80_0004 << 8), Text(c"/belljar-has-none"), NULL, Memory]),
    attempt("machine", "ioperm", "ioperm", &[Number(0x80), Number(1), Number(1)]),
    attempt("machine", "iopl", "iopl", &[Number(3)]),
    attempt("machine", "vhangup", "vhangup", &[]),
    attempt("kernel_interfaces", "bpf", "bpf", &[NULL, Memory, Number(64)]),
    attempt("kernel_interfaces", "io_uring_setup", "io_uring_setup", &[Number(1), Memory]),
    attempt("kernel_interfaces", "userfaultfd", "userfaultfd", &[Number(1)]),
    attempt("kernel_interfaces", "perf_event_open", "perf_event_open", &[Memory, NULL, NOBODY, NOBODY, NULL]),
    attempt("kernel_interfaces", "fanotify_init", "fanotify_init", &[NULL, NULL]),
    attempt("kernel_interfaces", "modify_ldt", "modify_ldt", &[NULL, Memory, Number(16)]),
    attempt("kernel_interfaces", "lookup_dcookie", "lookup_dcookie", &[NULL, Memory, Number(16)]),
    attempt("kernel_interfaces", "nfsservctl", "nfsservctl", &[NULL, NULL, NULL]),
    attempt("kernel_interfaces", "other personality", "personality", &[Number(0x0040_0000)]),
    attempt("kernel_secrets", "syslog", "syslog", &[Number(3), Memory, Number(64)]),
    attempt("kernel_secrets", "kcmp", "kcmp", &[INIT, INIT, NULL, NULL, NULL]),
    attempt("keyring", "keyctl for the session keyring", "keyctl", &[NULL, Number(-3), NULL]),
    attempt("keyring", "add_key", "add_key", &[Text(c"user"), Text(c"belljar"), Text(c"x"), Number(1), Number(-3)]),
    attempt("keyring", "request_key", "request_key", &[Text(c"user"), Text(c"belljar"), NULL, Number(-3)]),
    attempt("terminal", "TIOCSTI", "ioctl", &[NOBODY, Number(0x5412), Memory]),
    attempt("terminal", "TIOCLINUX", "ioctl", &[NOBODY, Number(0x541c), Memory]),
    attempt("terminal", "TIOCSETD", "ioctl", &[NOBODY, Number(0x5423), Memory]),
    attempt("network", "raw socket", "socket", &[Number(libc::AF_INET as i64), Number(libc::SOCK_RAW as i64), Number(1)]),
    attempt("network", "packet socket", "socket", &[Number(libc::AF_PACKET as i64), Number(libc::SOCK_RAW as i64), NULL]),
    attempt("network", "vsock socket", "socket", &[Number(libc::AF_VSOCK as i64), Number(libc::SOCK_STREAM as i64), NULL]),
    attempt("network", "alg socket", "socket", &[Number(libc::AF_ALG as i64), Number(libc::SOCK_SEQPACKET as i64), NULL]),
    attempt("network", "netfilter socket", "socket", &[Number(libc::AF_NETLINK as i64), Number(libc::SOCK_RAW as i64), Number(12)]),
    attempt("devices", "make a device", "mknodat", &[HERE, Text(FRESH), Number(libc::S_IFBLK as i64 | 0o600), Number(0x0101)]),
    attempt("set_id", "open with a set-user-id bit", "openat", &[HERE, Text(FRESH), Number((libc::O_CREAT | libc::O_EXCL) as i64), Number(0o4755)]),
    attempt("set_id", "make a file with a set-user-id bit", "mknodat", &[HERE, Text(FRESH), Number(0o104_755), NULL]),
    attempt("set_id", "chmod to set-user-id", "fchmodat", &[HERE, Text(OWN), Number(0o4755)]),
    attempt("set_id", "chmod to set-group-id by the newer call", "fchmodat2", &[HERE, Text(OWN), Number(0o2755), NULL]),
    attempt("set_id", "openat2", "openat2", &[HERE, Text(FRESH), Memory, Number(24)]),
    attempt("identity", "become root", "setresuid", &[NULL, NULL, NULL]),
    attempt("identity", "join root's group", "setresgid", &[NULL, NULL, NULL]),
    attempt("identity", "set groups", "setgroups", &[Number(1), Memory]),
];

/// Makes every forbidden call.
pub(super) fn all(role: Role) -> Vec<Finding> {
    let mut findings = match role {
        Role::Guest => as_guest(),
        Role::Builder => as_builder(),
    };
    findings.extend(CLONES.iter().map(|(what, flag)| clone(what, *flag)));
    findings.extend([set_clock(), set_time_of_day(), adjust_clock()]);
    findings.extend([kill_init(), read_init(), take_from_init()]);
    findings.extend(LIMITS.iter().map(|(what, resource)| raise(what, *resource)));
    findings
}

fn as_guest() -> Vec<Finding> {
    // Where nobody may write there is nothing to set a bit on; the calls are refused all the same.
    let _ = rustix::fs::open(OWN, OFlags::CREATE | OFlags::CLOEXEC, Mode::RUSR);
    let findings = ATTEMPTS.iter().filter_map(Attempt::make).collect();
    for path in [OWN, FRESH] {
        let _ = rustix::fs::unlink(path);
    }
    findings
}

/// A builder may give files set-id bits and become any user of its cell, so it is shown that neither makes it stronger.
/// Nothing is written: it would be in the layer.
fn as_builder() -> Vec<Finding> {
    let allowed =
        |attempt: &&Attempt| matches!(attempt.control, "set_id" | "identity") || attempt.call == "chroot";
    let forbidden = ATTEMPTS.iter().filter(|attempt| !allowed(attempt));
    let mut findings: Vec<Finding> = forbidden.filter_map(Attempt::make).collect();
    findings.extend([bits_are_ignored(), nobody_else()]);
    findings
}

fn bits_are_ignored() -> Finding {
    let flags = rustix::fs::statvfs("/").map(|about| about.f_flag);
    let ignored = flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    Finding::new("set_id", ignored, "a build may set the bits; the root is mounted nosuid".to_owned())
}

/// An id beyond the cell's own cannot be had.
fn nobody_else() -> Finding {
    let outside = i64::from(u32::MAX - 1);
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, outside, outside, outside) };
    refused("identity", "become a user that the cell has not", answer(result), &[libc::EPERM, libc::EINVAL])
}

impl Attempt {
    /// Nothing where this machine has no such call.
    fn make(&self) -> Option<Finding> {
        let call = CALLS.iter().find(|call| call.name == self.call)?;
        let number = call.number(Machine::THIS)?;
        // Longer than any structure that these calls read or write.
        let mut memory = [0_u64; 64];
        let mut arguments = [0_i64; 6];
        for (place, argument) in arguments.iter_mut().zip(self.arguments) {
            *place = match argument {
                Number(number) => *number,
                Text(text) => text.as_ptr() as i64,
                Memory => memory.as_mut_ptr() as i64,
            };
        }
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: every argument is a number, a string that lives for ever, or memory of this function, larger than
        // what the call can use; whatever succeeds against all promises endangers no memory of this process.
        let result = unsafe { libc::syscall(i64::from(number), a, b, c, d, e, f) };
        // An id that does not exist inside cannot be taken either.
        let good = if self.control == "identity" { &[libc::EPERM, libc::EINVAL] } else { REFUSALS };
        Some(refused(self.control, self.what, answer(result), good))
    }
}

fn answer(result: i64) -> io::Result<i64> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

const CLONES: &[(&str, libc::c_int)] = &[
    ("clone into a new user namespace", libc::CLONE_NEWUSER),
    ("clone into a new mount namespace", libc::CLONE_NEWNS),
    ("clone into a new process namespace", libc::CLONE_NEWPID),
    ("clone into a new network namespace", libc::CLONE_NEWNET),
    ("clone into a new IPC namespace", libc::CLONE_NEWIPC),
    ("clone into a new host name namespace", libc::CLONE_NEWUTS),
    ("clone into a new control group namespace", libc::CLONE_NEWCGROUP),
    ("clone for another parent", libc::CLONE_PARENT),
];

fn clone(what: &str, flag: libc::c_int) -> Finding {
    let flags = i64::from(flag) | i64::from(libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child has its own copy of everything; it ends at once.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0_i64, 0_i64, 0_i64, 0_i64) };
    if result == 0 {
        kernel::exit_now(0);
    }
    refused("namespaces", what, answer(result), REFUSALS)
}

/// Sets the clock to what it is.
fn set_clock() -> Finding {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let result = rustix::time::clock_settime(rustix::time::ClockId::Realtime, now);
    refused("machine", "clock_settime", result.map_err(io::Error::from), REFUSALS)
}

fn set_time_of_day() -> Finding {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let time = [now.tv_sec, now.tv_nsec / 1000];
    // SAFETY: the time lives during the call, and no time zone is given.
    let result = unsafe { libc::syscall(libc::SYS_settimeofday, time.as_ptr(), std::ptr::null::<u8>()) };
    refused("machine", "settimeofday", answer(result), REFUSALS)
}

/// Reads the clock's state, which is allowed, and sets it to the same.
fn adjust_clock() -> Finding {
    // SAFETY: all zero is a valid value: it asks for nothing to be changed.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives during the call.
    let read = unsafe { libc::syscall(libc::SYS_adjtimex, &raw mut state) };
    if let Err(error) = answer(read) {
        return refused("machine", "adjtimex", Err::<(), _>(error), REFUSALS);
    }
    state.modes = libc::ADJ_STATUS;
    // SAFETY: the structure lives during the call.
    let result = unsafe { libc::syscall(libc::SYS_adjtimex, &raw mut state) };
    refused("machine", "adjtimex that sets", answer(result), REFUSALS)
}

/// A process namespace's first process ignores what its own processes send it, unless it asked for the signal.
fn kill_init() -> Finding {
    let what = "SIGKILL to the cell's init";
    // SAFETY: sending a signal touches no memory.
    let send = |signal| answer(i64::from(unsafe { libc::kill(1, signal) }));
    match (send(libc::SIGKILL), send(0)) {
        (Ok(_), Ok(_)) => Finding::new("processes", true, format!("{what}: the kernel ignores it")),
        (result, _) => refused("processes", what, result, REFUSALS),
    }
}

fn read_init() -> Finding {
    let mut buffer = [0_u8; 8];
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // A program's first page is rarely at this address, but who may not read is told so before it is looked for.
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(0x40_0000), iov_len: buffer.len() };
    // SAFETY: one structure each, alive during the call; only the local buffer is written, within its length.
    let result = unsafe { libc::process_vm_readv(1, &raw const local, 1, &raw const remote, 1, 0) };
    refused("processes", "process_vm_readv of the cell's init", answer(result as i64), REFUSALS)
}

fn take_from_init() -> Finding {
    // SAFETY: numbers only.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, 1, 0) };
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, 0, 0) };
    refused("processes", "pidfd_getfd from the cell's init", answer(result), REFUSALS)
}

const LIMITS: &[(&str, Resource)] =
    &[("open files", Resource::Nofile), ("processes", Resource::Nproc), ("core files", Resource::Core)];

fn raise(what: &str, resource: Resource) -> Finding {
    let now = rustix::process::getrlimit(resource);
    let Some(hard) = now.maximum else {
        return Finding::new("raised_limits", false, format!("there is no limit on {what}"));
    };
    let more = Rlimit { current: now.current, maximum: Some(hard.saturating_add(1)) };
    let result = rustix::process::setrlimit(resource, more).map_err(io::Error::from);
    refused("raised_limits", &format!("raise the limit of {what} beyond {hard}"), result, REFUSALS)
}

//! The syscall filter: an allow list, and a second filter that answers "no such call" where programs expect it.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::kernel;
use crate::syscalls;

/// A filter that is compiled and ready to be installed in any number of processes.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    allow: Vec<libc::sock_filter>,
    missing: Vec<libc::sock_filter>,
}

impl Filter {
    /// Compiles the filter.
    pub(crate) fn compile() -> io::Result<Filter> {
        let allow = allow_list().map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Filter { allow: allow.into_iter().map(instruction).collect(), missing: missing_calls() })
    }

    /// Installs both parts on this thread, which must have `no_new_privs` set; there is no way back.
    ///
    /// Of two refusals the kernel gives the answer of the filter installed last, so "no such call" goes second.
    pub(crate) fn install(&self) -> io::Result<()> {
        kernel::install_filter(&self.allow)?;
        kernel::install_filter(&self.missing)
    }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: (TargetArch, u32) = (TargetArch::x86_64, 0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: (TargetArch, u32) = (TargetArch::aarch64, 0xc000_00b7);

fn allow_list() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        syscalls::ALLOWED.iter().map(|(_, number)| (*number, Vec::new())).collect();
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_new_namespaces()?])?]);
    rules.insert(libc::SYS_socket, one_of(0, SOCKET_FAMILIES)?);
    rules.insert(libc::SYS_socketpair, one_of(0, SOCKET_FAMILIES)?);
    rules.insert(libc::SYS_personality, one_of(0, PERSONALITIES)?);
    rules.insert(libc::SYS_ioctl, vec![none_of(1, TERMINAL_INJECTION)?]);
    // Reading anybody's limits harms nobody; changing those of the cell's init would blind it.
    rules.insert(
        libc::SYS_prlimit64,
        vec![
            SeccompRule::new(vec![compare(0, SeccompCmpOp::Eq, 0)?])?,
            SeccompRule::new(vec![SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?])?,
        ],
    );
    for (call, mode) in MODE_CALLS {
        rules.insert(*call, vec![SeccompRule::new(vec![without_set_id(*mode)?])?]);
    }
    for (call, flags, mode) in OPEN_CALLS {
        let makes_nothing = SeccompCmpOp::MaskedEq((libc::O_CREAT | O_TMPFILE_BIT) as u64);
        let reads = SeccompRule::new(vec![compare(*flags, makes_nothing, 0)?])?;
        rules.insert(*call, vec![reads, SeccompRule::new(vec![without_set_id(*mode)?])?]);
    }
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, ARCHITECTURE.0)?.try_into()
}

/// Unix, IPv4, IPv6, netlink: what plain programs use. Packet, vsock, alg and the rest stay shut.
const SOCKET_FAMILIES: &[u64] =
    &[libc::AF_UNIX as u64, libc::AF_INET as u64, libc::AF_INET6 as u64, libc::AF_NETLINK as u64];
/// Asking (`0xffffffff`), plain Linux, and no address randomisation, each with or without the 2.6 version number.
const PERSONALITIES: &[u64] = &[0, 0x0004_0000, 0x0002_0000, 0x0006_0000, 0xffff_ffff];
/// TIOCSTI and TIOCLINUX push bytes into somebody else's terminal.
const TERMINAL_INJECTION: &[u64] = &[0x5412, 0x541c];

/// Calls that set a file's mode, and which argument it is. A file of the workspace belongs to the caller outside, so a
/// set-user-id bit on it would hand the caller's powers to whoever runs it there.
const MODE_CALLS: &[(i64, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
];
/// Calls that may make a file, and which arguments are the flags and the mode.
const OPEN_CALLS: &[(i64, u8, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
    (libc::SYS_openat, 2, 3),
];
/// The bit of `O_TMPFILE` that is not `O_DIRECTORY`.
const O_TMPFILE_BIT: i32 = 0o20_000_000;

fn without_set_id(argument: u8) -> Result<SeccompCondition, seccompiler::BackendError> {
    compare(argument, SeccompCmpOp::MaskedEq(0o6000), 0)
}

fn no_new_namespaces() -> Result<SeccompCondition, seccompiler::BackendError> {
    // CLONE_PARENT would make children of the keeper, which waits for its own only.
    let mask = kernel::NAMESPACES | libc::CLONE_PARENT as u64 | 0x80 /* CLONE_NEWTIME */;
    SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), 0)
}

fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|value| SeccompRule::new(vec![compare(argument, SeccompCmpOp::Eq, *value)?])).collect()
}

fn none_of(argument: u8, values: &[u64]) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions: Result<Vec<_>, _> =
        values.iter().map(|value| compare(argument, SeccompCmpOp::Ne, *value)).collect();
    SeccompRule::new(conditions?)
}

fn compare(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn instruction(from: seccompiler::sock_filter) -> libc::sock_filter {
    libc::sock_filter { code: from.code, jt: from.jt, jf: from.jf, k: from.k }
}

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// Answers ENOSYS to calls whose arguments cannot be inspected (programs fall back to the older call) and to calls
/// newer than this table (programs fall back as on an older kernel).
fn missing_calls() -> Vec<libc::sock_filter> {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    vec![
        step(LOAD, 0, 0, 4),
        step(JUMP_EQUAL, 0, 6, ARCHITECTURE.1),
        step(LOAD, 0, 0, 0),
        step(JUMP_EQUAL, 3, 0, libc::SYS_clone3 as u32),
        step(JUMP_EQUAL, 2, 0, libc::SYS_openat2 as u32),
        step(JUMP_EQUAL, 1, 0, libc::SYS_fchmodat2 as u32),
        step(JUMP_GREATER, 0, 1, syscalls::NEWEST),
        step(RETURN, 0, 0, ERRNO | libc::ENOSYS as u32),
        step(RETURN, 0, 0, ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_is_of_a_reasonable_length() {
        let filter = Filter::compile().unwrap();
        assert!((300..4096).contains(&filter.allow.len()), "{}", filter.allow.len());
    }

    #[test]
    fn dangerous_calls_are_not_on_the_list() {
        let allowed: Vec<&str> = syscalls::ALLOWED.iter().map(|(name, _)| *name).collect();
        for name in [
            "mount",
            "umount2",
            "unshare",
            "setns",
            "pivot_root",
            "chroot",
            "bpf",
            "keyctl",
            "add_key",
            "request_key",
            "userfaultfd",
            "io_uring_setup",
            "perf_event_open",
            "open_by_handle_at",
            "init_module",
            "finit_module",
            "kexec_load",
            "reboot",
            "swapon",
            "clone3",
            "fsopen",
            "open_tree",
            "move_mount",
            "mount_setattr",
            "settimeofday",
            "clock_settime",
            "quotactl",
            "acct",
            "iopl",
            "ioperm",
        ] {
            assert!(!allowed.contains(&name), "{name} is allowed");
        }
    }
}

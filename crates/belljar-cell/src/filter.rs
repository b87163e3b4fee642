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

fn no_new_namespaces() -> Result<SeccompCondition, seccompiler::BackendError> {
    let mask = kernel::NAMESPACES | libc::CLONE_NEWCGROUP as u64 | 0x80 /* CLONE_NEWTIME */;
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

/// Answers ENOSYS to clone3 (its flags cannot be inspected, so the C library falls back to clone) and to calls newer
/// than this table (so programs fall back as on an older kernel).
fn missing_calls() -> Vec<libc::sock_filter> {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    vec![
        step(LOAD, 0, 0, 4),
        step(JUMP_EQUAL, 0, 4, ARCHITECTURE.1),
        step(LOAD, 0, 0, 0),
        step(JUMP_EQUAL, 1, 0, libc::SYS_clone3 as u32),
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

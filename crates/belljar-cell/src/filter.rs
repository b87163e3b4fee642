//! The syscall filter: an allow list as one small program for the kernel.
//!
//! Written by hand because its length counts: when a filter is installed the kernel walks it once for every call there
//! is. Neighbouring numbers become ranges, so the program is a fifth of what a rule for each call would be.

use std::io;

use crate::kernel;
use crate::syscalls;

/// A filter that is compiled and ready to be installed in any number of processes.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    program: Vec<libc::sock_filter>,
}

impl Filter {
    /// Compiles the filter.
    pub(crate) fn compile() -> Filter {
        let mut program = vec![
            step(LOAD, 0, 0, ARCHITECTURE_OFFSET),
            step(JUMP_EQUAL, 1, 0, ARCHITECTURE),
            give(KILL_PROCESS),
            step(LOAD, 0, 0, 0),
            // Programs fall back from calls that are newer than this table as they would on an older kernel.
            step(JUMP_GREATER, 0, 1, syscalls::NEWEST),
            give(NO_SUCH_CALL),
        ];
        for call in UNREADABLE {
            program.extend([step(JUMP_EQUAL, 0, 1, number(*call)), give(NO_SUCH_CALL)]);
        }
        for guarded in guarded_calls() {
            program.extend(guarded.compile());
        }
        for (first, last) in ranges() {
            program.extend([
                step(JUMP_GREATER_EQUAL, 1, 0, first),
                give(REFUSED),
                step(JUMP_GREATER, 1, 0, last),
                give(ALLOW),
            ]);
        }
        program.push(give(REFUSED));
        Filter { program }
    }

    /// Installs the filter on this thread, which must have `no_new_privs` set; there is no way back.
    pub(crate) fn install(&self) -> io::Result<()> {
        kernel::install_filter(&self.program)
    }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
const ARCHITECTURE_OFFSET: u32 = 4;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
/// Another architecture's calls have other numbers, so nothing sensible can be said about them.
const KILL_PROCESS: u32 = 0x8000_0000;
const REFUSED: u32 = 0x0005_0000 | libc::EPERM as u32;
const NO_SUCH_CALL: u32 = 0x0005_0000 | libc::ENOSYS as u32;

/// Calls whose arguments lie in memory, where a filter cannot look; programs fall back to the older call.
const UNREADABLE: &[i64] = &[libc::SYS_clone3, libc::SYS_openat2, libc::SYS_fchmodat2];

fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn give(answer: u32) -> libc::sock_filter {
    step(RETURN, 0, 0, answer)
}

fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// Calls that are allowed whatever their arguments are, neighbours joined.
fn ranges() -> Vec<(u32, u32)> {
    let mut numbers: Vec<u32> = syscalls::ALLOWED.iter().map(|(_, call)| number(*call)).collect();
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 >= number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// A call that is allowed when every condition of one of its rules holds.
struct Guarded {
    call: i64,
    rules: Vec<Vec<Condition>>,
}

/// A test of an argument.
#[derive(Clone, Copy)]
enum Condition {
    /// Its lower half is this value.
    Is(u8, u32),
    /// Its lower half is another value.
    IsNot(u8, u32),
    /// None of these bits is set in its lower half.
    Without(u8, u32),
    /// It is a null pointer.
    Null(u8),
}

impl Guarded {
    fn new(call: i64, rules: Vec<Vec<Condition>>) -> Guarded {
        Guarded { call, rules }
    }

    fn compile(&self) -> Vec<libc::sock_filter> {
        let mut body: Vec<libc::sock_filter> =
            self.rules.iter().flat_map(|rule| compile_rule(rule)).collect();
        body.push(give(REFUSED));
        let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
        let mut program = vec![step(JUMP_EQUAL, 0, length, number(self.call))];
        program.extend(body);
        program
    }
}

/// Tests one after the other; the first that fails jumps behind the rule, and past the last the call is allowed.
fn compile_rule(rule: &[Condition]) -> Vec<libc::sock_filter> {
    let mut program = vec![give(ALLOW)];
    for condition in rule.iter().rev() {
        let behind = u8::try_from(program.len()).unwrap_or(u8::MAX);
        let mut tested = condition.compile(behind);
        tested.extend(program);
        program = tested;
    }
    program
}

impl Condition {
    /// Goes on when it holds, and jumps over the next `behind` steps when it does not.
    fn compile(self, behind: u8) -> Vec<libc::sock_filter> {
        let low = |argument: u8| step(LOAD, 0, 0, 16 + 8 * u32::from(argument));
        let high = |argument: u8| step(LOAD, 0, 0, 20 + 8 * u32::from(argument));
        match self {
            Condition::Is(argument, value) => vec![low(argument), step(JUMP_EQUAL, 0, behind, value)],
            Condition::IsNot(argument, value) => vec![low(argument), step(JUMP_EQUAL, behind, 0, value)],
            Condition::Without(argument, bits) => {
                vec![low(argument), step(AND, 0, 0, bits), step(JUMP_EQUAL, 0, behind, 0)]
            }
            Condition::Null(argument) => vec![
                low(argument),
                step(JUMP_EQUAL, 0, behind + 2, 0),
                high(argument),
                step(JUMP_EQUAL, 0, behind, 0),
            ],
        }
    }
}

/// Set-user-id and set-group-id. A file of the workspace belongs to the caller outside, so such a bit on it would hand
/// the caller's powers to whoever runs it there.
const SET_ID: u32 = 0o6000;
/// `O_CREAT` and the bit of `O_TMPFILE` that is not `O_DIRECTORY`: without them the mode is never looked at.
const MAKES_A_FILE: u32 = libc::O_CREAT as u32 | 0o20_000_000;
/// TIOCSTI and TIOCLINUX push bytes into somebody else's terminal.
const TERMINAL_INJECTION: [u32; 2] = [0x5412, 0x541c];
/// Unix, IPv4, IPv6, netlink: what plain programs use. Packet, vsock, alg and the rest stay shut.
const SOCKET_FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Asking (`0xffffffff`), plain Linux, and no address randomisation, each with or without the 2.6 version number.
const PERSONALITIES: [u32; 5] = [0, 0x0004_0000, 0x0002_0000, 0x0006_0000, 0xffff_ffff];
/// New namespaces, and `CLONE_PARENT`: children of the keeper, which waits for its own only.
const CLONE_FLAGS: u32 = kernel::NAMESPACES as u32 | libc::CLONE_PARENT as u32 | 0x80 /* CLONE_NEWTIME */;

fn guarded_calls() -> Vec<Guarded> {
    use Condition::{Is, IsNot, Null, Without};
    let families = || SOCKET_FAMILIES.iter().map(|family| vec![Is(0, family.cast_unsigned())]).collect();
    let opens = |flags, mode| vec![vec![Without(flags, MAKES_A_FILE)], vec![Without(mode, SET_ID)]];
    let sets_mode = |call, mode| Guarded::new(call, vec![vec![Without(mode, SET_ID)]]);
    vec![
        Guarded::new(libc::SYS_clone, vec![vec![Without(0, CLONE_FLAGS)]]),
        Guarded::new(libc::SYS_socket, families()),
        Guarded::new(libc::SYS_socketpair, families()),
        Guarded::new(libc::SYS_personality, PERSONALITIES.iter().map(|value| vec![Is(0, *value)]).collect()),
        Guarded::new(libc::SYS_ioctl, vec![TERMINAL_INJECTION.iter().map(|call| IsNot(1, *call)).collect()]),
        // Reading anybody's limits harms nobody; changing those of the cell's init would blind it.
        Guarded::new(libc::SYS_prlimit64, vec![vec![Is(0, 0)], vec![Null(2)]]),
        Guarded::new(libc::SYS_openat, opens(2, 3)),
        #[cfg(target_arch = "x86_64")]
        Guarded::new(libc::SYS_open, opens(1, 2)),
        sets_mode(libc::SYS_fchmod, 1),
        sets_mode(libc::SYS_fchmodat, 2),
        sets_mode(libc::SYS_mknodat, 2),
        #[cfg(target_arch = "x86_64")]
        sets_mode(libc::SYS_chmod, 1),
        #[cfg(target_arch = "x86_64")]
        sets_mode(libc::SYS_creat, 1),
        #[cfg(target_arch = "x86_64")]
        sets_mode(libc::SYS_mknod, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's side of it: what the program answers to a call.
    fn answer(filter: &Filter, architecture: u32, call: u32, arguments: [u64; 6]) -> u32 {
        let word = |offset: u32| match offset {
            0 => call,
            4 => architecture,
            offset => {
                let argument = arguments[(offset as usize - 16) / 8];
                (if offset % 8 == 0 { argument } else { argument >> 32 }) as u32
            }
        };
        let (mut at, mut register) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = filter.program[at];
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            at += 1 + match code {
                LOAD => {
                    register = word(k);
                    0
                }
                AND => {
                    register &= k;
                    0
                }
                JUMP_EQUAL => jump(register == k),
                JUMP_GREATER => jump(register > k),
                JUMP_GREATER_EQUAL => jump(register >= k),
                RETURN => return k,
                other => panic!("{other:#x}"),
            };
        }
    }

    fn native(call: i64, arguments: [u64; 6]) -> u32 {
        answer(&Filter::compile(), ARCHITECTURE, number(call), arguments)
    }

    #[test]
    fn every_call_gets_the_answer_of_the_table() {
        let filter = Filter::compile();
        let guarded: Vec<u32> = guarded_calls().iter().map(|guarded| number(guarded.call)).collect();
        for call in (0..600).filter(|call| !guarded.contains(call)) {
            let listed = syscalls::ALLOWED.iter().any(|(_, allowed)| number(*allowed) == call);
            let unreadable = UNREADABLE.iter().any(|missing| number(*missing) == call);
            let expected = match (listed, unreadable || call > syscalls::NEWEST) {
                (_, true) => NO_SUCH_CALL,
                (true, false) => ALLOW,
                (false, false) => REFUSED,
            };
            assert_eq!(answer(&filter, ARCHITECTURE, call, [0; 6]), expected, "call {call}");
        }
        assert_eq!(answer(&filter, ARCHITECTURE, 0x4000_0000, [0; 6]), NO_SUCH_CALL, "the x32 bit");
        assert_eq!(answer(&filter, 0x4000_0003, 1, [0; 6]), KILL_PROCESS, "another architecture");
    }

    #[test]
    fn guarded_calls_are_judged_by_their_arguments() {
        let any = u64::MAX;
        for (call, arguments, expected) in [
            (libc::SYS_clone, [0x11, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_clone, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0], REFUSED),
            (libc::SYS_clone, [libc::CLONE_PARENT as u64 | 0x11, 0, 0, 0, 0, 0], REFUSED),
            (libc::SYS_socket, [2, any, any, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_NETLINK as u64, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_PACKET as u64, 0, 0, 0, 0, 0], REFUSED),
            (libc::SYS_socketpair, [libc::AF_VSOCK as u64, 0, 0, 0, 0, 0], REFUSED),
            (libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0], REFUSED),
            (libc::SYS_ioctl, [0, 0x5401, 0, 0, 0, 0], ALLOW),
            (libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0], REFUSED),
            (libc::SYS_ioctl, [0, 0xf_0000_5412, 0, 0, 0, 0], REFUSED),
            (libc::SYS_prlimit64, [0, 7, any, 0, 0, 0], ALLOW),
            (libc::SYS_prlimit64, [1, 7, 0, any, 0, 0], ALLOW),
            (libc::SYS_prlimit64, [1, 7, 1 << 32, 0, 0, 0], REFUSED),
            (libc::SYS_prlimit64, [1, 7, 1, 0, 0, 0], REFUSED),
            (libc::SYS_openat, [0, 0, 0, 0o4755, 0, 0], ALLOW),
            (libc::SYS_openat, [0, 0, libc::O_CREAT as u64, 0o644, 0, 0], ALLOW),
            (libc::SYS_openat, [0, 0, libc::O_CREAT as u64, 0o4755, 0, 0], REFUSED),
            (libc::SYS_openat, [0, 0, libc::O_TMPFILE as u64, 0o2755, 0, 0], REFUSED),
            (libc::SYS_fchmod, [3, 0o755, 0, 0, 0, 0], ALLOW),
            (libc::SYS_fchmod, [3, 0o2755, 0, 0, 0, 0], REFUSED),
            (libc::SYS_fchmodat, [0, 0, 0o6000, 0, 0, 0], REFUSED),
            (libc::SYS_mknodat, [0, 0, 0o104_755, 0, 0, 0], REFUSED),
        ] {
            assert_eq!(native(call, arguments), expected, "call {call} {arguments:x?}");
        }
    }

    #[test]
    fn the_program_is_short() {
        let length = Filter::compile().program.len();
        assert!(length < 500, "{length}");
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
            "openat2",
            "fchmodat2",
        ] {
            assert!(!allowed.contains(&name), "{name} is allowed");
        }
    }
}

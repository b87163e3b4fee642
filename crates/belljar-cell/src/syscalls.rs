//! Every system call there is, and what a guest that makes it is answered. `docs/syscalls.md` is made from this.
//!
//! The list is Docker's default profile (moby/profiles, June 2026, the capabilities that Docker hands out by default)
//! with as few differences as the cell needs; each of them carries its reason.

use crate::powers::Role;

/// A kind of processor; each numbers its calls differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// 64-bit Intel and AMD.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

impl Machine {
    /// The one this program was built for.
    #[cfg(target_arch = "x86_64")]
    pub const THIS: Machine = Machine::X86_64;
    /// The one this program was built for.
    #[cfg(target_arch = "aarch64")]
    pub const THIS: Machine = Machine::Aarch64;
}

/// One system call.
#[derive(Debug)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    x86_64: u16,
    aarch64: u16,
    /// What a guest is answered.
    pub answer: Answer,
    /// What Docker's default profile answers.
    pub docker: Docker,
    /// Why it is refused, or why it differs from Docker; empty when there is nothing to say.
    pub why: &'static str,
}

impl Call {
    /// Its number on a machine; `None` where it does not exist.
    pub const fn number(&self, machine: Machine) -> Option<u32> {
        let number = match machine {
            Machine::X86_64 => self.x86_64,
            Machine::Aarch64 => self.aarch64,
        };
        if number == NONE { None } else { Some(number as u32) }
    }

    /// What a guest is answered, by what it is allowed to be. Files of a layer may have set-id bits, which the mounts of
    /// a cell for building ignore, its root may use its power to change its root directory, and programs that make users
    /// insist on asking the kernel's audit, which tells them that it is not for them.
    pub const fn answer_for(&self, role: Role) -> Answer {
        match (role, self.answer) {
            (Role::Builder, When(Guard::Open1 | Guard::Open2 | Guard::Mode1 | Guard::Mode2)) => Allowed,
            (Role::Builder, When(Guard::Socket)) => When(Guard::BuildSocket),
            (Role::Builder, Refused) if self.x86_64 == CHROOT => Allowed,
            (Role::Builder | Role::Guest, answer) => answer,
        }
    }

    /// Whether Docker answers anything else.
    pub fn differs(&self) -> bool {
        !matches!(
            (&self.answer, self.docker),
            (Answer::Allowed, Docker::Allows)
                | (Answer::Refused, Docker::Refuses)
                | (Answer::NoSuchCall, Docker::NoSuchCall)
        )
    }
}

/// What a guest is answered.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// The kernel decides.
    Allowed,
    /// The kernel decides when the guard lets it pass; else EPERM.
    When(Guard),
    /// EPERM.
    Refused,
    /// ENOSYS: programs fall back as they would on an older kernel.
    NoSuchCall,
}

/// What Docker's default profile answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Docker {
    /// The kernel decides.
    Allows,
    /// The kernel decides for some arguments; else EPERM.
    AllowsSome,
    /// EPERM.
    Refuses,
    /// ENOSYS.
    NoSuchCall,
}

/// A test of one argument, given by its position. Values are compared with its lower half: that is all of a number
/// that the kernel looks at.
#[derive(Debug, Clone, Copy)]
pub enum Condition {
    /// It is one of these.
    OneOf(u8, &'static [u32]),
    /// It is none of these.
    NoneOf(u8, &'static [u32]),
    /// None of these bits is set.
    Without(u8, u32),
    /// It is a null pointer, both halves of it.
    Null(u8),
}

use Answer::{Allowed, NoSuchCall, Refused, When};
use Condition::{NoneOf, Null, OneOf, Without};

/// The number of `chroot` on the first machine.
const CHROOT: u16 = 161;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
/// `O_CREAT` and the bit of `O_TMPFILE` that is not `O_DIRECTORY`: without them the mode is never looked at.
const MAKES_A_FILE: u32 = libc::O_CREAT as u32 | 0o20_000_000;
/// The seven namespaces that `clone` can make (a time namespace is not among them), and `CLONE_PARENT`.
const NEW_NAMESPACES_OR_PARENT: u32 = 0x7e02_0000 | libc::CLONE_PARENT as u32;
/// TIOCSTI, TIOCLINUX and TIOCSETD.
const TERMINAL_TRICKS: &[u32] = &[0x5412, 0x541c, 0x5423];
/// Unix, IPv4, IPv6.
const FAMILIES: &[u32] = &[1, 2, 10];
const NETLINK: u32 = 16;
/// Routes and addresses, sockets, hotplug events.
const NETLINK_PROTOCOLS: &[u32] = &[0, 4, 15];
/// The same, and audit.
const BUILD_PROTOCOLS: &[u32] = &[0, 4, 9, 15];
/// 32-bit machine name, version 2.6, no address randomisation.
const PERSONALITIES: u32 = 0x0000_0008 | 0x0002_0000 | 0x0004_0000;
const ASKING: u32 = 0xffff_ffff;
/// The process that calls.
const ONESELF: u32 = 0;

/// What the arguments of a call must be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// For `clone`.
    Clone,
    /// For `socket` and `socketpair`.
    Socket,
    /// For the same in a cell for building.
    BuildSocket,
    /// For `personality`.
    Personality,
    /// For `ioctl`.
    Ioctl,
    /// For `prlimit64`.
    Prlimit,
    /// For calls that open files with flags in the second argument and a mode in the third.
    Open1,
    /// The same, one argument further.
    Open2,
    /// For calls with a mode in the second argument.
    Mode1,
    /// The same, one argument further.
    Mode2,
}

impl Guard {
    /// How many there are.
    pub(crate) const COUNT: usize = 10;

    /// The rules, of which one must hold in all its conditions.
    pub const fn rules(self) -> &'static [&'static [Condition]] {
        match self {
            Guard::Clone => &[&[Without(0, NEW_NAMESPACES_OR_PARENT)]],
            Guard::Socket => &[&[OneOf(0, FAMILIES)], &[OneOf(0, &[NETLINK]), OneOf(2, NETLINK_PROTOCOLS)]],
            Guard::BuildSocket => {
                &[&[OneOf(0, FAMILIES)], &[OneOf(0, &[NETLINK]), OneOf(2, BUILD_PROTOCOLS)]]
            }
            Guard::Personality => &[&[Without(0, !PERSONALITIES)], &[OneOf(0, &[ASKING])]],
            Guard::Ioctl => &[&[NoneOf(1, TERMINAL_TRICKS)]],
            Guard::Prlimit => &[&[OneOf(0, &[ONESELF])], &[Null(2)]],
            Guard::Open1 => &[&[Without(1, MAKES_A_FILE)], &[Without(2, SET_ID)]],
            Guard::Open2 => &[&[Without(2, MAKES_A_FILE)], &[Without(3, SET_ID)]],
            Guard::Mode1 => &[&[Without(1, SET_ID)]],
            Guard::Mode2 => &[&[Without(2, SET_ID)]],
        }
    }

    /// The same in words.
    pub const fn words(self) -> &'static str {
        match self {
            Guard::Clone => "it asks for no new namespace and no other parent",
            Guard::Socket => {
                "the family is Unix, IPv4, IPv6, or netlink for routes, sockets and hotplug events"
            }
            Guard::BuildSocket => {
                "the family is Unix, IPv4, IPv6, or netlink for routes, sockets, hotplug events and audit"
            }
            Guard::Personality => "it only asks, or sets the 32-bit name, version 2.6 or fixed addresses",
            Guard::Ioctl => "it is not TIOCSTI, TIOCLINUX or TIOCSETD",
            Guard::Prlimit => "the limits are its own, or it only reads",
            Guard::Open1 | Guard::Open2 => "it makes no file, or one without set-id bits",
            Guard::Mode1 | Guard::Mode2 => "the mode has no set-id bits",
        }
    }
}

/// Stands for a number where a call does not exist.
const NONE: u16 = u16::MAX;

const fn call(
    name: &'static str,
    x86_64: u16,
    aarch64: u16,
    answer: Answer,
    docker: Docker,
    why: &'static str,
) -> Call {
    Call { name, x86_64, aarch64, answer, docker, why }
}

/// Every call of Linux 6.19; what is newer is answered ENOSYS.
#[rustfmt::skip]
pub static CALLS: &[Call] = &[
    //   name                       x86   arm   answer                     Docker              why
    call("_sysctl",                 156,  NONE,  Refused,                   Docker::Refuses,    "gone from the kernel"),
    call("accept",                  43,   202,   Allowed,                   Docker::Allows,     ""),
    call("accept4",                 288,  242,   Allowed,                   Docker::Allows,     ""),
    call("access",                  21,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("acct",                    163,  89,    Refused,                   Docker::Refuses,    "accounting of the whole machine"),
    call("add_key",                 248,  217,   Refused,                   Docker::Refuses,    "keys of the kernel are not told apart by namespaces"),
    call("adjtimex",                159,  171,   Allowed,                   Docker::Allows,     "reading; the kernel lets only the machine's root set the clock"),
    call("afs_syscall",             183,  NONE,  Refused,                   Docker::Refuses,    "never was in the kernel"),
    call("alarm",                   37,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("arch_prctl",              158,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("bind",                    49,   200,   Allowed,                   Docker::Allows,     ""),
    call("bpf",                     321,  280,   Refused,                   Docker::Refuses,    "programs for the kernel"),
    call("brk",                     12,   214,   Allowed,                   Docker::Allows,     ""),
    call("cachestat",               451,  451,   Allowed,                   Docker::Allows,     ""),
    call("capget",                  125,  90,    Allowed,                   Docker::Allows,     ""),
    call("capset",                  126,  91,    Allowed,                   Docker::Allows,     ""),
    call("chdir",                   80,   49,    Allowed,                   Docker::Allows,     ""),
    call("chmod",                   90,   NONE,  When(Guard::Mode1),        Docker::Allows,     "as for `fchmod`"),
    call("chown",                   92,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("chroot",                  161,  51,    Refused,                   Docker::Allows,     "needs a power that Docker hands out and no guest here has"),
    call("clock_adjtime",           305,  266,   Allowed,                   Docker::Allows,     "as for `adjtimex`"),
    call("clock_getres",            229,  114,   Allowed,                   Docker::Allows,     ""),
    call("clock_gettime",           228,  113,   Allowed,                   Docker::Allows,     ""),
    call("clock_nanosleep",         230,  115,   Allowed,                   Docker::Allows,     ""),
    call("clock_settime",           227,  112,   Refused,                   Docker::Refuses,    "the machine's clock"),
    call("clone",                   56,   220,   When(Guard::Clone),        Docker::AllowsSome, "Docker refuses the namespaces too, not the other parent: ours is the keeper, which waits for its own only"),
    call("clone3",                  435,  435,   NoSuchCall,                Docker::NoSuchCall, "its flags lie in memory, where a filter cannot look; programs fall back to `clone`"),
    call("close",                   3,    57,    Allowed,                   Docker::Allows,     ""),
    call("close_range",             436,  436,   Allowed,                   Docker::Allows,     ""),
    call("connect",                 42,   203,   Allowed,                   Docker::Allows,     ""),
    call("copy_file_range",         326,  285,   Allowed,                   Docker::Allows,     ""),
    call("creat",                   85,   NONE,  When(Guard::Mode1),        Docker::Allows,     "as for `fchmod`"),
    call("create_module",           174,  NONE,  Refused,                   Docker::Refuses,    "gone from the kernel"),
    call("delete_module",           176,  106,   Refused,                   Docker::Refuses,    "kernel modules"),
    call("dup",                     32,   23,    Allowed,                   Docker::Allows,     ""),
    call("dup2",                    33,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("dup3",                    292,  24,    Allowed,                   Docker::Allows,     ""),
    call("epoll_create",            213,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("epoll_create1",           291,  20,    Allowed,                   Docker::Allows,     ""),
    call("epoll_ctl",               233,  21,    Allowed,                   Docker::Allows,     ""),
    call("epoll_ctl_old",           214,  NONE,  Allowed,                   Docker::Allows,     "the kernel itself says that there is no such call"),
    call("epoll_pwait",             281,  22,    Allowed,                   Docker::Allows,     ""),
    call("epoll_pwait2",            441,  441,   Allowed,                   Docker::Allows,     ""),
    call("epoll_wait",              232,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("epoll_wait_old",          215,  NONE,  Allowed,                   Docker::Allows,     "as for `epoll_ctl_old`"),
    call("eventfd",                 284,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("eventfd2",                290,  19,    Allowed,                   Docker::Allows,     ""),
    call("execve",                  59,   221,   Allowed,                   Docker::Allows,     ""),
    call("execveat",                322,  281,   Allowed,                   Docker::Allows,     ""),
    call("exit",                    60,   93,    Allowed,                   Docker::Allows,     ""),
    call("exit_group",              231,  94,    Allowed,                   Docker::Allows,     ""),
    call("faccessat",               269,  48,    Allowed,                   Docker::Allows,     ""),
    call("faccessat2",              439,  439,   Allowed,                   Docker::Allows,     ""),
    call("fadvise64",               221,  223,   Allowed,                   Docker::Allows,     ""),
    call("fallocate",               285,  47,    Allowed,                   Docker::Allows,     ""),
    call("fanotify_init",           300,  262,   Refused,                   Docker::Refuses,    "sees every access to a file system"),
    call("fanotify_mark",           301,  263,   Refused,                   Docker::Allows,     "of no use without `fanotify_init`"),
    call("fchdir",                  81,   50,    Allowed,                   Docker::Allows,     ""),
    call("fchmod",                  91,   52,    When(Guard::Mode1),        Docker::Allows,     "a set-user-id bit on a file that belongs to the caller outside would hand out the caller's powers"),
    call("fchmodat",                268,  53,    When(Guard::Mode2),        Docker::Allows,     "as for `fchmod`"),
    call("fchmodat2",               452,  452,   When(Guard::Mode2),        Docker::Allows,     "as for `fchmod`"),
    call("fchown",                  93,   55,    Allowed,                   Docker::Allows,     ""),
    call("fchownat",                260,  54,    Allowed,                   Docker::Allows,     ""),
    call("fcntl",                   72,   25,    Allowed,                   Docker::Allows,     ""),
    call("fdatasync",               75,   83,    Allowed,                   Docker::Allows,     ""),
    call("fgetxattr",               193,  10,    Allowed,                   Docker::Allows,     ""),
    call("file_getattr",            468,  468,   NoSuchCall,                Docker::Refuses,    "programs fall back to `ioctl`"),
    call("file_setattr",            469,  469,   NoSuchCall,                Docker::Refuses,    "programs fall back to `ioctl`"),
    call("finit_module",            313,  273,   Refused,                   Docker::Refuses,    "kernel modules"),
    call("flistxattr",              196,  13,    Allowed,                   Docker::Allows,     ""),
    call("flock",                   73,   32,    Allowed,                   Docker::Allows,     ""),
    call("fork",                    57,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("fremovexattr",            199,  16,    Allowed,                   Docker::Allows,     ""),
    call("fsconfig",                431,  431,   Refused,                   Docker::Refuses,    "mounts"),
    call("fsetxattr",               190,  7,     Allowed,                   Docker::Allows,     ""),
    call("fsmount",                 432,  432,   Refused,                   Docker::Refuses,    "mounts"),
    call("fsopen",                  430,  430,   Refused,                   Docker::Refuses,    "mounts"),
    call("fspick",                  433,  433,   Refused,                   Docker::Refuses,    "mounts"),
    call("fstat",                   5,    80,    Allowed,                   Docker::Allows,     ""),
    call("fstatfs",                 138,  44,    Allowed,                   Docker::Allows,     ""),
    call("fsync",                   74,   82,    Allowed,                   Docker::Allows,     ""),
    call("ftruncate",               77,   46,    Allowed,                   Docker::Allows,     ""),
    call("futex",                   202,  98,    Allowed,                   Docker::Allows,     ""),
    call("futex_requeue",           456,  456,   Allowed,                   Docker::Allows,     ""),
    call("futex_wait",              455,  455,   Allowed,                   Docker::Allows,     ""),
    call("futex_waitv",             449,  449,   Allowed,                   Docker::Allows,     ""),
    call("futex_wake",              454,  454,   Allowed,                   Docker::Allows,     ""),
    call("futimesat",               261,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("get_kernel_syms",         177,  NONE,  Refused,                   Docker::Refuses,    "gone from the kernel"),
    call("get_mempolicy",           239,  236,   Allowed,                   Docker::Refuses,    "where one's own memory lies; NumPy, the JVM and databases ask"),
    call("get_robust_list",         274,  100,   Allowed,                   Docker::Allows,     ""),
    call("get_thread_area",         211,  NONE,  Allowed,                   Docker::Allows,     "as for `epoll_ctl_old`"),
    call("getcpu",                  309,  168,   Allowed,                   Docker::Allows,     ""),
    call("getcwd",                  79,   17,    Allowed,                   Docker::Allows,     ""),
    call("getdents",                78,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("getdents64",              217,  61,    Allowed,                   Docker::Allows,     ""),
    call("getegid",                 108,  177,   Allowed,                   Docker::Allows,     ""),
    call("geteuid",                 107,  175,   Allowed,                   Docker::Allows,     ""),
    call("getgid",                  104,  176,   Allowed,                   Docker::Allows,     ""),
    call("getgroups",               115,  158,   Allowed,                   Docker::Allows,     ""),
    call("getitimer",               36,   102,   Allowed,                   Docker::Allows,     ""),
    call("getpeername",             52,   205,   Allowed,                   Docker::Allows,     ""),
    call("getpgid",                 121,  155,   Allowed,                   Docker::Allows,     ""),
    call("getpgrp",                 111,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("getpid",                  39,   172,   Allowed,                   Docker::Allows,     ""),
    call("getpmsg",                 181,  NONE,  Refused,                   Docker::Refuses,    "never was in the kernel"),
    call("getppid",                 110,  173,   Allowed,                   Docker::Allows,     ""),
    call("getpriority",             140,  141,   Allowed,                   Docker::Allows,     ""),
    call("getrandom",               318,  278,   Allowed,                   Docker::Allows,     ""),
    call("getresgid",               120,  150,   Allowed,                   Docker::Allows,     ""),
    call("getresuid",               118,  148,   Allowed,                   Docker::Allows,     ""),
    call("getrlimit",               97,   163,   Allowed,                   Docker::Allows,     ""),
    call("getrusage",               98,   165,   Allowed,                   Docker::Allows,     ""),
    call("getsid",                  124,  156,   Allowed,                   Docker::Allows,     ""),
    call("getsockname",             51,   204,   Allowed,                   Docker::Allows,     ""),
    call("getsockopt",              55,   209,   Allowed,                   Docker::Allows,     ""),
    call("gettid",                  186,  178,   Allowed,                   Docker::Allows,     ""),
    call("gettimeofday",            96,   169,   Allowed,                   Docker::Allows,     ""),
    call("getuid",                  102,  174,   Allowed,                   Docker::Allows,     ""),
    call("getxattr",                191,  8,     Allowed,                   Docker::Allows,     ""),
    call("getxattrat",              464,  464,   Allowed,                   Docker::Allows,     ""),
    call("init_module",             175,  105,   Refused,                   Docker::Refuses,    "kernel modules"),
    call("inotify_add_watch",       254,  27,    Allowed,                   Docker::Allows,     ""),
    call("inotify_init",            253,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("inotify_init1",           294,  26,    Allowed,                   Docker::Allows,     ""),
    call("inotify_rm_watch",        255,  28,    Allowed,                   Docker::Allows,     ""),
    call("io_cancel",               210,  3,     Allowed,                   Docker::Allows,     ""),
    call("io_destroy",              207,  1,     Allowed,                   Docker::Allows,     ""),
    call("io_getevents",            208,  4,     Allowed,                   Docker::Allows,     ""),
    call("io_pgetevents",           333,  292,   Allowed,                   Docker::Allows,     ""),
    call("io_setup",                206,  0,     NoSuchCall,                Docker::Allows,     "the whole machine shares one number of these, which a single guest can use up; programs fall back to threads"),
    call("io_submit",               209,  2,     Allowed,                   Docker::Allows,     ""),
    call("io_uring_enter",          426,  426,   Refused,                   Docker::Refuses,    "as for `io_uring_setup`"),
    call("io_uring_register",       427,  427,   Refused,                   Docker::Refuses,    "as for `io_uring_setup`"),
    call("io_uring_setup",          425,  425,   Refused,                   Docker::Refuses,    "system calls that pass by the filter"),
    call("ioctl",                   16,   29,    When(Guard::Ioctl),        Docker::Allows,     "bytes pushed into a terminal are typed by whoever reads it next; line disciplines load modules"),
    call("ioperm",                  173,  NONE,  Refused,                   Docker::Refuses,    "ports of the hardware"),
    call("iopl",                    172,  NONE,  Refused,                   Docker::Refuses,    "ports of the hardware"),
    call("ioprio_get",              252,  31,    Allowed,                   Docker::Allows,     ""),
    call("ioprio_set",              251,  30,    Allowed,                   Docker::Allows,     ""),
    call("kcmp",                    312,  272,   Refused,                   Docker::Refuses,    "tells how the kernel's memory is laid out"),
    call("kexec_file_load",         320,  294,   Refused,                   Docker::Refuses,    "another kernel"),
    call("kexec_load",              246,  104,   Refused,                   Docker::Refuses,    "another kernel"),
    call("keyctl",                  250,  219,   Refused,                   Docker::Refuses,    "as for `add_key`"),
    call("kill",                    62,   129,   Allowed,                   Docker::Allows,     ""),
    call("landlock_add_rule",       445,  445,   Allowed,                   Docker::Allows,     ""),
    call("landlock_create_ruleset", 444,  444,   Allowed,                   Docker::Allows,     ""),
    call("landlock_restrict_self",  446,  446,   Allowed,                   Docker::Allows,     ""),
    call("lchown",                  94,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("lgetxattr",               192,  9,     Allowed,                   Docker::Allows,     ""),
    call("link",                    86,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("linkat",                  265,  37,    Allowed,                   Docker::Allows,     ""),
    call("listen",                  50,   201,   Allowed,                   Docker::Allows,     ""),
    call("listmount",               458,  458,   Allowed,                   Docker::Allows,     "as for `statmount`"),
    call("listns",                  470,  470,   Refused,                   Docker::Refuses,    "namespaces"),
    call("listxattr",               194,  11,    Allowed,                   Docker::Allows,     ""),
    call("listxattrat",             465,  465,   Allowed,                   Docker::Allows,     ""),
    call("llistxattr",              195,  12,    Allowed,                   Docker::Allows,     ""),
    call("lookup_dcookie",          212,  18,    Refused,                   Docker::Refuses,    "gone from the kernel"),
    call("lremovexattr",            198,  15,    Allowed,                   Docker::Allows,     ""),
    call("lseek",                   8,    62,    Allowed,                   Docker::Allows,     ""),
    call("lsetxattr",               189,  6,     Allowed,                   Docker::Allows,     ""),
    call("lsm_get_self_attr",       459,  459,   Refused,                   Docker::Refuses,    "the machine's security modules"),
    call("lsm_list_modules",        461,  461,   Refused,                   Docker::Refuses,    "the machine's security modules"),
    call("lsm_set_self_attr",       460,  460,   Refused,                   Docker::Refuses,    "the machine's security modules"),
    call("lstat",                   6,    NONE,  Allowed,                   Docker::Allows,     ""),
    call("madvise",                 28,   233,   Allowed,                   Docker::Allows,     ""),
    call("map_shadow_stack",        453,  453,   Allowed,                   Docker::Allows,     ""),
    call("mbind",                   237,  235,   Allowed,                   Docker::Refuses,    "as for `get_mempolicy`"),
    call("membarrier",              324,  283,   Allowed,                   Docker::Allows,     ""),
    call("memfd_create",            319,  279,   Allowed,                   Docker::Allows,     ""),
    call("memfd_secret",            447,  447,   Allowed,                   Docker::Allows,     ""),
    call("migrate_pages",           256,  238,   Refused,                   Docker::Refuses,    "moves other processes' memory"),
    call("mincore",                 27,   232,   Allowed,                   Docker::Allows,     ""),
    call("mkdir",                   83,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("mkdirat",                 258,  34,    Allowed,                   Docker::Allows,     ""),
    call("mknod",                   133,  NONE,  When(Guard::Mode1),        Docker::Allows,     "as for `fchmod`; device nodes are refused by the kernel"),
    call("mknodat",                 259,  33,    When(Guard::Mode2),        Docker::Allows,     "as for `fchmod`; device nodes are refused by the kernel"),
    call("mlock",                   149,  228,   Allowed,                   Docker::Allows,     ""),
    call("mlock2",                  325,  284,   Allowed,                   Docker::Allows,     ""),
    call("mlockall",                151,  230,   Allowed,                   Docker::Allows,     ""),
    call("mmap",                    9,    222,   Allowed,                   Docker::Allows,     ""),
    call("modify_ldt",              154,  NONE,  Refused,                   Docker::Allows,     "only 16-bit programs need it, and it has been a way into the kernel"),
    call("mount",                   165,  40,    Refused,                   Docker::Refuses,    "mounts"),
    call("mount_setattr",           442,  442,   Refused,                   Docker::Refuses,    "mounts"),
    call("move_mount",              429,  429,   Refused,                   Docker::Refuses,    "mounts"),
    call("move_pages",              279,  239,   Refused,                   Docker::Refuses,    "moves other processes' memory"),
    call("mprotect",                10,   226,   Allowed,                   Docker::Allows,     ""),
    call("mq_getsetattr",           245,  185,   Allowed,                   Docker::Allows,     ""),
    call("mq_notify",               244,  184,   Allowed,                   Docker::Allows,     ""),
    call("mq_open",                 240,  180,   Allowed,                   Docker::Allows,     ""),
    call("mq_timedreceive",         243,  183,   Allowed,                   Docker::Allows,     ""),
    call("mq_timedsend",            242,  182,   Allowed,                   Docker::Allows,     ""),
    call("mq_unlink",               241,  181,   Allowed,                   Docker::Allows,     ""),
    call("mremap",                  25,   216,   Allowed,                   Docker::Allows,     ""),
    call("mseal",                   462,  462,   Allowed,                   Docker::Allows,     ""),
    call("msgctl",                  71,   187,   Allowed,                   Docker::Allows,     ""),
    call("msgget",                  68,   186,   Allowed,                   Docker::Allows,     ""),
    call("msgrcv",                  70,   188,   Allowed,                   Docker::Allows,     ""),
    call("msgsnd",                  69,   189,   Allowed,                   Docker::Allows,     ""),
    call("msync",                   26,   227,   Allowed,                   Docker::Allows,     ""),
    call("munlock",                 150,  229,   Allowed,                   Docker::Allows,     ""),
    call("munlockall",              152,  231,   Allowed,                   Docker::Allows,     ""),
    call("munmap",                  11,   215,   Allowed,                   Docker::Allows,     ""),
    call("name_to_handle_at",       303,  264,   Allowed,                   Docker::Allows,     ""),
    call("nanosleep",               35,   101,   Allowed,                   Docker::Allows,     ""),
    call("newfstatat",              262,  79,    Allowed,                   Docker::Allows,     ""),
    call("nfsservctl",              180,  42,    Refused,                   Docker::Refuses,    "gone from the kernel"),
    call("open",                    2,    NONE,  When(Guard::Open1),        Docker::Allows,     "as for `fchmod`"),
    call("open_by_handle_at",       304,  265,   Refused,                   Docker::Refuses,    "opens files past every folder that hides them"),
    call("open_tree",               428,  428,   Refused,                   Docker::Refuses,    "mounts"),
    call("open_tree_attr",          467,  467,   Refused,                   Docker::Refuses,    "mounts"),
    call("openat",                  257,  56,    When(Guard::Open2),        Docker::Allows,     "as for `fchmod`"),
    call("openat2",                 437,  437,   NoSuchCall,                Docker::Allows,     "its mode lies in memory, where a filter cannot look; programs fall back to `openat`"),
    call("pause",                   34,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("perf_event_open",         298,  241,   Refused,                   Docker::Refuses,    "watches the machine; a frequent way into the kernel"),
    call("personality",             135,  92,    When(Guard::Personality),  Docker::AllowsSome, "Docker refuses fixed addresses; debuggers and thread sanitizers ask for them"),
    call("pidfd_getfd",             438,  438,   Allowed,                   Docker::Refuses,    "the kernel asks the same of it as of `ptrace`, which is allowed"),
    call("pidfd_open",              434,  434,   Allowed,                   Docker::Allows,     ""),
    call("pidfd_send_signal",       424,  424,   Allowed,                   Docker::Allows,     ""),
    call("pipe",                    22,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("pipe2",                   293,  59,    Allowed,                   Docker::Allows,     ""),
    call("pivot_root",              155,  41,    Refused,                   Docker::Refuses,    "mounts"),
    call("pkey_alloc",              330,  289,   Allowed,                   Docker::Allows,     ""),
    call("pkey_free",               331,  290,   Allowed,                   Docker::Allows,     ""),
    call("pkey_mprotect",           329,  288,   Allowed,                   Docker::Allows,     ""),
    call("poll",                    7,    NONE,  Allowed,                   Docker::Allows,     ""),
    call("ppoll",                   271,  73,    Allowed,                   Docker::Allows,     ""),
    call("prctl",                   157,  167,   Allowed,                   Docker::Allows,     ""),
    call("pread64",                 17,   67,    Allowed,                   Docker::Allows,     ""),
    call("preadv",                  295,  69,    Allowed,                   Docker::Allows,     ""),
    call("preadv2",                 327,  286,   Allowed,                   Docker::Allows,     ""),
    call("prlimit64",               302,  261,   When(Guard::Prlimit),      Docker::Allows,     "an ordinary user's guest could shut the cell's init off from files and processes"),
    call("process_madvise",         440,  440,   Refused,                   Docker::Refuses,    "advice on other processes' memory"),
    call("process_mrelease",        448,  448,   Allowed,                   Docker::Allows,     ""),
    call("process_vm_readv",        310,  270,   Allowed,                   Docker::Allows,     "as for `ptrace`"),
    call("process_vm_writev",       311,  271,   Allowed,                   Docker::Allows,     "as for `ptrace`"),
    call("pselect6",                270,  72,    Allowed,                   Docker::Allows,     ""),
    call("ptrace",                  101,  117,   Allowed,                   Docker::Allows,     "debuggers; reaches only processes of the cell that are no stronger"),
    call("putpmsg",                 182,  NONE,  Refused,                   Docker::Refuses,    "never was in the kernel"),
    call("pwrite64",                18,   68,    Allowed,                   Docker::Allows,     ""),
    call("pwritev",                 296,  70,    Allowed,                   Docker::Allows,     ""),
    call("pwritev2",                328,  287,   Allowed,                   Docker::Allows,     ""),
    call("query_module",            178,  NONE,  Refused,                   Docker::Refuses,    "gone from the kernel"),
    call("quotactl",                179,  60,    Refused,                   Docker::Refuses,    "quotas of the machine's disks"),
    call("quotactl_fd",             443,  443,   Refused,                   Docker::Refuses,    "quotas of the machine's disks"),
    call("read",                    0,    63,    Allowed,                   Docker::Allows,     ""),
    call("readahead",               187,  213,   Allowed,                   Docker::Allows,     ""),
    call("readlink",                89,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("readlinkat",              267,  78,    Allowed,                   Docker::Allows,     ""),
    call("readv",                   19,   65,    Allowed,                   Docker::Allows,     ""),
    call("reboot",                  169,  142,   Refused,                   Docker::Refuses,    "the whole machine"),
    call("recvfrom",                45,   207,   Allowed,                   Docker::Allows,     ""),
    call("recvmmsg",                299,  243,   Allowed,                   Docker::Allows,     ""),
    call("recvmsg",                 47,   212,   Allowed,                   Docker::Allows,     ""),
    call("remap_file_pages",        216,  234,   Allowed,                   Docker::Allows,     ""),
    call("removexattr",             197,  14,    Allowed,                   Docker::Allows,     ""),
    call("removexattrat",           466,  466,   Allowed,                   Docker::Allows,     ""),
    call("rename",                  82,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("renameat",                264,  38,    Allowed,                   Docker::Allows,     ""),
    call("renameat2",               316,  276,   Allowed,                   Docker::Allows,     ""),
    call("request_key",             249,  218,   Refused,                   Docker::Refuses,    "as for `add_key`"),
    call("restart_syscall",         219,  128,   Allowed,                   Docker::Allows,     ""),
    call("rmdir",                   84,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("rseq",                    334,  293,   Allowed,                   Docker::Allows,     ""),
    call("rt_sigaction",            13,   134,   Allowed,                   Docker::Allows,     ""),
    call("rt_sigpending",           127,  136,   Allowed,                   Docker::Allows,     ""),
    call("rt_sigprocmask",          14,   135,   Allowed,                   Docker::Allows,     ""),
    call("rt_sigqueueinfo",         129,  138,   Allowed,                   Docker::Allows,     ""),
    call("rt_sigreturn",            15,   139,   Allowed,                   Docker::Allows,     ""),
    call("rt_sigsuspend",           130,  133,   Allowed,                   Docker::Allows,     ""),
    call("rt_sigtimedwait",         128,  137,   Allowed,                   Docker::Allows,     ""),
    call("rt_tgsigqueueinfo",       297,  240,   Allowed,                   Docker::Allows,     ""),
    call("sched_get_priority_max",  146,  125,   Allowed,                   Docker::Allows,     ""),
    call("sched_get_priority_min",  147,  126,   Allowed,                   Docker::Allows,     ""),
    call("sched_getaffinity",       204,  123,   Allowed,                   Docker::Allows,     ""),
    call("sched_getattr",           315,  275,   Allowed,                   Docker::Allows,     ""),
    call("sched_getparam",          143,  121,   Allowed,                   Docker::Allows,     ""),
    call("sched_getscheduler",      145,  120,   Allowed,                   Docker::Allows,     ""),
    call("sched_rr_get_interval",   148,  127,   Allowed,                   Docker::Allows,     ""),
    call("sched_setaffinity",       203,  122,   Allowed,                   Docker::Allows,     ""),
    call("sched_setattr",           314,  274,   Allowed,                   Docker::Allows,     ""),
    call("sched_setparam",          142,  118,   Allowed,                   Docker::Allows,     ""),
    call("sched_setscheduler",      144,  119,   Allowed,                   Docker::Allows,     ""),
    call("sched_yield",             24,   124,   Allowed,                   Docker::Allows,     ""),
    call("seccomp",                 317,  277,   Allowed,                   Docker::Allows,     ""),
    call("security",                185,  NONE,  Refused,                   Docker::Refuses,    "never was in the kernel"),
    call("select",                  23,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("semctl",                  66,   191,   Allowed,                   Docker::Allows,     ""),
    call("semget",                  64,   190,   Allowed,                   Docker::Allows,     ""),
    call("semop",                   65,   193,   Allowed,                   Docker::Allows,     ""),
    call("semtimedop",              220,  192,   Allowed,                   Docker::Allows,     ""),
    call("sendfile",                40,   71,    Allowed,                   Docker::Allows,     ""),
    call("sendmmsg",                307,  269,   Allowed,                   Docker::Allows,     ""),
    call("sendmsg",                 46,   211,   Allowed,                   Docker::Allows,     ""),
    call("sendto",                  44,   206,   Allowed,                   Docker::Allows,     ""),
    call("set_mempolicy",           238,  237,   Allowed,                   Docker::Refuses,    "as for `get_mempolicy`"),
    call("set_mempolicy_home_node", 450,  450,   Allowed,                   Docker::Refuses,    "as for `get_mempolicy`"),
    call("set_robust_list",         273,  99,    Allowed,                   Docker::Allows,     ""),
    call("set_thread_area",         205,  NONE,  Allowed,                   Docker::Allows,     "as for `epoll_ctl_old`"),
    call("set_tid_address",         218,  96,    Allowed,                   Docker::Allows,     ""),
    call("setdomainname",           171,  162,   Refused,                   Docker::Refuses,    "the name the cell was given"),
    call("setfsgid",                123,  152,   Allowed,                   Docker::Allows,     ""),
    call("setfsuid",                122,  151,   Allowed,                   Docker::Allows,     ""),
    call("setgid",                  106,  144,   Allowed,                   Docker::Allows,     ""),
    call("setgroups",               116,  159,   Allowed,                   Docker::Allows,     ""),
    call("sethostname",             170,  161,   Refused,                   Docker::Refuses,    "the name the cell was given"),
    call("setitimer",               38,   103,   Allowed,                   Docker::Allows,     ""),
    call("setns",                   308,  268,   Refused,                   Docker::Refuses,    "namespaces"),
    call("setpgid",                 109,  154,   Allowed,                   Docker::Allows,     ""),
    call("setpriority",             141,  140,   Allowed,                   Docker::Allows,     ""),
    call("setregid",                114,  143,   Allowed,                   Docker::Allows,     ""),
    call("setresgid",               119,  149,   Allowed,                   Docker::Allows,     ""),
    call("setresuid",               117,  147,   Allowed,                   Docker::Allows,     ""),
    call("setreuid",                113,  145,   Allowed,                   Docker::Allows,     ""),
    call("setrlimit",               160,  164,   Allowed,                   Docker::Allows,     ""),
    call("setsid",                  112,  157,   Allowed,                   Docker::Allows,     ""),
    call("setsockopt",              54,   208,   Allowed,                   Docker::Allows,     ""),
    call("settimeofday",            164,  170,   Refused,                   Docker::Refuses,    "the machine's clock"),
    call("setuid",                  105,  146,   Allowed,                   Docker::Allows,     ""),
    call("setxattr",                188,  5,     Allowed,                   Docker::Allows,     ""),
    call("setxattrat",              463,  463,   Allowed,                   Docker::Allows,     ""),
    call("shmat",                   30,   196,   Allowed,                   Docker::Allows,     ""),
    call("shmctl",                  31,   195,   Allowed,                   Docker::Allows,     ""),
    call("shmdt",                   67,   197,   Allowed,                   Docker::Allows,     ""),
    call("shmget",                  29,   194,   Allowed,                   Docker::Allows,     ""),
    call("shutdown",                48,   210,   Allowed,                   Docker::Allows,     ""),
    call("sigaltstack",             131,  132,   Allowed,                   Docker::Allows,     ""),
    call("signalfd",                282,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("signalfd4",               289,  74,    Allowed,                   Docker::Allows,     ""),
    call("socket",                  41,   198,   When(Guard::Socket),       Docker::AllowsSome, "Docker refuses vsock and alg only; what no plain program opens need not load its module into the kernel"),
    call("socketpair",              53,   199,   When(Guard::Socket),       Docker::Allows,     "as for `socket`"),
    call("splice",                  275,  76,    Allowed,                   Docker::Allows,     ""),
    call("stat",                    4,    NONE,  Allowed,                   Docker::Allows,     ""),
    call("statfs",                  137,  43,    Allowed,                   Docker::Allows,     ""),
    call("statmount",               457,  457,   Allowed,                   Docker::Allows,     "shows what /proc/self/mountinfo shows"),
    call("statx",                   332,  291,   Allowed,                   Docker::Allows,     ""),
    call("swapoff",                 168,  225,   Refused,                   Docker::Refuses,    "the machine's memory"),
    call("swapon",                  167,  224,   Refused,                   Docker::Refuses,    "the machine's memory"),
    call("symlink",                 88,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("symlinkat",               266,  36,    Allowed,                   Docker::Allows,     ""),
    call("sync",                    162,  81,    Allowed,                   Docker::Allows,     ""),
    call("sync_file_range",         277,  84,    Allowed,                   Docker::Allows,     ""),
    call("syncfs",                  306,  267,   Allowed,                   Docker::Allows,     ""),
    call("sysfs",                   139,  NONE,  Refused,                   Docker::Refuses,    "obsolete, and no program uses it"),
    call("sysinfo",                 99,   179,   Allowed,                   Docker::Allows,     ""),
    call("syslog",                  103,  116,   Refused,                   Docker::Refuses,    "the kernel's log"),
    call("tee",                     276,  77,    Allowed,                   Docker::Allows,     ""),
    call("tgkill",                  234,  131,   Allowed,                   Docker::Allows,     ""),
    call("time",                    201,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("timer_create",            222,  107,   Allowed,                   Docker::Allows,     ""),
    call("timer_delete",            226,  111,   Allowed,                   Docker::Allows,     ""),
    call("timer_getoverrun",        225,  109,   Allowed,                   Docker::Allows,     ""),
    call("timer_gettime",           224,  108,   Allowed,                   Docker::Allows,     ""),
    call("timer_settime",           223,  110,   Allowed,                   Docker::Allows,     ""),
    call("timerfd_create",          283,  85,    Allowed,                   Docker::Allows,     ""),
    call("timerfd_gettime",         287,  87,    Allowed,                   Docker::Allows,     ""),
    call("timerfd_settime",         286,  86,    Allowed,                   Docker::Allows,     ""),
    call("times",                   100,  153,   Allowed,                   Docker::Allows,     ""),
    call("tkill",                   200,  130,   Allowed,                   Docker::Allows,     ""),
    call("truncate",                76,   45,    Allowed,                   Docker::Allows,     ""),
    call("tuxcall",                 184,  NONE,  Refused,                   Docker::Refuses,    "never was in the kernel"),
    call("umask",                   95,   166,   Allowed,                   Docker::Allows,     ""),
    call("umount2",                 166,  39,    Refused,                   Docker::Refuses,    "mounts"),
    call("uname",                   63,   160,   Allowed,                   Docker::Allows,     ""),
    call("unlink",                  87,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("unlinkat",                263,  35,    Allowed,                   Docker::Allows,     ""),
    call("unshare",                 272,  97,    Refused,                   Docker::Refuses,    "namespaces"),
    call("uprobe",                  336,  NONE,  Allowed,                   Docker::Refuses,    "called by the kernel's own code when the host traces a program; newer than Docker's list"),
    call("uretprobe",               335,  NONE,  Allowed,                   Docker::Allows,     "called by the kernel's own code when the host traces a program"),
    call("uselib",                  134,  NONE,  Refused,                   Docker::Refuses,    "gone from the kernel"),
    call("userfaultfd",             323,  282,   Refused,                   Docker::Refuses,    "holds the kernel up in the middle of a copy; exploits are built on it"),
    call("ustat",                   136,  NONE,  Refused,                   Docker::Refuses,    "obsolete, and no program uses it"),
    call("utime",                   132,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("utimensat",               280,  88,    Allowed,                   Docker::Allows,     ""),
    call("utimes",                  235,  NONE,  Allowed,                   Docker::Allows,     ""),
    call("vfork",                   58,   NONE,  Allowed,                   Docker::Allows,     ""),
    call("vhangup",                 153,  58,    Refused,                   Docker::Refuses,    "hangs up terminals"),
    call("vmsplice",                278,  75,    Allowed,                   Docker::Allows,     ""),
    call("vserver",                 236,  NONE,  Refused,                   Docker::Refuses,    "never was in the kernel"),
    call("wait4",                   61,   260,   Allowed,                   Docker::Allows,     ""),
    call("waitid",                  247,  95,    Allowed,                   Docker::Allows,     ""),
    call("write",                   1,    64,    Allowed,                   Docker::Allows,     ""),
    call("writev",                  20,   66,    Allowed,                   Docker::Allows,     ""),
];

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;

    use super::*;

    const NOTE: &str =
        "Generated from the program: `UPDATE_GENERATED=1 cargo test -p belljar-cell` rewrites it.";

    fn document() -> String {
        let mut text = format!(
            "# System calls\n\n{NOTE}\n\n\
            What a guest that makes a system call is answered, call by call, and what Docker's default profile answers \
            (moby/profiles, June 2026, with the capabilities that Docker hands out by default).\n\n\
            - *allowed*: the kernel decides, as for any process without powers.\n\
            - *allowed if …*: the same when the arguments are like that; else `EPERM`.\n\
            - *refused*: `EPERM`.\n\
            - *not there*: `ENOSYS`; programs fall back as they would on an older kernel. Numbers that are not in \
            this list get this answer too.\n\n\
            A program for another processor (32-bit, for one) is killed by its first call, because its numbers mean \
            other calls; Docker lets such programs run. x32 calls are not there.\n\n\
            In a cell for building, where a RUN of a Dockerfile runs, three answers differ: set-id bits may be set, \
            because files of an image have them and the cell's mounts ignore them; `chroot` is allowed; and a netlink \
            socket for audit can be made, on which the kernel answers nothing but a refusal, because `useradd` and its \
            kin give up without one.\n\n"
        );
        let differing: Vec<&Call> = CALLS.iter().filter(|call| call.differs()).collect();
        let _ = write!(text, "## Where Belljar and Docker differ\n\n| call | Belljar | Docker | why |\n");
        text.push_str("| --- | --- | --- | --- |\n");
        for call in differing {
            let (ours, theirs) = (answer(call), docker(call));
            let _ = writeln!(text, "| `{}` | {ours} | {theirs} | {} |", call.name, call.why);
        }
        text.push_str("\n## Every call\n\n| call | x86_64 | aarch64 | Belljar | Docker | why |\n");
        text.push_str("| --- | --- | --- | --- | --- | --- |\n");
        for call in CALLS {
            let [x86_64, aarch64] = [Machine::X86_64, Machine::Aarch64]
                .map(|machine| call.number(machine).map_or(String::new(), |number| number.to_string()));
            let (ours, theirs) = (answer(call), docker(call));
            let _ = writeln!(
                text,
                "| `{}` | {x86_64} | {aarch64} | {ours} | {theirs} | {} |",
                call.name, call.why
            );
        }
        text
    }

    fn answer(call: &Call) -> String {
        match call.answer {
            Allowed => "allowed".to_owned(),
            When(guard) => format!("allowed if {}", guard.words()),
            Refused => "refused".to_owned(),
            NoSuchCall => "not there".to_owned(),
        }
    }

    fn docker(call: &Call) -> &'static str {
        match call.docker {
            Docker::Allows => "allowed",
            Docker::AllowsSome => "by its arguments",
            Docker::Refuses => "refused",
            Docker::NoSuchCall => "not there",
        }
    }

    #[test]
    fn every_call_is_documented() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/syscalls.md");
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            return std::fs::write(&path, document()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == document(), "docs/syscalls.md is not what the table says; {NOTE}");
    }

    #[test]
    fn names_are_sorted_and_numbers_are_taken_once() {
        assert!(CALLS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let mut numbers: Vec<u32> = CALLS.iter().filter_map(|call| call.number(machine)).collect();
            numbers.sort_unstable();
            assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{machine:?}");
        }
    }

    #[test]
    fn a_reason_that_points_to_another_call_points_to_one_that_is_there() {
        for call in CALLS {
            if let Some(other) = call.why.strip_prefix("as for `") {
                let other = other.split('`').next().unwrap();
                let other = CALLS.iter().find(|call| call.name == other).unwrap();
                assert!(!other.why.is_empty() && !other.why.starts_with("as for"), "{}", call.name);
            }
        }
    }

    macro_rules! numbers {
        ($($name:ident)*) => { vec![$((stringify!($name), libc::$name)),*] };
    }

    #[rustfmt::skip]
    fn everywhere() -> Vec<(&'static str, i64)> {
        numbers! {
            SYS_accept SYS_accept4 SYS_acct SYS_add_key SYS_adjtimex SYS_bind SYS_bpf SYS_brk
            SYS_capget SYS_capset SYS_chdir SYS_chroot SYS_clock_adjtime SYS_clock_getres
            SYS_clock_gettime SYS_clock_nanosleep SYS_clock_settime SYS_clone SYS_clone3
            SYS_close SYS_close_range SYS_connect SYS_copy_file_range SYS_delete_module
            SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
            SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_faccessat
            SYS_faccessat2 SYS_fadvise64 SYS_fallocate SYS_fanotify_init SYS_fanotify_mark
            SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_fcntl SYS_fdatasync
            SYS_fgetxattr SYS_finit_module SYS_flistxattr SYS_flock SYS_fremovexattr
            SYS_fsconfig SYS_fsetxattr SYS_fsmount SYS_fsopen SYS_fspick SYS_fstat SYS_fstatfs
            SYS_fsync SYS_ftruncate SYS_futex SYS_futex_waitv SYS_get_mempolicy
            SYS_get_robust_list SYS_getcpu SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid
            SYS_getgid SYS_getgroups SYS_getitimer SYS_getpeername SYS_getpgid SYS_getpid
            SYS_getppid SYS_getpriority SYS_getrandom SYS_getresgid SYS_getresuid
            SYS_getrusage SYS_getsid SYS_getsockname SYS_getsockopt SYS_gettid
            SYS_gettimeofday SYS_getuid SYS_getxattr SYS_init_module SYS_inotify_add_watch
            SYS_inotify_init1 SYS_inotify_rm_watch SYS_io_cancel SYS_io_destroy
            SYS_io_getevents SYS_io_setup SYS_io_submit SYS_io_uring_enter
            SYS_io_uring_register SYS_io_uring_setup SYS_ioctl SYS_ioprio_get SYS_ioprio_set
            SYS_kcmp SYS_kexec_file_load SYS_kexec_load SYS_keyctl SYS_kill
            SYS_landlock_add_rule SYS_landlock_create_ruleset SYS_landlock_restrict_self
            SYS_lgetxattr SYS_linkat SYS_listen SYS_listxattr SYS_llistxattr
            SYS_lookup_dcookie SYS_lremovexattr SYS_lseek SYS_lsetxattr SYS_madvise SYS_mbind
            SYS_membarrier SYS_memfd_create SYS_memfd_secret SYS_migrate_pages SYS_mincore
            SYS_mkdirat SYS_mknodat SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap SYS_mount
            SYS_mount_setattr SYS_move_mount SYS_move_pages SYS_mprotect SYS_mq_getsetattr
            SYS_mq_notify SYS_mq_open SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink
            SYS_mremap SYS_mseal SYS_msgctl SYS_msgget SYS_msgrcv SYS_msgsnd SYS_msync
            SYS_munlock SYS_munlockall SYS_munmap SYS_name_to_handle_at SYS_nanosleep
            SYS_newfstatat SYS_nfsservctl SYS_open_by_handle_at SYS_open_tree SYS_openat
            SYS_openat2 SYS_perf_event_open SYS_personality SYS_pidfd_getfd SYS_pidfd_open
            SYS_pidfd_send_signal SYS_pipe2 SYS_pivot_root SYS_pkey_alloc SYS_pkey_free
            SYS_pkey_mprotect SYS_ppoll SYS_prctl SYS_pread64 SYS_preadv SYS_preadv2
            SYS_prlimit64 SYS_process_madvise SYS_process_mrelease SYS_process_vm_readv
            SYS_process_vm_writev SYS_pselect6 SYS_ptrace SYS_pwrite64 SYS_pwritev
            SYS_pwritev2 SYS_quotactl SYS_quotactl_fd SYS_read SYS_readahead SYS_readlinkat
            SYS_readv SYS_reboot SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_remap_file_pages
            SYS_removexattr SYS_renameat2 SYS_request_key SYS_restart_syscall SYS_rseq
            SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigqueueinfo
            SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo
            SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_getaffinity
            SYS_sched_getattr SYS_sched_getparam SYS_sched_getscheduler
            SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr
            SYS_sched_setparam SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_semctl
            SYS_semget SYS_semop SYS_semtimedop SYS_sendfile SYS_sendmmsg SYS_sendmsg
            SYS_sendto SYS_set_mempolicy SYS_set_mempolicy_home_node SYS_set_robust_list
            SYS_set_tid_address SYS_setdomainname SYS_setfsgid SYS_setfsuid SYS_setgid
            SYS_setgroups SYS_sethostname SYS_setitimer SYS_setns SYS_setpgid SYS_setpriority
            SYS_setregid SYS_setresgid SYS_setresuid SYS_setreuid SYS_setsid SYS_setsockopt
            SYS_settimeofday SYS_setuid SYS_setxattr SYS_shmat SYS_shmctl SYS_shmdt SYS_shmget
            SYS_shutdown SYS_sigaltstack SYS_signalfd4 SYS_socket SYS_socketpair SYS_splice
            SYS_statfs SYS_statx SYS_swapoff SYS_swapon SYS_symlinkat SYS_sync SYS_syncfs
            SYS_sysinfo SYS_syslog SYS_tee SYS_tgkill SYS_timer_create SYS_timer_delete
            SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime SYS_timerfd_create
            SYS_timerfd_gettime SYS_timerfd_settime SYS_times SYS_tkill SYS_truncate SYS_umask
            SYS_umount2 SYS_uname SYS_unlinkat SYS_unshare SYS_userfaultfd SYS_utimensat
            SYS_vhangup SYS_vmsplice SYS_wait4 SYS_waitid SYS_write SYS_writev
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[rustfmt::skip]
    fn old() -> Vec<(&'static str, i64)> {
        numbers! {
            SYS__sysctl SYS_access SYS_afs_syscall SYS_alarm SYS_arch_prctl SYS_chmod
            SYS_chown SYS_creat SYS_dup2 SYS_epoll_create SYS_epoll_ctl_old SYS_epoll_wait
            SYS_epoll_wait_old SYS_eventfd SYS_fchmodat2 SYS_fork SYS_futimesat
            SYS_get_thread_area SYS_getdents SYS_getpgrp SYS_getpmsg SYS_getrlimit
            SYS_inotify_init SYS_ioperm SYS_iopl SYS_lchown SYS_link SYS_lstat SYS_mkdir
            SYS_mknod SYS_modify_ldt SYS_open SYS_pause SYS_pipe SYS_poll SYS_putpmsg
            SYS_readlink SYS_rename SYS_renameat SYS_rmdir SYS_security SYS_select
            SYS_set_thread_area SYS_setrlimit SYS_signalfd SYS_stat SYS_symlink
            SYS_sync_file_range SYS_sysfs SYS_time SYS_tuxcall SYS_unlink SYS_uselib SYS_ustat
            SYS_utime SYS_utimes SYS_vfork SYS_vserver
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn old() -> Vec<(&'static str, i64)> {
        Vec::new()
    }

    /// The numbers of this machine, as another table has them.
    #[test]
    fn numbers_are_the_kernels() {
        for (name, number) in everywhere().into_iter().chain(old()) {
            let name = name.strip_prefix("SYS_").unwrap();
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            assert_eq!(call.number(Machine::THIS).map(i64::from), Some(number), "{name}");
        }
    }
}

//! The system calls that no safe wrapper offers.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_ulong};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{DumpableBehavior, Pid};

/// What a clone gives: in the parent the child's id and descriptor, in the child nothing.
#[derive(Debug)]
pub(crate) enum Cloned {
    /// This is the parent.
    Parent(Pid, OwnedFd),
    /// This is the child.
    Child,
}

#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Forks with new namespaces or other clone flags; the child shares nothing with its parent but open files.
///
/// The caller must be single-threaded: the child goes on allocating. With a version 2 control group the child is born
/// in it.
pub(crate) fn clone(flags: u64, group: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    const INTO_GROUP: u64 = 0x2_0000_0000;
    let mut pidfd: c_int = -1;
    let mut arguments = CloneArguments {
        flags: flags | libc::CLONE_PIDFD as u64 | if group.is_some() { INTO_GROUP } else { 0 },
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: group.map_or(0, |fd| fd.as_raw_fd() as u64),
        ..CloneArguments::default()
    };
    // SAFETY: the structure has the size given, the flags share no memory with the child (no CLONE_VM), and the
    // process has one thread, so the child's copy of the heap and of all locks is consistent.
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, std::mem::size_of::<CloneArguments>()) };
    let result = match result {
        -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) && group.is_none() => {
            clone_the_old_way(flags, &mut pidfd)
        }
        other => other,
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Cloned::Child),
        // SAFETY: on success the kernel stored a new descriptor that nobody else owns.
        pid => Ok(Cloned::Parent(to_pid(pid)?, unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// Containers of others refuse the new call altogether, because their filters cannot look into its arguments.
fn clone_the_old_way(flags: u64, pidfd: &mut c_int) -> c_long {
    let flags = flags | libc::CLONE_PIDFD as u64 | libc::SIGCHLD as u64;
    let (no_stack, nothing) = (std::ptr::null_mut::<libc::c_void>(), 0_usize);
    // SAFETY: as for the new call: no memory is shared, and the process has one thread. On the machines this is built
    // for the third argument is where the descriptor goes, and a null stack means the parent's own.
    unsafe { libc::syscall(libc::SYS_clone, flags, no_stack, std::ptr::from_mut(pidfd), nothing, nothing) }
}

fn to_pid(raw: c_long) -> io::Result<Pid> {
    i32::try_from(raw).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[repr(C)]
struct MountAttributes {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Read-only, for [`set_mount_attributes`].
pub(crate) const MOUNT_READ_ONLY: u64 = 0x1;
/// No set-user-id programs.
pub(crate) const MOUNT_NO_SUID: u64 = 0x2;
/// No device nodes.
pub(crate) const MOUNT_NO_DEVICES: u64 = 0x4;
const MOUNT_IDMAP: u64 = 0x0010_0000;
const RECURSIVE: c_uint = 0x8000;

/// Whether a call covers the mounts below as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// This mount only.
    One,
    /// This mount and all below it.
    All,
}

/// Sets attributes on a mount, and maps its owners into a user namespace when one is given.
pub(crate) fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    attributes: u64,
    owners: Option<BorrowedFd<'_>>,
    depth: Depth,
) -> io::Result<()> {
    let idmap = if owners.is_some() { MOUNT_IDMAP } else { 0 };
    let arguments = MountAttributes {
        attr_set: attributes | idmap,
        attr_clr: 0,
        propagation: 0,
        userns_fd: owners.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let recursive = if depth == Depth::All { RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the structure lives during the call and has the size given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH as c_uint | recursive,
            &raw const arguments,
            std::mem::size_of::<MountAttributes>(),
        )
    })
}

/// Marks every descriptor from `first` on to be closed at exec.
pub(crate) fn close_on_exec_from(first: c_uint) -> io::Result<()> {
    // SAFETY: marking descriptors changes no memory.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) })
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// The number of `CAP_KILL`.
pub(crate) const CAP_KILL: u32 = 5;
/// The number of `CAP_SYS_PTRACE`.
pub(crate) const CAP_SYS_PTRACE: u32 = 19;
/// The number of `CAP_SYS_ADMIN`.
pub(crate) const CAP_SYS_ADMIN: u32 = 21;

/// Reduces the thread's effective and permitted capabilities to those of the mask (below 32), inheritable to none.
pub(crate) fn keep_capabilities(mask: u32) -> io::Result<()> {
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let low = CapabilityData { effective: mask, permitted: mask, inheritable: 0 };
    let data = [low, CapabilityData::default()];
    // SAFETY: header and data have the layout of version 3 and live during the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })
}

/// Makes every permitted capability survive the next program: a deliberate fault.
pub(crate) fn pass_on_capabilities() -> io::Result<()> {
    let all = permitted_capabilities()?;
    let half = |bits: u64| {
        let bits = (bits & u64::from(u32::MAX)) as u32;
        CapabilityData { effective: bits, permitted: bits, inheritable: bits }
    };
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let data = [half(all), half(all >> 32)];
    // SAFETY: header and data have the layout of version 3 and live during the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })?;
    for capability in (0..64).filter(|number| all & (1 << number) != 0) {
        let raise = libc::PR_CAP_AMBIENT_RAISE as c_ulong;
        // SAFETY: this option takes numbers only and touches no memory of ours.
        let raised = unsafe {
            libc::prctl(libc::PR_CAP_AMBIENT, raise, capability as c_ulong, 0 as c_ulong, 0 as c_ulong)
        };
        check(c_long::from(raised))?;
    }
    Ok(())
}

/// The thread's permitted capabilities.
pub(crate) fn permitted_capabilities() -> io::Result<u64> {
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: header and data have the layout of version 3 and live during the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    Ok(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32)
}

/// Removes every capability but those of the mask from the bounding set, so that no later exec can regain one.
pub(crate) fn limit_bounding_set(mask: u32) -> io::Result<()> {
    for capability in (0..64).filter(|number| u64::from(mask) & (1 << number) == 0) {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A prctl call that takes one number.
pub(crate) fn prctl(option: c_int, argument: c_ulong) -> io::Result<c_int> {
    // SAFETY: the options used here take numbers only and touch no memory of ours.
    let result = unsafe { libc::prctl(option, argument, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Clones as another user in the eyes of whoever counts, but not of files. For root, in a process with one thread; the
/// child stays that user.
pub(crate) fn clone_as(owner: u32, flags: u64) -> io::Result<Cloned> {
    use rustix::thread::{Uid, set_thread_res_uid};
    // Its files in /proc are root's whatever it is called.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_thread_res_uid(Uid::ROOT, Uid::from_raw(owner), Uid::ROOT)?;
    // SAFETY: the call changes one number of this thread and touches no memory.
    unsafe { libc::syscall(libc::SYS_setfsuid, 0) };
    let cloned = clone(flags, None);
    if !matches!(cloned, Ok(Cloned::Child)) {
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    }
    cloned
}

/// Makes this process forget the arguments that it was started with: in a copy of the caller they are the caller's, and
/// anybody who sees the process can read them.
pub(crate) fn forget_arguments() {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    // The name in parentheses may hold anything; the third field follows it.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect::<Vec<_>>());
    let place = |number: usize| -> Option<usize> { fields.as_ref()?.get(number - 3)?.parse().ok() };
    let (Some(start), Some(end)) = (place(48), place(49)) else { return };
    if start > 0 && start < end {
        // SAFETY: the kernel says that the arguments lie here, on the stack of this process, which is writable; nothing
        // of ours reads them after this.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) };
    }
}

/// What lists of processes call this one.
pub(crate) fn set_name(name: &CStr) {
    // Refused, it keeps its old one.
    let _ = rustix::thread::set_name(name);
}

/// Puts every signal back to its default and unblocks all of them.
///
/// By the system call itself: the C library keeps two signals to itself, which a process it started may ignore.
pub(crate) fn reset_signals() -> io::Result<()> {
    // The kernel's own structure: handler, flags, restorer, mask; all zero is the default disposition.
    let default = [0_u64; 4];
    for signal in 1..=64 {
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            // SAFETY: the structure is as long as the kernel's and lives during the call; the old one is not asked for.
            check(unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    signal,
                    default.as_ptr(),
                    std::ptr::null::<u64>(),
                    8_usize,
                )
            })?;
        }
    }
    // SAFETY: an all-zero signal set is the empty set.
    let empty: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives during the call.
    check(c_long::from(unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut())
    }))
}

/// Ignores a signal.
pub(crate) fn ignore(signal: c_int) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Lets the kernel reap this process's children by itself.
pub(crate) fn reap_by_kernel() {
    ignore(libc::SIGCHLD);
}

/// How a child ended and what it used, as the kernel counted it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waited {
    /// The raw wait status.
    pub status: c_int,
    /// User time in microseconds, its waited-for children included.
    pub user_us: u64,
    /// System time in microseconds.
    pub system_us: u64,
    /// Bytes read from and written to devices.
    pub io: (u64, u64),
}

/// Waits for one child of our own code and takes its resource usage.
pub(crate) fn wait_for(pid: Pid) -> io::Result<Waited> {
    wait(pid, 0)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

/// Takes a child that has ended, if it can be had. One that a guest traces cannot, until its tracer is gone.
pub(crate) fn take_ended(pid: Pid) -> io::Result<Option<Waited>> {
    wait(pid, libc::WNOHANG)
}

fn wait(pid: Pid, options: c_int) -> io::Result<Option<Waited>> {
    let mut status: c_int = 0;
    // SAFETY: an all-zero rusage is a valid value to be overwritten.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are valid during the call.
        let result =
            unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, options, &raw mut usage) };
        if result == 0 {
            return Ok(None);
        }
        if result > 0 {
            return Ok(Some(Waited {
                status,
                user_us: microseconds(usage.ru_utime),
                system_us: microseconds(usage.ru_stime),
                io: (blocks(usage.ru_inblock), blocks(usage.ru_oublock)),
            }));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn microseconds(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap_or(0)
}

/// The kernel counts in blocks of 512 bytes here, whatever the device has.
fn blocks(count: c_long) -> u64 {
    u64::try_from(count).unwrap_or(0) * 512
}

/// Gives this process a session keyring of its own, empty, so that it shares no key with who started it.
pub(crate) fn join_new_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: c_int = 1;
    // SAFETY: a null name asks for an anonymous keyring; no memory is read.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<c_char>()) };
    match check(result) {
        // A kernel without keys has none to share.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other,
    }
}

/// Puts the disposition of ended children back to what waiting needs.
pub(crate) fn wait_for_children() {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// The number of a loop device that nobody uses.
pub(crate) fn free_loop_device(control: &std::fs::File) -> io::Result<c_int> {
    const GET_FREE: c_ulong = 0x4c82;
    // SAFETY: the request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
    if number == -1 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

/// `struct loop_config` of the kernel: the file, the block size, 232 bytes about the device, 64 reserved.
#[repr(C)]
struct LoopConfiguration {
    descriptor: u32,
    block_size: u32,
    before_flags: [u8; 52],
    flags: u32,
    after_flags: [u8; 176],
    reserved: [u64; 8],
}

/// Gives a loop device its file, until the last user of the device is gone.
pub(crate) fn configure_loop_device(device: c_int, file: c_int) -> io::Result<()> {
    const CONFIGURE: c_ulong = 0x4c0a;
    const AUTOCLEAR: u32 = 4;
    let configuration = LoopConfiguration {
        descriptor: file.cast_unsigned(),
        block_size: 0,
        before_flags: [0; 52],
        flags: AUTOCLEAR,
        after_flags: [0; 176],
        reserved: [0; 8],
    };
    // SAFETY: the structure has the kernel's layout and lives during the call; the kernel only reads it.
    check(c_long::from(unsafe { libc::ioctl(device, CONFIGURE, &raw const configuration) }))
}

unsafe extern "C" {
    /// The first byte of the program, as the linker says.
    static __executable_start: u8;
    /// The end of its code, likewise.
    static etext: u8;
}

/// Maps the whole program at once. A forked process has none of its parent's code mapped, and finding that out page by
/// page costs more than most of what it does.
pub(crate) fn map_code() {
    let start = (&raw const __executable_start).addr() & !0xfff;
    let length = (&raw const etext).addr() - start;
    // SAFETY: the range is the program's own code, which is mapped for as long as the process lives; reading it in
    // changes nothing. An older kernel that does not know the advice leaves everything as it is.
    unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_POPULATE_READ) };
}

/// Replaces this process; returns only on failure.
pub(crate) fn execute(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let argv = pointers(arguments);
    let envp = pointers(environment);
    // SAFETY: both arrays end with a null pointer and their strings outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Ends this process at once, without running anything of the copied parent's.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: _exit never returns and runs no handlers.
    unsafe { libc::_exit(code) }
}

/// Sets the supplementary groups of this thread to none.
pub(crate) fn clear_groups() -> io::Result<()> {
    // SAFETY: a count of zero reads no memory.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0_usize, std::ptr::null::<libc::gid_t>()) })
}

/// Installs a compiled syscall filter on this thread.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let header = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the header points to `len` instructions that live during the call; the kernel only reads them.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const header) })
}

fn check(result: c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends SIGKILL to every process this one may signal but itself; in a cell's init that is the whole cell.
pub(crate) fn kill_all_others() {
    // SAFETY: sending a signal touches no memory; the caller is the first process of its process namespace.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Closes every descriptor but these. Only for a forked process that will use no other value that owns one.
pub(crate) fn close_all_but(kept: &[&OwnedFd]) {
    let mut numbers: Vec<c_uint> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    numbers.sort_unstable();
    let mut first = 0;
    for number in numbers {
        if first < number {
            close_range(first, number - 1);
        }
        first = number + 1;
    }
    close_range(first, c_uint::MAX);
}

fn close_range(first: c_uint, last: c_uint) {
    // SAFETY: the caller of the one function that uses this promises that no value that owns one of these descriptors
    // is used or dropped any more.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Waits for a child that has ended and ends this process the same way.
pub(crate) fn end_like(child: Pid) -> ! {
    let Ok(waited) = wait_for(child) else { exit_now(127) };
    if libc::WIFSIGNALED(waited.status) {
        let signal = libc::WTERMSIG(waited.status);
        // SAFETY: restoring a default disposition and raising a signal touch no memory.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    exit_now(libc::WEXITSTATUS(waited.status))
}

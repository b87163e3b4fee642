//! System calls that no plain program needs.

use crate::conformance::guest::python;
use crate::conformance::hostile_table::all_held;
use crate::conformance::need::Need;
use crate::conformance::row::Promise::ClosedByDefault;
use crate::conformance::row::{Row, hostile};

const KEYRING: &str = "
refused('add a key', lambda: syscall('add_key', b'user', b'belljar', b'x', 1, -2))
refused('request a key', lambda: syscall('request_key', b'user', b'belljar', 0, -2))
refused('join the session', lambda: syscall('keyctl', 1, 0))
refused('read the user keyring', lambda: syscall('keyctl', 11, -4, 0, 0))
refused('the session keyring', lambda: syscall('keyctl', 0, -3, 0))
blank('/proc/keys')
";
const CLOCK: &str = "
now = (ctypes.c_long * 2)(int(time.time()), 0)
refused('set the clock', lambda: syscall('clock_settime', 0, ctypes.byref(now)))
refused('set the time of day', lambda: syscall('settimeofday', ctypes.byref(now), 0))
timex = (ctypes.c_long * 40)(0x4000)
timex[9] = 10000
refused('adjust the clock', lambda: syscall('adjtimex', ctypes.byref(timex)))
refused('adjust a clock', lambda: syscall('clock_adjtime', 0, ctypes.byref(timex)))
refused('the clock of the machine', lambda: os.open('/dev/rtc0', os.O_RDONLY), MISSING)
";
const IO_URING: &str = "
parameters = ctypes.create_string_buffer(256)
refused('io_uring_setup', lambda: syscall('io_uring_setup', 4, parameters))
";
const BPF: &str = "
attributes = ctypes.create_string_buffer(bytes([2, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]), 128)
refused('make a map', lambda: syscall('bpf', 0, attributes, 72))
refused('load a program', lambda: syscall('bpf', 5, attributes, 72))
refused('list programs', lambda: syscall('bpf', 11, attributes, 72))
";
const WATCHERS: &str = "
refused('userfaultfd', lambda: syscall('userfaultfd', 1))
refused('userfaultfd for the kernel too', lambda: syscall('userfaultfd', 0))
attributes = ctypes.create_string_buffer(bytes([1, 0, 0, 0, 112, 0, 0, 0]), 112)
refused('perf_event_open', lambda: syscall('perf_event_open', attributes, 0, -1, -1, 0))
refused('perf_event_open on a processor', lambda: syscall('perf_event_open', attributes, -1, 0, -1, 0))
refused('fanotify_init', lambda: syscall('fanotify_init', 0, 0))
refused('fanotify_init for names', lambda: syscall('fanotify_init', 0x200, 0))
refused('lookup_dcookie', lambda: syscall('lookup_dcookie', 0, attributes, 100))
";
const KERNEL: &str = "
refused('load a module', lambda: syscall('init_module', b'', 0, b''))
refused('load a module from a file', lambda: syscall('finit_module', os.open('/bin/sh', 0), b'', 0))
refused('remove a module', lambda: syscall('delete_module', b'no_such_module', 0))
refused('load another kernel', lambda: syscall('kexec_load', 0, 0, 0, 0))
refused('load another kernel from a file', lambda: syscall('kexec_file_load', -1, -1, 0, 0, 0))
refused('restart', lambda: syscall('reboot', 0xfee1dead, 672274793, 0, 0))
refused('swap on', lambda: syscall('swapon', b'/no/such/file', 0))
refused('swap off', lambda: syscall('swapoff', b'/no/such/file'))
refused('quotas', lambda: syscall('quotactl', 0x800002 << 8, b'/dev/none', 0, 0))
refused('accounting', lambda: syscall('acct', b'/no/such/file'))
refused('host name', lambda: syscall('sethostname', b'belljar', 7))
refused('domain name', lambda: syscall('setdomainname', b'belljar', 7))
refused('ports of the processor', lambda: syscall('iopl', 3))
refused('one port of the processor', lambda: syscall('ioperm', 0x80, 1, 1))
refused('nfsservctl', lambda: syscall('nfsservctl', 0, 0, 0))
";
const PERSONALITY: &str = "
for name, value in (('read implies execute', 0x0400000), ('addresses for 32 bits', 0x0800000), ('map the zero page', 0x0100000), ('legacy layout', 0x0200000)):
    refused(name, lambda: syscall('personality', value))
import mmap
libc.mmap.restype = ctypes.c_long
hold('nothing at address zero', libc.mmap(ctypes.c_void_p(0), 4096, 3, 0x32, -1, 0) in (-1,))
";
/// Calls of the 32-bit machine have other numbers, and a filter that forgets this has a door for each.
const OTHER_NUMBERS: &str = "
import mmap, signal
def old_call(number):
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, 7)
    code = b'\\x53\\xb8' + number.to_bytes(4, 'little') + b'\\x31\\xdb\\xcd\\x80\\x5b\\xc3'
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
code = apart(lambda: 1 if old_call(20) > 0 else 0)
hold(f'a call of the 32-bit machine: {code}', code in (0, -signal.SIGSYS, -signal.SIGSEGV, -signal.SIGILL))
def x32_call():
    ctypes.set_errno(0)
    return 1 if libc.syscall(ctypes.c_long(0x40000000 + 39)) > 0 else 0
code = apart(x32_call)
hold(f'a call of the x32 machine: {code}', code in (0, -signal.SIGSYS))
";
const FILTER: &str = "
PR_SET_SECCOMP, PR_GET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 21, 38
hold('a filter is there', libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2)
libc.prctl(PR_SET_SECCOMP, 0, 0, 0, 0)
hold('it cannot be taken off', libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2)
hold('no_new_privs cannot be taken back', libc.prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == -1 and libc.prctl(39, 0, 0, 0, 0) == 1)
def child():
    os.execv('/bin/sh', ['sh', '-c', 'grep -q \"^Seccomp:.2\" /proc/self/status && grep -q \"^NoNewPrivs:.1\" /proc/self/status'])
hold('a child has both', apart(child) == 0)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| hostile(name, ClosedByDefault, shows);
    vec![
        row("keyring", "the kernel's keyrings are shut").runs(python(KEYRING), all_held(6)),
        row("clock-setting", "no clock can be set").runs(python(CLOCK), all_held(5)),
        row("io-uring", "io_uring, which a filter cannot look into, is not there")
            .runs(python(IO_URING), all_held(1)),
        row("bpf", "no program can be loaded into the kernel").runs(python(BPF), all_held(3)),
        row("watchers", "nobody can watch faults, events or files of the whole machine")
            .runs(python(WATCHERS), all_held(7)),
        row("machine-calls", "modules, restart, swap, quotas and the like are shut")
            .runs(python(KERNEL), all_held(15)),
        row("personality", "no personality that weakens a program can be put on")
            .runs(python(PERSONALITY), all_held(5)),
        row("other-architectures", "calls by the numbers of another architecture do not pass the filter")
            .needs(Need::Machine("x86_64"))
            .runs(python(OTHER_NUMBERS), all_held(2)),
        row("filter-stays", "the filter cannot be taken off, by a process or by its children")
            .runs(python(FILTER), all_held(4)),
    ]
}

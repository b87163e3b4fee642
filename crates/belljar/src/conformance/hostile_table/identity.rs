//! Attempts to become somebody else.

use crate::conformance::expectation::Text;
use crate::conformance::guest::{python, sh};
use crate::conformance::hostile_table::all_held;
use crate::conformance::need::Need;
use crate::conformance::row::Promise::ClosedByDefault;
use crate::conformance::row::{Row, exits, hostile};

const IDS: &str = "
for number in (0, 1, 999, 1001, 65534):
    refused(f'user {number}', lambda: os.setuid(number), errno.EINVAL)
    refused(f'group {number}', lambda: os.setgid(number), errno.EINVAL)
    refused(f'effective user {number}', lambda: os.setresuid(-1, number, -1), errno.EINVAL)
    refused(f'effective group {number}', lambda: os.setresgid(-1, number, -1), errno.EINVAL)
refused('groups', lambda: os.setgroups([0]), errno.EINVAL)
refused('no groups', lambda: os.setgroups([]))
libc.setfsuid(0)
hold('user for files', libc.setfsuid(-1) == 1000)
refused('own a file of another', lambda: os.chown('/etc/passwd', 1000, 1000))
open('mine', 'w')
refused('give a file away', lambda: os.chown('mine', 0, 0), errno.EINVAL, errno.EOVERFLOW)
";
const CAPABILITIES: &str = "
def capset(bits):
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(bits, bits, bits, bits, bits, bits)
    return syscall('capset', ctypes.byref(header), ctypes.byref(data))
refused('all capabilities', lambda: capset(0xffffffff))
for bit in (0, 1, 7, 12, 16, 18, 19, 21): refused(f'capability {bit}', lambda: capset(1 << bit))
def raised(*arguments):
    if libc.prctl(*arguments) == -1: raise OSError(ctypes.get_errno(), '')
refused('ambient capability', lambda: raised(47, 2, 21, 0, 0))
refused('secure bits', lambda: raised(28, 0x10, 0, 0, 0))
refused('keep capabilities', lambda: raised(28, 0x20, 0, 0, 0))
refused('securebits off', lambda: raised(28, 0x2f, 0, 0, 0))
refused('capability of a file', lambda: (open('mine', 'w'), os.setxattr('mine', 'security.capability', bytes.fromhex('0100000200200000002000000000000000000000'))))
for name in ('trusted.overlay.opaque', 'trusted.overlay.redirect'):
    refused(name, lambda: os.setxattr('mine', name, b'y'), errno.EOPNOTSUPP, errno.EINVAL)
";
const SET_ID: &str = "
import shutil, stat
shutil.copy('/bin/sh', 'shell')
def bits(): return os.stat('shell').st_mode & 0o6000
for mode in (0o4755, 0o2755, 0o6755):
    for what, attempt in (('chmod', lambda: os.chmod('shell', mode)), ('fchmod', lambda: os.fchmod(os.open('shell', 0), mode))):
        try: attempt()
        except OSError: pass
        hold(f'{what} {mode:o}', not bits())
    try: syscall('fchmodat2', -100, b'shell', mode, 0)
    except OSError: pass
    hold(f'fchmodat2 {mode:o}', not bits())
for name, attempt in (('opened', lambda: os.open('opened', os.O_CREAT | os.O_WRONLY, 0o4755)), ('made', lambda: os.mknod('made', 0o104755)),
                      ('folder', lambda: os.mkdir('folder', 0o2755)), ('linked', lambda: os.close(os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755)))):
    try: attempt()
    except OSError: pass
    hold(name, not os.path.exists(name) or not os.stat(name).st_mode & 0o6000)
def how(flags, mode): return ctypes.byref((ctypes.c_uint64 * 3)(flags, mode, 0))
try: syscall('openat2', -100, b'by_openat2', how(os.O_CREAT | os.O_WRONLY, 0o4755), 24)
except OSError: pass
hold('openat2', not os.path.exists('by_openat2') or not os.stat('by_openat2').st_mode & 0o6000)
";
/// The loader tells what the kernel thinks of it, unless the program was given powers.
const SU: &str = "LD_SHOW_AUXV=1 su --version | grep -E 'AT_(EUID|SECURE)' | tr -d ' ' | sort";
const HARD_LIMITS: &str = "
import resource
for name in ('NOFILE', 'NPROC', 'CORE', 'MEMLOCK', 'MSGQUEUE', 'NICE', 'RTPRIO', 'SIGPENDING'):
    kind = getattr(resource, 'RLIMIT_' + name)
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY: held(name + ' has no bound to raise')
    else: refused('raise ' + name, lambda: syscall('prlimit64', 0, kind, ctypes.byref((ctypes.c_uint64 * 2)(hard, hard + 1)), 0))
refused('limits of the first process', lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)))
refused('be more urgent', lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
refused('be real-time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99)))
refused('be the last to be killed', lambda: os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000'))
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| hostile(name, ClosedByDefault, shows);
    vec![
        row("ids", "the guest stays who it is").runs(python(IDS), all_held(25)),
        row("capability-sets", "no capability can be had, kept, or given to a file")
            .runs(python(CAPABILITIES), all_held(16)),
        row("set-user-id-made", "no file can get a set-user-id or set-group-id bit")
            .runs(python(SET_ID), all_held(14)),
        row("set-user-id-found", "a set-user-id program of the image gives no powers")
            .needs(Need::Program("su"))
            .runs(sh(SU), exits(0).stdout(Text::Is(b"AT_EUID:1000\nAT_SECURE:0\n".to_vec()))),
        row("hard-limits", "no hard limit can be raised, nor the limits of others changed")
            .runs(python(HARD_LIMITS), all_held(12)),
    ]
}

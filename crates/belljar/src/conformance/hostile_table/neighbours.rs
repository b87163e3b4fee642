//! Attempts on processes that are not the guest's: the first process, and guests of other sandboxes.

use crate::conformance::expectation::Expectation;
use crate::conformance::guest::{Guest, python, sh};
use crate::conformance::hostile_table::all_held;
use crate::conformance::row::Promise::{CannotForge, ClosedByDefault};
use crate::conformance::row::{Prop, Row, exits, hostile};

const TRACE_FIRST: &str = "
ATTACH, SEIZE, PEEK = 16, 0x4206, 1
libc.ptrace.restype = ctypes.c_long
refused('attach', lambda: syscall('ptrace', ATTACH, 1, 0, 0))
refused('seize', lambda: syscall('ptrace', SEIZE, 1, 0, 0))
buffer = ctypes.create_string_buffer(64)
class Part(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
own, theirs = Part(ctypes.addressof(buffer), 64), Part(0x400000, 64)
refused('read its memory', lambda: syscall('process_vm_readv', 1, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0))
refused('write its memory', lambda: syscall('process_vm_writev', 1, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0))
for number in (0, 1, 2, 3, 4, 5):
    refused(f'take its descriptor {number}', lambda: syscall('pidfd_getfd', syscall('pidfd_open', 1, 0), number, 0))
refused('compare with it', lambda: syscall('kcmp', 1, os.getpid(), 2, 0, 0))
refused('move its pages', lambda: syscall('move_pages', 1, 0, 0, 0, 0, 0))
refused('advise on its memory', lambda: syscall('process_madvise', syscall('pidfd_open', 1, 0), ctypes.byref(own), 1, 21, 0))
";
/// Signals to the first process: those that are delivered must do nothing to it.
const SIGNAL_FIRST: &str = "
started = open('/proc/1/stat').read().split()[21]
if os.getpid() != 1:
    for number in range(1, 65):
        try: os.kill(1, number)
        except OSError: pass
    try: __import__('signal').pidfd_send_signal(syscall('pidfd_open', 1, 0), 9)
    except OSError: pass
time.sleep(0.05)
hold('it lives on', open('/proc/1/stat').read().split()[21] == started and open('/proc/1/stat').read().split(') ')[-1][0] not in 'ZXT')
";
const SIGNAL_ALL: &str = "
import signal
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        time.sleep(30); os._exit(0)
    children.append(pid)
for number in (signal.SIGSTOP, signal.SIGKILL):
    try: os.kill(-1, number)
    except ProcessLookupError: pass
print([os.WTERMSIG(os.waitpid(pid, 0)[1]) for pid in children])
";
const PARENT: &str = "
import signal
parent = os.getppid()
hold(f'no parent is in sight: {parent}', parent in (0, 1))
for number in (signal.SIGSTOP, signal.SIGKILL):
    if parent:
        try: os.kill(parent, number)
        except OSError: pass
refused('leave for the session of another', lambda: os.setpgid(0, 1))
hold('still here', True)
";
/// Something that any program on one machine could find, if it were on that machine.
const NEIGHBOUR: &str = "
import socket
secret = 'secret-of-the-neighbour'
listener = socket.socket(socket.AF_UNIX); listener.bind('\\0neighbour'); listener.listen()
port = socket.create_server(('127.0.0.1', 47001)); udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 47002))
libc.shmget(0x62656c6c, 4096, 0o1666); libc.semget(0x62656c6c, 1, 0o1666); libc.msgget(0x62656c6c, 0o1666)
for place in ('/tmp/x', '/var/tmp/x', '/dev/shm/x', os.path.expanduser('~/x')): open(place, 'w').write(secret)
try: libc.mq_open(b'/neighbour', os.O_CREAT | os.O_RDWR, 0o666, 0)
except OSError: pass
open('ready', 'w')
time.sleep(30)
";
const FIND_NEIGHBOUR: &str = "
import socket
def connect(family, address):
    with socket.socket(family) as s: s.settimeout(2); s.connect(address)
refused('abstract socket', lambda: connect(socket.AF_UNIX, '\\0neighbour'), errno.ECONNREFUSED)
refused('port', lambda: connect(socket.AF_INET, ('127.0.0.1', 47001)), errno.ECONNREFUSED)
for call in ('shmget', 'semget', 'msgget'):
    arguments = {'shmget': (0x62656c6c, 4096, 0), 'semget': (0x62656c6c, 1, 0), 'msgget': (0x62656c6c, 0)}[call]
    hold(call, getattr(libc, call)(*arguments) == -1)
for place in ('/tmp/x', '/var/tmp/x', '/dev/shm/x', os.path.expanduser('~/x')): hold(place, not os.path.exists(place))
try: hold('message queue', libc.mq_open(b'/neighbour', os.O_RDWR) == -1)
except AttributeError: held('message queue')
numbers = [int(name) for name in os.listdir('/proc') if name.isdigit()]
hold(f'processes {numbers}', len(numbers) <= 2)
reached = []
for number in range(2, 3000):
    if number == os.getpid(): continue
    try: os.kill(number, 0); reached.append(number)
    except OSError: pass
hold(f'processes by number {reached}', not reached)
";

fn neighbour() -> Prop {
    Prop::Neighbour(Box::new(python(NEIGHBOUR)))
}

fn alive() -> (Guest, Expectation) {
    (sh("echo alive"), exits(0).out("alive\n"))
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let (guest, expectation) = alive();
    let lives_on = |row: Row| row.runs(guest.clone(), expectation.clone());
    vec![
        hostile("trace-the-first-process", ClosedByDefault, "the first process cannot be traced, read, written or robbed")
            .runs(python(TRACE_FIRST), all_held(13)),
        lives_on(
            hostile("signal-the-first-process", CannotForge, "no signal does anything to the first process")
                .runs(python(SIGNAL_FIRST), all_held(1)),
        ),
        lives_on(
            hostile("signal-everybody", CannotForge, "a signal to everybody reaches the guest's own processes only")
                .runs(python(SIGNAL_ALL), exits(0).out("[9, 9, 9]\n")),
        ),
        lives_on(
            hostile("signal-the-parent", CannotForge, "whoever started the guest is out of its reach")
                .runs(python(PARENT), all_held(3)),
        ),
        hostile("neighbour-unreachable", ClosedByDefault, "nothing of another sandbox can be seen, reached or opened")
            .with(neighbour())
            .runs(python(FIND_NEIGHBOUR), all_held(12)),
        hostile("neighbour-unharmed", ClosedByDefault, "signals to everybody do not reach another sandbox")
            .with(neighbour())
            .runs(python("for number in (15, 19, 9):\n    try: os.kill(-1, number)\n    except OSError: pass\nprint('sent')"),
                exits(0).out("sent\n")),
    ]
}

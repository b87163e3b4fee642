//! Attempts to use up what the machine has.

use std::time::Duration;

use crate::conformance::expectation::{Expectation, Text, Used};
use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::{AskedMeansEnforced, FilesComeBack, NothingSurvives, ToldApart};
use crate::conformance::row::{Row, exits, hostile, starves, times_out};
use crate::outcome::Ending;

const OPEN_FILES: &str = "
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
count, code = 0, 0
try:
    while count < 1 << 21: os.dup(1); count += 1
except OSError as error: code = error.errno
print(errno.errorcode.get(code), count < 1 << 20)
";
/// Names of two files, because names are what a folder holds, and files cost a disk more.
const MANY_NAMES: &str = "
for number in range(100_000):
    if number % 50_000 == 0: base = f'{number}'; open(base, 'w').close()
    else: os.link(base, f'{number}')
print(len(os.listdir('.')))
";
/// Children that each raise children of their own, 400 at most in all.
const TREE: &str = "
def grow(depth):
    for number in range(4):
        try: pid = os.fork()
        except OSError: continue
        if pid == 0:
            if depth: grow(depth - 1)
            time.sleep(30); os._exit(0)
grow(3)
time.sleep(0.5); print('grown')
";
const SHARED_SEGMENTS: &str = "
libc.shmat.restype = ctypes.c_void_p
for number in range(64):
    segment = libc.shmget(0, 4 << 20, 0o1600)
    at = libc.shmat(segment, None, 0)
    ctypes.memset(at, 1, 4 << 20); libc.shmdt(ctypes.c_void_p(at))
sys.exit(1)
";
const PIPES: &str = "
import fcntl, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
total = 0
for number in range(600):
    r, w = os.pipe(); os.set_blocking(w, False)
    try: fcntl.fcntl(w, 1031, 1 << 20)
    except OSError: pass
    try:
        while True: total += os.write(w, bytes(65536))
    except BlockingIOError: pass
print(total >> 20, flush=True)
sys.exit(0 if total >> 20 < 100 else 9)
";
const UNRANKED: &str = "
try: open('/proc/self/oom_score_adj', 'w').write('0')
except OSError: pass
held_memory = bytearray(b'x') * (256 << 20)
";
const QUEUES: &str = "
import select
kept, refusals = [], 0
for number in range(3000):
    try: kept.append(os.eventfd(0) if hasattr(os, 'eventfd') else os.dup(1)); kept.append(libc.inotify_init1(0)); kept.append(select.epoll())
    except OSError: refusals += 1
for number in range(2000):
    if libc.msgget(0, 0o1600) == -1: refusals += 1
    if libc.semget(0, 200, 0o1600) == -1: refusals += 1
print(refusals > 0)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [memory(), things()].concat()
}

fn memory() -> Vec<Row> {
    vec![
        hostile(
            "flood-of-shared-segments",
            AskedMeansEnforced,
            "segments that belong to no process are memory, and go with the sandbox",
        )
        .memory(64)
        .runs(python(SHARED_SEGMENTS), starves())
        .runs(sh("echo alive"), exits(0).out("alive\n")),
        hostile("flood-of-pipes", AskedMeansEnforced, "buffers of pipes stay within the limit of memory")
            .memory(64)
            .runs(python(PIPES), ended_by_memory_or_itself()),
        hostile(
            "memory-rank-undone",
            ToldApart,
            "a guest that undoes its rank among those to be killed is out of memory all the same",
        )
        .memory(64)
        .runs(python(UNRANKED), starves())
        .runs(sh("echo alive"), exits(0).out("alive\n")),
        hostile("memory-of-nobody", ToldApart, "memory that belongs to no process, filled by a guest that undid its rank, is out of memory")
            .memory(48)
            .runs(
                sh("echo 0 > /proc/self/oom_score_adj; exec dd if=/dev/zero of=/dev/shm/x bs=64k count=1000 2>/dev/null"),
                starves(),
            ),
        hostile("memory-locked", AskedMeansEnforced, "memory that cannot be moved is memory")
            .memory(64)
            .runs(
                python("libc.mlockall(3)\nheld_memory = bytearray(b'x') * (256 << 20)\nprint('after')"),
                starves_or_refused(),
            ),
    ]
}

/// Refused within, or ended for it: the row is about what lies between.
fn ended_by_memory_or_itself() -> Expectation {
    Expectation::any_of(&[(Ending::Exited, Some(0)), (Ending::OutOfMemory, None)])
}

fn starves_or_refused() -> Expectation {
    Expectation::any_of(&[(Ending::Exited, Some(1)), (Ending::OutOfMemory, None)])
}

fn things() -> Vec<Row> {
    vec![
        hostile(
            "flood-of-descriptors",
            AskedMeansEnforced,
            "descriptors have a bound, and the next command has them all again",
        )
        .runs(python(OPEN_FILES), exits(0).out("EMFILE True\n"))
        .runs(python(OPEN_FILES), exits(0).out("EMFILE True\n")),
        hostile("flood-of-names", FilesComeBack, "a folder of 100,000 names is no obstacle to the host")
            .runs(python(MANY_NAMES), exits(0).out("100000\n")),
        hostile(
            "flood-of-processes",
            NothingSurvives,
            "a tree of processes stays within its limit and is gone",
        )
        .pids(40)
        .alone()
        .runs(python(TREE), exits(0).stdout(Text::Has("grown\n")).uses(Used::Killed(20)))
        .runs(sh("echo alive"), exits(0).out("alive\n")),
        hostile(
            "flood-of-work",
            NothingSurvives,
            "a bomb with hardly any processor is ended when its time is up",
        )
        .pids(60)
        .processor(100)
        .alone()
        .runs(
            python("while True:\n    try: os.fork()\n    except OSError: pass").killed_after(1500),
            times_out(Duration::from_millis(1500)).uses(Used::Killed(5)),
        )
        .runs(sh("echo alive"), exits(0).out("alive\n")),
        hostile(
            "flood-of-queues",
            AskedMeansEnforced,
            "queues, watches and semaphores have bounds, and go with the sandbox",
        )
        .runs(python(QUEUES), exits(0).out("True\n"))
        .runs(sh("for f in msg sem shm; do tail -n +2 /proc/sysvipc/$f; done | wc -l"), exits(0)),
        hostile(
            "flood-of-output",
            ToldApart,
            "a guest that writes without end on both streams is ended in time",
        )
        .runs(
            sh("yes & yes >&2").killed_after(700),
            times_out(Duration::from_millis(700)).stdout(Text::AtLeast(10_000)).stderr(Text::AtLeast(10_000)),
        ),
    ]
}

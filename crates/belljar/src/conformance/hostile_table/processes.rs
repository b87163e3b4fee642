//! Attempts to stay, to hide, and to slip out of the count.

use crate::conformance::expectation::Used;
use crate::conformance::guest::python;
use crate::conformance::hostile_table::all_held;
use crate::conformance::row::Promise::{ClosedByDefault, NothingSurvives};
use crate::conformance::row::{Check, Row, exits, hostile, times_out};
use std::time::Duration;

/// A child that beats a drum in the workspace, after `{}` was done in it.
fn drummer(game: &str) -> String {
    format!(
        "
import signal
def game():
    {game}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        game()
        for number in range(6000):
            with open('/workspace/beat', 'w') as file: file.write(str(number))
            time.sleep(0.01)
    os._exit(0)
while not os.path.exists('/workspace/beat'): time.sleep(0.01)
print('drumming', flush=True)
"
    )
}

const CLONE_PARENT: &str = "
def sibling():
    pid = syscall('clone', 0x8000 | 17, 0, 0, 0, 0)
    if pid == 0:
        time.sleep(30); os._exit(0)
refused('a child of whoever started this', sibling)
def sibling3():
    arguments = (ctypes.c_uint64 * 8)(0x8000, 0, 0, 0, 0, 0, 0, 0)
    pid = syscall('clone3', ctypes.byref(arguments), 64)
    if pid == 0:
        time.sleep(30); os._exit(0)
refused('the same by clone3', sibling3, errno.EINVAL)
";
/// A process that forks and dies as fast as it can, so that no list of processes ever holds it.
const QUICK: &str = "
print('begun', flush=True)
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError: pass
";
/// Children that are traced and stopped by their parent, and a parent that is stopped by its child.
const KNOTS: &str = "
import signal
libc.ptrace.restype = ctypes.c_long
for number in range(3):
    pid = os.fork()
    if pid == 0:
        libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)
    os.waitpid(pid, os.WUNTRACED)
if os.fork() == 0:
    os.kill(os.getppid(), signal.SIGSTOP); time.sleep(60)
print('begun', flush=True)
time.sleep(60)
";
/// A child that traces its own parent: the kernel then keeps the parent's end from whoever started it.
const TRACER: &str = "
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
parent, (reader, writer) = os.getpid(), os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(writer, b'traced' if libc.ptrace(0x4206, parent, 0, 0) == 0 else b'not traced')
    while True: time.sleep(1)
print(os.read(reader, 10).decode(), flush=True)
";
/// The same by a thread that is not its process's first: the kernel then names the thread.
const TRACING_THREAD: &str = "
import threading
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
parent, (reader, writer) = os.getpid(), os.pipe()
def trace():
    os.write(writer, b'traced' if libc.ptrace(0x4206, parent, 0, 0) == 0 else b'not traced')
    while True: time.sleep(1)
if os.fork() == 0:
    threading.Thread(target=trace).start()
    while True: time.sleep(1)
print(os.read(reader, 10).decode(), flush=True)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [hidden(), knotted()].concat()
}

fn hidden() -> Vec<Row> {
    let games: [(&str, &str, &str); 6] = [
        (
            "hide-by-name",
            "a process that calls itself a zombie is found",
            "libc.prctl(15, b') Z 1 (x', 0, 0, 0)",
        ),
        ("hide-undumpable", "a process that shuts its own entries is found", "libc.prctl(4, 0, 0, 0, 0)"),
        (
            "hide-by-subreaper",
            "a process that adopts orphans is found",
            "libc.prctl(36, 1, 0, 0, 0); libc.prctl(1, 0, 0, 0, 0)",
        ),
        (
            "hide-in-the-background",
            "a process that ignores everything, with its streams closed, is found",
            "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; [os.close(n) for n in range(3)]; os.chdir('/')",
        ),
        ("hide-by-group", "a process in a second session of its own is found", "os.setsid()"),
        (
            "hide-by-new-program",
            "a process that became another program without variables is found",
            "os.execve('/bin/sh', ['sh', '-c', 'i=0; while [ $i -lt 6000 ]; do i=$((i+1)); echo $i > /workspace/beat; sleep 0.01; done'], {})",
        ),
    ];
    games
        .into_iter()
        .map(|(name, shows, game)| {
            hostile(name, NothingSurvives, shows)
                .runs(python(drummer(game)), exits(0).out("drumming\n").uses(Used::Killed(1)))
                .checks(Check::Still)
        })
        .collect()
}

fn knotted() -> Vec<Row> {
    let late = times_out(Duration::from_millis(2000));
    vec![
        hostile(
            "children-of-the-keeper",
            ClosedByDefault,
            "no process can be made that is a child of whoever started the guest",
        )
        .runs(python(CLONE_PARENT), all_held(2)),
        hostile("fork-and-die", NothingSurvives, "a process that is always new is caught")
            .pids(16)
            .runs(python(QUICK), exits(0).out("begun\n")),
        hostile("knots", NothingSurvives, "processes that are traced, stopped and stop each other are gone")
            .runs(python(KNOTS).killed_after(2000), late.clone().uses(Used::Killed(4))),
        hostile(
            "traced-to-its-end",
            NothingSurvives,
            "the end of a process that its own child traces is told",
        )
        .runs(python(TRACER), exits(0).out("traced\n")),
        hostile(
            "traced-by-a-thread",
            NothingSurvives,
            "the end of a process that another's thread traces is told",
        )
        .runs(python(TRACING_THREAD), exits(0).out("traced\n")),
        hostile("traced-beyond-its-time", NothingSurvives, "a traced process is killed when its time is up")
            .runs(python(format!("{TRACER}time.sleep(60)")).killed_after(2000), late),
    ]
}

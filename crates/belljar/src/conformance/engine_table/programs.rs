//! What plain programs do all day.

use crate::conformance::expectation::Text;
use crate::conformance::guest::{python, sh};
use crate::conformance::need::Need;
use crate::conformance::row::Promise::PlainProgramsRun;
use crate::conformance::row::{Check, Row, dies, engine, exits};

const MULTIPROCESSING: &str = "
import multiprocessing
def square(number): return number * number
context = multiprocessing.get_context('fork')
with context.Pool(2) as pool: print(pool.map(square, range(5)))
queue, lock = context.Queue(), context.Lock()
def put():
    with lock: queue.put('queued')
worker = context.Process(target=put); worker.start(); print(queue.get(timeout=20)); worker.join(); print(worker.exitcode)
";
const THREADS: &str = "
import threading, queue
box = queue.Queue()
workers = [threading.Thread(target=lambda n=n: box.put(n)) for n in range(8)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print(sorted(box.get() for _ in workers))
";
const UNIX_SOCKETS: &str = "
import socket, array
server = socket.socket(socket.AF_UNIX); server.bind('s'); server.listen()
client = socket.socket(socket.AF_UNIX); client.connect('s'); other, _ = server.accept()
open('passed', 'w').write('by descriptor')
with open('passed') as file: socket.send_fds(other, [b'x'], [file.fileno()])
_, descriptors, _, _ = socket.recv_fds(client, 10, 1); print(os.read(descriptors[0], 99).decode())
abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0name'); abstract.listen()
again = socket.socket(socket.AF_UNIX); again.connect('\\0name'); print('abstract')
a, b = socket.socketpair(); a.send(b'pair'); print(b.recv(9).decode())
";
const INOTIFY: &str = "
watch = libc.inotify_init1(0); print(libc.inotify_add_watch(watch, b'.', 0x100) > 0)
open('made', 'w'); print(b'made' in os.read(watch, 4096))
";
const EVENTS: &str = "
import select, signal
poller = select.epoll(); r, w = os.pipe(); poller.register(r, select.EPOLLIN); os.write(w, b'x'); print(poller.poll(5)[0][0] == r)
event = libc.eventfd(1, 0); print(int.from_bytes(os.read(event, 8), sys.byteorder))
timer = libc.timerfd_create(1, 0); print(timer > 2)
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append('usr1')); os.kill(os.getpid(), signal.SIGUSR1)
signal.signal(signal.SIGALRM, lambda *_: seen.append('alarm')); signal.setitimer(signal.ITIMER_REAL, 0.02); time.sleep(0.2)
print(seen)
";
const ASYNC: &str = "
import asyncio
async def main():
    child = await asyncio.create_subprocess_exec('/bin/sh', '-c', 'cat; exit 3', stdin=-1, stdout=-1)
    out, _ = await asyncio.wait_for(child.communicate(b'through a child'), 20)
    print(out.decode(), child.returncode)
asyncio.run(main())
";
/// A debugger's work on a child of its own.
const TRACE: &str = "
libc.ptrace.restype = ctypes.c_long
pid = os.fork()
if pid == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), 19)
    os._exit(5)
_, status = os.waitpid(pid, 0); print(os.WIFSTOPPED(status))
libc.ptrace(7, pid, 0, 0); _, status = os.waitpid(pid, 0); print(os.WEXITSTATUS(status))
";
const SQLITE: &str = "
import sqlite3
base = sqlite3.connect('base'); base.execute('pragma journal_mode=wal'); base.execute('create table t (n)')
base.executemany('insert into t values (?)', [(n,) for n in range(100)]); base.commit()
print(sqlite3.connect('base').execute('select sum(n) from t').fetchone()[0])
";
const GIT: &str = "git init -q . && git config user.name n && git config user.email e && echo x > f && git add f && \
    git commit -q -m first && git log --format=%s && git status --short && git stash list && git gc -q && git fsck --no-progress";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| engine(name, PlainProgramsRun, shows);
    vec![
        row("python-multiprocessing", "processes share work, queues and locks")
            .runs(python(MULTIPROCESSING), exits(0).out("[0, 1, 4, 9, 16]\nqueued\n0\n")),
        row("python-threads", "threads work")
            .runs(python(THREADS), exits(0).out("[0, 1, 2, 3, 4, 5, 6, 7]\n")),
        row("python-async", "an event loop talks to a child")
            .runs(python(ASYNC), exits(0).out("through a child 3\n")),
        row("python-sqlite", "a database in the workspace works, with its shared memory")
            .runs(python(SQLITE), exits(0).out("4950\n")),
        row("python-temporary-files", "temporary files are made where they belong")
            .runs(
                python("import tempfile\nwith tempfile.NamedTemporaryFile() as f: print(os.path.dirname(f.name), os.path.exists(f.name))"),
                exits(0).out("/tmp True\n"),
            ),
        row("python-subprocess", "a pipeline of children works")
            .runs(
                python("import subprocess\nprint(subprocess.run('printf \"b\\na\\n\" | sort | tr -d \"\\n\"; exit 4', shell=True, capture_output=True))"),
                exits(0).stdout(Text::Has("returncode=4, stdout=b'ab'")),
            ),
        row("unix-sockets", "sockets by name work, and descriptors pass through them")
            .runs(python(UNIX_SOCKETS), exits(0).out("by descriptor\nabstract\npair\n")),
        row("inotify", "changes of files are told").runs(python(INOTIFY), exits(0).out("True\nTrue\n")),
        row("events-and-signals", "epoll, eventfd, timerfd, handlers and timers work")
            .runs(python(EVENTS), exits(0).out("True\n1\nTrue\n['usr1', 'alarm']\n")),
        row("trace-a-child", "a debugger can trace a child of its own")
            .runs(python(TRACE), exits(0).out("True\n5\n")),
        row("memory-protection", "a program can make code and run it, as compilers at run time do")
            .runs(
                python("import mmap\nm = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC); print(len(m))"),
                exits(0).out("4096\n"),
            ),
        row("priorities", "a program can lower its own priority and choose its processors")
            .runs(
                python("print(os.nice(5)); cpus = os.sched_getaffinity(0); os.sched_setaffinity(0, {min(cpus)}); print(len(os.sched_getaffinity(0)))"),
                exits(0).out("5\n1\n"),
            ),
        row("shell-jobs", "a shell's own tools work: jobs, traps, here-documents, arithmetic")
            .runs(
                sh("trap 'echo bye' EXIT; sleep 0.05 & wait $!; cat <<E\nhere $((6*7))\nE\n(exit 3) || echo $?; kill -0 $$ && echo me"),
                exits(0).out("here 42\n3\nme\nbye\n"),
            ),
        row("system-v-messages", "shared segments and semaphores of the old kind work")
            .runs(
                python("segment = libc.shmget(0, 4096, 0o1600); print(segment >= 0, libc.semget(0, 1, 0o1600) >= 0, libc.shmctl(segment, 0, 0))"),
                exits(0).out("True True 0\n"),
            ),
        row("git", "git works in the workspace, from one command to the next")
            .needs(Need::Program("git"))
            .runs(sh(GIT), exits(0).out("first\n").err(""))
            .runs(sh("git log --format=%s && git status --short"), exits(0).out("first\n").err(""))
            .checks(Check::FileHas { name: "f", text: "x\n" }),
        row("coredump-none", "a program that crashes leaves no core file")
            .runs(sh("ulimit -c unlimited 2>/dev/null; kill -SEGV $$"), dies(11))
            .checks(Check::NoFileLike("core")),
    ]
}

//! Memory: what counts, what does not, and how running out of it is told.

use crate::conformance::expectation::Used;
use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::{AskedMeansEnforced, ToldApart};
use crate::conformance::row::{Row, dies, engine, exits, starves};

/// Children that together hold 160 MiB, none of them much.
const MANY: &str = "
children = []
for number in range(16):
    pid = os.fork()
    if pid == 0:
        held = bytearray(b'x') * (10 << 20)
        time.sleep(20)
        os._exit(0)
    children.append(pid)
_, status = os.wait()
for pid in children:
    try: os.kill(pid, 9)
    except ProcessLookupError: pass
sys.exit(1 if status else 0)
";
/// Fills the buffers of connections that nobody reads; what they hold must stay near the limit.
const SOCKETS: &str = "
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
server, total, kept = socket.create_server(('127.0.0.1', 0)), 0, []
for number in range(200):
    a = socket.create_connection(server.getsockname(), 5); b, _ = server.accept(); a.setblocking(False)
    kept += [a, b]
    try:
        while True: total += a.send(b'x' * 65536)
    except BlockingIOError: pass
print(total >> 20, flush=True)
sys.exit(0 if total >> 20 < 200 else 9)
";
/// Writes and reads twice the limit in files, which the kernel can drop from memory whenever it likes.
const PAGE_CACHE: &str = "dd if=/dev/zero of=big bs=1M count=160 2>/dev/null && cat big | wc -c && rm big";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [starving(), living()].concat()
}

fn starving() -> Vec<Row> {
    vec![
        engine(
            "memory-anonymous",
            ToldApart,
            "a program that takes more memory than there is, is out of memory",
        )
        .memory(64)
        .runs(
            python("print('before', flush=True)\nheld = bytearray(b'x') * (256 << 20)\nprint('after')"),
            starves().out("before\n").uses(Used::MemoryKills(1)),
        )
        .runs(sh("echo alive"), exits(0).out("alive\n").uses(Used::NoMemoryKill)),
        engine(
            "memory-of-a-child",
            ToldApart,
            "a command that fails because its child was out of memory, is out of memory",
        )
        .memory(64)
        .runs(
            python("sys.exit(1 if apart(lambda: len(bytearray(b'x') * (256 << 20)) * 0) else 0)"),
            starves().uses(Used::MemoryKills(1)),
        ),
        engine(
            "memory-of-a-child-forgiven",
            ToldApart,
            "a command that ends well though its child was out of memory, ends well",
        )
        .memory(64)
        .runs(
            python("print(apart(lambda: len(bytearray(b'x') * (256 << 20)) * 0))"),
            exits(0).out("-9\n").uses(Used::MemoryKills(1)),
        ),
        engine("memory-of-many", ToldApart, "many processes that are small each are out of memory together")
            .memory(64)
            .runs(python(MANY), starves().uses(Used::MemoryKills(1))),
        engine("memory-in-tmpfs", AskedMeansEnforced, "files in /dev/shm are memory")
            .memory(48)
            .runs(sh("dd if=/dev/zero of=/dev/shm/x bs=1M count=60 2>/dev/null; exit 1"), starves())
            .runs(sh("echo alive"), exits(0).out("alive\n")),
        engine("memory-in-a-memfd", AskedMeansEnforced, "files without a name are memory").memory(48).runs(
            python("fd = os.memfd_create('x')\nfor i in range(128): os.write(fd, bytes(1 << 20))"),
            starves(),
        ),
        engine("memory-shared", AskedMeansEnforced, "shared mappings are memory").memory(48).runs(
            python(
                "import mmap\nm = mmap.mmap(-1, 128 << 20)\nfor at in range(0, 128 << 20, 4096): m[at] = 1",
            ),
            starves(),
        ),
    ]
}

fn living() -> Vec<Row> {
    vec![
        engine("memory-page-cache", ToldApart, "files on disk do not make a program run out of memory")
            .memory(64)
            .runs(sh(PAGE_CACHE), exits(0).out("167772160\n").uses(Used::NoMemoryKill)),
        engine("memory-of-sockets", AskedMeansEnforced, "buffers of connections stay within the limit")
            .memory(64)
            .runs(python(SOCKETS), exits(0)),
        engine("memory-within", AskedMeansEnforced, "a program may use what it was given, and its peak is told")
            .memory(128)
            .runs(python("held = bytearray(b'x') * (60 << 20)\nprint(len(held) >> 20)"),
                exits(0).out("60\n").uses(Used::NoMemoryKill).uses(Used::PeakMemory(60, 128))),
        engine("memory-exit-137", ToldApart, "a program that kills itself with SIGKILL is not out of memory")
            .memory(64)
            .runs(sh("kill -KILL $$"), dies(9).uses(Used::NoMemoryKill)),
        engine("memory-reserved-only", AskedMeansEnforced, "memory that is reserved and never touched costs nothing")
            .memory(64)
            .runs(python("import mmap\nm = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nprint(len(m) >> 30)"),
                exits(0).out("1\n").uses(Used::NoMemoryKill)),
    ]
}

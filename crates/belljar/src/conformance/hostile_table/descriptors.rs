//! Tricks with descriptors, streams and programs that are files.

use std::time::Duration;

use crate::conformance::expectation::{Expectation, Text};
use crate::conformance::guest::{Reader, exact, python, sh};
use crate::conformance::hostile_table::all_held;
use crate::conformance::row::Promise::{ClosedByDefault, ExactBytes, NothingSurvives, ToldApart};
use crate::conformance::row::{Prop, Row, exits, hostile, times_out};

const INHERITED: &str = "
import stat
kinds = {}
for number in range(0, 2048):
    try: kinds[number] = stat.S_IFMT(os.fstat(number).st_mode)
    except OSError: pass
hold(f'nothing but the streams is open: {sorted(kinds)}', sorted(kinds) == [0, 1, 2])
targets = [os.readlink(f'/proc/self/fd/{number}') for number in range(3)]
hold(f'no stream is a file of the host: {targets}', all(t.startswith(('pipe:', 'socket:', '/dev/null', '/dev/pts/')) for t in targets))
for number in range(3):
    refused(f'stream {number} as a folder', lambda: os.open('..', os.O_RDONLY, dir_fd=number), errno.ENOTDIR)
";
/// What is written must arrive, whatever else the guest does with the stream.
const REOPENED: &str = "
import fcntl
os.write(1, b'one ')
for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
    try: os.close(os.open('/proc/self/fd/1', flags))
    except OSError: pass
try: fcntl.fcntl(1, 1031, 1 << 20)
except OSError: pass
fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK); fcntl.fcntl(1, fcntl.F_SETFL, 0)
try: os.ftruncate(1, 0)
except OSError: pass
try: os.lseek(1, 0, 0)
except OSError: pass
os.write(1, b'two')
";
const PASSED: &str = "
import socket
a, b = socket.socketpair()
if os.fork() == 0:
    os.setsid(); a.close()
    held_stream = socket.recv_fds(b, 10, 3)[1]
    for number in range(3): os.close(number)
    if os.fork(): os._exit(0)
    time.sleep(60); os._exit(0)
socket.send_fds(a, [b'x'], [0, 1, 2]); time.sleep(0.2)
print('passed')
";
const DIRECTORY_WALK: &str = "
folder = os.open('/workspace', os.O_RDONLY)
at, seen = folder, []
for step in range(40): at = os.open('..', os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
hold('up and up is the root', os.path.samestat(os.fstat(at), os.stat('/')))
for way in (f'/proc/self/fd/{folder}/../..', f'/dev/fd/{folder}/..', f'/proc/self/fd/{at}/..', f'/proc/{os.getpid()}/fd/{folder}/../../..'):
    try: seen.append(open(way + OUTSIDE + '/secret').read())
    except OSError: pass
hold(f'no descriptor leads outside {seen}', not seen)
os.makedirs('a/b/c', exist_ok=True); inner = os.open('a/b/c', os.O_RDONLY); os.rename('a/b/c', 'c')
for step in range(10): inner = os.open('..', os.O_RDONLY | os.O_DIRECTORY, dir_fd=inner)
hold('nor does a folder that was moved', os.path.samestat(os.fstat(inner), os.stat('/')))
";
/// Programs that are running, deleted, being written, or never had a name.
const PROGRAMS: &str = "
import shutil
shutil.copy('/bin/sh', 'shell'); os.chmod('shell', 0o755)
def deleted():
    fd = os.open('shell', os.O_RDONLY); os.unlink('shell'); os.execv(f'/proc/self/fd/{fd}', ['sh', '-c', 'exit 7'])
hold('a deleted program runs as the guest', apart(deleted) == 7)
def nameless():
    fd = os.memfd_create('x'); os.write(fd, open('/bin/sh', 'rb').read()); os.execv(f'/proc/self/fd/{fd}', ['sh', '-c', 'exit $(id -u | head -c 1)'])
hold('a program without a name runs as the guest', apart(nameless) == 1)
def written():
    shutil.copy('/bin/sh', 'busy'); os.chmod('busy', 0o755); keep = open('busy', 'r+b')
    try: os.execv('busy', ['sh', '-c', 'exit 0'])
    except OSError as error: return 8 if error.errno == errno.ETXTBSY else 9
hold('a program that is being written does not run', apart(written) == 8)
refused('write to the running program', lambda: os.open('/proc/self/exe', os.O_WRONLY), errno.ETXTBSY)
refused('write to the loader', lambda: os.open(os.path.realpath('/lib64/ld-linux-x86-64.so.2' if MACHINE == 'x86_64' else '/lib/ld-linux-aarch64.so.1'), os.O_WRONLY), errno.ETXTBSY, MISSING)
";
const OWN_PROGRAM: &str = "
seen = []
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) != os.getpid():
        for flags in (os.O_WRONLY, os.O_RDWR):
            try: os.close(os.open(f'/proc/{name}/exe', flags)); seen.append(name)
            except OSError: pass
hold(f'no program of others can be written {seen}', not seen)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [streams(), programs()].concat()
}

fn streams() -> Vec<Row> {
    vec![
        hostile("descriptors-inherited", ClosedByDefault, "no descriptor of the host is handed down")
            .runs(python(INHERITED), all_held(5)),
        hostile("stream-reopened", ExactBytes, "games with the stream change nothing of what was written")
            .runs(python(REOPENED), exits(0).out("one two")),
        hostile(
            "stream-passed-on",
            NothingSurvives,
            "a stream that was handed to a daemon is closed with it",
        )
        .runs(python(PASSED), exits(0).out("passed\n").within_seconds(10)),
        hostile("stream-filled", ToldApart, "a guest that fills a stream nobody reads is ended in time")
            .runs(
                sh("cat /dev/zero").read_by(Reader::Asleep).killed_after(700),
                times_out(Duration::from_millis(700)).stdout(Text::AtLeast(4096)),
            ),
        hostile(
            "streams-closed-at-once",
            ToldApart,
            "a guest without streams is told by its exit code all the same",
        )
        .runs(sh("exec <&- >&- 2>&-; exit 9"), exits(9).out("").err("")),
        hostile("descriptor-walk", ClosedByDefault, "no descriptor of a folder leads above the root")
            .runs(python(DIRECTORY_WALK), all_held(3)),
    ]
}

fn programs() -> Vec<Row> {
    let script = |name, text| Prop::File { name, text, mode: 0o755 };
    vec![
        hostile(
            "programs-as-files",
            ClosedByDefault,
            "programs that are deleted, nameless or being written give no powers",
        )
        .runs(python(PROGRAMS), all_held(5)),
        hostile(
            "programs-of-others",
            ClosedByDefault,
            "the engine's own program cannot be written through /proc",
        )
        .runs(python(OWN_PROGRAM), all_held(1)),
        hostile("program-of-the-engine", ClosedByDefault, "asked to run itself, the engine stays unharmed")
            .with(script("trap", "#!/proc/self/exe\n"))
            .with(script("longer-trap", "#!/proc/self/exe --version\n"))
            .runs(exact("/proc/self/exe", &["--belljar-keeper"]).killed_after(2000), harmless())
            .runs(exact("/workspace/trap", &[]).killed_after(2000), harmless())
            .runs(exact("/workspace/longer-trap", &[]).killed_after(2000), harmless())
            .runs(python(OWN_PROGRAM), all_held(1)),
    ]
}

/// Whatever comes of it: it ends, nothing is left, nothing is changed.
fn harmless() -> Expectation {
    Expectation::any().within_seconds(10)
}

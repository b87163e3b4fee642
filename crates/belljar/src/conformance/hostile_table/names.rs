//! Names and trees that the host must be able to read and remove.

use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::FilesComeBack;
use crate::conformance::row::{Check, Row, exits, hostile};

const HUGE: &str = "
for number in range(200): open(('%03d' % number) + '\\n\\t\\x1b[2J \\x7f' * 25 + 'x' * 40, 'w')
open('-rf', 'w'); open('--', 'w'); open('*', 'w'); open('$(id)', 'w'); open('...', 'w'); open(' ', 'w')
print(len(os.listdir('.')))
";
const INVALID: &str = "
for number in range(128, 256):
    os.mkdir(bytes([number])); os.symlink(bytes([number, 255]), bytes([number, number])); open(bytes([number]) + b'/\\xff\\xfe\\xc0', 'w')
print(len(os.listdir(b'.')))
";
const DEEP: &str = "
for number in range(1500):
    os.mkdir('d' * 50); os.chdir('d' * 50)
open('bottom', 'w')
print('deep')
";
const LOOPS: &str = "
os.symlink('b', 'a'); os.symlink('a', 'b'); os.symlink('.', 'self'); os.symlink('/', 'root'); os.symlink('self/' * 100, 'long')
os.makedirs('x/y'); os.symlink('../..', 'x/y/up'); os.symlink('/proc/self/root', 'proc'); os.symlink('/proc/self/fd/1', 'out')
print(len(os.listdir('.')))
";
const LOCKED: &str = "
import fcntl
os.makedirs('a/b'); open('a/b/f', 'w')
for flag in (0x10, 0x20):
    try: fcntl.ioctl(os.open('a/b/f', 0), 0x40086602, flag.to_bytes(8, sys.byteorder)); print('set', flag)
    except OSError as error: pass
os.chmod('a/b/f', 0); os.chmod('a/b', 0); os.chmod('a', 0)
print('locked')
";

/// Awkward things in every private folder of the sandbox, which are then shut.
const PRIVATE: &str = "
import socket
for place in (os.path.expanduser('~'), '/tmp', '/var/tmp'):
    os.chdir(place)
    os.makedirs('a/b/c'); open('a/b/c/f', 'w'); os.mkfifo('a/p'); socket.socket(socket.AF_UNIX).bind('a/s'); os.symlink('/', 'a/l'); os.symlink(OUTSIDE, 'a/o')
    open(b'\\xff' * 255, 'w'); open('giant', 'wb').truncate(1 << 40)
    for number in range(300):
        os.mkdir('d' * 200); os.chdir('d' * 200)
    os.chdir(place)
    for name in ('a/b/c', 'a/b', 'a', 'd' * 200): os.chmod(name, 0)
    # The temporary folders may belong to somebody else.
    try: os.chmod(place, 0)
    except PermissionError: pass
print('shut')
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| hostile(name, FilesComeBack, shows);
    vec![
        row("names-huge", "names of 255 bytes full of control characters come back and go")
            .runs(python(HUGE), exits(0).out("206\n"))
            .checks(Check::Collects { patterns: &["**/none"], files: &[] }),
        row("names-invalid", "names that are no UTF-8 come back and go, as files, folders and links")
            .runs(python(INVALID), exits(0).out("256\n"))
            .checks(Check::Collects { patterns: &["**"], files: &[] }),
        row("tree-deep", "a tree deeper than any path can name comes back and goes")
            .runs(python(DEEP), exits(0).out("deep\n"))
            .checks(Check::Collects { patterns: &["**/none"], files: &[] }),
        row("links-in-circles", "links that lead in circles, up and out are not followed")
            .runs(python(LOOPS), exits(0).out("8\n"))
            .checks(Check::Collects { patterns: &["**"], files: &[] }),
        row("files-locked", "files that nobody may change or remove cannot be made").runs(python(LOCKED), exits(0).out("locked\n")),
        row("private-files-go", "whatever a guest leaves in its private folders goes with the sandbox")
            .runs(python(PRIVATE), exits(0).out("shut\n"))
            .runs(sh("echo alive"), exits(0).out("alive\n"))
            .runs(sh("echo never").within("/home/runner"), exits(126).not_started().out("")),
        row("workspace-removed", "a guest cannot remove or replace the workspace itself")
            .runs(
                sh("cd /; rmdir /workspace 2>/dev/null; mv /workspace /tmp/w 2>/dev/null; rm -rf /workspace 2>/dev/null; ls -d /workspace"),
                exits(0).out("/workspace\n"),
            )
            .runs(sh("echo alive"), exits(0).out("alive\n")),
    ]
}

//! Devices that plain programs need.

use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::PlainProgramsRun;
use crate::conformance::row::{Row, engine, exits};

/// Starts a shell on a terminal of its own and talks to it.
const TERMINAL: &str = "
import pty, select
pid, terminal = pty.fork()
if pid == 0:
    os.execv('/bin/sh', ['sh', '-c', 'test -t 0 && tty && stty size && echo on the terminal > /dev/tty'])
text = b''
while True:
    try: piece = os.read(terminal, 1000)
    except OSError: break
    if not piece: break
    text += piece
print(os.waitpid(pid, 0)[1], b'/dev/pts/' in text, b'on the terminal' in text, text if b'/dev/pts/' not in text else '')
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    vec![
        engine("device-null", PlainProgramsRun, "/dev/null takes everything and gives nothing")
            .runs(sh("echo x > /dev/null && wc -c < /dev/null"), exits(0).out("0\n")),
        engine("device-zero", PlainProgramsRun, "/dev/zero gives zeros")
            .runs(sh("head -c 5 /dev/zero | od -An -tx1 | tr -d ' \\n'"), exits(0).out("0000000000")),
        engine("device-full", PlainProgramsRun, "/dev/full is full")
            .runs(
                python("try: os.write(os.open('/dev/full', os.O_WRONLY), b'x')\nexcept OSError as error: print(errno.errorcode[error.errno])"),
                exits(0).out("ENOSPC\n"),
            ),
        engine("device-random", PlainProgramsRun, "random numbers come from every source, and differ")
            .runs(
                python("a, b, c = open('/dev/random', 'rb').read(16), open('/dev/urandom', 'rb').read(16), os.getrandom(16)\nprint(len({a, b, c}))"),
                exits(0).out("3\n"),
            ),
        engine("device-shm", PlainProgramsRun, "memory can be shared by name")
            .runs(
                python("from multiprocessing import shared_memory as s\na = s.SharedMemory(create=True, size=4096); a.buf[0] = 7\n\
                        b = s.SharedMemory(a.name); print(b.buf[0]); b.close(); a.close(); a.unlink()"),
                exits(0).out("7\n"),
            ),
        engine("device-terminal", PlainProgramsRun, "a terminal can be opened inside, and be the controlling one")
            .runs(python(TERMINAL), exits(0).out("0 True True \n")),
        engine("device-fd", PlainProgramsRun, "/dev/fd and the standard names are there")
            .runs(sh("echo x | cat /dev/stdin; echo y | cat /dev/fd/0; ls /dev/fd/ > /dev/null; test -e /dev/stdout -a -e /dev/stderr"),
                exits(0).out("x\ny\n")),
        engine("devices-no-others", PlainProgramsRun, "no device is there but those that plain programs need")
            .runs(
                python("import stat\nknown = {'null', 'zero', 'full', 'random', 'urandom', 'tty', 'ptmx', 'console'}\n\
                        print([n for n in os.listdir('/dev') if stat.S_IFMT(os.lstat('/dev/' + n).st_mode) in (stat.S_IFBLK, stat.S_IFCHR) and n not in known])"),
                exits(0).out("[]\n"),
            ),
    ]
}

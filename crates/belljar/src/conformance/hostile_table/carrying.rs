//! Archives and trees that would lead whoever carries them astray.

use crate::conformance::archive::Entry;
use crate::conformance::guest::{Meanwhile, python, sh};
use crate::conformance::row::Promise::FilesComeBack;
use crate::conformance::row::{Act, Carried, Check, Row, exits, hostile};

/// Links out of the sandbox, as files, as folders and in circles.
const LINKS: &str = "
os.makedirs('tree/d'); os.symlink(OUTSIDE + '/secret', 'tree/secret'); os.symlink(OUTSIDE, 'tree/out'); os.symlink('..', 'tree/d/up')
os.symlink('/proc/self/environ', 'tree/environ'); os.symlink('/proc/1/root', 'tree/root'); os.symlink(OUTSIDE + '/secret', 'one')
print('set')
";
/// Swaps a folder for links out of the tree as fast as it can, for a while; nothing may come to where they lead.
const RACE: &str = "
os.makedirs('tree/d', exist_ok=True); os.makedirs('/tmp/elsewhere')
open('tree/d/file', 'w').write('harmless'); os.symlink(OUTSIDE, 'tree/link'); os.symlink('/tmp/elsewhere', 'tree/inside')
until, swaps = time.monotonic() + 1.5, 0
while time.monotonic() < until:
    for name in (b'tree/link', b'tree/inside'):
        libc.renameat2(-100, b'tree/d', -100, name, 2); libc.renameat2(-100, b'tree/d', -100, name, 2)
    swaps += 1
print('raced', swaps > 100, os.listdir('/tmp/elsewhere'))
";
/// Things that whoever packs would wait for, or never finish.
const SLOW: &str = "
import socket
os.mkdir('tree'); os.mkfifo('tree/pipe'); socket.socket(socket.AF_UNIX).bind('tree/socket'); open('tree/true', 'w').write('true')
for number in range(200): os.mkdir('tree/' + 'd/' * number + 'd')
os.mkdir('giant'); open('giant/giant', 'wb').truncate(1 << 40)
os.mkdir('many')
for number in range(12000): os.mkdir(f'many/{number}')
print('set')
";

/// A put into `/workspace/in` that must be refused.
fn refused(entries: Vec<Entry>) -> Act {
    Act::Put { path: "/workspace/in", entries, carried: Carried::Refused }
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [putting(), getting()].concat()
}

fn putting() -> Vec<Row> {
    let row = |name, shows| hostile(name, FilesComeBack, shows);
    let alive = || {
        (sh("find /workspace /tmp /etc -name 'escaped*' 2>/dev/null; echo alive"), exits(0).out("alive\n"))
    };
    vec![
        row("put-upwards", "an archive whose names go up is refused")
            .then(refused(vec![Entry::File(b"../escaped", "x")]))
            .then(refused(vec![Entry::File(b"a/../../escaped", "x")]))
            .then(refused(vec![Entry::File(b"..", "x")]))
            .then(refused(vec![Entry::Folder(b"../../tmp/escaped")]))
            .runs(alive().0, alive().1),
        row("put-absolute", "an archive whose names begin at the root is refused")
            .then(refused(vec![Entry::File(b"/tmp/escaped", "x")]))
            .then(refused(vec![Entry::File(b"{outside}/escaped", "x")]))
            .runs(alive().0, alive().1),
        row("put-through-a-link", "an archive that goes through a link of its own is refused")
            .then(refused(vec![Entry::Link(b"a", "/tmp"), Entry::File(b"a/escaped", "x")]))
            .then(refused(vec![Entry::Link(b"b", "{outside}"), Entry::File(b"b/escaped", "x")]))
            .then(refused(vec![Entry::Link(b"c", "../.."), Entry::File(b"c/tmp/escaped", "x")]))
            .runs(alive().0, alive().1),
        row("put-through-a-hard-link", "an archive cannot give a file outside a further name")
            .then(refused(vec![Entry::HardLink(b"h", "/etc/passwd")]))
            .then(refused(vec![Entry::HardLink(b"h", "../../etc/passwd")]))
            .then(refused(vec![Entry::HardLink(b"h", "{outside}/secret")]))
            .then(refused(vec![
                Entry::Link(b"l", "{outside}/secret"),
                Entry::HardLink(b"h", "l"),
                Entry::File(b"h/x", "x"),
            ]))
            .runs(alive().0, alive().1),
        row("put-a-device", "an archive cannot make a device")
            .then(refused(vec![Entry::Device(b"null")]))
            .runs(alive().0, alive().1),
        row("put-garbage", "what is no archive, or not all of one, is refused")
            .then(refused(vec![Entry::Garbage(&[7; 4096])]))
            .then(refused(vec![Entry::Garbage(b"short")]))
            .then(refused(vec![Entry::File(b"half", "x"), Entry::Cut]))
            .runs(sh("echo alive"), exits(0).out("alive\n")),
        row(
            "put-over-a-link",
            "a file that is put in the place of a link replaces the link, not what it leads to",
        )
        .runs(sh("mkdir in; echo kept > kept; ln -s \"$OUTSIDE/secret\" in/f; ln -s ../kept in/g"), exits(0))
        .then(Act::Put {
            path: "/workspace/in",
            entries: vec![Entry::File(b"f", "new\n"), Entry::File(b"g", "new\n")],
            carried: Carried::Done,
        })
        .runs(sh("cat in/f in/g kept; ls -l in | grep -c -- '->'"), exits(1).out("new\nnew\nkept\n0\n"))
        .checks(Check::FileHas { name: "in/f", text: "new\n" }),
        row("put-into-a-link", "a link in the place of the folder leads nowhere outside")
            .runs(sh("ln -s \"$OUTSIDE\" in"), exits(0))
            .then(refused(vec![Entry::File(b"escaped", "x")]))
            .runs(sh("echo alive"), exits(0).out("alive\n")),
    ]
}

fn getting() -> Vec<Row> {
    let row = |name, shows| hostile(name, FilesComeBack, shows);
    vec![
        row("get-links", "links are got as links, and never what they lead to")
            .runs(python(LINKS), exits(0).out("set\n"))
            .then(Act::Get { path: "/workspace/tree", carried: Carried::Done })
            .then(Act::PutBack { path: "/tmp/copy" })
            .runs(
                sh("find /tmp/copy -type l | wc -l; find /tmp/copy -type f | wc -l"),
                exits(0).out("5\n0\n"),
            )
            .then(Act::Get { path: "/workspace/one", carried: Carried::Done }),
        row("carry-race", "links that come and go while files are got and put are not followed").runs(
            python(RACE).meanwhile(Meanwhile::Carry("/workspace/tree")),
            exits(0).out("raced True []\n"),
        ),
        row(
            "get-slow",
            "pipes, sockets, depth, endless files and endless folders do not hold up whoever gets them",
        )
        .runs(python(SLOW), exits(0).out("set\n"))
        .then(Act::Get { path: "/workspace/tree", carried: Carried::Done })
        .then(Act::Get { path: "/workspace/giant", carried: Carried::Refused })
        .then(Act::Get { path: "/workspace/many", carried: Carried::Refused })
        .runs(sh("echo alive"), exits(0).out("alive\n")),
        row("get-kernel-files", "what the kernel makes up is not got, and does not hold up whoever gets it")
            .then(Act::Get { path: "/proc/self/environ", carried: Carried::Refused })
            .then(Act::Get { path: "/dev/zero", carried: Carried::Refused })
            .runs(sh("echo alive"), exits(0).out("alive\n")),
    ]
}

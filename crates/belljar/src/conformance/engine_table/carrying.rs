//! Files that are put into a sandbox and got from it.

use crate::conformance::archive::Entry;
use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::{ClosedByDefault, FilesComeBack};
use crate::conformance::row::{Act, Carried, Check, Row, engine, exits};

/// A tree with everything that an archive can hold.
const TREE: &str = "
os.makedirs('tree/empty'); os.makedirs('tree/a/b')
for name in (b'plain', b'-rf', b'two words', b'new\\nline', b'\\xff\\xfe', '日本'.encode(), b'*', b'x' * 200, b'y' * 255):
    with open(b'tree/a/' + name, 'wb') as file: file.write(name * 3)
with open('tree/zeros', 'wb') as file: file.truncate(100000)
with open('tree/large', 'wb') as file: file.write(bytes(range(256)) * 8192)
open('tree/none', 'w').close(); os.chmod('tree/a/plain', 0o755); os.chmod('tree/none', 0o600)
os.symlink('a/plain', 'tree/link'); os.symlink('/nowhere/' + 'z' * 150, 'tree/dangling'); os.symlink('.', 'tree/self')
os.link('tree/large', 'tree/again'); os.utime('tree/a/plain', (1e9, 1e9))
print('made')
";
/// Compares the tree with its copy: names, kinds, modes, times and contents.
const COMPARE: &str = "
def look(top):
    found = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name); stat = os.lstat(path)
            if os.path.islink(path): what = os.readlink(path)
            elif os.path.isdir(path): what = 'folder'
            else: what = (open(path, 'rb').read(), oct(stat.st_mode & 0o777), int(stat.st_mtime))
            found[os.path.relpath(path, top)] = what
    return found
one, two = look(b'tree'), look(b'/tmp/copy/tree')
print(len(one), one == two, sorted(set(one) ^ set(two)), [name for name in one if one.get(name) != two.get(name)][:3])
print(os.stat('/tmp/copy/tree/large').st_ino == os.stat('/tmp/copy/tree/again').st_ino)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| engine(name, FilesComeBack, shows);
    vec![
        row("put-and-get", "a tree with odd names, links and modes that is got and put back is the same")
            .runs(python(TREE), exits(0).out("made\n"))
            .then(Act::Get { path: "/workspace/tree", carried: Carried::Done })
            .then(Act::PutBack { path: "/tmp/copy" })
            .runs(python(COMPARE), exits(0).out("19 True [] []\nTrue\n")),
        row("put-files", "files that are put there belong to the guest, and on the host to the caller")
            .then(Act::Put {
                path: "/workspace/in",
                entries: vec![Entry::Folder(b"a"), Entry::File(b"a/b", "text\n"), Entry::Link(b"l", "a/b")],
                carried: Carried::Done,
            })
            .runs(
                sh("cat in/l; echo more >> in/a/b; stat -c %u:%g in/a/b"),
                exits(0).out("text\n1000:1000\n"),
            )
            .checks(Check::FileHas { name: "in/a/b", text: "text\nmore\n" }),
        row("get-one-file", "one file is got as well as a folder")
            .runs(sh("echo text > file"), exits(0))
            .then(Act::Get { path: "/workspace/file", carried: Carried::Done })
            .then(Act::PutBack { path: "/tmp/copy" })
            .runs(sh("cat /tmp/copy/file"), exits(0).out("text\n")),
        row("get-missing", "what is not there cannot be got, and the sandbox goes on")
            .then(Act::Get { path: "/workspace/none", carried: Carried::Refused })
            .runs(sh("echo alive"), exits(0).out("alive\n")),
        row("put-over-a-file", "a file that is put in the place of another one replaces it")
            .runs(sh("mkdir in; echo old > in/f; ln in/f kept"), exits(0))
            .then(Act::Put {
                path: "/workspace/in",
                entries: vec![Entry::File(b"f", "new\n")],
                carried: Carried::Done,
            })
            .runs(sh("cat in/f kept"), exits(0).out("new\nold\n")),
        engine("put-where-nobody-may", ClosedByDefault, "nothing can be put where the guest may not write")
            .then(Act::Put {
                path: "/etc",
                entries: vec![Entry::File(b"put", "x")],
                carried: Carried::Refused,
            })
            .then(Act::Put {
                path: "/proc/1",
                entries: vec![Entry::File(b"put", "x")],
                carried: Carried::Refused,
            })
            .runs(sh("ls /etc/put 2>/dev/null; echo alive"), exits(0).out("alive\n")),
    ]
}

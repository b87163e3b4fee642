//! Files: where a guest may write, what stays, who owns it afterwards, and what kinds there are.

use crate::conformance::expectation::Text;
use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::{ClosedByDefault, FilesComeBack, PlainProgramsRun};
use crate::conformance::row::{Act, Check, Prop, Row, engine, exits};

/// Places of the system that no guest may write to.
const SYSTEM: &str = "
places = ['/', '/bin', '/boot', '/dev', '/etc', '/home', '/lib', '/media', '/mnt', '/opt', '/proc', '/proc/sys/kernel',
          '/root', '/run', '/sbin', '/srv', '/sys', '/usr', '/usr/bin', '/usr/lib', '/var', '/var/lib', '/etc/belljar']
there = [place for place in places if os.path.isdir(place)]
for place in there:
    refused('make a file in ' + place, lambda: open(place + '/new-file', 'x'), MISSING)
for name in ('/etc/passwd', '/etc/hosts', '/etc/resolv.conf', '/bin/sh', '/usr/bin/env'):
    refused('write to ' + name, lambda: os.open(name, os.O_WRONLY), errno.ETXTBSY)
    refused('remove ' + name, lambda: os.unlink(name))
    refused('change the mode of ' + name, lambda: os.chmod(name, 0o777))
print('places', 'ok' if len(there) > 10 else there)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [places(), owners(), kinds(), names()].concat()
}

fn places() -> Vec<Row> {
    vec![
        engine("workspace-writable", FilesComeBack, "what a guest writes to the workspace is there on the host")
            .runs(sh("mkdir a && echo hello > a/b && mv a c"), exits(0))
            .checks(Check::FileHas { name: "c/b", text: "hello\n" }),
        engine("workspace-given", FilesComeBack, "a guest can read, change and replace what the host put there")
            .with(Prop::File { name: "given", text: "one\n", mode: 0o644 })
            .with(Prop::File { name: "private", text: "mine\n", mode: 0o600 })
            .runs(sh("cat given private; echo two >> given; echo new > n; mv n private"), exits(0).out("one\nmine\n"))
            .checks(Check::FileHas { name: "given", text: "one\ntwo\n" })
            .checks(Check::FileHas { name: "private", text: "new\n" }),
        engine(
            "workspace-of-an-odd-name",
            FilesComeBack,
            "a workspace whose path holds spaces, commas, colons, quotes and line ends is a workspace",
        )
        .with(Prop::OddWorkspace)
        .runs(sh("echo hello > f; pwd"), exits(0).out("/workspace\n"))
        .then(Act::Anew)
        .runs(sh("cat f"), exits(0).out("hello\n"))
        .checks(Check::FileHas { name: "f", text: "hello\n" }),
        engine("workspace-persists", PlainProgramsRun, "files stay from one command to the next")
            .runs(sh("echo one > w; echo two > \"$HOME/h\"; echo three > /tmp/t; echo four > /var/tmp/v"), exits(0))
            .runs(sh("cat w \"$HOME/h\" /tmp/t /var/tmp/v"), exits(0).out("one\ntwo\nthree\nfour\n")),
        engine("system-read-only", ClosedByDefault, "nothing of the system can be changed")
            .runs(python(SYSTEM), exits(0).stdout(Text::NoBreach("places ok\nall held "))),
        engine("tmp-private", ClosedByDefault, "the temporary folders are empty, private and open to the guest")
            .runs(sh("ls -A /tmp /var/tmp /dev/shm; for d in /tmp /var/tmp /dev/shm; do echo x > $d/x; mkdir $d/y; done"),
                exits(0).out("/dev/shm:\n\n/tmp:\n\n/var/tmp:\n").err("")),
        engine("home-private", ClosedByDefault, "the home folder is the guest's own and empty")
            .runs(sh("cd && pwd && ls -A && echo x > .profile && stat -c %u ."), exits(0).out("/home/runner\n1000\n")),
        engine("outside-unseen", ClosedByDefault, "the host's own path of a folder beside the workspace leads nowhere")
            .runs(sh("cat \"$OUTSIDE/secret\"; ls \"$OUTSIDE\""), exits(2).out("")),
    ]
}

fn owners() -> Vec<Row> {
    vec![
        engine("owner-inside", FilesComeBack, "what the host put there belongs to the guest, inside")
            .with(Prop::File { name: "given", text: "", mode: 0o644 })
            .runs(sh("touch made; stat -c '%u %g' . given made"), exits(0).out("1000 1000\n1000 1000\n1000 1000\n")),
        engine("owner-outside", FilesComeBack, "every kind of entry comes back owned by the caller")
            .runs(
                python("os.mkdir('d'); open('d/f', 'w'); os.symlink('f', 'd/l'); os.mkfifo('d/p')\n\
                        import socket; socket.socket(socket.AF_UNIX).bind('d/s'); os.link('d/f', 'd/h')"),
                exits(0),
            ),
        engine("owner-chmod", FilesComeBack, "a guest can change modes and times of its own")
            .runs(
                sh("touch f; chmod 640 f; touch -d @1000000000.5 f; stat -c '%a %.1Y' f; chmod 000 f; mkdir -m 700 d"),
                exits(0).out("640 1000000000.5\n"),
            ),
        engine("umask", PlainProgramsRun, "new files are for their owner to write and for all to read")
            .runs(sh("touch f; mkdir d; stat -c %a f d; umask"), exits(0).out("644\n755\n0022\n")),
        engine("shut-folder-comes-back", FilesComeBack, "a tree of folders that the guest shut can be removed")
            .runs(sh("mkdir -p a/b/c && touch a/b/c/d && chmod 000 a/b/c a/b a"), exits(0)),
    ]
}

fn kinds() -> Vec<Row> {
    vec![
        engine("links-symbolic", PlainProgramsRun, "symbolic links work")
            .runs(sh("echo x > f; ln -s f l; ln -s nowhere n; cat l; readlink n; test ! -e n"), exits(0).out("x\nnowhere\n")),
        engine("links-hard", PlainProgramsRun, "hard links work")
            .runs(sh("echo x > f; ln f l; rm f; cat l; stat -c %h l; ln l m; stat -c %h m"), exits(0).out("x\n1\n2\n")),
        engine("file-sparse", PlainProgramsRun, "holes in files take no room")
            .runs(
                python("f = open('s', 'wb'); f.seek(1 << 30); f.write(b'x'); f.close(); s = os.stat('s')\n\
                        print(s.st_size, s.st_blocks < 1000)"),
                exits(0).out("1073741825 True\n"),
            ),
        engine("file-locks", PlainProgramsRun, "locks hold between processes")
            .runs(
                python("import fcntl\nf = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); g = open('range', 'w'); fcntl.lockf(g, fcntl.LOCK_EX)\n\
                        def other():\n    for lock, name in ((fcntl.flock, 'lock'), (fcntl.lockf, 'range')):\n        try: lock(open(name, 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB); return 1\n        except BlockingIOError: pass\n    return 7\n\
                        print(apart(other))"),
                exits(0).out("7\n"),
            ),
        engine("file-mapped", PlainProgramsRun, "a mapping of a file is the file")
            .runs(
                python("import mmap\nopen('m', 'wb').write(bytes(8192)); f = open('m', 'r+b'); m = mmap.mmap(f.fileno(), 8192)\n\
                        m[4096:4101] = b'hello'; m.flush(); print(open('m', 'rb').read()[4096:4101].decode())"),
                exits(0).out("hello\n"),
            ),
        engine("file-without-a-name", PlainProgramsRun, "a file can be made without a name and be given one")
            .runs(
                python("fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600); os.write(fd, b'x')\n\
                        os.link(f'/proc/self/fd/{fd}', 'named', dst_dir_fd=os.open('.', 0), follow_symlinks=True); print(open('named').read())"),
                exits(0).out("x\n"),
            ),
        engine("file-exchange", PlainProgramsRun, "a file replaces another at once")
            .runs(
                python("open('a', 'w').write('1'); open('b', 'w').write('2'); os.replace('a', 'b'); print(open('b').read(), os.path.exists('a'))"),
                exits(0).out("1 False\n"),
            ),
        engine("file-attributes", PlainProgramsRun, "a user's extended attributes can be set where the host's files have them")
            .runs(
                python("open('f', 'w')\ntry: os.setxattr('f', 'user.k', b'v'); print(os.getxattr('f', 'user.k').decode())\n\
                        except OSError as error: print('v' if error.errno == errno.EOPNOTSUPP else error)"),
                exits(0).out("v\n"),
            ),
        engine("pipes", PlainProgramsRun, "pipes and named pipes work")
            .runs(sh("mkfifo p; (echo through > p &); cat p; seq 1 100000 | tail -n 1; yes | head -n 1"),
                exits(0).out("through\n100000\ny\n")),
    ]
}

fn names() -> Vec<Row> {
    vec![
        engine("name-of-255-bytes", PlainProgramsRun, "a name may have 255 bytes and no more")
            .runs(
                python("open('n' * 255, 'w')\ntry: open('n' * 256, 'w')\nexcept OSError as error: print(errno.errorcode[error.errno])"),
                exits(0).out("ENAMETOOLONG\n"),
            ),
        engine("name-in-unicode", PlainProgramsRun, "names in any script work")
            .runs(sh("echo x > 'ὕδωρ 水 🫙'; cat ὕδωρ*; ls"), exits(0).stdout(Text::Has("x\n"))),
        engine("name-of-any-byte", PlainProgramsRun, "a name may hold any byte but two")
            .runs(
                python("name = bytes(b for b in range(1, 256) if b != 47)[:200]; open(name, 'w'); print(os.listdir(b'.') == [name])"),
                exits(0).out("True\n"),
            ),
        engine("path-deep", PlainProgramsRun, "folders may lie in folders, a hundred deep")
            .runs(sh("p=$(printf 'd/%.0s' $(seq 100)); mkdir -p $p && echo x > ${p}f && cat ${p}f"), exits(0).out("x\n")),
    ]
}

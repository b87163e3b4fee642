//! Traps for whoever reads the workspace afterwards.

use crate::conformance::guest::{Meanwhile, exact, python, sh};
use crate::conformance::hostile_table::all_held;
use crate::conformance::row::Promise::{ClosedByDefault, FilesComeBack, ToldApart};
use crate::conformance::row::{Check, Row, exits, hostile};

/// Links where files are expected, and in the way to them.
const LINKS: &str = "
os.symlink(OUTSIDE + '/secret', 'report.xml'); os.symlink(OUTSIDE, 'out'); os.mkdir('real'); os.symlink(OUTSIDE + '/secret', 'real/report.xml')
os.symlink('../outside/secret', 'relative.xml'); os.symlink('/proc/self/environ', 'environ.xml'); os.symlink('/etc/shadow', 'shadow.xml')
open('real/true.xml', 'w').write('true'); print('set')
";
/// Swaps a folder and a file for links as fast as it can, for a while.
const RACE: &str = "
os.mkdir('out'); open('out/secret', 'w').write('harmless'); open('file.xml', 'w').write('harmless')
os.symlink(OUTSIDE, 'link'); os.symlink(OUTSIDE + '/secret', 'filelink')
RENAME_EXCHANGE = 2
until, swaps = time.monotonic() + 1.0, 0
while time.monotonic() < until:
    libc.renameat2(-100, b'out', -100, b'link', RENAME_EXCHANGE); libc.renameat2(-100, b'file.xml', -100, b'filelink', RENAME_EXCHANGE)
    swaps += 1
for name in ('out', 'link', 'file.xml', 'filelink'):
    if os.path.islink(name): os.unlink(name)
for name in ('out', 'link'):
    if os.path.isdir(name): os.unlink(name + '/secret'); os.rmdir(name)
for name in ('file.xml', 'filelink'):
    if os.path.exists(name): os.unlink(name)
print('raced', swaps > 100)
";
/// Things that a reader would wait for, or never finish.
const SLOW: &str = "
import socket
os.mkfifo('pipe.xml'); socket.socket(socket.AF_UNIX).bind('socket.xml')
with open('giant.xml', 'wb') as file: file.truncate(1 << 40)
os.mkdir('folder.xml'); open('true.xml', 'w').write('true'); open('shut.xml', 'w').write('shut'); os.chmod('shut.xml', 0o600)
print('set')
";
const HARD_LINKS: &str = "
for source in ('/etc/passwd', '/bin/sh', '/proc/self/environ', '/proc/1/environ', '/dev/null', '/etc/hosts', OUTSIDE + '/secret'):
    refused('link ' + source, lambda: os.link(source, 'linked'), errno.EXDEV, MISSING)
    refused('link without following ' + source, lambda: os.link(source, 'linked', follow_symlinks=False), errno.EXDEV, MISSING)
fd = os.open('/bin/sh', os.O_RDONLY)
refused('link a descriptor', lambda: os.link(f'/proc/self/fd/{fd}', 'linked', dst_dir_fd=os.open('.', 0), follow_symlinks=True), errno.EXDEV, MISSING)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| hostile(name, FilesComeBack, shows);
    vec![
        row("trap-links", "links in the place of files are not followed by the host")
            .runs(python(LINKS), exits(0).out("set\n"))
            .checks(Check::Collects {
                patterns: &["*.xml", "out", "real", "**/*.xml", "out/secret"],
                files: &["real/true.xml"],
            }),
        row("trap-race", "links that come and go while the host collects are not followed")
            .runs(python(RACE).meanwhile(Meanwhile::Collect), exits(0).out("raced True\n"))
            .checks(Check::Collects { patterns: &["out", "*.xml", "link", "filelink", "**/secret"], files: &[] }),
        row("trap-slow", "pipes, sockets and endless files do not hold the host up")
            .runs(python(SLOW), exits(0).out("set\n"))
            .checks(Check::Collects { patterns: &["*.xml"], files: &["shut.xml", "true.xml"] }),
        hostile("trap-for-the-engine", ToldApart, "pipes and circles in the place of programs and folders do not hold the engine up")
            .runs(
                sh("mkfifo pipe; printf '#!/workspace/pipe\\n' > through-pipe; printf '#!/workspace/circle\\n' > circle; \
                    ln -s loop loop; mkdir gone; chmod +x pipe through-pipe circle; echo set"),
                exits(0).out("set\n"),
            )
            .runs(exact("/workspace/pipe", &[]), exits(126).not_started().within_seconds(10))
            .runs(exact("/workspace/through-pipe", &[]), exits(126).not_started().within_seconds(10))
            .runs(exact("/workspace/circle", &[]), exits(126).not_started())
            .runs(exact("/workspace/loop", &[]), exits(126).not_started())
            .runs(sh("echo never").within("/workspace/pipe"), exits(126).not_started().within_seconds(10))
            .runs(sh("echo never").within("/workspace/loop"), exits(126).not_started())
            .runs(sh("rmdir gone"), exits(0))
            .runs(sh("echo never").within("/workspace/gone"), exits(126).not_started())
            .runs(sh("echo alive"), exits(0).out("alive\n")),
        hostile("hard-links-outside", ClosedByDefault, "no hard link to a file outside the workspace can be made")
            .runs(python(HARD_LINKS), all_held(15)),
        row("trap-configuration", "what a guest leaves in the way of git and shells is left alone")
            .runs(
                sh("mkdir -p .git/hooks && printf '[core]\\n\\tfsmonitor = touch %s/pwned\\n' \"$OUTSIDE\" > .git/config && \
                    printf '#!/bin/sh\\ntouch %s/pwned\\n' \"$OUTSIDE\" > .git/hooks/post-checkout && chmod +x .git/hooks/* && \
                    echo 'touch pwned' > .envrc && echo set"),
                exits(0).out("set\n"),
            )
            .checks(Check::Collects { patterns: &["*.txt"], files: &[] }),
    ]
}

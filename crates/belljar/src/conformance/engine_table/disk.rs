//! Disk: its limit, and how a full one is told.

use crate::conformance::expectation::{Expectation, Used};
use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::{AskedMeansEnforced, ToldApart};
use crate::conformance::row::{Row, engine, exits};
use crate::outcome::Ending;

/// Writes until the disk is full, and fails with this code.
const FILL: &str = "dd if=/dev/zero of=/tmp/full bs=1M count=300 2>/dev/null || exit ";
/// Makes files until there can be no more, and says how many there were.
const FILES: &str = "
count = 0
try:
    while count < 5000: open(f'/tmp/{count}', 'x').close(); count += 1
except OSError as error: print(errno.errorcode[error.errno], 300 < count < 2000, flush=True); sys.exit(6)
";

fn full(code: i32) -> Expectation {
    Expectation::of(Ending::DiskLimit, Some(code), None).uses(Used::NoMemoryKill)
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    vec![
        engine("disk-full", ToldApart, "a command that fails on a full disk is told so, and is not out of memory")
            .memory(64)
            .disk(96, 1000)
            .runs(sh(format!("{FILL}5")), full(5))
            .runs(sh("rm /tmp/full; exit 3"), exits(3))
            .runs(sh("echo new > /tmp/new && cat /tmp/new"), exits(0).out("new\n")),
        engine("disk-full-of-files", ToldApart, "a disk that has no room for one more file is full")
            .memory(64)
            .disk(96, 1000)
            .runs(python(FILES), full(6).out("ENOSPC True\n")),
        engine("disk-forgiven", ToldApart, "a command that ends well though the disk is full, ends well")
            .memory(64)
            .disk(32, 1000)
            .runs(sh(format!("({FILL}5); echo so what")), exits(0).out("so what\n").uses(Used::NoMemoryKill)),
        engine("disk-within", AskedMeansEnforced, "a command may write what its sandbox was given, wherever it may write")
            .disk(64, 1000)
            .runs(
                sh("for d in /tmp /var/tmp \"$HOME\"; do dd if=/dev/zero of=$d/x bs=1M count=15 2>/dev/null || exit 1; done; echo fits"),
                exits(0).out("fits\n"),
            )
            .runs(
                sh("for d in /tmp /var/tmp \"$HOME\"; do dd if=/dev/zero of=$d/y bs=1M count=15 2>/dev/null || exit 1; done; echo fits"),
                full(1).out(""),
            ),
    ]
}

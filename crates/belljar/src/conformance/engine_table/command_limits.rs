//! Limits of one command, within those of its sandbox, and users beside the sandbox's own.

use std::time::Duration;

use crate::conformance::expectation::{Expectation, Text, Used};
use crate::conformance::guest::{Meanwhile, python, sh};
use crate::conformance::need::{Limit, Need};
use crate::conformance::row::Promise::{AskedMeansEnforced, ClosedByDefault, NothingSurvives, ToldApart};
use crate::conformance::row::{Act, Row, engine, exits, starves};
use crate::engine::CommandLimits;
use crate::fault::Code;
use crate::outcome::Ending;

const HOLD: &str = "held = bytearray(b'x') * (100 << 20)\nprint(len(held) >> 20)";
/// Starts processes until no more can be started, and says how many there were.
const FORK: &str = "
count = 0
while count < 30:
    try: pid = os.fork()
    except BlockingIOError: break
    if pid == 0: time.sleep(20); os._exit(0)
    count += 1
print(count)
";
/// Opens files until no more can be opened, and tries to be allowed more.
const OPEN: &str = "
import resource
held_open = []
try:
    while len(held_open) < 100: held_open.append(open('/dev/null'))
except OSError as error: code = errno.errorcode[error.errno]
held_open.clear()
try: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); print('raised')
except (ValueError, OSError): print(code, resource.getrlimit(resource.RLIMIT_NOFILE))
";
const BUSY: &str = "print('begun', flush=True)\nwhile True: pass";
/// Four children that are busy together, each for less than the limit.
const BUSY_TREE: &str = "
def busy():
    until = time.process_time() + 0.45
    while time.process_time() < until: pass
for number in range(40):
    if apart(busy): sys.exit(1)
";

fn limits() -> CommandLimits {
    CommandLimits::default()
}

fn out_of_processor_time() -> Expectation {
    Expectation::of(Ending::CpuTimeLimit, Some(137), Some(9))
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [amounts(), times(), output(), users()].concat()
}

fn amounts() -> Vec<Row> {
    vec![
        engine(
            "command-memory",
            AskedMeansEnforced,
            "a command has less memory than its sandbox where that was asked for",
        )
        .memory(256)
        .runs(
            python(HOLD).limited(CommandLimits { memory: Some(48 << 20), ..limits() }),
            starves().uses(Used::MemoryKills(1)),
        )
        .runs(python(HOLD), exits(0).out("100\n").uses(Used::NoMemoryKill)),
        engine(
            "command-processes",
            AskedMeansEnforced,
            "a command has fewer processes than its sandbox where that was asked for",
        )
        .pids(64)
        .runs(
            python(FORK).limited(CommandLimits { pids: Some(8), ..limits() }),
            exits(0).stdout(Text::Number(3, 7)).uses(Used::Killed(3)),
        )
        .runs(python(FORK), exits(0).out("30\n")),
        engine(
            "command-open-files",
            AskedMeansEnforced,
            "a command has no more open files than was asked for, and cannot get more",
        )
        .runs(
            python(OPEN).limited(CommandLimits { open_files: Some(32), ..limits() }),
            exits(0).out("EMFILE (32, 32)\n"),
        )
        .runs(sh("[ $(ulimit -n) -ge 256 ] && echo more"), exits(0).out("more\n")),
    ]
}

fn times() -> Vec<Row> {
    let limited = |millis| CommandLimits { processor_time: Some(Duration::from_millis(millis)), ..limits() };
    vec![
        engine(
            "command-processor-time",
            ToldApart,
            "a command that uses up its processor time is killed, and that is said",
        )
        .runs(
            python(BUSY).limited(limited(500)),
            out_of_processor_time().out("begun\n").uses(Used::Processor(400, 3000)),
        )
        .runs(sh("echo alive"), exits(0).out("alive\n")),
        engine(
            "command-processor-time-of-many",
            ToldApart,
            "the processor time of a command is that of all its processes",
        )
        .needs(Need::Limit(Limit::Processor))
        .runs(
            python(BUSY_TREE).limited(limited(1500)),
            out_of_processor_time().uses(Used::Processor(1400, 4000)),
        ),
        engine(
            "command-processor-time-asleep",
            ToldApart,
            "a command that sleeps uses up none of its processor time",
        )
        .runs(sh("sleep 1.5; echo rested").limited(limited(700)), exits(0).out("rested\n")),
    ]
}

fn output() -> Vec<Row> {
    let full = || Expectation::of(Ending::OutputLimit, Some(137), Some(9));
    vec![
        engine("output-limit", ToldApart, "a command that writes too much is killed, and that is said")
            .runs(
                sh("while :; do echo 0123456789012345678901234567890123456789; done")
                    .meanwhile(Meanwhile::LimitOutput(100_000)),
                full().stdout(Text::AtLeast(100_000)),
            )
            .runs(sh("echo alive"), exits(0).out("alive\n")),
        engine(
            "output-limit-of-a-tree",
            NothingSurvives,
            "whoever of a command writes too much, all of it is killed",
        )
        .runs(
            sh("trap '' TERM INT HUP; (trap '' TERM; yes) & (sleep 60) & wait; sleep 60")
                .meanwhile(Meanwhile::LimitOutput(100_000)),
            full().stdout(Text::AtLeast(100_000)).uses(Used::Killed(2)).within_seconds(20),
        ),
    ]
}

fn users() -> Vec<Row> {
    vec![
        engine(
            "command-user",
            AskedMeansEnforced,
            "a command runs as the user that was asked for, beside others",
        )
        .runs(
            sh("id -u; id -g; id -G; echo hers > /tmp/hers; chmod 600 /tmp/hers; stat -c %u:%g /tmp/hers")
                .user(1234),
            exits(0).out("1234\n1234\n1234\n1234:1234\n"),
        )
        .runs(sh("id -u; cat /tmp/hers 2>/dev/null || echo not mine"), exits(0).out("1000\nnot mine\n")),
        engine("command-root", ClosedByDefault, "a command as root is refused, whoever the others are")
            .then(Act::Denied(Box::new(sh("id -u").user(0)), Code::IsolationUnavailable))
            .runs(sh("id -u"), exits(0).out("1000\n")),
    ]
}

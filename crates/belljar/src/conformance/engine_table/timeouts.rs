//! Commands whose time is up, and commands that somebody stops.

use std::time::Duration;

use crate::conformance::expectation::{Expectation, Text, Used};
use crate::conformance::guest::{Guest, Meanwhile, Reader, python, sh};
use crate::conformance::row::Promise::{ExactBytes, NothingSurvives, ToldApart};
use crate::conformance::row::{Check, Row, engine, exits, times_out};
use crate::outcome::Ending;

/// A second child that forked twice, left its session and closed everything; it writes down its heartbeat.
const DAEMON: &str = "
print('begun', flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir('/'); os.umask(0)
        for number in range(3): os.close(number)
        for beat in range(6000):
            with open('/workspace/beat', 'w') as file: file.write(str(beat))
            time.sleep(0.01)
    os._exit(0)
while not os.path.exists('/workspace/beat'): time.sleep(0.01)
time.sleep(60)
";
/// Ignores and blocks whatever can be.
const STUBBORN: &str = "
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
print('begun', flush=True)
time.sleep(60)
";

/// Long enough for a shell to have begun.
const SHORT: u64 = 1000;
/// Long enough for a Python to have begun on a busy machine.
const LONG: u64 = 2000;

fn late_sh(script: &str) -> Guest {
    sh(script).killed_after(SHORT)
}

fn late_python(script: &str) -> Guest {
    python(script).killed_after(LONG)
}

fn short() -> Expectation {
    times_out(Duration::from_millis(SHORT))
}

fn long() -> Expectation {
    times_out(Duration::from_millis(LONG))
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [polite(), stubborn(), stopped()].concat()
}

fn polite() -> Vec<Row> {
    vec![
        engine("timeout-keeps-output", ExactBytes, "what a command wrote before its time was up is kept")
            .runs(
                late_sh("echo begun; printf 'last words' >&2; sleep 60; echo never"),
                short().out("begun\n").err("last words"),
            ),
        engine(
            "timeout-of-a-busy-loop",
            ToldApart,
            "a command that never rests is ended like one that sleeps",
        )
        .runs(late_sh("while :; do :; done"), short()),
        engine("timeout-while-writing", ExactBytes, "a command that never stops writing is ended in time")
            .runs(late_sh("while :; do echo words; done"), short().stdout(Text::AtLeast(600))),
        engine(
            "timeout-while-blocked",
            ToldApart,
            "a command that waits for a reader who sleeps is ended in time",
        )
        .runs(late_sh("yes").read_by(Reader::Asleep), short().stdout(Text::AtLeast(4096))),
        engine("timeout-and-then-another", ToldApart, "a sandbox goes on after a timeout")
            .runs(late_sh("sleep 60"), short())
            .runs(sh("echo next"), exits(0).out("next\n")),
        engine("timeout-of-nothing", ToldApart, "a command that is given no time at all is out of time")
            .runs(sh("sleep 60").killed_after(0), times_out(Duration::ZERO)),
        engine(
            "timeout-beyond-all-clocks",
            ToldApart,
            "a command that is given all the time there is simply runs",
        )
        .runs(sh("echo in time").killed_after(u64::MAX), exits(0).out("in time\n")),
        engine(
            "timeout-not-reached",
            ToldApart,
            "a command that ends before its time is up is not told as late",
        )
        .runs(sh("sleep 0.1; exit 5").killed_after(20_000), exits(5).within_seconds(15)),
    ]
}

fn stubborn() -> Vec<Row> {
    vec![
        engine("timeout-ignoring-signals", NothingSurvives, "a command that ignores every signal it can is gone")
            .runs(late_python(STUBBORN), long().out("begun\n")),
        engine("timeout-trap", NothingSurvives, "a shell that traps signals, and its children, are gone")
            .runs(
                late_sh("trap 'echo caught' TERM INT HUP; echo begun; (trap '' TERM; sleep 60) & sleep 60; sleep 60"),
                short().out("begun\n").uses(Used::Killed(2)),
            ),
        engine("timeout-double-fork", NothingSurvives, "children that forked twice are gone")
            .runs(late_sh("echo begun; (sleep 60 &) ; (sh -c 'sleep 60 & sleep 60' &) ; sleep 60"),
                short().out("begun\n").uses(Used::Killed(4))),
        engine("timeout-own-session", NothingSurvives, "children in sessions of their own are gone")
            .runs(late_sh("echo begun; setsid sleep 60 & setsid nohup sleep 60 >/dev/null 2>&1 & sleep 60"),
                short().out("begun\n").uses(Used::Killed(3))),
        engine("timeout-daemon", NothingSurvives, "a daemon with no tie to its command is gone, and its heart stands still")
            .runs(late_python(DAEMON), long().out("begun\n").uses(Used::Killed(2)))
            .checks(Check::Still),
        engine("timeout-of-the-stopped", NothingSurvives, "processes that were stopped are gone")
            .runs(late_sh("echo begun; sleep 60 & kill -STOP $!; kill -STOP $$; echo never"), short().out("begun\n")),
        engine("timeout-with-a-held-stream", NothingSurvives, "a child that holds the streams is gone with its command")
            .runs(late_sh("setsid sh -c 'trap \"\" TERM HUP; sleep 60' & echo begun; sleep 60"),
                short().out("begun\n").uses(Used::Killed(2))),
    ]
}

fn stopped() -> Vec<Row> {
    let interrupted = || Expectation::of(Ending::Interrupted, Some(130), None).within_seconds(10);
    vec![
        engine("stop-a-command", ToldApart, "a command that somebody stops is told as interrupted")
            .runs(sh("echo begun; sleep 60").meanwhile(Meanwhile::Stop), interrupted().out("begun\n")),
        engine("stop-a-stubborn-tree", NothingSurvives, "stopping takes the whole tree, whatever it ignores")
            .runs(
                sh("trap '' TERM INT HUP; setsid sh -c \"trap '' TERM; sleep 60\" & (sleep 60 &); echo begun; sleep 60")
                    .meanwhile(Meanwhile::Stop),
                interrupted().out("begun\n"),
            ),
    ]
}

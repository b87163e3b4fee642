//! Processes: how many there may be, and that none is left.

use crate::conformance::expectation::{Text, Used};
use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::{AskedMeansEnforced, NothingSurvives};
use crate::conformance::row::{Check, Row, engine, exits};

/// Forks until it may not, but never more than 200 times; prints how many it had at once.
const FORK: &str = "
children = []
for number in range(200):
    try: pid = os.fork()
    except OSError as error: break
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    children.append(pid)
print(len(children))
";
/// The same with threads.
const THREADS: &str = "
import threading
started, done = 0, threading.Event()
for number in range(200):
    try: threading.Thread(target=done.wait, daemon=True).start()
    except RuntimeError: break
    started += 1
print(started, flush=True)
os._exit(0)
";
/// A tree that grows as fast as it may; each process ends by itself after a while, should nobody end it.
const BOMB: &str = "bomb() { sleep 20 & bomb | bomb & }; bomb 2>/dev/null; sleep 0.5; echo end";
/// Everything that /proc shows beside the first process and this one.
const OTHERS: &str =
    "print(len([name for name in os.listdir('/proc') if name.isdigit()]) - (2 if os.getpid() != 1 else 1))";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    vec![
        engine("processes-up-to-the-limit", AskedMeansEnforced, "no more processes than asked for, and nearly as many")
            .pids(32)
            .runs(python(FORK), exits(0).stdout(Text::Number(20, 31)).uses(Used::Killed(20))),
        engine("threads-up-to-the-limit", AskedMeansEnforced, "threads count as processes do")
            .pids(32)
            .runs(python(THREADS), exits(0).stdout(Text::Number(20, 31))),
        engine("processes-after-the-limit", AskedMeansEnforced, "a command after one that used up its processes has them all again")
            .pids(32)
            .runs(python(FORK), exits(0).stdout(Text::Number(20, 31)))
            .runs(python(FORK), exits(0).stdout(Text::Number(20, 31))),
        engine("fork-bomb", NothingSurvives, "a fork bomb is held within its limit and gone at the end")
            .pids(48)
            .alone()
            .runs(sh(BOMB).killed_after(20_000), exits(0).stdout(Text::Has("end\n")).uses(Used::Killed(10)))
            .runs(sh("echo alive"), exits(0).out("alive\n")),
        engine("left-behind", NothingSurvives, "what a passing command leaves running is killed and counted")
            .runs(
                sh("(setsid sleep 60 &) ; nohup sleep 60 >/dev/null 2>&1 & trap '' TERM; sleep 0.05; echo done"),
                exits(0).out("done\n").uses(Used::Killed(2)),
            ),
        engine("nothing-from-before", NothingSurvives, "the next command finds no process of the one before")
            .runs(sh("(setsid sleep 60 &); (sleep 60 &); echo one"), exits(0).out("one\n"))
            .runs(python(OTHERS), exits(0).stdout(Text::Number(0, 0))),
        engine("leader-thread-ended", NothingSurvives, "a process whose first thread has ended does not hide")
            .runs(
                python(
                    "import threading\nif os.fork(): time.sleep(0.5); print('done'); sys.exit(0)\n\
                     threading.Thread(target=time.sleep, args=(60,)).start()\nlibc.pthread_exit(0)",
                ),
                exits(0).out("done\n").uses(Used::Killed(1)),
            ),
        engine("zombies", NothingSurvives, "children that nobody waits for are no burden")
            .pids(40)
            .runs(
                python("for i in range(20):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(0.1)\nprint('done')"),
                exits(0).out("done\n"),
            )
            .runs(python(FORK), exits(0).stdout(Text::Number(25, 39))),
        engine("heartbeat-stops", NothingSurvives, "no process of a command writes after its end")
            .runs(
                sh("(setsid sh -c 'while :; do date +%N > beat; done' >/dev/null 2>&1 &); \
                    while ! [ -s beat ]; do sleep 0.01; done; echo begun"),
                exits(0).out("begun\n"),
            )
            .checks(Check::Still),
    ]
}

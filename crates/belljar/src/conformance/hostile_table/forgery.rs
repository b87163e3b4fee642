//! Lies: about exit codes, verdicts, times and who wrote what.

use crate::conformance::expectation::Used;
use crate::conformance::guest::{python, sh};
use crate::conformance::need::{Limit, Need};
use crate::conformance::row::Promise::{CannotForge, ExactBytes};
use crate::conformance::row::{Check, Row, dies, exits, hostile};

const ESCAPES: &[u8] =
    b"\x1b]0;title\x07\x1b[2J\x1b[1;1H\x1b[32m1 passed\x1b[0m\r\x9b31m\xe2\x80\xae\x08\x08\x1bc\x1b[?1049h";
/// Every format in which somebody might tell an end.
const VERDICTS: &str = r#"
print('{"status":"finished","verdict":{"outcome":"passed"},"exit_code":0}')
print('exit 0\nEXIT_CODE=0\n##[set-output name=result;]passed\n::set-output name=result::passed\n===== 12 passed in 0.1s =====\nOK')
for name in ('run.json', 'events.jsonl', 'exit_code', '.exit', 'result.json'):
    for place in ('.', '/tmp', os.path.expanduser('~'), '/'):
        try: open(place + '/' + name, 'w').write('{"exit_code":0,"outcome":"passed"}')
        except OSError: pass
os._exit(3)
"#;
/// Writes whatever a listener might take for an answer into everything that is open or can be opened.
const CHATTER: &str = r#"
import socket
message = b'{"Ended":{"ended":{"Exited":0},"survivors":0}}'
for number in range(0, 64):
    if number in (1, 2): continue
    try: os.write(number, message)
    except OSError: pass
for name in os.listdir('/proc/1/fd') if os.access('/proc/1/fd', os.R_OK) else []:
    try: os.write(os.open('/proc/1/fd/' + name, os.O_WRONLY), message)
    except OSError: pass
os._exit(6)
"#;

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| hostile(name, CannotForge, shows);
    vec![
        row("forged-verdict", "nothing that a guest prints or writes becomes its exit code").runs(python(VERDICTS), exits(3)),
        row("forged-message", "nothing that a guest writes to a descriptor is taken for the engine's own word")
            .runs(python(CHATTER), exits(6)),
        row("forged-exit-by-signal", "a guest that exits with 137 was not killed, and one that was killed did not exit")
            .runs(sh("exit 137"), exits(137))
            .runs(sh("kill -KILL $$"), dies(9)),
        row("forged-exit-by-thread", "a thread's end is not the process's")
            .runs(
                python("import threading\nthreading.Thread(target=lambda: (time.sleep(0.3), os._exit(5))).start()\nlibc.syscall(60 if MACHINE == 'x86_64' else 93, 0)"),
                exits(5),
            ),
        row("forged-exit-by-program", "a process that became another program ends with that program's code")
            .runs(sh("trap 'exit 0' EXIT; exec sh -c 'exit 8'"), exits(8)),
        row("forged-exit-by-child", "a child that exits well does not make its parent do so")
            .runs(python("pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); os._exit(4)"), exits(4)),
        hostile("forged-terminal", ExactBytes, "codes that steer a terminal are bytes like others")
            .runs(python(format!("os.write(1, bytes({:?}))", ESCAPES)), exits(0).out(ESCAPES)),
        row("forged-times", "how long a guest took is measured outside, to the end of its first process")
            .runs(
                sh("sleep 60 & sleep 0.3; exit 2"),
                exits(2).lasts(std::time::Duration::from_millis(290), std::time::Duration::from_secs(10)),
            ),
        row("core-of-a-crash", "a crash pipes no core into a program of the host and leaves none")
            .runs(
                python("import resource\nhard = resource.getrlimit(resource.RLIMIT_CORE)[1]; resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\nprint(hard < 2, flush=True)\nos.abort()"),
                dies(6).out("True\n"),
            )
            .checks(Check::NoFileLike("core")),
        row("processor-time-hidden", "processor time of children that nobody waited for counts")
            .needs(Need::Limit(Limit::Processor))
            .alone()
            .runs(
                python("if os.fork() == 0:\n    os.setsid()\n    until = time.process_time() + 5\n    while time.process_time() < until: pass\ntime.sleep(0.6)"),
                exits(0).uses(Used::Processor(300, 5000)),
            ),
    ]
}

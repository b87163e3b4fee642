//! Terminals.

use crate::conformance::expectation::Text;
use crate::conformance::guest::{Input, python, sh};
use crate::conformance::row::Promise::{NothingSurvives, PlainProgramsRun};
use crate::conformance::row::{Row, dies, engine, exits};

/// Everything that a program finds out about its terminal.
const LOOK: &str = "
size = os.get_terminal_size(0)
print(size.lines, size.columns, [os.isatty(fd) for fd in (0, 1, 2)], os.ttyname(0) == os.ttyname(2))
print(os.getsid(0) == os.getpid(), os.tcgetpgrp(0) == os.getpgrp())
with open('/dev/tty', 'w') as terminal: terminal.write('by name\\n')
print(os.ttyname(0).startswith('/dev/pts/'), os.stat(os.ttyname(0)).st_uid == os.getuid())
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    vec![
        engine(
            "terminal",
            PlainProgramsRun,
            "a command has the terminal that was asked for, and controls it",
        )
        .runs(
            python(LOOK).on_terminal(33, 101),
            exits(0).out("33 101 [True, True, True] True\r\nTrue True\r\nby name\r\nTrue True\r\n"),
        ),
        engine("terminal-typed", PlainProgramsRun, "what is typed is shown and can be read").runs(
            sh("echo ready; read line; echo \"got $line\"")
                .on_terminal(24, 80)
                .reads(Input::Answer(b"words\n")),
            exits(0).out("ready\r\nwords\r\ngot words\r\n"),
        ),
        engine(
            "terminal-interrupt",
            PlainProgramsRun,
            "control and C typed ends what runs in the foreground",
        )
        .runs(
            sh("echo ready; exec sleep 20").on_terminal(24, 80).reads(Input::Answer(b"\x03")),
            dies(2).stdout(Text::Has("ready")).within_seconds(10),
        ),
        engine(
            "terminal-of-another",
            PlainProgramsRun,
            "each command has a terminal of its own, and one without has none",
        )
        .runs_together(vec![
            (sh("stty size; sleep 0.3").on_terminal(10, 20), exits(0).out("10 20\r\n")),
            (sh("stty size; sleep 0.3").on_terminal(30, 40), exits(0).out("30 40\r\n")),
            (sh("[ -t 0 ] || [ -t 1 ] || (: > /dev/tty) 2>/dev/null || echo none"), exits(0).out("none\n")),
        ]),
        engine(
            "terminal-left-behind",
            NothingSurvives,
            "whoever holds the terminal does not hold up the end",
        )
        .runs(sh("sleep 60 & echo done").on_terminal(24, 80), exits(0).out("done\r\n").within_seconds(10)),
        engine("terminal-much", PlainProgramsRun, "all that a terminal shows comes out")
            .runs(sh("seq 20000 | tail -n 20000").on_terminal(24, 80), exits(0).out(numbers(20_000))),
    ]
}

fn numbers(count: u32) -> String {
    (1..=count).map(|number| format!("{number}\r\n")).collect()
}

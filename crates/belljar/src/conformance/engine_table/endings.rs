//! How commands end by themselves.

use crate::conformance::guest::{python, sh};
use crate::conformance::row::{Promise::ToldApart, Row, dies, engine, exits};

/// Signals that end a program which does nothing about them, with their numbers on Linux.
const SIGNALS: [(&str, &str, i32); 19] = [
    ("signal-hup", "HUP", 1),
    ("signal-int", "INT", 2),
    ("signal-quit", "QUIT", 3),
    ("signal-ill", "ILL", 4),
    ("signal-trap", "TRAP", 5),
    ("signal-abrt", "ABRT", 6),
    ("signal-bus", "BUS", 7),
    ("signal-fpe", "FPE", 8),
    ("signal-kill", "KILL", 9),
    ("signal-usr1", "USR1", 10),
    ("signal-segv", "SEGV", 11),
    ("signal-usr2", "USR2", 12),
    ("signal-pipe", "PIPE", 13),
    ("signal-alrm", "ALRM", 14),
    ("signal-term", "TERM", 15),
    ("signal-xcpu", "XCPU", 24),
    ("signal-xfsz", "XFSZ", 25),
    ("signal-prof", "PROF", 27),
    ("signal-sys", "SYS", 31),
];

/// Exit codes that somebody gives a meaning; by themselves they have none.
const CODES: [(&str, i32, &str); 9] = [
    ("exit-0", 0, "a command that ends well has exit code 0"),
    ("exit-1", 1, "exit code 1 is told as it is"),
    ("exit-2", 2, "exit code 2 is told as it is"),
    ("exit-124", 124, "exit code 124 by itself is no timeout"),
    ("exit-125", 125, "exit code 125 by itself is no failure of the engine"),
    ("exit-126", 126, "exit code 126 by itself does not mean that nothing was started"),
    ("exit-127", 127, "exit code 127 by itself does not mean that nothing was started"),
    ("exit-137", 137, "exit code 137 by itself is neither a kill nor a lack of memory"),
    ("exit-255", 255, "exit code 255 is told as it is"),
];

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let codes = CODES.map(|(name, code, shows)| {
        engine(name, ToldApart, shows).runs(sh(format!("exit {code}")), exits(code))
    });
    let signals = SIGNALS.map(|(name, signal, number)| {
        engine(name, ToldApart, "a signal that ends a command is told by its number")
            .runs(sh(format!("kill -{signal} $$")), dies(number))
    });
    codes.into_iter().chain(signals).chain(others()).collect()
}

fn others() -> Vec<Row> {
    vec![
        engine("exit-beyond-a-byte", ToldApart, "the kernel keeps the low byte of an exit code")
            .runs(python("os._exit(256 + 7)"), exits(7)),
        engine("signal-realtime", ToldApart, "a real-time signal is told by its number")
            .runs(python("os.kill(os.getpid(), 34)"), dies(34)),
        engine("signal-by-fault", ToldApart, "a real fault in memory ends a command as the signal does")
            .runs(python("ctypes.string_at(0)"), dies(11)),
        engine("signal-of-a-child", ToldApart, "a child's signal is not the command's")
            .runs(sh("sh -c 'kill -KILL $$'; exit 3"), exits(3)),
        engine("signal-as-a-shell-tells-it", ToldApart, "a shell that tells of a signal exited by itself")
            .runs(sh("sh -c 'kill -KILL $$'; exit $?"), exits(137)),
    ]
}

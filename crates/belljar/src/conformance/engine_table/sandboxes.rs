//! Sandboxes themselves: many commands in one, one after the other, two at once.

use crate::conformance::guest::{python, sh};
use crate::conformance::need::{Limit, Need};
use crate::conformance::row::Promise::{
    AskedMeansEnforced, ClosedByDefault, NothingSurvives, PlainProgramsRun,
};
use crate::conformance::row::{Act, Check, Prop, Row, engine, exits};

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    vec![
        twenty_commands(),
        engine("sandbox-unused", NothingSurvives, "a sandbox that was never used goes without a trace"),
        engine(
            "sandbox-id-again",
            PlainProgramsRun,
            "a name can be used again, and nothing but the workspace is left of before",
        )
        .runs(sh("echo w > w; echo t > /tmp/t; echo h > ~/h; sleep 60 & exit 0"), exits(0))
        .then(Act::Anew)
        .runs(sh("cat w; ls -A /tmp ~ /dev/shm"), exits(0).out("w\n/dev/shm:\n\n/home/runner:\n\n/tmp:\n"))
        .then(Act::Anew)
        .runs(sh("cat w"), exits(0).out("w\n")),
        engine(
            "sandbox-controls",
            AskedMeansEnforced,
            "each control is told, with its proof, and is in force",
        )
        .needs(Need::Limit(Limit::Memory))
        .needs(Need::Limit(Limit::Processes))
        .needs(Need::Limit(Limit::Processor))
        .runs(sh(":"), exits(0))
        .checks(Check::Controls),
        engine(
            "sandbox-neighbour",
            ClosedByDefault,
            "two sandboxes at once have files, names and processes of their own",
        )
        .with(Prop::Neighbour(Box::new(python(
            "open('/tmp/theirs', 'w'); open('/dev/shm/theirs', 'w'); open('ready', 'w'); time.sleep(60)",
        ))))
        .runs(sh("ls -A /tmp /dev/shm ."), exits(0).out(".:\n\n/dev/shm:\n\n/tmp:\n")),
    ]
}

fn twenty_commands() -> Row {
    let row = engine(
        "sandbox-twenty-commands",
        PlainProgramsRun,
        "twenty commands run one after the other in one sandbox",
    );
    (1..=20).fold(row, |row, number| {
        let script = format!("echo {number} >> log; wc -l < log; exit {}", number % 3);
        row.runs(sh(script), exits(number % 3).out(format!("{number}\n")))
    })
}

//! Several commands in one sandbox at the same time.

use std::time::Duration;

use crate::conformance::expectation::{Expectation, Used};
use crate::conformance::guest::{Guest, Meanwhile, python, sh};
use crate::conformance::row::Promise::{NothingSurvives, PlainProgramsRun, ToldApart};
use crate::conformance::row::{Row, dies, engine, exits, starves, times_out};
use crate::engine::CommandLimits;
use crate::outcome::Ending;

/// Waits until so many files of a name are there.
const MEET: &str = "meet() { while [ \"$(ls | grep -c \"^$1\")\" -lt \"$2\" ]; do sleep 0.02; done; }; ";
/// Waits until a process is gone that others of this sandbox can see.
const GONE: &str = "gone() { while kill -0 \"$1\" 2>/dev/null; do sleep 0.02; done; }; ";

/// One of twenty that meet; it goes on when the one that is killed is gone, with its child.
fn one_of_twenty(number: i32) -> (Guest, Expectation) {
    let script = format!(
        "{MEET}{GONE}: > at-{number}; meet at- 20; gone $(cat victim); gone $(cat child); exit {number}"
    );
    (sh(script), exits(number))
}

fn twenty() -> Vec<(Guest, Expectation)> {
    let script = format!(
        "{MEET}sleep 60 & echo $! > child; echo $$ > victim; : > at-0; meet at- 20; echo met; wait; sleep 60"
    );
    let victim = sh(script).meanwhile(Meanwhile::Stop);
    let killed = Expectation::of(Ending::Interrupted, Some(130), None).out("met\n");
    [(victim, killed)].into_iter().chain((1..20).map(one_of_twenty)).collect()
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [ends(), neighbours()].concat()
}

fn ends() -> Vec<Row> {
    let own = |number: u32| {
        (sh(format!("for i in $(seq 200); do echo {number} $i; done")), exits(0).out(lines(number)))
    };
    vec![
        engine("together-twenty", NothingSurvives, "20 commands run at the same time, and killing one leaves the others")
            .roomy()
            .runs_together(twenty())
            .runs(sh("ls | grep -c at-"), exits(0).out("20\n")),
        engine("together-streams", ToldApart, "each of several commands has its own streams and its own end")
            .runs_together((1..=8).map(own).collect()),
        engine("together-times", ToldApart, "each of several commands has its own time").runs_together(vec![
            (sh("sleep 60").killed_after(400), times_out(Duration::from_millis(400))),
            (sh("sleep 1.5; exit 7").killed_after(20_000), exits(7)),
            (sh("sleep 60").killed_after(900), times_out(Duration::from_millis(900))),
        ]),
        engine("together-leftovers", NothingSurvives, "what a command left behind is killed, and nothing of the others")
            .runs_together(vec![
                (sh("sleep 60 & echo $! > left; exit 0"), exits(0).uses(Used::Killed(1))),
                (
                    sh(format!("{MEET}{GONE}sleep 60 & meet left 1; gone $(cat left); kill -0 $! && kill $! && echo lives")),
                    exits(0).out("lives\n"),
                ),
            ]),
        engine("together-memory", ToldApart, "a command that is out of its own memory ends nothing of the others")
            .runs_together(vec![
                (
                    python("held = bytearray(b'x') * (128 << 20)")
                        .limited(CommandLimits { memory: Some(48 << 20), ..CommandLimits::default() }),
                    starves().uses(Used::MemoryKills(1)),
                ),
                (sh("sleep 1; echo lives"), exits(0).out("lives\n").uses(Used::NoMemoryKill)),
            ]),
    ]
}

fn lines(number: u32) -> String {
    (1..=200).map(|line| format!("{number} {line}\n")).collect()
}

fn neighbours() -> Vec<Row> {
    vec![
        engine("together-files", PlainProgramsRun, "what one command writes, another one reads at once, private or not")
            .runs_together(vec![
                (sh(format!("{MEET}echo here > here.new; mv here.new here; meet there 1; cat /tmp/there")), exits(0).out("there\n")),
                (sh(format!("{MEET}echo there > /tmp/there; : > there; meet here 1; cat here")), exits(0).out("here\n")),
            ]),
        engine("together-signals", PlainProgramsRun, "commands of one sandbox see one another and may signal one another")
            .runs_together(vec![
                (sh("echo $$ > pid.new; mv pid.new pid; exec sleep 60"), dies(15)),
                (
                    sh(format!("{MEET}meet 'pid$' 1; sleep 0.2; grep -c . /proc/$(cat pid)/status > seen; kill $(cat pid) && [ -s seen ] && echo signalled")),
                    exits(0).out("signalled\n"),
                ),
            ]),
    ]
}

//! Standard input: nothing, bytes, and one that never ends.

use std::time::Duration;

use crate::conformance::expectation::Text;
use crate::conformance::guest::{Input, python, sh};
use crate::conformance::row::Promise::{ExactBytes, PlainProgramsRun, ToldApart};
use crate::conformance::row::{Row, engine, exits, times_out};

/// So many bytes of a pattern.
fn pattern(bytes: usize) -> Input {
    Input::Bytes(b"0123456\n".iter().copied().cycle().take(bytes).collect())
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let every: Vec<u8> = (0..=255).collect();
    vec![
        engine("stdin-bytes", ExactBytes, "each of the 256 bytes can be read as it was given")
            .runs(sh("cat").reads(Input::Bytes(every.clone())), exits(0).out(every)),
        engine("stdin-large", ExactBytes, "8 MB of input are read whole").runs(
            sh("cat").reads(pattern(8_000_000)),
            exits(0).stdout(Text::Repeats { pattern: b"0123456\n", bytes: 8_000_000 }),
        ),
        engine(
            "stdin-by-parts",
            ExactBytes,
            "what one program of a command leaves of the input, the next one reads",
        )
        .runs(
            sh("read line; echo \"got $line\"; cat").reads(Input::Bytes(b"one\ntwo\nthree".to_vec())),
            exits(0).out("got one\ntwo\nthree"),
        ),
        engine("stdin-reopened-by-name", PlainProgramsRun, "/dev/stdin can be opened and read")
            .runs(sh("cat /dev/stdin").reads(Input::Bytes(b"by name".to_vec())), exits(0).out("by name")),
        engine("stdin-not-read", ToldApart, "input that nobody reads does not hold up the end")
            .runs(sh("exit 3").reads(pattern(1_000_000)), exits(3).within_seconds(10)),
        engine("stdin-held-open", ToldApart, "input that never ends does not hold up the end")
            .runs(sh("echo done").reads(Input::Held), exits(0).out("done\n").within_seconds(10)),
        engine("stdin-waited-for", ToldApart, "a command that waits for its input runs out of time")
            .runs(sh("cat").reads(Input::Held).killed_after(500), times_out(Duration::from_millis(500))),
        engine("stdin-answers", PlainProgramsRun, "what is written while a command runs can be read at once")
            .runs(
                python("print('ready', flush=True)\nprint(os.read(0, 100))").reads(Input::Answer(b"answer")),
                exits(0).out("ready\nb'answer'\n"),
            ),
    ]
}

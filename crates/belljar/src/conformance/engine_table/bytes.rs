//! Standard streams, byte for byte.

use crate::conformance::expectation::Text;
use crate::conformance::guest::{Reader, python, sh};
use crate::conformance::row::Promise::{ExactBytes, NothingSurvives, PlainProgramsRun};
use crate::conformance::row::{Row, dies, engine, exits};

/// Writes of sizes around those of a page and of a pipe, to both streams in turn.
const SIZES: &str = "
for size in (1, 2, 4095, 4096, 4097, 65535, 65536, 65537, 131072, 200001):
    for stream in (1, 2):
        data = (b'0123456789' * (size // 10 + 1))[:size]
        while data:
            data = data[os.write(stream, data):]
";
const SIZES_TOTAL: [usize; 10] = [1, 2, 4095, 4096, 4097, 65_535, 65_536, 65_537, 131_072, 200_001];

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [contents(), ends()].concat()
}

fn every_byte() -> Vec<u8> {
    (0..=255).collect()
}

fn sizes() -> Vec<u8> {
    SIZES_TOTAL.iter().flat_map(|size| (0..*size).map(|at| b"0123456789"[at % 10])).collect()
}

fn contents() -> Vec<Row> {
    vec![
        engine(
            "bytes-every-value",
            ExactBytes,
            "each of the 256 bytes arrives as it was written, on both streams",
        )
        .runs(
            python("os.write(1, bytes(range(256))); os.write(2, bytes(range(256)))"),
            exits(0).out(every_byte()).err(every_byte()),
        ),
        engine("bytes-not-utf8", ExactBytes, "text that is no UTF-8 arrives as it is").runs(
            sh(r"printf '\377\376\300\200ok\355\240\200'"),
            exits(0).out(*b"\xff\xfe\xc0\x80ok\xed\xa0\x80"),
        ),
        engine("bytes-no-last-newline", ExactBytes, "nothing is added where the last line has no end")
            .runs(sh("printf 'one\\ntwo'"), exits(0).out("one\ntwo").err("")),
        engine("bytes-none", ExactBytes, "a silent command has no output")
            .runs(sh(":"), exits(0).out("").err("")),
        engine("bytes-carriage-returns", ExactBytes, "no terminal rewrites line ends")
            .runs(sh(r"printf 'a\r\nb\rc\n\004\032'"), exits(0).out("a\r\nb\rc\n\x04\x1a")),
        engine("bytes-streams-apart", ExactBytes, "the two streams are not mixed").runs(
            sh("for i in 1 2 3; do echo out$i; echo err$i >&2; done"),
            exits(0).out("out1\nout2\nout3\n").err("err1\nerr2\nerr3\n"),
        ),
        engine(
            "bytes-around-buffers",
            ExactBytes,
            "writes of sizes around pages and pipes arrive whole and in order",
        )
        .runs(python(SIZES), exits(0).out(sizes()).err(sizes())),
        engine("bytes-ten-megabytes", ExactBytes, "10 MB arrive whole").runs(
            sh("yes 0123456 | head -c 10000000"),
            exits(0).stdout(Text::Repeats { pattern: b"0123456\n", bytes: 10_000_000 }),
        ),
        engine("bytes-of-a-failing-command", ExactBytes, "what a command wrote before it died is kept")
            .runs(sh("echo before; echo words >&2; kill -KILL $$"), dies(9).out("before\n").err("words\n")),
    ]
}

fn ends() -> Vec<Row> {
    vec![
        engine("stdin-is-empty", PlainProgramsRun, "a command that reads its input finds its end at once")
            .runs(sh("cat; echo \"read $?\""), exits(0).out("read 0\n").within_seconds(10)),
        engine(
            "output-after-the-end",
            NothingSurvives,
            "a child that would write after its command has ended cannot",
        )
        .runs(sh("(sleep 0.4; echo late) & echo early"), exits(0).out("early\n").within_seconds(5)),
        engine(
            "output-held-by-a-child",
            NothingSurvives,
            "a child that holds the streams does not hold up the end",
        )
        .runs(sh("sleep 60 & echo done"), exits(0).out("done\n").within_seconds(10)),
        engine("output-closed-by-the-guest", ExactBytes, "a command may close its streams and go on")
            .runs(sh("echo one; exec >&- 2>&-; sleep 0.05; exit 4"), exits(4).out("one\n").err("")),
        engine(
            "output-without-a-reader",
            PlainProgramsRun,
            "a command whose reader has gone is told so by SIGPIPE",
        )
        .runs(sh("while :; do echo x; done").read_by(Reader::Gone), dies(13)),
        engine(
            "output-reopened-by-name",
            PlainProgramsRun,
            "/dev/stdout and /dev/stderr can be opened and written",
        )
        .runs(
            sh("echo one > /dev/stdout && echo two > /dev/stderr && echo three | tee /dev/fd/2"),
            exits(0).out("one\nthree\n").err("two\nthree\n"),
        ),
    ]
}

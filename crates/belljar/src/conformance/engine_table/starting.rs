//! How commands are started: program, arguments, environment, folder.

use crate::conformance::expectation::Text;
use crate::conformance::guest::{Guest, Program, exact, python, sh};
use crate::conformance::need::Need;
use crate::conformance::row::Promise::{ClosedByDefault, PlainProgramsRun, ToldApart};
use crate::conformance::row::{Prop, Row, engine, exits};

/// Arguments that somebody on the way could mistake for something else.
const ODD: [&str; 16] = [
    "",
    " ",
    "a b",
    "\n",
    "\t",
    "'",
    "\"",
    "\\",
    "$HOME",
    "`id`",
    "$(id)",
    "*",
    "-x",
    "日本語 é 🫙",
    "\u{1}\u{7f}",
    "",
];
/// Prints each argument's bytes in hexadecimal, in brackets.
const PRINT_ARGUMENTS: &str =
    "import os, sys\nprint(' '.join('[' + os.fsencode(word).hex() + ']' for word in sys.argv[1:]))";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [programs(), arguments(), environment(), folders()].concat()
}

fn programs() -> Vec<Row> {
    let file = |name, text, mode| Prop::File { name, text, mode };
    vec![
        engine(
            "program-missing",
            ToldApart,
            "a program that is not there is exit code 127, not a failed sandbox",
        )
        .runs(exact("/no/such/program", &[]), exits(127).not_started().out("")),
        engine("program-not-executable", ToldApart, "a file that may not be executed is exit code 126")
            .with(file("plain", "#!/bin/sh\necho ran\n", 0o644))
            .runs(exact("/workspace/plain", &[]), exits(126).not_started().out("")),
        engine("program-is-a-folder", ToldApart, "a folder as program is exit code 126")
            .runs(exact("/tmp", &[]), exits(126).not_started()),
        engine("program-of-no-format", ToldApart, "a file that is no program is exit code 126")
            .with(file("text", "no program at all\n", 0o755))
            .runs(exact("/workspace/text", &[]), exits(126).not_started()),
        engine("program-below-a-file", ToldApart, "a path that leads through a file is exit code 126")
            .with(file("plain", "", 0o755))
            .runs(exact("/workspace/plain/inner", &[]), exits(126).not_started()),
        engine("interpreter-missing", ToldApart, "a script whose interpreter is not there is exit code 127")
            .with(file("script", "#!/no/such/interpreter\n", 0o755))
            .runs(exact("/workspace/script", &[]), exits(127).not_started()),
        engine("script-runs", PlainProgramsRun, "a script of the workspace is started by its interpreter")
            .with(file("script", "#!/bin/sh\necho \"$0 $1\"\n", 0o755))
            .runs(exact("/workspace/script", &["one"]), exits(0).out("/workspace/script one\n")),
        engine(
            "program-second-choice",
            PlainProgramsRun,
            "the first program of a list that is there is started",
        )
        .runs(second_choice(), exits(0).out("second\n")),
    ]
}

fn second_choice() -> Guest {
    let mut guest = exact("/no/such/shell", &["-c", "echo second"]);
    if let Program::Exact { programs, .. } = &mut guest.program {
        programs.push("/bin/sh".to_owned());
    }
    guest
}

fn python_with(arguments: &[&str]) -> Guest {
    exact("/usr/bin/python3", &[&["-IS", "-c", PRINT_ARGUMENTS], arguments].concat())
}

fn hexadecimal(words: &[&str]) -> String {
    let digits = |word: &&str| word.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    words.iter().map(|word| format!("[{}]", digits(word))).collect::<Vec<_>>().join(" ") + "\n"
}

fn arguments() -> Vec<Row> {
    let python = Need::Program("python3");
    let length = "import sys\nprint(len(sys.argv[1]))";
    let count = "import sys\nprint(len(sys.argv) - 1)";
    let many: Vec<&str> =
        ["-IS", "-c", count].into_iter().chain(std::iter::repeat_n("word", 20_000)).collect();
    vec![
        engine("arguments-odd", PlainProgramsRun, "arguments arrive byte for byte, empty ones too")
            .needs(python)
            .runs(python_with(&ODD), exits(0).out(hexadecimal(&ODD))),
        engine("arguments-none", PlainProgramsRun, "a program without arguments gets none")
            .needs(python)
            .runs(python_with(&[]), exits(0).out("\n")),
        engine("argument-long", PlainProgramsRun, "an argument of 120 KiB arrives whole").needs(python).runs(
            exact("/usr/bin/python3", &["-IS", "-c", length, &"x".repeat(120 << 10)]),
            exits(0).out("122880\n"),
        ),
        engine("arguments-many", PlainProgramsRun, "20,000 arguments arrive")
            .needs(python)
            .runs(exact("/usr/bin/python3", &many), exits(0).out("20000\n")),
        engine("argument-too-long", ToldApart, "an argument that the kernel does not take is exit code 126")
            .runs(exact("/bin/echo", &[&"x".repeat(200 << 10)]), exits(126).not_started().out("")),
    ]
}

fn environment() -> Vec<Row> {
    let given = "HOME=/home/runner\nLANG=C.UTF-8\nMARK={mark}\nOUTSIDE={outside}\n\
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nUSER=runner\nZERO=\n";
    let odd = "a=b\n\t'\"\\ $HOME é";
    vec![
        engine(
            "environment-exact",
            ClosedByDefault,
            "a guest finds the variables it was given and no others",
        )
        .needs(Need::Program("python3"))
        .runs(sorted_environment().variable("ZERO", ""), exits(0).out(given)),
        engine("environment-empty", ClosedByDefault, "a guest that was given no variables finds none")
            .runs(exact("/usr/bin/env", &[]).bare(), exits(0).out("")),
        engine("environment-odd", PlainProgramsRun, "values arrive byte for byte")
            .runs(sh("printf %s \"$ODD\"").variable("ODD", odd), exits(0).out(odd)),
        engine("environment-long", PlainProgramsRun, "a value of 100 KiB arrives whole").runs(
            sh("printf %s \"$LONG\"").variable("LONG", "x".repeat(100 << 10)),
            exits(0).stdout(Text::Repeats { pattern: b"x", bytes: 100 << 10 }),
        ),
    ]
}

/// What the kernel itself handed over, in order: neither a shell nor a locale adds to it.
fn sorted_environment() -> Guest {
    python(
        "sys.stdout.write('\\n'.join(sorted(open('/proc/self/environ').read().split('\\0'))).lstrip('\\n') + '\\n')",
    )
}

fn folders() -> Vec<Row> {
    vec![
        engine("folder-is-the-workspace", PlainProgramsRun, "a command starts in the workspace")
            .runs(sh("pwd -P"), exits(0).out("/workspace\n")),
        engine("folder-elsewhere", PlainProgramsRun, "a command starts in the folder it was given")
            .runs(sh("pwd -P").within("/tmp"), exits(0).out("/tmp\n")),
        engine(
            "folder-missing",
            ToldApart,
            "a folder that is not there is exit code 126, not a failed sandbox",
        )
        .runs(sh("echo ran").within("/no/such/folder"), exits(126).not_started().out("")),
        engine("folder-shut-by-the-guest", ToldApart, "a guest that shut its own folder has itself to blame")
            .runs(sh("chmod 000 ."), exits(0))
            .runs(sh("echo ran"), exits(126).not_started().out(""))
            .runs(sh("echo elsewhere").within("/tmp"), exits(0).out("elsewhere\n")),
    ]
}

//! The generated documents: the command line and the catalogue of failures, checked against the files.

use std::fmt::Write;
use std::path::PathBuf;

use belljar::Code;
use belljar::outcome::{Outcome, Owner};
use belljar::repo::PASSED_VARIABLES;
use clap::CommandFactory;

use crate::args::Arguments;
use crate::environment;

/// How a reader is told not to edit.
const NOTE: &str = "Generated from the program: `UPDATE_GENERATED=1 cargo test -p belljar-cli` rewrites it.";

/// `docs/cli.md`: every `--help` and every environment variable.
fn command_line() -> String {
    let mut text = format!("# The command line\n\n{NOTE}\n");
    let mut command = Arguments::command().term_width(100).color(clap::ColorChoice::Never);
    command.build();
    add(&mut text, &mut command, "belljar");
    text.push_str("\n## Environment variables\n\nBelljar reads these and no others.\n\n");
    text.push_str("| variable | what it does |\n| --- | --- |\n");
    for variable in environment::ALL {
        let _ = writeln!(text, "| `{}` | {} |", variable.name, variable.meaning);
    }
    let passed: Vec<String> = PASSED_VARIABLES.iter().map(|name| format!("`{name}`")).collect();
    let _ = writeln!(text, "\nPassed on to `git`, and to nothing else: {}.", passed.join(", "));
    let passed: Vec<String> = environment::FOR_PROGRAMS.iter().map(|name| format!("`{name}`")).collect();
    let _ = writeln!(text, "\nPassed on to `docker`, `podman` and `mmdebstrap`: {}.", passed.join(", "));
    text
}

fn add(text: &mut String, command: &mut clap::Command, name: &str) {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## `{name}`\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    for inner in command.get_subcommands_mut().filter(|inner| inner.get_name() != "help") {
        let name = format!("{name} {}", inner.get_name());
        add(text, inner, &name);
    }
}

/// `docs/errors.md`: every code and every outcome.
fn catalogue() -> String {
    let mut text = format!("# Failures and outcomes\n\n{NOTE}\n");
    text.push_str(
        "\n## Failures\n\nA failure has one stable code, printed in brackets, and as `error.code` with `--json`.\n\n\
         | code | exit code | kind | cause | remedy |\n| --- | --- | --- | --- | --- |\n",
    );
    for code in Code::ALL {
        let (exit, kind) = (code.kind().exit_code(), format!("{:?}", code.kind()).to_lowercase());
        let _ = writeln!(text, "| `{code}` | {exit} | {kind} | {} | {} |", code.cause(), code.remedy());
    }
    text.push_str(
        "\n## Outcomes\n\nA run that was recorded has one outcome (`verdict.outcome` in `run.json`). Its owner is who has to act:\n\
         infrastructure and task outcomes say nothing about the program.\n\n\
         | outcome | exit code | owner | meaning |\n| --- | --- | --- | --- |\n",
    );
    for outcome in Outcome::ALL {
        let owner = match outcome.owner() {
            None => "nobody: a success",
            Some(Owner::Infrastructure) => "infrastructure",
            Some(Owner::Task) => "the task",
            Some(Owner::Program) => "the program",
        };
        let _ = writeln!(text, "| `{outcome}` | {} | {owner} | {} |", outcome.exit_code(), outcome.meaning());
    }
    text
}

/// Compares a document with its file, or rewrites the file.
fn check(name: &str, generated: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        return std::fs::write(&path, generated).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == generated, "docs/{name} is not what the program says; {NOTE}");
}

#[test]
fn the_command_line_is_documented() {
    check("cli.md", &command_line());
}

#[test]
fn the_failures_are_documented() {
    check("errors.md", &catalogue());
}

/// Every read of the environment goes through `environment.rs`.
#[test]
fn no_other_file_reads_the_environment() {
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let allowed = path.ends_with("environment.rs") || path.ends_with("reference.rs");
            assert!(allowed || !text.contains("env::var"), "{} reads the environment", path.display());
        }
    }
}

#[test]
fn the_arguments_are_consistent() {
    Arguments::command().debug_assert();
}

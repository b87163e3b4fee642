//! How a failure is told: what, because of what, what to do, under which code.

use std::error::Error;
use std::fmt::Write;

use belljar::{Code, Fault};
use owo_colors::OwoColorize;
use serde_json::json;

use crate::guest;
use crate::voice::{Output, data, json, talk};

/// The exit code of a failure of ours where the exit code is otherwise a guest's.
pub(crate) const OURS: u8 = 125;

/// The exit code of a failure where it is not a guest's.
pub(crate) fn code(fault: &Fault) -> u8 {
    fault.code.kind().exit_code()
}

/// The exit code of a failure where it is otherwise a guest's.
pub(crate) fn code_among_guests(fault: &Fault) -> u8 {
    if fault.code == Code::Interrupted { code(fault) } else { OURS }
}

/// Prints a failure that the command ends with this exit code for; gives the code.
pub(crate) fn report(fault: &Fault, output: Output, code: u8) -> u8 {
    match output {
        Output::Text => talk(text(fault).trim_end()),
        // Nothing is left to be told if even this cannot be written.
        Output::Json => drop(json(&object(fault, code)).and_then(|text| data(&text))),
    }
    code
}

/// The failure for people.
pub(crate) fn text(fault: &Fault) -> String {
    let mut text = told("error:".red().bold(), &fault.message);
    for cause in causes(fault) {
        text.push_str(&told("  because:", &cause));
    }
    text.push('\n');
    for hint in hints(fault) {
        text.push_str(&told("hint:".cyan(), &hint));
    }
    let _ = writeln!(text, "{}", format!("[{}]", fault.code).dimmed());
    text
}

/// A label and its words; further lines (a source snippet) keep their own layout, set in by two.
fn told(label: impl std::fmt::Display, words: &str) -> String {
    let mut lines = guest::lines(words);
    let mut text = format!("{label} {}\n", lines.next().unwrap_or_default());
    for line in lines {
        let _ = writeln!(text, "{}", format!("  {line}").trim_end());
    }
    text
}

/// The hints, or what the catalogue says when there are none.
fn hints(fault: &Fault) -> Vec<String> {
    match fault.hints.as_slice() {
        [] => vec![fault.code.remedy().to_owned()],
        hints => hints.to_vec(),
    }
}

/// The errors below, without those whose words the message already holds.
fn causes(fault: &Fault) -> Vec<String> {
    let mut said = fault.message.clone();
    let mut causes = Vec::new();
    let mut below = fault.source();
    while let Some(error) = below {
        let cause = error.to_string();
        if !said.contains(&cause) {
            said.push_str(&cause);
            causes.push(cause);
        }
        below = error.source();
    }
    causes
}

fn object(fault: &Fault, code: u8) -> serde_json::Value {
    json!({ "error": {
        "code": fault.code,
        "kind": fault.code.kind(),
        "exit_code": code,
        "message": fault.message,
        "causes": causes(fault),
        "hints": hints(fault),
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(fault: &Fault) -> String {
        anstream::adapter::strip_str(&text(fault)).to_string()
    }

    #[test]
    fn message_causes_hints_and_code() {
        let io = std::io::Error::other("the cable is out");
        let fault = Fault::new(Code::RepoUnreachable, "could not fetch \u{1b}[2Jexample.org")
            .hint("plug it in")
            .hint("or give up")
            .caused_by(io);
        insta::assert_snapshot!(plain(&fault), @r"
        error: could not fetch ·[2Jexample.org
          because: the cable is out

        hint: plug it in
        hint: or give up
        [repo-unreachable]
        ");
    }

    #[test]
    fn a_snippet_keeps_its_layout_and_the_catalogue_helps_out() {
        let fault =
            Fault::new(Code::SpecSyntax, "a colon is missing\n --> task.yaml:2\n  |\n2 | repo url\n  |");
        insta::assert_snapshot!(plain(&fault), @r"
        error: a colon is missing
           --> task.yaml:2
            |
          2 | repo url
            |

        hint: mend the line that is shown
        [spec-syntax]
        ");
    }
}

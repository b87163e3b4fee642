//! How a failure is told: cause, source, hints, code.

use std::error::Error;
use std::process::ExitCode;

use belljar::Fault;
use serde_json::json;

use crate::args::Output;

/// Prints a failure and gives its exit code.
pub(crate) fn report(fault: &Fault, output: Output) -> ExitCode {
    match output {
        Output::Text => text(fault),
        Output::Json => json_object(fault),
    }
    ExitCode::from(fault.code.kind().exit_code())
}

fn text(fault: &Fault) {
    anstream::eprintln!("error: {}", fault.message);
    for cause in causes(fault) {
        anstream::eprintln!("  because: {cause}");
    }
    anstream::eprintln!("\ncode: {}", fault.code);
    for hint in &fault.hints {
        anstream::eprintln!("hint: {hint}");
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

fn json_object(fault: &Fault) {
    let object = json!({ "error": {
        "code": fault.code,
        "kind": fault.code.kind(),
        "message": fault.message,
        "causes": causes(fault),
        "hints": fault.hints,
    }});
    anstream::println!("{object}");
}

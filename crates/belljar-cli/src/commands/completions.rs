//! `belljar completions`: what a shell needs to complete our words.

use belljar::Fault;
use clap::CommandFactory;

use crate::args::{Arguments, CompletionsArguments};
use crate::voice::data;

/// Prints the completions for a shell.
pub(crate) fn perform(arguments: &CompletionsArguments) -> Result<u8, Fault> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "belljar", &mut script);
    data(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

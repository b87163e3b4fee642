//! The binary `belljar`: turns arguments into requests to the library and prints the answers.

mod args;
mod commands;
mod fault;
mod place;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Arguments;

fn main() -> ExitCode {
    // First of all, while there is one thread: this program is its own keeper.
    belljar_cell::keeper::run_if_asked();
    let arguments = Arguments::parse();
    let output = arguments.output();
    match commands::perform(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(fault) => fault::report(&fault, output),
    }
}

//! The binary `belljar`: turns arguments into requests to the library and prints the answers.

mod args;
mod commands;
mod environment;
mod fault;
mod folder;
mod guest;
mod help;
mod network;
mod place;
#[cfg(test)]
mod reference;
mod screen;
mod signals;
mod verdict;
mod voice;
mod words;

use std::process::ExitCode;

use crate::args::Arguments;

fn main() -> ExitCode {
    // First of all, while there is one thread: this program is its own keeper.
    belljar_cell::keeper::run_if_asked();
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(refusal) => return refusal.tell(),
    };
    let voice = arguments.voice();
    match commands::perform(arguments.verb, voice) {
        Ok(code) => ExitCode::from(code),
        Err(fault) => fault::report(&fault, voice.output),
    }
}

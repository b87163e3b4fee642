//! The binary `belljar`: turns arguments into requests to the library and prints the answers.

mod args;
mod arrival;
mod commands;
mod environment;
mod fault;
mod folder;
mod guest;
mod help;
mod leftovers;
mod network;
mod place;
#[cfg(test)]
mod reference;
mod registries;
mod screen;
mod signals;
mod table;
mod typed;
mod verdict;
mod voice;
mod words;

use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::Arguments;

fn main() -> ExitCode {
    // First of all, while there is one thread: this program is its own spawner of keepers.
    belljar_cell::spawner::run_if_asked();
    raise_open_files();
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(refusal) => return refusal.tell(),
    };
    let voice = arguments.voice();
    match commands::perform(arguments.verb, voice) {
        Ok(code) => ExitCode::from(code),
        Err(fault) => ExitCode::from(fault::report(&fault, voice.output, fault::code(&fault))),
    }
}

/// The gateway may hold many connections at once; what the system allows is enough, what it starts with is not.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Refused, it stays as it was, and the gateway refuses connections a little earlier.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

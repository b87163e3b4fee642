//! `belljar sandbox`: make sandboxes, and use them.

mod answer;
mod command;
mod copy;
mod create;
mod encoding;
mod exec;
mod extend;
mod foreground;
mod fork;
mod inspect;
mod list;
mod log;
mod oneshot;
mod order;
mod relay;
mod remove;
mod snapshot;
mod terminal;

use belljar::Fault;

use crate::args::SandboxVerb;
use crate::fault;
use crate::voice::Voice;

/// Does what the verb says; gives the exit code. Where that is a guest's, a failure of ours has a code of its own.
pub(crate) fn perform(verb: SandboxVerb, voice: Voice) -> Result<u8, Fault> {
    let passes_on = verb.passes_on();
    match dispatch(verb, voice) {
        Err(fault) if passes_on => Ok(fault::report(&fault, voice.output, fault::code_among_guests(&fault))),
        other => other,
    }
}

fn dispatch(verb: SandboxVerb, voice: Voice) -> Result<u8, Fault> {
    match verb {
        SandboxVerb::Create(create) => create::perform(&create, voice),
        SandboxVerb::Exec(exec) => exec::perform(exec, voice),
        SandboxVerb::Shell(shell) => exec::shell(&shell, voice),
        SandboxVerb::Run(run) => oneshot::perform(*run, voice),
        SandboxVerb::Cp(copy) => copy::perform(&copy, voice),
        SandboxVerb::Ls => list::perform(voice),
        SandboxVerb::Inspect(one) => inspect::perform(&one, voice),
        SandboxVerb::Ps(one) => command::list(&one, voice),
        SandboxVerb::Logs(logs) => log::perform(&logs, voice),
        SandboxVerb::Wait(of) => command::wait(&of, voice),
        SandboxVerb::Signal(signal) => command::signal(&signal, voice),
        SandboxVerb::Extend(extend) => extend::perform(&extend, voice),
        SandboxVerb::Fork(fork) => fork::perform(&fork, voice),
        SandboxVerb::Snapshot(snapshot) => snapshot::perform(&snapshot, voice),
        SandboxVerb::Rm(remove) => remove::perform(&remove, voice),
    }
}

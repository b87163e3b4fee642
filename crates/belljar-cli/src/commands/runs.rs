//! `belljar runs`: look at the runs that were made.

mod follow;
mod list;
mod log;
mod prune;
mod show;

use belljar::Fault;

use crate::args::RunsVerb;
use crate::voice::Voice;

/// Does what the verb says; gives the exit code.
pub(crate) fn perform(verb: &RunsVerb, voice: Voice) -> Result<u8, Fault> {
    match verb {
        RunsVerb::Ls(list) => list::perform(list, voice),
        RunsVerb::Show(show) => show::perform(show, voice),
        RunsVerb::Prune(prune) => prune::perform(prune, voice),
    }
}

//! `belljar sandbox rm`: take sandboxes down.

use belljar::sandbox::Sandboxes;
use belljar::spec::Network;
use belljar::{Code, Fault};
use serde_json::json;

use crate::args::RemoveArguments;
use crate::place::Place;
use crate::voice::{Voice, talk};
use crate::{fault, leftovers};

/// Takes down what was named, all of it also when some of it fails; the first failure decides the exit code.
pub(crate) fn perform(arguments: &RemoveArguments, voice: Voice) -> Result<u8, Fault> {
    let place = Place::find()?;
    let sandboxes = place.sandboxes(Network::None);
    // What is left of dead ones counts as removed, too.
    let mut removed = leftovers::reap(&place).removed;
    let wanted = match arguments.all {
        true => sandboxes.list()?.into_iter().map(|info| info.id).collect(),
        false => arguments.sandboxes.clone(),
    };
    let mut failures = Vec::new();
    for id in wanted {
        match remove(&sandboxes, &id) {
            Ok(id) => removed.push(id),
            Err(fault) if fault.code == Code::SandboxUnknown && begins_one(&removed, &id) => {}
            // With --all, one that ended by itself meanwhile is no failure.
            Err(fault) if fault.code == Code::SandboxUnknown && arguments.all => {}
            Err(fault) => failures.push(fault),
        }
    }
    let lines = || removed.iter().map(|id| format!("{id}\n")).collect();
    if failures.is_empty() {
        voice.answer(&json!({ "removed": removed }), lines)?;
        return Ok(0);
    }
    finish(failures, &lines(), voice)
}

fn remove(sandboxes: &Sandboxes, id: &str) -> Result<String, Fault> {
    let (id, left) = sandboxes.remove(id)?;
    match left.as_slice() {
        [] => Ok(id),
        left => {
            Err(Fault::new(Code::SandboxFailed, format!("{id} is not gone entirely: {}", left.join("; ")))
                .hint("belljar gc tries again"))
        }
    }
}

fn begins_one(removed: &[String], id: &str) -> bool {
    removed.iter().any(|other| other.starts_with(id))
}

/// Tells what was removed, and each failure; the last one is left for whoever ends the program.
fn finish(mut failures: Vec<Fault>, removed: &str, voice: Voice) -> Result<u8, Fault> {
    let first = failures.remove(0);
    if voice.output == crate::voice::Output::Text {
        crate::voice::data(removed)?;
        failures.iter().for_each(|other| talk(fault::text(other).trim_end()));
    }
    Err(failures.into_iter().fold(first, |first, other| first.hint(format!("also: {other}"))))
}

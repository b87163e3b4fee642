//! `belljar runs prune`: removes runs by a rule.

use std::fmt::Write;

use belljar::runs::{Prune, PruneMode, Pruned, prune};
use belljar::{Code, Fault};

use crate::args::{PruneArguments, PruneRule};
use crate::screen::line::Mark;
use crate::voice::Voice;
use crate::{folder, guest, words};

/// Removes runs, or says which would go.
pub(crate) fn perform(arguments: &PruneArguments, voice: Voice) -> Result<u8, Fault> {
    let mode = if arguments.dry_run { PruneMode::DryRun } else { PruneMode::Remove };
    let pruned = prune(&arguments.out.out, rule(&arguments.rule)?, mode)?;
    voice.answer(&pruned, || text(&pruned, mode))?;
    Ok(if pruned.failed.is_empty() { 0 } else { Code::OutputUnwritable.kind().exit_code() })
}

fn rule(rule: &PruneRule) -> Result<Prune, Fault> {
    match (rule.keep, rule.older_than, rule.to_size) {
        (Some(count), _, _) => Ok(Prune::KeepNewest(count)),
        (_, Some(age), _) => Ok(Prune::OlderThan(age.0)),
        (_, _, Some(size)) => Ok(Prune::ToSize(size.0)),
        (None, None, None) => Err(Fault::new(Code::Usage, "say which runs are to go")),
    }
}

fn text(pruned: &Pruned, mode: PruneMode) -> String {
    let (done, sum) = match mode {
        PruneMode::DryRun => ("would remove", "would free"),
        PruneMode::Remove => ("removed", "freed"),
    };
    let mut text = String::new();
    for path in pruned.removed.iter().chain(&pruned.leftovers) {
        let _ = writeln!(text, "{} {done:<12} {}", Mark::Good.shown(), folder::shown(path));
    }
    for path in &pruned.in_progress {
        let _ = writeln!(text, "{} in progress  {}", Mark::Plain.shown(), folder::shown(path));
    }
    for (path, why) in &pruned.failed {
        let _ = writeln!(
            text,
            "{} not removed  {}: {}",
            Mark::Bad.shown(),
            folder::shown(path),
            guest::line(why)
        );
    }
    let (runs, room) = (words::count(pruned.removed.len(), "run"), words::size(pruned.freed_bytes));
    let _ = writeln!(text, "{done} {runs}, {sum} {room}");
    text
}

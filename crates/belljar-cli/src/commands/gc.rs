//! `belljar gc`: removes what killed processes left behind.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use belljar::runs::{disk_usage, sweep};
use belljar::{Code, Fault};
use belljar_cell::lease::reap;
use serde::Serialize;

use crate::args::GcArguments;
use crate::place::Place;
use crate::screen::line::Mark;
use crate::voice::Voice;
use crate::{folder, guest, words};

/// What was found and what became of it.
#[derive(Serialize)]
struct Swept {
    /// Sandboxes whose keeper was gone, and that are gone now.
    removed_sandboxes: Vec<String>,
    /// Sandboxes in use.
    alive_sandboxes: Vec<String>,
    /// Half-made and half-removed folders of runs that are gone now.
    removed_folders: Vec<PathBuf>,
    /// The room all of it took.
    freed_bytes: u64,
    /// What could not be removed, and why.
    failures: Vec<String>,
}

/// Removes leftovers and says which.
pub(crate) fn perform(arguments: &GcArguments, voice: Voice) -> Result<u8, Fault> {
    let swept = collect(&Place::find()?.cells, &arguments.out.out)?;
    voice.answer(&swept, || text(&swept))?;
    Ok(if swept.failures.is_empty() { 0 } else { Code::SandboxFailed.kind().exit_code() })
}

fn collect(cells: &Path, out: &Path) -> Result<Swept, Fault> {
    let sizes = sizes(cells);
    let reaped = reap(cells).map_err(|error| {
        let message = format!("could not look into {}: {error}", cells.display());
        Fault::new(Code::SandboxFailed, message).caused_by(error)
    })?;
    let leftovers = sweep(out)?;
    let freed: u64 = reaped.removed.iter().filter_map(|id| sizes.get(id)).sum();
    let failed = leftovers.failed.iter().map(|(path, why)| format!("{}: {why}", path.display()));
    Ok(Swept {
        freed_bytes: freed + leftovers.freed_bytes,
        failures: reaped.failures.into_iter().chain(failed).collect(),
        removed_sandboxes: reaped.removed,
        alive_sandboxes: reaped.alive,
        removed_folders: leftovers.leftovers,
    })
}

/// The room each cell takes, by its id.
fn sizes(cells: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(cells).into_iter().flatten().flatten();
    entries
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), disk_usage(&entry.path())))
        .collect()
}

fn text(swept: &Swept) -> String {
    let mut text = String::new();
    let mut list = |mark: Mark, what: &str, names: Vec<String>| {
        for name in names {
            let _ = writeln!(text, "{} {what:<15} {}", mark.shown(), guest::line(&name));
        }
    };
    list(Mark::Good, "removed sandbox", swept.removed_sandboxes.clone());
    list(
        Mark::Good,
        "removed folder",
        swept.removed_folders.iter().map(|path| folder::shown(path)).collect(),
    );
    list(Mark::Plain, "in use", swept.alive_sandboxes.clone());
    list(Mark::Bad, "not removed", swept.failures.clone());
    let removed = swept.removed_sandboxes.len() + swept.removed_folders.len();
    text + &match removed {
        0 if swept.failures.is_empty() => "nothing to remove\n".to_owned(),
        _ => format!(
            "removed {}, freed {}\n",
            words::count(removed, "leftover"),
            words::size(swept.freed_bytes)
        ),
    }
}

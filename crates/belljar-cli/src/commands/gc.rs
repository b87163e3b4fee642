//! `belljar gc`: removes what killed processes left behind.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use belljar::runs::{disk_usage, sweep};
use belljar::spec::Network;
use belljar::{Code, Fault};
use belljar_cell::lease::reap;
use serde::Serialize;

use crate::args::{GcArguments, OwnersArguments};
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
    /// Half-made and half-removed snapshots that are gone now.
    removed_snapshots: Vec<PathBuf>,
    /// Half-made and half-removed folders of runs that are gone now.
    removed_folders: Vec<PathBuf>,
    /// Half-made things in the store of images that are gone now.
    removed_image_scraps: u64,
    /// The room all of it took.
    freed_bytes: u64,
    /// What could not be removed, and why.
    failures: Vec<String>,
}

/// Removes leftovers and says which.
pub(crate) fn perform(arguments: &GcArguments, voice: Voice) -> Result<u8, Fault> {
    let swept = collect(&Place::find()?, &arguments.out.out)?;
    voice.answer(&swept, || text(&swept))?;
    Ok(if swept.failures.is_empty() { 0 } else { Code::SandboxFailed.kind().exit_code() })
}

fn collect(place: &Place, out: &Path) -> Result<Swept, Fault> {
    let cells = &place.cells;
    let sizes_on_shelf = sizes(&place.snapshots, |name| name.starts_with('.'));
    let sizes = sizes(cells, |_| true);
    let reaped = reap(cells).map_err(|error| {
        let message = format!("could not look into {}: {error}", cells.display());
        Fault::new(Code::SandboxFailed, message).caused_by(error)
    })?;
    let snapshots = place.sandboxes(Network::None).sweep_snapshots()?;
    let leftovers = sweep(out)?;
    let images = place.images(OwnersArguments { squash: false })?;
    let (scraps, freed_images) = if images.has_store() { images.sweep()? } else { (0, 0) };
    let freed: u64 = reaped.removed.iter().filter_map(|id| sizes.get(id)).sum();
    let names = snapshots.removed.iter().filter_map(|path| path.file_name()?.to_str());
    let freed_on_shelf: u64 = names.filter_map(|name| sizes_on_shelf.get(name)).sum();
    let failed = leftovers.failed.iter().map(|(path, why)| format!("{}: {why}", path.display()));
    Ok(Swept {
        removed_image_scraps: scraps,
        freed_bytes: freed + freed_on_shelf + leftovers.freed_bytes + freed_images,
        failures: reaped.failures.into_iter().chain(snapshots.failures).chain(failed).collect(),
        removed_snapshots: snapshots.removed,
        removed_sandboxes: reaped.removed,
        alive_sandboxes: reaped.alive,
        removed_folders: leftovers.leftovers,
    })
}

/// The room that the entries of a folder take, by their names.
fn sizes(folder: &Path, wanted: impl Fn(&str) -> bool) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    named.filter(|(name, _)| wanted(name)).map(|(name, path)| (name, disk_usage(&path))).collect()
}

fn text(swept: &Swept) -> String {
    let mut text = String::new();
    let mut list = |mark: Mark, what: &str, names: Vec<String>| {
        for name in names {
            let _ = writeln!(text, "{} {what:<15} {}", mark.shown(), guest::line(&name));
        }
    };
    list(Mark::Good, "removed sandbox", swept.removed_sandboxes.clone());
    let shown = |paths: &[PathBuf]| paths.iter().map(|path| folder::shown(path)).collect();
    list(Mark::Good, "removed half a snapshot", shown(&swept.removed_snapshots));
    list(Mark::Good, "removed folder", shown(&swept.removed_folders));
    list(Mark::Plain, "in use", swept.alive_sandboxes.clone());
    list(Mark::Bad, "not removed", swept.failures.clone());
    let scraps = usize::try_from(swept.removed_image_scraps).unwrap_or(usize::MAX);
    if scraps > 0 {
        let _ = writeln!(
            text,
            "{} removed {} of images",
            Mark::Good.shown(),
            words::count(scraps, "half-made part")
        );
    }
    let lists = [swept.removed_sandboxes.len(), swept.removed_snapshots.len(), swept.removed_folders.len()];
    let removed = lists.into_iter().sum::<usize>() + scraps;
    text + &match removed {
        0 if swept.failures.is_empty() => "nothing to remove\n".to_owned(),
        _ => format!(
            "removed {}, freed {}\n",
            words::count(removed, "leftover"),
            words::size(swept.freed_bytes)
        ),
    }
}

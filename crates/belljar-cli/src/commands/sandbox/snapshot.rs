//! `belljar sandbox snapshot`: files of sandboxes, kept as a base for others.

use belljar::Fault;
use belljar::sandbox::Snapshot;
use serde_json::json;

use super::list::age;
use super::order;
use crate::args::SnapshotArguments;
use crate::screen::line::Mark;
use crate::table::{self, Side};
use crate::voice::{Voice, talk};
use crate::{guest, words};

/// Keeps, lists or removes.
pub(crate) fn perform(arguments: &SnapshotArguments, voice: Voice) -> Result<u8, Fault> {
    match (&arguments.sandbox, &arguments.name, &arguments.remove) {
        (Some(sandbox), Some(name), _) => keep(sandbox, name, voice)?,
        (_, _, Some(name)) => {
            order::sandboxes()?.remove_snapshot(name)?;
            voice.answer(&json!({ "removed": name }), || format!("{name}\n"))?;
        }
        _ => list(voice)?,
    }
    Ok(0)
}

fn keep(sandbox: &str, name: &str, voice: Voice) -> Result<(), Fault> {
    let made = order::sandboxes()?.snapshot(sandbox, name)?;
    if !made.still {
        talk(
            "warning: the sandbox did not stand still while its files were copied, because it has no control groups",
        );
    }
    voice.answer(&made, || format!("{}\n", made.name))
}

fn list(voice: Voice) -> Result<(), Fault> {
    let all = order::sandboxes()?.list_snapshots()?;
    let head = [("name", Side::Left), ("image", Side::Left), ("of", Side::Left), ("age", Side::Right)];
    let row = |snapshot: &Snapshot| {
        let age = words::seconds(age(snapshot.created_ms));
        let words = [&snapshot.name, &snapshot.image, &snapshot.sandbox].map(|word| guest::line(word));
        let [name, image, of] = words;
        (Mark::Plain.shown(), [name, image, of, age])
    };
    voice.answer(&json!({ "snapshots": all }), || match all.as_slice() {
        [] => "no snapshots\n".to_owned(),
        all => table::text(head, &all.iter().map(row).collect::<Vec<_>>()),
    })
}

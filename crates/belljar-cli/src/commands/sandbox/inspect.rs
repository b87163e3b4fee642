//! `belljar sandbox inspect`: what a sandbox is made of, what is enforced, and how that is known.

use std::fmt::Write;

use belljar::Fault;
use belljar::limits::{Bytes, Cpus};
use belljar::sandbox::Info;
use belljar_cell::cell::Control;

use super::list::age;
use super::order;
use crate::args::OneArguments;
use crate::screen::line::{Mark, broken};
use crate::table::{self, Side};
use crate::voice::{Detail, Voice, width};
use crate::{guest, words};

/// What stands for a control that could not be had.
const NONE: &str = "none";

/// Prints everything known about a sandbox.
pub(crate) fn perform(arguments: &OneArguments, voice: Voice) -> Result<u8, Fault> {
    let info = order::sandboxes()?.open(&arguments.sandbox)?.info()?;
    voice.answer(&info, || {
        facts(&info)
            + &match voice.detail {
                Detail::Brief => controls(&info.controls),
                Detail::Full => proofs(&info.controls),
            }
    })?;
    Ok(0)
}

fn facts(info: &Info) -> String {
    let limits = &info.limits;
    let mut facts = vec![
        ("sandbox", info.id.clone()),
        ("state", format!("{:?}", info.state).to_lowercase()),
        ("image", info.image.clone()),
        ("hostname", info.hostname.clone()),
        ("workdir", info.workdir.clone()),
        ("age", words::seconds(age(info.created_ms))),
        ("left", info.left_ms.map(|left| words::seconds(left / 1000)).unwrap_or_default()),
        ("running", words::count(usize::try_from(info.running).unwrap_or(usize::MAX), "command")),
        (
            "memory",
            format!("{} of {}", info.memory_bytes.map_or("?".to_owned(), words::size), Bytes(limits.memory)),
        ),
        ("processors", Cpus::from_millis(limits.cpu_millis).to_string()),
        ("processes", limits.pids.to_string()),
        (
            "keeper",
            format!(
                "process {}, by the powers of {}, control groups {}",
                info.keeper, info.mode, info.control_groups
            ),
        ),
    ];
    if let Some(workspace) = &info.workspace {
        facts.insert(5, ("workspace", workspace.display().to_string()));
    }
    let mut text = String::new();
    for (name, value) in facts {
        let _ = writeln!(text, "{name:<10}  {}", guest::line(&value));
    }
    text + "\n"
}

/// Each control with all of its proof, which can be long.
fn proofs(controls: &[Control]) -> String {
    let mut text = String::new();
    let room = width().map(|columns| columns.saturating_sub(4));
    for control in controls {
        let [name, requested, enforced] =
            [&control.control, &control.requested, &control.enforced].map(|word| guest::line(word));
        let _ =
            writeln!(text, "{} {name}: requested {requested}, enforced {enforced}", mark(control).shown());
        for line in broken(&guest::line(&control.proof), room) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

fn mark(control: &Control) -> Mark {
    if control.enforced == NONE { Mark::Bad } else { Mark::Good }
}

fn controls(controls: &[Control]) -> String {
    let head =
        [("control", Side::Left), ("requested", Side::Left), ("enforced", Side::Left), ("proof", Side::Left)];
    let row = |control: &Control| {
        let words = [&control.control, &control.requested, &control.enforced, &control.proof];
        (mark(control).shown(), words.map(|word| guest::line(word)))
    };
    table::text(head, &controls.iter().map(row).collect::<Vec<_>>())
}

//! `belljar sandbox ls`: the sandboxes there are.

use belljar::Fault;
use belljar::moment::Moment;
use belljar::sandbox::Info;
use belljar::spec::Network;
use serde_json::json;

use crate::place::Place;
use crate::screen::line::{Mark, cut};
use crate::table::{self, Side};
use crate::voice::Voice;
use crate::{guest, leftovers, words};

/// The widest that an image is shown.
const IMAGE: usize = 40;

/// Removes what is left of dead sandboxes and prints the living, oldest first.
pub(crate) fn perform(voice: Voice) -> Result<u8, Fault> {
    let place = Place::find()?;
    leftovers::reap(&place);
    let all = place.sandboxes(Network::None).list()?;
    voice.answer(&json!({ "sandboxes": all }), || match all.as_slice() {
        [] => "no sandboxes\n".to_owned(),
        all => text(all),
    })?;
    Ok(0)
}

fn text(all: &[Info]) -> String {
    let head = [
        ("id", Side::Left),
        ("image", Side::Left),
        ("age", Side::Right),
        ("left", Side::Right),
        ("running", Side::Right),
        ("memory", Side::Right),
    ];
    let rows: Vec<_> = all.iter().map(|info| (mark(info).shown(), row(info))).collect();
    table::text(head, &rows)
}

fn mark(info: &Info) -> Mark {
    if info.running > 0 { Mark::Good } else { Mark::Plain }
}

fn row(info: &Info) -> [String; 6] {
    [
        info.id.clone(),
        cut(&guest::line(&info.image), IMAGE),
        words::seconds(age(info.created_ms)),
        info.left_ms.map(|left| words::seconds(left / 1000)).unwrap_or_default(),
        info.running.to_string(),
        info.memory_bytes.map(words::size).unwrap_or_default(),
    ]
}

/// How many seconds ago a moment was, which is told in milliseconds since 1970.
pub(crate) fn age(since_ms: u64) -> u64 {
    let now = u64::try_from(Moment::now().as_microsecond()).unwrap_or(0) / 1000;
    now.saturating_sub(since_ms) / 1000
}

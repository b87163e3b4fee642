//! What killed processes left behind, removed on the way to something else.

use belljar_cell::lease::{self, Reaped};

use crate::place::Place;
use crate::voice::talk;
use crate::{guest, words};

/// Removes what is left of sandboxes whose keeper is gone. Nothing depends on it, so it only says what it did.
pub(crate) fn reap(place: &Place) -> Reaped {
    let reaped = match lease::reap(&place.cells) {
        Ok(reaped) => reaped,
        Err(error) => {
            talk(&format!("warning: could not look for leftover sandboxes: {error}"));
            return Reaped::default();
        }
    };
    if !reaped.removed.is_empty() {
        let removed = words::count(reaped.removed.len(), "sandbox");
        talk(&format!("removed {removed} that a killed process had left"));
    }
    for failure in &reaped.failures {
        talk(&format!("warning: could not remove a leftover sandbox: {}", guest::line(failure)));
    }
    reaped
}

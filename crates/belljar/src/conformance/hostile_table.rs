//! What hostile programs try. Every attempt is bounded and does no harm even where it works.

mod calls;
mod carrying;
mod descriptors;
mod floods;
mod forgery;
mod identity;
mod kernel_files;
mod mounts;
mod names;
mod neighbours;
mod network;
mod processes;
mod traps;

use crate::conformance::expectation::{Expectation, Text};
use crate::conformance::row::{Row, exits};

/// The rows of the hostile table, in order.
pub(super) fn rows() -> Vec<Row> {
    [
        mounts::rows(),
        kernel_files::rows(),
        calls::rows(),
        identity::rows(),
        neighbours::rows(),
        processes::rows(),
        descriptors::rows(),
        network::rows(),
        floods::rows(),
        names::rows(),
        traps::rows(),
        carrying::rows(),
        forgery::rows(),
    ]
    .concat()
}

/// A program that tried so many things, none of which worked.
fn all_held(count: usize) -> Expectation {
    exits(0).stdout(Text::AllHeld(count))
}

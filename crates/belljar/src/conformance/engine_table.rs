//! What honest programs rely on.

mod bytes;
mod devices;
mod endings;
mod files;
mod memory;
mod network;
mod processes;
mod processor;
mod programs;
mod sandboxes;
mod sight;
mod starting;
mod timeouts;

use crate::conformance::row::Row;

/// The rows of the engine table, in order.
pub(super) fn rows() -> Vec<Row> {
    [
        endings::rows(),
        starting::rows(),
        bytes::rows(),
        timeouts::rows(),
        processes::rows(),
        memory::rows(),
        processor::rows(),
        files::rows(),
        sight::rows(),
        devices::rows(),
        network::rows(),
        programs::rows(),
        sandboxes::rows(),
    ]
    .concat()
}

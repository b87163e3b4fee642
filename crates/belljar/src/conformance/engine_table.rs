//! What honest programs rely on.

mod bytes;
mod carrying;
mod command_limits;
mod devices;
mod disk;
mod endings;
mod files;
mod input;
mod memory;
mod network;
mod processes;
mod processor;
mod programs;
mod sandboxes;
mod sight;
mod starting;
mod terminal;
mod timeouts;
mod together;

use crate::conformance::row::Row;

/// The rows of the engine table, in order.
pub(super) fn rows() -> Vec<Row> {
    [
        endings::rows(),
        starting::rows(),
        bytes::rows(),
        input::rows(),
        terminal::rows(),
        timeouts::rows(),
        processes::rows(),
        together::rows(),
        memory::rows(),
        processor::rows(),
        command_limits::rows(),
        disk::rows(),
        files::rows(),
        carrying::rows(),
        sight::rows(),
        devices::rows(),
        network::rows(),
        programs::rows(),
        sandboxes::rows(),
    ]
    .concat()
}

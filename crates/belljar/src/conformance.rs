//! The conformance suite: guest programs and what must come of them, stated once, run on every engine.
//!
//! Two tables. The [engine table](Table::Engine) holds programs that a sandbox must run as a plain machine would, and
//! endings that must be told right. The [hostile table](Table::Hostile) holds guests that try to get out, to stay, to
//! use up the machine or to lie. A [`Row`] is data: what the guest does, what is needed, what is expected. The
//! [`Runner`] makes a fresh sandbox for each row and compares.
//!
//! After every row some things must hold whatever the row is about: nothing it started is left on this machine, both
//! streams are closed, a file beside the workspace is unread and unchanged, what is in the workspace belongs to the
//! caller, and the sandbox and its workspace can be removed.

mod bench;
mod engine_table;
mod expectation;
mod ground;
mod guest;
mod hostile_table;
mod need;
mod report;
mod row;
mod runner;
mod trial;

pub use expectation::Difference;
pub use need::{Limit, Need};
pub use report::{Counts, Report, RowOutcome, RowResult};
pub use row::{Promise, Row, Table};
pub use runner::{Progress, Runner, Selection};

/// Every row of both tables, in order.
pub fn rows() -> Vec<Row> {
    engine_table::rows().into_iter().chain(hostile_table::rows()).collect()
}

//! The record of a run: events, journal, outcome, output, comparison, folder of runs.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

#[path = "record/compare.rs"]
mod compare;
#[path = "record/disk.rs"]
mod disk;
#[path = "record/make.rs"]
mod make;
#[path = "record/outcome.rs"]
mod outcome;
#[path = "record/roundtrip.rs"]
mod roundtrip;
#[path = "record/schema.rs"]
mod schema;
#[path = "record/stream.rs"]
mod stream;

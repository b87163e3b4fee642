//! Belljar from outside, on real parts: the built program, real repositories, real users, the real kernel.
//!
//! These tests read exit codes, `run.json`, `events.jsonl` and the logs, never the words on the screen. They need
//! root and the two ordinary users that `scripts/test` makes; without them they fail, they do not skip.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, in its support code too"
)]

mod caller;
mod ground;
mod remains;
mod report;

mod blame;
mod build;
mod comparison;
mod conformance;
mod endings;
mod examples;
mod hostile;
mod images;
mod input;
mod kills;
mod output;
mod parallel;
mod pinning;
mod sandbox;
mod sight;
mod sources;
mod toy;
mod users;

//! The command line from outside: exit code, stdout and stderr of the real binary.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking; the exemption in clippy.toml covers test functions only"
)]

#[path = "cli/house.rs"]
mod house;
#[path = "cli/input.rs"]
mod input;
#[path = "cli/interrupt.rs"]
mod interrupt;
#[path = "cli/output.rs"]
mod output;
#[path = "cli/pinning.rs"]
mod pinning;
#[path = "cli/runs.rs"]
mod runs;
#[path = "cli/sandbox.rs"]
mod sandbox;

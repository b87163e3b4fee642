//! Archives from honest and from hostile hands, packed and unpacked for real.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking; the exemption in clippy.toml covers test functions only"
)]

#[path = "archive/bricks.rs"]
mod bricks;
#[path = "archive/ground.rs"]
mod ground;
#[path = "archive/hostile.rs"]
mod hostile;
#[path = "archive/mutations.rs"]
mod mutations;
#[path = "archive/packing.rs"]
mod packing;
#[path = "archive/races.rs"]
mod races;
#[path = "archive/round_trips.rs"]
mod round_trips;

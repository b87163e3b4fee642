//! The store from outside: crashes, other processes, damage, space, names, and every format images come in.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and tells by printing, in its helpers too"
)]

#[path = "store/blobs.rs"]
mod blobs;
#[path = "store/crash.rs"]
mod crash;
#[path = "store/damage.rs"]
mod damage;
#[path = "store/formats.rs"]
mod formats;
#[path = "registry/ground.rs"]
#[allow(dead_code, clippy::expect_used, reason = "other tests use the rest of it")]
mod ground;
#[path = "store/hostile.rs"]
mod hostile;
#[path = "store/made.rs"]
mod made;
#[path = "store/names.rs"]
mod names;
#[path = "store/owners.rs"]
mod owners;
#[path = "store/pulling.rs"]
mod pulling;
#[path = "registry/relay.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod relay;
#[path = "store/sharing.rs"]
mod sharing;
#[path = "store/space.rs"]
mod space;

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
#[path = "store/hostile.rs"]
mod hostile;
#[path = "store/made.rs"]
mod made;
#[path = "store/names.rs"]
mod names;
#[path = "store/owners.rs"]
mod owners;
#[path = "store/sharing.rs"]
mod sharing;
#[path = "store/space.rs"]
mod space;

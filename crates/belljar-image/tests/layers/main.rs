//! Layers: what becomes of them on disk, and that they come back as they were.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod good;
mod item;
mod limits;
mod nasty;
mod overlay;
mod packing;
mod plain_user;
mod sums;
mod tree;

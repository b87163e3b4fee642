//! The client of registries, against a real registry on this machine and against servers that misbehave.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "registry/auth.rs"]
mod auth;
#[path = "registry/folder.rs"]
mod folder;
#[path = "registry/good.rs"]
mod good;
#[path = "registry/ground.rs"]
mod ground;
#[path = "registry/hostile.rs"]
mod hostile;
#[path = "registry/relay.rs"]
mod relay;
#[path = "registry/safe.rs"]
mod safe;
#[path = "registry/sample.rs"]
mod sample;
#[path = "registry/server.rs"]
mod server;

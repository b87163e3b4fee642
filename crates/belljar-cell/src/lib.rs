//! The embedded engine's Linux part: namespaces, mounts, ids, cgroups, seccomp, exec, kill.
//!
//! A cell is made and held by a keeper process of its own. The cell's first process is an init that only builds the
//! root, counts and kills; commands are children of the keeper that are born inside. See
//! `docs/design/embedded-engine.md`.
#![allow(unsafe_code)]

pub mod archive;
pub mod attestation;
pub mod cell;
pub mod client;
mod command;
mod controls;
pub mod copy;
mod courier;
pub mod disk;
mod door;
pub mod failure;
mod filter;
pub mod groups;
mod guest;
pub mod ids;
mod init;
mod keeper;
mod kernel;
mod kit;
pub mod lease;
pub mod link;
mod listener;
pub mod lobby;
pub mod log;
pub mod parents;
pub mod policy;
pub mod powers;
pub mod probe;
pub mod remove;
mod root;
pub mod scratch;
mod sealed;
mod site;
mod sources;
pub mod spawner;
pub mod subids;
pub mod syscalls;
pub mod tether;
mod wire;
mod workspace;

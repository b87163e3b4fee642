//! The embedded engine's Linux part: namespaces, mounts, ids, cgroups, seccomp, exec, kill.
//!
//! A cell is made and held by a keeper process of its own. The keeper forks a doorman, which sits inside the cell's
//! control groups and namespaces but outside its process namespace, and lets commands in; the cell's first process is
//! an init that only reaps and kills. See `docs/design/embedded-engine.md`.
#![allow(unsafe_code)]

pub mod attestation;
pub mod cell;
pub mod client;
mod doorman;
pub mod failure;
mod filter;
pub mod groups;
mod guest;
pub mod ids;
mod init;
pub mod keeper;
mod kernel;
pub mod lease;
pub mod link;
pub mod policy;
pub mod probe;
pub mod remove;
mod root;
mod scratch;
mod sources;
pub mod syscalls;
pub mod tether;
mod wire;

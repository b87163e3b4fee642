//! The embedded engine's Linux part: namespaces, mounts, ids, cgroups, seccomp, exec, kill.
//!
//! A cell is made and held by a keeper process of its own. The keeper forks a doorman, which sits inside the cell's
//! control groups and namespaces but outside its process namespace, and lets commands in; the cell's first process is
//! an init that only reaps and kills. See `docs/design/embedded-engine.md`.
#![allow(unsafe_code)]

pub mod link;

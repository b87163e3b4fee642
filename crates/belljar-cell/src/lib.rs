//! The embedded engine's Linux part: namespaces, mounts, ids, cgroups, seccomp, exec, kill.
#![allow(unsafe_code)]

pub mod link;

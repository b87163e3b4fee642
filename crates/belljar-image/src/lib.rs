//! Images without a daemon: what a reference means, how images are had, kept, made and pinned.

pub mod compression;
pub mod digest;
pub mod fingerprint;
pub mod host;
pub mod oci;
pub mod pack;
pub mod reference;
pub mod unpack;

//! Images without a daemon: what a reference means, how images are had, kept, made and pinned.

pub mod digest;
pub mod export;
pub mod fingerprint;
pub mod host;
pub mod import;
pub mod oci;
pub mod reference;
pub mod store;

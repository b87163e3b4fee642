//! Images without a daemon: what a reference means, how images are had, kept, made and pinned.

pub mod digest;
pub mod dockerfile;
pub mod fingerprint;
pub mod host;
pub mod ignore;
pub mod lint;
pub mod oci;
pub mod reference;

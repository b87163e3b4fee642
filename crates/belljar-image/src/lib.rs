//! Images without a daemon: what a reference means, how images are had, kept, made and pinned.

pub mod build;
pub mod compression;
pub mod credentials;
pub mod digest;
pub mod dockerfile;
pub mod export;
pub mod fingerprint;
pub mod host;
pub mod ignore;
pub mod import;
pub mod lint;
pub mod lock;
pub mod oci;
pub mod pack;
pub mod reference;
pub mod registry;
pub mod store;
pub mod unpack;

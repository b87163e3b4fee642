//! Images without a daemon: what a reference means, and what the image `host` is made of.

pub mod fingerprint;
pub mod host;
pub mod reference;

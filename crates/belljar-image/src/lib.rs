//! Images without a daemon.

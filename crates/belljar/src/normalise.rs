//! The closed, versioned list of normalisers: what two honest runs may print differently.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One normaliser; the order of the variants is the order in which they are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normaliser {
    /// Points in time: dates with a time of day, and times of day.
    Timestamp,
    /// Spans of time: `0.02s`, `12 ms`, `1m 3s`.
    Duration,
    /// Addresses of memory: `0x7f...`.
    Address,
    /// Names of temporary files and folders.
    TempPath,
    /// Numbers of processes.
    Pid,
}

//! Belljar runs code nobody has reviewed, under glass: isolated, observed, repeatable.

pub mod fault;
pub mod limits;
pub mod plan;
pub mod spec;

pub use fault::{Code, Fault, Kind};

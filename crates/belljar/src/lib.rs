//! Belljar runs code nobody has reviewed, under glass: isolated, observed, repeatable.

pub mod fault;
pub mod repo;

pub use fault::{Code, Fault, Kind};

//! Belljar runs code nobody has reviewed, under glass: isolated, observed, repeatable.

pub mod fault;
pub mod gateway;

pub use fault::{Code, Fault, Kind};

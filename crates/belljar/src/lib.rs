//! Belljar runs code nobody has reviewed, under glass: isolated, observed, repeatable.

pub mod canonical;
pub mod fault;
pub mod limits;
pub mod plan;
pub mod schema;
pub mod spec;
pub mod spec_error;
mod yaml;
pub mod repo;

pub use fault::{Code, Fault, Kind};

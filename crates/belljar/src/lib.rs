//! Belljar runs code nobody has reviewed, under glass: isolated, observed, repeatable.

pub mod event;
pub mod expectation;
pub mod fault;
pub mod moment;
pub mod normalise;
pub mod outcome;
pub mod record;
pub mod stage;
pub mod stream;

pub use fault::{Code, Fault, Kind};

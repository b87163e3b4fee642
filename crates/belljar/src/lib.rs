//! Belljar runs code nobody has reviewed, under glass: isolated, observed, repeatable.

pub mod canonical;
pub mod capture;
pub mod classify;
pub mod compare;
pub mod event;
pub mod evidence;
pub mod expectation;
pub mod fault;
mod foreign;
pub mod journal;
pub mod limits;
pub mod moment;
pub mod normalise;
pub mod outcome;
pub mod plan;
pub mod record;
pub mod recorder;
pub mod removal;
pub mod repo;
pub mod rundir;
pub mod runs;
pub mod schema;
pub mod spec;
pub mod spec_error;
pub mod stage;
pub mod stream;
pub mod treediff;
mod yaml;

pub use fault::{Code, Fault, Kind};

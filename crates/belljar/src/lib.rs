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
pub mod capture;
pub mod classify;
pub mod compare;
pub mod event;
pub mod evidence;
pub mod expectation;
pub mod fault;
mod foreign;
pub mod journal;
pub mod moment;
pub mod normalise;
pub mod outcome;
pub mod record;
pub mod recorder;
pub mod removal;
pub mod rundir;
pub mod runs;
pub mod stage;
pub mod stream;
pub mod treediff;

pub use fault::{Code, Fault, Kind};

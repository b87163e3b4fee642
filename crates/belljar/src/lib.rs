//! Belljar runs code nobody has reviewed, under glass: isolated, observed, repeatable.

pub mod advice;
pub mod canonical;
pub mod capture;
pub mod classify;
mod collect;
pub mod compare;
pub mod doctor;
pub mod engine;
pub mod event;
pub mod evidence;
pub mod expectation;
pub mod fault;
pub mod gateway;

pub use fault::{Code, Fault, Kind};

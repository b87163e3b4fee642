//! What went wrong inside a cell's own processes, in a form that crosses a socket.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// One step that failed, with the kernel's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was being done, e.g. `mount overlay`.
    pub step: String,
    /// The kernel's error number; 0 when the failure is not the kernel's.
    pub errno: i32,
}

impl Failure {
    /// A failure that is not an error number.
    pub fn new(step: impl Into<String>) -> Failure {
        Failure { step: step.into(), errno: 0 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            0 => f.write_str(&self.step),
            errno => write!(f, "{}: {}", self.step, io::Error::from_raw_os_error(errno)),
        }
    }
}

impl std::error::Error for Failure {}

/// Names the step that an error belongs to.
pub trait Step<T> {
    /// The same result with a [`Failure`] that says what was being done.
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            errno: error.raw_os_error().unwrap_or(0),
            step: named(step(), &error),
        })
    }
}

impl<T> Step<T> for rustix::io::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure { errno: error.raw_os_error(), step: step() })
    }
}

fn named(step: String, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => step,
        None => format!("{step}: {error}"),
    }
}

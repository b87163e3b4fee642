//! `belljar doctor`: what this machine can do, and what to change.

use belljar::{Code, Fault};

use crate::voice::Voice;

/// Prints what was examined.
pub(crate) fn perform(_voice: Voice) -> Result<u8, Fault> {
    Err(Fault::new(Code::Internal, "the doctor is not in yet"))
}

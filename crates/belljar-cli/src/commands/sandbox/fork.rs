//! `belljar sandbox fork`: a new sandbox with a copy of another one's files.

use belljar::Fault;

use super::{create, order};
use crate::args::ForkArguments;
use crate::voice::Voice;

/// Makes the copy and prints its id, and nothing else.
pub(crate) fn perform(arguments: &ForkArguments, voice: Voice) -> Result<u8, Fault> {
    create::announce(order::sandboxes()?.fork(&arguments.sandbox, arguments.ttl.0)?, voice)
}

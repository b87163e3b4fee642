//! `belljar sandbox extend`: a new deadline.

use belljar::Fault;

use super::order;
use crate::args::ExtendArguments;
use crate::voice::Voice;
use crate::words;

/// Sets the deadline and says what it is.
pub(crate) fn perform(arguments: &ExtendArguments, voice: Voice) -> Result<u8, Fault> {
    let mut live = order::sandboxes()?.open(&arguments.sandbox)?;
    live.extend(arguments.ttl.0)?;
    let info = live.info()?;
    voice
        .answer(&info, || format!("{} lives for {}\n", info.id, words::seconds(arguments.ttl.0.as_secs())))?;
    Ok(0)
}

//! `belljar compare`: two runs side by side.

use belljar::{Fault, compare, runs};

use crate::args::CompareArguments;
use crate::guest;
use crate::voice::Voice;

/// Exit code when something differs that must not.
const DIFFERENT: u8 = 1;

/// Prints what is the same, what may differ and does, what must not differ and does.
pub(crate) fn perform(arguments: &CompareArguments, voice: Voice) -> Result<u8, Fault> {
    let out = &arguments.out.out;
    let (a, b) = (runs::find(out, &arguments.run_a)?, runs::find(out, &arguments.run_b)?);
    let comparison = compare::compare(&a, &b)?;
    let text = guest::harmless(&comparison)?.to_string();
    voice.answer(&comparison, || text)?;
    Ok(if comparison.equal { 0 } else { DIFFERENT })
}

//! `belljar sandbox create`: a sandbox that lives until its deadline.

use belljar::Fault;
use belljar::spec::Network;

use super::order;
use crate::args::CreateArguments;
use crate::voice::Voice;

/// Makes a sandbox and prints its id, and nothing else.
pub(crate) fn perform(arguments: &CreateArguments, voice: Voice) -> Result<u8, Fault> {
    let image = arguments.positional.as_ref().or(arguments.image.as_ref()).map_or("host", String::as_str);
    let recipe = order::recipe(image, &arguments.make, &arguments.share, Network::None)?;
    let made = order::sandboxes()?.create(&recipe, arguments.ttl.0)?;
    voice.answer(&made, || format!("{}\n", made.id))?;
    Ok(0)
}

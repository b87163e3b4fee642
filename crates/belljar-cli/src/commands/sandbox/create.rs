//! `belljar sandbox create`: a sandbox that lives until its deadline.

use belljar::sandbox::Live;
use belljar::spec::Network;
use belljar::{Code, Fault};

use super::order;
use crate::args::CreateArguments;
use crate::place::Place;
use crate::signals::Bell;
use crate::voice::{Output, Voice, data, json};

/// Makes a sandbox and prints its id, and nothing else.
pub(crate) fn perform(arguments: &CreateArguments, voice: Voice) -> Result<u8, Fault> {
    let image = arguments.positional.as_ref().or(arguments.image.as_ref()).map_or("host", String::as_str);
    let images = Place::find()?.images(arguments.make.fetch.owners)?;
    let image = order::image(&images, image, arguments.make.fetch, voice)?;
    let recipe = order::recipe(image, &arguments.make, &arguments.share, Network::None)?;
    let sandboxes = order::sandboxes()?;
    // Who ends us before the id is printed must not be left with a sandbox that nobody knows.
    let bell = Bell::for_the_end()?;
    let made = sandboxes.create(&recipe, arguments.ttl.0)?;
    if bell.rang() > 0 {
        made.destroy()?;
        return Err(Fault::new(Code::Interrupted, "interrupted; the sandbox is gone again"));
    }
    announce(made, voice)
}

/// Prints the id of a new sandbox, or everything about it.
pub(crate) fn announce(mut made: Live, voice: Voice) -> Result<u8, Fault> {
    data(&match voice.output {
        Output::Text => format!("{}\n", made.id),
        Output::Json => json(&made.info()?)?,
    })?;
    Ok(0)
}

//! Images that go to a registry, and their names.

use belljar::Fault;
use serde_json::json;

use super::{images, name};
use crate::args::{ImagePushArguments, ImageTagArguments};
use crate::arrival::Arrival;
use crate::voice::Voice;

/// Sends an image; the answer is its name there, pinned.
pub(crate) fn push(arguments: &ImagePushArguments, voice: Voice) -> Result<u8, Fault> {
    let images = images()?;
    let to = name(arguments.to.as_deref().unwrap_or(&arguments.image))?;
    let image = images.find(&arguments.image)?;
    let pushed = Arrival::during(voice, |watch| images.push(&image, &to, watch))?;
    let object = json!({
        "name": pushed.name.to_string(),
        "manifest_digest": pushed.digest,
        "config_digest": image.config_digest,
    });
    voice.answer(&object, || format!("{}\n", pushed.name))?;
    Ok(0)
}

/// Gives an image another name.
pub(crate) fn tag(arguments: &ImageTagArguments, voice: Voice) -> Result<u8, Fault> {
    let (images, name) = (images()?, name(&arguments.name)?);
    let image = images.find(&arguments.image)?;
    images.tag(image.config_digest, &name)?;
    let object = json!({ "name": name.to_string(), "config_digest": image.config_digest });
    voice.answer(&object, || format!("{name}\n"))?;
    Ok(0)
}

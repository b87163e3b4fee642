//! `belljar image rm` and `prune`: what goes.

use belljar::Fault;
use belljar::images::Taken;
use belljar::limits::Bytes;
use belljar_image::store::Evict;

use super::images;
use crate::args::{ImagePruneArguments, ImageRemoveArguments};
use crate::voice::{Output, Voice, data, talk};
use crate::{fault, guest, words};

/// Removes what was named, all of it also when some of it fails; the first failure decides the exit code.
pub(crate) fn perform(arguments: &ImageRemoveArguments, voice: Voice) -> Result<u8, Fault> {
    let images = images()?;
    let (mut taken, mut failures) = (Taken::default(), Vec::new());
    for image in &arguments.images {
        match images.remove(image) {
            Ok(more) => add(&mut taken, more),
            Err(fault) => failures.push(fault),
        }
    }
    if failures.is_empty() {
        voice.answer(&taken, || lines(&taken))?;
        return Ok(0);
    }
    let first = failures.remove(0);
    if voice.output == Output::Text {
        data(&lines(&taken))?;
        failures.iter().for_each(|other| talk(fault::text(other).trim_end()));
    }
    Err(failures.into_iter().fold(first, |first, other| first.hint(format!("also: {other}"))))
}

fn add(taken: &mut Taken, more: Taken) {
    taken.names.extend(more.names);
    taken.images.extend(more.images);
    taken.layers += more.layers;
    taken.freed_bytes += more.freed_bytes;
}

fn lines(taken: &Taken) -> String {
    let names = taken.names.iter().map(|name| guest::line(name));
    names.chain(taken.images.iter().map(ToString::to_string)).map(|line| line + "\n").collect()
}

/// Removes what no image needs, and with a budget also images.
pub(crate) fn prune(arguments: &ImagePruneArguments, voice: Voice) -> Result<u8, Fault> {
    let images = images()?;
    let which = if arguments.everything { Evict::Everything } else { Evict::Fetchable };
    let budget = arguments.budget.budget.map(|Bytes(bytes)| bytes).or(images.settings.budget);
    let taken = if images.has_store() { images.prune(budget, which)? } else { Taken::default() };
    voice.answer(&taken, || {
        let (count, layers) =
            (words::count(taken.images.len(), "image"), words::count(taken.layers, "layer"));
        format!("{}removed {count} and {layers}, freed {}\n", lines(&taken), words::size(taken.freed_bytes))
    })?;
    Ok(0)
}

//! `belljar sandbox run`: one command in a sandbox of its own.
//!
//! The sandbox is begun first, by a fork, which needs a process with one thread; everything else is prepared while it
//! is being made.

use belljar::engine::NetworkSink;
use belljar::spec::Network;
use belljar::{Code, Fault};
use belljar_image::reference::Image;

use super::foreground::Foreground;
use super::{exec, order};
use crate::args::{self, OneShotArguments};
use crate::place::Place;
use crate::voice::{Detail, Voice, talk};
use crate::{guest, network};

/// Runs the command, and takes the sandbox down.
pub(crate) fn perform(arguments: OneShotArguments, voice: Voice) -> Result<u8, Fault> {
    let reach = match arguments.network {
        args::Network::None => Network::None,
        args::Network::Outbound => Network::Outbound,
    };
    let place = Place::find()?;
    let fetch = arguments.make.fetch;
    let images = place.images(fetch.owners)?;
    let image = order::image(&images, &arguments.image, fetch, voice)?;
    let command = command(arguments.command, &image)?;
    let recipe = order::recipe(image, &arguments.make, &arguments.share, reach)?;
    let starting = place.sandboxes(reach).begin(&recipe)?;
    let foreground = Foreground::prepare(&arguments.manner, voice)?;
    let execution = order::execution(command, &arguments.manner, None);
    let mut live = starting.ready(sink(voice))?;
    let attended = foreground.start(&mut live, &execution)?;
    let (id, number) = (live.id.clone(), attended.number);
    let (end, rest) = exec::ended(&mut live, attended);
    let gone = live.destroy();
    let code = exec::conclude(&id, number, &execution, end, rest, voice)?;
    for left in gone? {
        talk(&format!(
            "warning: the sandbox is not gone entirely: {} (belljar gc tries again)",
            guest::line(&left)
        ));
    }
    Ok(code)
}

/// What is run: what was typed, or what the image says.
fn command(typed: Vec<String>, image: &Image) -> Result<Vec<String>, Fault> {
    if !typed.is_empty() {
        return Ok(typed);
    }
    let own = match image {
        Image::Stored(stored) => {
            stored.settings.entrypoint.iter().chain(&stored.settings.cmd).flatten().cloned().collect()
        }
        Image::Host | Image::Directory(_) => Vec::new(),
    };
    if own.is_empty() {
        return Err(Fault::new(Code::Usage, format!("no command was given, and the image {image} has none"))
            .hint("write it after the options: belljar sandbox run --image IMAGE -- COMMAND"));
    }
    Ok(own)
}

/// What becomes of the events of the network: whoever wants to know more sees each.
fn sink(voice: Voice) -> NetworkSink {
    match voice.detail {
        Detail::Brief => Box::new(|_| {}),
        Detail::Full => Box::new(|event| talk(&format!("network: {}", guest::line(&network::line(&event))))),
    }
}

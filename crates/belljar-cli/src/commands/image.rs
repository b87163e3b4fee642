//! `belljar image`: fetch, keep, make and hand on images.

mod bring;
mod check;
mod export;
mod inspect;
mod list;
mod remove;
mod send;

use belljar::Fault;
use belljar::images::{Images, understood};
use belljar::{Code, Kind};
use belljar_image::reference::{Name, Reference};

use crate::args::{ImageVerb, OwnersArguments};
use crate::place::Place;
use crate::voice::Voice;

/// Does what the verb says; gives the exit code.
pub(crate) fn perform(verb: ImageVerb, voice: Voice) -> Result<u8, Fault> {
    match verb {
        ImageVerb::Pull(pull) => bring::pull(&pull, voice),
        ImageVerb::Push(push) => send::push(&push, voice),
        ImageVerb::Ls => list::perform(voice),
        ImageVerb::Inspect(one) => inspect::perform(&one, voice),
        ImageVerb::Tag(tag) => send::tag(&tag, voice),
        ImageVerb::Rm(remove) => remove::perform(&remove, voice),
        ImageVerb::Prune(prune) => remove::prune(&prune, voice),
        ImageVerb::Du => list::disk_usage(voice),
        ImageVerb::Fsck(fsck) => check::perform(&fsck, voice),
        ImageVerb::Import(import) => bring::import(&import, voice),
        ImageVerb::Export(export) => export::perform(&export, voice),
        ImageVerb::Bootstrap(bootstrap) => bring::bootstrap(&bootstrap, voice),
    }
}

/// The images of this user, for verbs that add none.
fn images() -> Result<Images, Fault> {
    Place::find()?.images(OwnersArguments { squash: false })
}

/// A name as images have them in the store: as in a registry.
fn name(text: &str) -> Result<Name, Fault> {
    let unknown = |message: String| Fault::new(Code::ImageUnknown, message);
    match understood(text)? {
        Reference::Registry(name) => Ok(name),
        other => Err(unknown(format!("`{text}` is no name for an image: it was {}", other.explained()))
            .hint("names are written as in a registry: app:1, team/app, registry.example:5000/app:1")),
    }
}

/// The exit code of a command that went through, and found that something is wrong.
const TROUBLE: Kind = Kind::Infrastructure;

//! Images that come: from registries, files, other programs and Debian's archive.

use std::fs::File;
use std::path::Path;

use belljar::images::{self, Bootstrap, Brought, Images, Pull, Summary, Variant, Watch};
use belljar::limits::Bytes;
use belljar::{Code, Fault};
use belljar_image::import::Imported;
use belljar_image::reference::{Found, Image, Reference};
use rustix::stdio;

use super::name;
use crate::args::{DebianVariant, ImageBootstrapArguments, ImageImportArguments, ImagePullArguments};
use crate::arrival::Arrival;
use crate::place::Place;
use crate::registries;
use crate::voice::Voice;

/// Fetches an image; the answer is its digest.
pub(crate) fn pull(arguments: &ImagePullArguments, voice: Voice) -> Result<u8, Fault> {
    let name = name(&arguments.image)?;
    let mut images = Place::find()?.images(arguments.owners)?;
    if let Some(Bytes(budget)) = arguments.budget.budget {
        images.settings.budget = Some(budget);
    }
    let image = Arrival::during(voice, |watch| images.pull(&name, watch))?;
    answer(&Brought { image: Summary::of(&image), called: Vec::new() }, voice)
}

/// Imports whatever a reference means; the answer is the image's digest.
pub(crate) fn import(arguments: &ImageImportArguments, voice: Voice) -> Result<u8, Fault> {
    let name = arguments.name.as_deref().map(name).transpose()?;
    let images = Place::find()?.images(arguments.owners)?;
    let imported = Arrival::during(voice, |watch| match arguments.source.as_str() {
        "-" => images.import_stream(stdin()?, watch),
        source => import_from(&images, source, watch),
    })?;
    answer(&images.named_import(&imported, name.as_ref())?, voice)
}

fn import_from(images: &Images, source: &str, watch: Watch<'_>) -> Result<Imported, Fault> {
    let unknown = |message: String| Fault::new(Code::ImageUnknown, message);
    // A path needs no ./ here: there is nothing else that it could be.
    let is_path = Path::new(source).exists() && !source.starts_with('/');
    let text = if is_path { format!("./{source}") } else { source.to_owned() };
    let reference = images::understood(&text)?;
    match reference.find(Path::new("")).map_err(|error| unknown(error.to_string()))? {
        Found::Directory(path) | Found::RootTar(path) => images.import(&path, None, watch),
        Found::OciLayout { path, tag, .. } => images.import(&path, tag.as_deref(), watch),
        Found::DockerArchive { path, name } => images.import(&path, name.as_deref(), watch),
        found @ (Found::Daemon { .. } | Found::Build { .. } | Found::Snapshot(_)) => {
            brought(images, &reference, &found, watch)
        }
        Found::Host | Found::Registry(_) | Found::Stored(_) => {
            Err(unknown(format!("nothing can be imported: `{source}` was {}", reference.explained())).hint(
                "a path, docker:NAME or podman:NAME is imported; belljar image pull fetches from a registry",
            ))
        }
    }
}

/// What others make is in the store when they are done.
fn brought(
    images: &Images,
    reference: &Reference,
    found: &Found,
    watch: Watch<'_>,
) -> Result<Imported, Fault> {
    match images.bring(reference, found, Pull::Missing, watch)? {
        Image::Stored(stored) => {
            let image = images.find(&stored.config_digest.to_string())?;
            Ok(Imported { image, names: Vec::new() })
        }
        Image::Host | Image::Directory(_) => {
            Err(Fault::new(Code::Internal, "an image that is not in the store"))
        }
    }
}

fn stdin() -> Result<File, Fault> {
    let copied = stdio::stdin().try_clone_to_owned();
    copied
        .map(File::from)
        .map_err(|error| Fault::new(Code::Internal, "could not read stdin").caused_by(error))
}

/// Makes a Debian image; the answer is its digest.
pub(crate) fn bootstrap(arguments: &ImageBootstrapArguments, voice: Voice) -> Result<u8, Fault> {
    let name = name(&arguments.name)?;
    let images = Place::find()?.images(arguments.owners)?;
    let what = Bootstrap {
        suite: arguments.suite.clone(),
        variant: match arguments.variant {
            DebianVariant::Extract => Variant::Extract,
            DebianVariant::Custom => Variant::Custom,
            DebianVariant::Essential => Variant::Essential,
            DebianVariant::Apt => Variant::Apt,
            DebianVariant::Minbase => Variant::Minbase,
        },
        packages: arguments.packages.clone(),
        mirror: arguments.mirror.clone(),
        epoch: registries::epoch()?,
    };
    let imported = Arrival::during(voice, |watch| images.bootstrap(&what, watch))?;
    answer(&images.named_import(&imported, Some(&name))?, voice)
}

fn answer(brought: &Brought, voice: Voice) -> Result<u8, Fault> {
    voice.answer(brought, || format!("{}\n", brought.image.config_digest))?;
    Ok(0)
}

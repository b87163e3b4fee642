//! The command line of `belljar image`.

use std::path::PathBuf;

use belljar::limits::Bytes;
use clap::{Args, Subcommand, ValueEnum};

use crate::help;

/// Arguments of `image`.
#[derive(Debug, Args)]
pub(crate) struct ImageArguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: ImageVerb,
}

/// What can be done with images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageVerb {
    /// Fetch an image from a registry; print its digest
    #[command(after_help = help::IMAGE_PULL)]
    Pull(ImagePullArguments),
    /// Send an image to a registry; print its name there, pinned
    #[command(after_help = help::IMAGE_PUSH)]
    Push(ImagePushArguments),
    /// List the images in the store, those used last first
    #[command(after_help = help::IMAGE_LS)]
    Ls,
    /// Say everything that is known of an image
    #[command(after_help = help::IMAGE_INSPECT)]
    Inspect(ImageOneArguments),
    /// Give an image another name
    #[command(after_help = help::IMAGE_TAG)]
    Tag(ImageTagArguments),
    /// Remove images, or names of images
    #[command(after_help = help::IMAGE_RM)]
    Rm(ImageRemoveArguments),
    /// Remove what no image needs; with a budget, also images that were not used for longest
    #[command(after_help = help::IMAGE_PRUNE)]
    Prune(ImagePruneArguments),
    /// Say what the store takes on the disk
    #[command(after_help = help::IMAGE_DU)]
    Du,
    /// Check everything in the store
    #[command(after_help = help::IMAGE_FSCK)]
    Fsck(ImageFsckArguments),
    /// Take an image from a file, a folder, Docker or Podman; print its digest
    #[command(after_help = help::IMAGE_IMPORT)]
    Import(ImageImportArguments),
    /// Write images as an archive that is both an OCI layout and a docker archive
    #[command(after_help = help::IMAGE_EXPORT)]
    Export(ImageExportArguments),
    /// Make a small Debian image with some packages, without a registry; print its digest
    #[command(after_help = help::IMAGE_BOOTSTRAP)]
    Bootstrap(ImageBootstrapArguments),
}

/// How an image is had, where a verb needs one.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Fetch {
    /// When a registry is asked for the image
    #[arg(long, value_name = "WHEN", default_value = "missing")]
    pub(crate) pull: When,
    #[command(flatten)]
    pub(crate) owners: OwnersArguments,
}

/// Whose the files of an image are.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OwnersArguments {
    /// Give every file of an image to the caller, where its owners cannot be kept
    #[arg(long)]
    pub(crate) squash: bool,
}

/// How much room the store may take.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Budget {
    /// Afterwards, remove what was not used for longest until the store takes no more than this: 5GB
    /// [default: BELLJAR_IMAGE_BUDGET]
    #[arg(long, value_name = "SIZE")]
    pub(crate) budget: Option<Bytes>,
}

/// When a registry is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// When the store has no image of that name.
    Missing,
    /// Each time.
    Always,
    /// Never.
    Never,
}

/// Arguments of `image pull`.
#[derive(Debug, Args)]
pub(crate) struct ImagePullArguments {
    /// The image in a registry: python:3.11, registry.example/team/app@sha256:…
    pub(crate) image: String,
    #[command(flatten)]
    pub(crate) owners: OwnersArguments,
    #[command(flatten)]
    pub(crate) budget: Budget,
}

/// Arguments of `image push`.
#[derive(Debug, Args)]
pub(crate) struct ImagePushArguments {
    /// The image in the store
    pub(crate) image: String,
    /// Its name in the registry [default: the same]
    pub(crate) to: Option<String>,
}

/// Arguments that name an image in the store.
#[derive(Debug, Args)]
pub(crate) struct ImageOneArguments {
    /// The image in the store: a name, a digest, or the beginning of one
    pub(crate) image: String,
}

/// Arguments of `image tag`.
#[derive(Debug, Args)]
pub(crate) struct ImageTagArguments {
    /// The image in the store: a name, a digest, or the beginning of one
    pub(crate) image: String,
    /// Its other name
    pub(crate) name: String,
}

/// Arguments of `image rm`.
#[derive(Debug, Args)]
pub(crate) struct ImageRemoveArguments {
    /// Images in the store: names, digests, or beginnings of them
    #[arg(value_name = "IMAGE", required = true)]
    pub(crate) images: Vec<String>,
}

/// Arguments of `image prune`.
#[derive(Debug, Args)]
pub(crate) struct ImagePruneArguments {
    #[command(flatten)]
    pub(crate) budget: Budget,
    /// Remove also images that were imported or built, and so cannot be fetched again
    #[arg(long, requires = "budget")]
    pub(crate) everything: bool,
}

/// Arguments of `image fsck`.
#[derive(Debug, Args)]
pub(crate) struct ImageFsckArguments {
    /// Read every byte, instead of sizes and times
    #[arg(long)]
    pub(crate) deep: bool,
    /// Mend what can be mended, and remove the rest
    #[arg(long)]
    pub(crate) repair: bool,
    /// Fetch again what was removed and has a registry
    #[arg(long, requires = "repair")]
    pub(crate) fetch: bool,
}

/// Arguments of `image import`.
#[derive(Debug, Args)]
pub(crate) struct ImageImportArguments {
    /// What: a path, oci:PATH[:TAG], docker-archive:PATH[:NAME], docker:NAME, podman:NAME, or `-` for an archive on stdin
    pub(crate) source: String,
    /// Its name in the store
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) owners: OwnersArguments,
}

/// Arguments of `image export`.
#[derive(Debug, Args)]
pub(crate) struct ImageExportArguments {
    /// The image in the store: a name, a digest, or the beginning of one
    pub(crate) image: String,
    /// The archive to write, or `-` for stdout
    pub(crate) file: PathBuf,
    /// What to write
    #[arg(long, value_name = "FORMAT", default_value = "archive")]
    pub(crate) format: Format,
}

/// What an export writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One archive that is both an OCI layout and a docker archive.
    Archive,
    /// An OCI layout in a new folder.
    Layout,
}

/// Arguments of `image bootstrap`.
#[derive(Debug, Args)]
pub(crate) struct ImageBootstrapArguments {
    /// The name of the image
    pub(crate) name: String,
    /// Debian packages to be installed in it
    #[arg(value_name = "PACKAGE")]
    pub(crate) packages: Vec<String>,
    /// Debian's release
    #[arg(long, value_name = "NAME", default_value = "bookworm")]
    pub(crate) suite: String,
    /// What is in it beside the packages
    #[arg(long, value_name = "VARIANT", default_value = "minbase")]
    pub(crate) variant: DebianVariant,
    /// Debian's archive, or a mirror of it [default: as mmdebstrap finds it]
    #[arg(long, value_name = "URL")]
    pub(crate) mirror: Option<String>,
    #[command(flatten)]
    pub(crate) owners: OwnersArguments,
}

/// What a Debian image has beside its packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DebianVariant {
    /// The packages with what they need, unpacked and not set up.
    Extract,
    /// Nothing that the packages do not need.
    Custom,
    /// What packages may rely on without saying so.
    Essential,
    /// And apt.
    Apt,
    /// And what is required of a system.
    Minbase,
}

impl From<When> for belljar::images::Pull {
    fn from(when: When) -> belljar::images::Pull {
        match when {
            When::Missing => belljar::images::Pull::Missing,
            When::Always => belljar::images::Pull::Always,
            When::Never => belljar::images::Pull::Never,
        }
    }
}

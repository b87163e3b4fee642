//! Images from Dockerfiles, without a daemon.
//!
//! A build is straight: the stages that are needed, in order; each instruction changes the configuration, or adds a
//! layer. Layers are archives with one time and sorted entries, so the same input is the same image. What RUN does is
//! behind a trait, because it needs a sandbox.

mod archive;
mod copy;
mod depot;
mod difference;
mod execute;
mod owner;
mod stages;
mod state;
mod tail;
mod view;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::digest::Digest;
use crate::dockerfile::{Dockerfile, Network, Ownership, Security, Sharing, words::WordError};
use crate::ignore::Ignore;
use crate::oci::{ImageConfig, Platform};

pub use depot::{Bring, StoreDepot};
pub use execute::{build, verify};
pub use owner::{Account, account};

/// Everything a build is told.
#[derive(Debug, Clone)]
pub struct BuildSpec {
    /// The file, understood.
    pub dockerfile: Dockerfile,
    /// The context's folder; without one, only stages and images can be copied from.
    pub context: Option<PathBuf>,
    /// What of the context is not there.
    pub ignore: Ignore,
    /// The stage to build, by name or number; the last when none is given.
    pub target: Option<String>,
    /// Values of ARGs.
    pub arguments: BTreeMap<String, String>,
    /// For which machine.
    pub platform: Platform,
    /// The time everything has, in seconds.
    pub epoch: i64,
    /// Whether earlier results may be used.
    pub cache: Cache,
}

/// Whether earlier results may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// Yes.
    Use,
    /// No; results are still kept.
    Ignore,
}

/// Runs commands in a sandbox whose root are some trees.
pub trait Runner {
    /// Runs a step on these trees, the lowest first; what it writes goes into `upper`, an empty folder, as the upper
    /// part of an overlay. Mounts leave nothing in `upper` but their mount points. Output is handed on as it comes.
    fn run(
        &mut self,
        step: &RunStep,
        lower: &[PathBuf],
        upper: &Path,
        output: &mut dyn FnMut(&[u8]),
    ) -> Result<RunEnd, Box<dyn std::error::Error + Send + Sync>>;

    /// Packs what a step left; says how many entries that were. Files may be of users that only the runner can act as.
    fn pack(
        &mut self,
        upper: &Path,
        options: &crate::pack::Options,
        archive: &File,
    ) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        Ok(crate::pack::pack(File::open(upper)?.as_fd(), options, io::BufWriter::new(archive))?.entries)
    }
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// Its exit code; 128 and the signal's number when one ended it.
    pub exit_code: i32,
    /// Why it ended, when it was not by itself.
    pub reason: Option<String>,
    /// Whose the files are that it left in its upper folder.
    pub owners: crate::pack::Owners,
}

/// One RUN, with everything decided.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RunStep {
    /// What is executed.
    pub command: Vec<String>,
    /// Variables, in order; the build's own arguments are among them.
    pub environment: Vec<(String, String)>,
    /// As the image says it: a name or number, and perhaps a group; empty for root.
    pub user: String,
    /// Where it starts.
    pub workdir: String,
    /// What is mounted.
    pub mounts: Vec<StepMount>,
    /// Files that are there only for this step.
    pub files: Vec<StepFile>,
    /// Its network.
    pub network: Network,
    /// What it asks to be allowed.
    pub security: Security,
}

/// A file that is there only for one step.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StepFile {
    /// Where.
    pub path: String,
    /// Its text; it can be executed.
    pub text: String,
}

/// A mount of one step.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum StepMount {
    /// Files of the context, a stage or an image.
    Bind {
        /// A copy of it that is the step's own. Where it is says nothing of what it is, so it is no part of the key.
        #[serde(skip)]
        tree: PathBuf,
        /// The path it came from.
        source: String,
        /// What is there: the digest of an archive of it.
        content: Digest,
        /// Where it is seen.
        target: String,
        /// What is written is thrown away.
        writable: bool,
    },
    /// A folder that stays from build to build.
    Cache {
        /// Which one.
        id: String,
        /// Where it is seen.
        target: String,
        /// Who may use it at once.
        sharing: Sharing,
        /// The step may only read.
        read_only: bool,
        /// Its owner and mode when it is made.
        ownership: Ownership,
    },
    /// Memory that is gone after the step.
    Tmpfs {
        /// Where it is seen.
        target: String,
        /// Its size in bytes.
        size: Option<u64>,
    },
    /// A file the caller hands in.
    Secret {
        /// Which one.
        id: String,
        /// Where it is seen.
        target: Option<String>,
        /// The variable it becomes.
        env: Option<String>,
        /// The step fails without it.
        required: bool,
        /// The file's owner and mode.
        ownership: Ownership,
    },
}

/// An image to start from, or to copy from.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// What it says of itself.
    pub config: ImageConfig,
    /// Its trees, the lowest first.
    pub trees: Vec<PathBuf>,
}

/// Where images and layers are kept.
pub trait Depot {
    /// An image by its reference.
    fn base(&mut self, reference: &str, platform: &Platform) -> Result<Base, BuildError>;
    /// A new empty folder that is gone after the build.
    fn folder(&mut self) -> Result<PathBuf, BuildError>;
    /// Unpacks an archive into a new folder that is gone after the build.
    fn unpack(&mut self, archive: File) -> Result<PathBuf, BuildError>;
    /// Adds a layer; returns its name and its tree.
    fn add(&mut self, archive: File) -> Result<(Digest, PathBuf), BuildError>;
    /// The tree of a layer that is there.
    fn tree(&mut self, diff_id: Digest) -> Result<Option<PathBuf>, BuildError>;
    /// What a step with this key made: a layer, or none.
    fn recall(&mut self, key: Digest) -> Result<Option<Made>, BuildError>;
    /// Remembers what a step made.
    fn remember(&mut self, key: Digest, made: &Made) -> Result<(), BuildError>;
    /// Adds the finished image; returns its name.
    fn finish(&mut self, config: &ImageConfig) -> Result<Digest, BuildError>;
}

/// What a step made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Made {
    /// Nothing that can be seen.
    Nothing,
    /// A layer and its tree.
    Layer(Digest, PathBuf),
}

/// Told while an image is built.
#[derive(Debug)]
pub enum BuildEvent<'a> {
    /// A step begins.
    Step {
        /// Which.
        number: usize,
        /// Of how many.
        total: usize,
        /// Its line.
        line: usize,
        /// As written.
        text: &'a str,
    },
    /// The step's result was known.
    Cached,
    /// Output of a RUN, as it came.
    Output(&'a [u8]),
    /// The step is done.
    Done {
        /// How long it took.
        took: Duration,
        /// The layer it made.
        layer: Option<Digest>,
    },
}

/// A finished build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The image.
    pub digest: Digest,
    /// What it says of itself.
    pub config: ImageConfig,
    /// Arguments that no ARG asked for.
    pub unused: Vec<String>,
}

/// Why nothing was built.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each says in words what it is.
pub enum BuildError {
    #[error("step {number} of {total} (line {line}, `{text}`) failed: {source}")]
    Step { number: usize, total: usize, line: usize, text: String, source: Box<BuildError> },
    #[error("{}", ended(command, *exit_code, reason.as_deref(), last))]
    Run { command: String, exit_code: i32, reason: Option<String>, last: String },
    #[error("the command could not be run: {0}")]
    Runner(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("there is no stage `{0}`")]
    NoStage(String),
    #[error("stage {0} copies from itself or from a later one")]
    Later(usize),
    #[error("the image `{0}` is not in the store")]
    NoImage(String),
    #[error("{0}")]
    Bring(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the image is for {there}, and this machine is {here}: build it there, or leave --platform out")]
    Platform { there: String, here: String },
    #[error("the archive could not be unpacked: {0}")]
    Unpack(#[from] crate::unpack::UnpackError),
    #[error("FROM names no image once its variables are filled in: give the build argument a value")]
    EmptyImage,
    #[error("`{word}`: {source}")]
    Word { word: String, source: WordError },
    #[error("`{0}` is not there, or is left out by the patterns of .dockerignore")]
    NoSource(String),
    #[error("this build has no context to copy from")]
    NoContext,
    #[error("`{pattern}` is not a pattern: {reason}")]
    Pattern { pattern: String, reason: &'static str },
    #[error("several sources need a folder as destination: end it with `/`")]
    NeedsFolder,
    #[error("`{0}` is a folder, and a file cannot take its place")]
    OverFolder(String),
    #[error("`{0}` is not a folder")]
    NotAFolder(String),
    #[error("`{0}` is neither a file, a folder nor a link")]
    NoFile(String),
    #[error("`{0}` has a name that means deletion in a layer: rename it")]
    Reserved(String),
    #[error("this is more than one step may copy")]
    TooMuch,
    #[error("nobody is called `{0}` in the image: use a number, or make the user first")]
    NoUser(String),
    #[error("`{0}` is not a mode: write it in octal, as 0755")]
    Mode(String),
    #[error("`{0}` is not a port: write 80, 80/udp or 8000-8010")]
    Port(String),
    #[error("{0} is not supported: {1}")]
    Unsupported(&'static str, &'static str),
    #[error("failed to read or write {what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("failed to pack what the command left: {0}")]
    Pack(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    #[error("two builds differ: {first} and {second}; {what}")]
    Differs { first: Digest, second: Digest, what: String },
}

fn ended(command: &str, exit_code: i32, reason: Option<&str>, last: &str) -> String {
    let how = reason.map_or_else(|| format!("ended with exit code {exit_code}"), str::to_owned);
    if last.is_empty() {
        format!("`{command}` {how}, and said nothing")
    } else {
        format!("`{command}` {how}; its last lines:\n{last}")
    }
}

impl BuildError {
    fn read(what: &str) -> impl FnOnce(io::Error) -> BuildError {
        let what = what.to_owned();
        move |source| BuildError::Io { what, source }
    }
}

#[cfg(test)]
mod tests;

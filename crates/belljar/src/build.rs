//! Images from Dockerfiles: the policy first, then every RUN in a cell of its own.

mod cache;
mod runner;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_image::build::{self, BuildError, BuildEvent, BuildSpec, Built, Cache, Depot, StoreDepot};
use belljar_image::digest::Digest;
use belljar_image::dockerfile::Dockerfile;
use belljar_image::ignore::{self, Ignore};
use belljar_image::lint::{self, Finding, Policy, Severity};
use belljar_image::oci::Platform;
use belljar_image::store::Store;

use crate::engine::embedded::Embedded;
use crate::fault::{Code, Fault};
use crate::interrupt::Interrupt;
use crate::limits::Limits;
use crate::spec::{Isolation, Network};
use runner::CellRunner;

/// What a Dockerfile may be long.
const LONGEST: u64 = 4 << 20;

/// Where images are built.
#[derive(Debug, Clone)]
pub struct Workshop {
    /// Makes the cells.
    pub engine: Embedded,
    /// The folder of what is kept from build to build: what steps made, and the folders of cache mounts.
    pub kept: PathBuf,
}

/// What is to be built, and how.
#[derive(Debug, Clone)]
pub struct BuildOrder {
    /// The folder that instructions copy from.
    pub context: PathBuf,
    /// The Dockerfile.
    pub dockerfile: PathBuf,
    /// The stage to build; the last when none is given.
    pub target: Option<String>,
    /// Values of ARGs.
    pub arguments: BTreeMap<String, String>,
    /// Files that are handed to steps that ask for them, by their ids.
    pub secrets: BTreeMap<String, PathBuf>,
    /// What steps can reach that do not say `--network=none`.
    pub network: Network,
    /// Whether earlier results may be used.
    pub cache: Cache,
    /// The time that everything has, in seconds since 1970.
    pub epoch: i64,
    /// How long one step may take.
    pub timeout: Option<Duration>,
    /// What one step may use at most.
    pub limits: Limits,
    /// What happens when something cannot be enforced.
    pub isolation: Isolation,
    /// What a Dockerfile must not do.
    pub policy: Policy,
    /// Where images come from that are not in the store.
    pub bring: Option<Bring>,
}

/// Brings an image into the store, and says by what name it is there.
#[derive(Clone)]
pub struct Bring(pub Arc<BringFn>);

/// What does it.
pub type BringFn = dyn Fn(&str) -> Result<String, Fault> + Send + Sync;

impl std::fmt::Debug for Bring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bring")
    }
}

impl BuildOrder {
    /// A closed build of a folder's Dockerfile, with nothing special about it.
    pub fn new(context: PathBuf, dockerfile: PathBuf) -> BuildOrder {
        BuildOrder {
            context,
            dockerfile,
            target: None,
            arguments: BTreeMap::new(),
            secrets: BTreeMap::new(),
            network: Network::None,
            cache: Cache::Use,
            epoch: 0,
            timeout: None,
            limits: Limits::default(),
            isolation: Isolation::Full,
            policy: Policy::default(),
            bring: None,
        }
    }

    /// Reads the Dockerfile and says what the policy finds in it.
    pub fn read(&self) -> Result<(Dockerfile, Vec<Finding>), Fault> {
        let text = text(&self.dockerfile)?;
        let file = Dockerfile::parse(&text).map_err(|error| {
            Fault::new(Code::DockerfileWrong, format!("{}: {error}", self.dockerfile.display()))
        })?;
        let findings = lint::lint(&file, &self.policy);
        Ok((file, findings))
    }

    fn ignore(&self) -> Result<Ignore, Fault> {
        let candidates = ignore::candidates(&self.context, &self.dockerfile);
        let Some(path) = candidates.iter().find(|path| path.symlink_metadata().is_ok()) else {
            return Ok(Ignore::default());
        };
        Ignore::parse(&text(path)?)
            .map_err(|error| Fault::new(Code::DockerfileWrong, format!("{}: {error}", path.display())))
    }
}

fn text(path: &Path) -> Result<String, Fault> {
    let read = || -> io::Result<String> {
        let mut text = String::new();
        File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| Fault::new(Code::DockerfileWrong, format!("{}: {error}", path.display())))
}

/// Why the policy lets nothing be built, if it does.
pub fn refusal(dockerfile: &Path, findings: &[Finding]) -> Option<Fault> {
    let errors: Vec<&Finding> =
        findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    let lines: Vec<String> = errors
        .iter()
        .map(|finding| {
            format!("{} line {}: {}\n  {}", finding.rule, finding.line, finding.message, finding.remedy)
        })
        .collect();
    (!errors.is_empty()).then(|| {
        let message = format!("the policy refuses {}:\n{}", dockerfile.display(), lines.join("\n"));
        Fault::new(Code::DockerfileRefused, message)
    })
}

impl Workshop {
    /// Builds an image into a store. What the policy calls an error must have been looked at before.
    pub fn build(
        &self,
        store: &Store,
        order: &BuildOrder,
        interrupt: &Arc<Interrupt>,
        events: &mut dyn FnMut(BuildEvent<'_>),
    ) -> Result<Built, Fault> {
        let (spec, mut runner) = self.prepare(order, interrupt)?;
        let mut depot = self.depot(store, order)?;
        build::build(&spec, &mut depot, &mut runner, events).map_err(|error| fault(error, interrupt))
    }

    /// Builds twice without earlier results and compares; the image is in the store when both are the same.
    pub fn verify(
        &self,
        store: &Store,
        order: &BuildOrder,
        interrupt: &Arc<Interrupt>,
        events: &mut dyn FnMut(BuildEvent<'_>),
    ) -> Result<Built, Fault> {
        let (spec, mut runner) = self.prepare(order, interrupt)?;
        let (mut one, mut other) = (self.depot(store, order)?, self.depot(store, order)?);
        let depots: [&mut dyn Depot; 2] = [&mut one, &mut other];
        build::verify(&spec, depots, &mut runner, events).map_err(|error| fault(error, interrupt))
    }

    fn prepare(
        &self,
        order: &BuildOrder,
        interrupt: &Arc<Interrupt>,
    ) -> Result<(BuildSpec, CellRunner), Fault> {
        let (dockerfile, findings) = order.read()?;
        if let Some(fault) = refusal(&order.dockerfile, &findings) {
            return Err(fault);
        }
        let spec = BuildSpec {
            dockerfile,
            context: Some(order.context.clone()),
            ignore: order.ignore()?,
            target: order.target.clone(),
            arguments: order.arguments.clone(),
            platform: Platform::here(),
            epoch: order.epoch,
            cache: order.cache,
        };
        Ok((spec, CellRunner::new(self, order, interrupt)))
    }

    fn depot<'a>(&self, store: &'a Store, order: &'a BuildOrder) -> Result<StoreDepot<'a>, Fault> {
        let depot = StoreDepot::new(store, &self.kept.join("steps")).map_err(unexpected)?;
        Ok(match &order.bring {
            Some(Bring(bring)) => depot.bringing(Box::new(move |reference| Ok(bring(reference)?))),
            None => depot,
        })
    }
}

fn unexpected(error: BuildError) -> Fault {
    fault(error, &Arc::default())
}

/// The failure of a build as a person meets it.
fn fault(error: BuildError, interrupt: &Arc<Interrupt>) -> Fault {
    if interrupt.is_asked() {
        return Fault::new(Code::Interrupted, "the build was interrupted");
    }
    let message = error.to_string();
    let (code, hints) = match innermost(&error) {
        BuildError::NoImage(name) => (
            Code::BaseMissing,
            vec![
                format!("belljar image pull {name} fetches it from its registry"),
                "belljar image import PATH takes it from an archive, a folder, Docker or Podman".to_owned(),
            ],
        ),
        BuildError::Run { .. } => (Code::BuildFailed, Vec::new()),
        BuildError::Differs { .. } => (Code::BuildDiffers, Vec::new()),
        BuildError::Runner(_) | BuildError::Pack(_) | BuildError::Io { .. } | BuildError::Store(_) => {
            (Code::BuildBroken, Vec::new())
        }
        BuildError::Bring(source) => match source.downcast_ref::<Fault>() {
            Some(fault) => (fault.code, fault.hints.clone()),
            None => (Code::BaseMissing, Vec::new()),
        },
        _ => (Code::DockerfileWrong, Vec::new()),
    };
    let code = runner::code(&error).unwrap_or(code);
    hints.into_iter().fold(Fault::new(code, message), Fault::hint).caused_by(error)
}

/// What really happened, below the step it happened in.
pub(crate) fn innermost(error: &BuildError) -> &BuildError {
    match error {
        BuildError::Step { source, .. } => innermost(source),
        other => other,
    }
}

/// Gives a built image a name, in full as all names in the store are.
pub fn name(store: &Store, image: Digest, name: &str) -> Result<String, Fault> {
    use belljar_image::reference::Reference;
    let full = match name.parse::<Reference>() {
        Ok(reference @ Reference::Registry(_)) => reference.to_string(),
        _ => {
            return Err(Fault::new(Code::Usage, format!("`{name}` is not a name for an image"))
                .hint("write it as NAME or NAME:TAG, in small letters"));
        }
    };
    let named = store.name(image, &full);
    named.map_err(|error| Fault::new(Code::BuildBroken, error.to_string()).caused_by(error))?;
    Ok(full)
}

//! Sandboxes that live: made by one process, used by others, until somebody or their deadline ends them.

mod finish;
mod live;
mod shelf;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_cell::cell::{
    self, CellSpec, DiskLimit, ExecLimits, Given, Guest, Lifetime, Origin, State, Status, Workspace,
};
use belljar_cell::client::{Cell, CellError};
use belljar_cell::powers::Powers;
use belljar_image::host;
use belljar_image::reference::Image;
use serde::Serialize;
use ulid::Ulid;

pub use self::finish::{Ending, Finish, Hand};
pub use self::live::{Launched, Live, Starting};
pub use self::shelf::{Snapshot, Swept};

use crate::engine::NetworkSink;
use crate::engine::embedded::{self, Embedded};
use crate::fault::{Code, Fault};
use crate::images::{self, Images};
use crate::limits::Limits;
use crate::moment::Moment;
use crate::spec::{Isolation, Network};

/// Where the guest works when nobody says otherwise.
pub const WORKDIR: &str = "/workspace";

/// The sandboxes of one user on this machine.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    /// The engine that makes them.
    pub engine: Embedded,
    /// The folder that holds one folder per snapshot.
    pub snapshots: PathBuf,
    /// Where the images are that snapshots were made on.
    pub images: Arc<Images>,
}

/// A sandbox to be made.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The root file system.
    pub image: Image,
    /// A snapshot to start from; its image counts, not this one's.
    pub snapshot: Option<String>,
    /// A folder of the host to work in, instead of one of the sandbox's own.
    pub workspace: Option<PathBuf>,
    /// Where the guest sees it; when nobody says, commands start where the image says, if it does.
    pub workdir: Option<String>,
    /// What it may use at most.
    pub limits: Limits,
    /// What it may write at most, if that is limited.
    pub disk: Option<DiskLimit>,
    /// What happens when something cannot be enforced.
    pub isolation: Isolation,
    /// What it can reach.
    pub network: Network,
    /// The name of the machine inside.
    pub hostname: String,
}

impl Recipe {
    /// A closed sandbox with default limits.
    pub fn new(image: Image) -> Recipe {
        Recipe {
            image,
            snapshot: None,
            workspace: None,
            workdir: None,
            limits: Limits::default(),
            disk: None,
            isolation: Isolation::Full,
            network: Network::None,
            hostname: "belljar".to_owned(),
        }
    }
}

/// What is known about a sandbox.
#[derive(Debug, Clone, Serialize)]
pub struct Info {
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub state: State,
    /// The image it was made from, as it would be written.
    pub image: String,
    /// The name of the machine inside.
    pub hostname: String,
    /// Where commands run when nobody says otherwise.
    pub workdir: String,
    /// The folder of the host that this is, if it is one.
    pub workspace: Option<PathBuf>,
    /// What it may use at most.
    pub limits: cell::Limits,
    /// Whose powers made it: `root` or `user`.
    pub mode: String,
    /// Which control groups hold it: `v1`, `v2` or `none`.
    pub control_groups: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Milliseconds until its deadline.
    pub left_ms: Option<u64>,
    /// Commands that run.
    pub running: u32,
    /// Bytes of memory in use.
    pub memory_bytes: Option<u64>,
    /// The keeper's process id.
    pub keeper: u32,
    /// What is enforced, and how that is known; a list of sandboxes leaves it out.
    pub controls: Vec<cell::Control>,
}

/// A command to be run in a sandbox.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The program and its arguments; a program without a slash is looked for along the `PATH` inside.
    pub command: Vec<String>,
    /// Programs to try in its place when it is not there.
    pub otherwise: Vec<String>,
    /// Variables on top of the sandbox's own.
    pub environment: BTreeMap<String, String>,
    /// Where it runs; the working folder when not said.
    pub directory: Option<String>,
    /// Who runs it, by number.
    pub user: Option<(u32, u32)>,
    /// When it is killed.
    pub timeout: Option<Duration>,
    /// Limits of its own.
    pub limits: ExecLimits,
}

impl Execution {
    /// A command with nothing special about it.
    pub fn new(command: Vec<String>) -> Execution {
        Execution {
            command,
            otherwise: Vec::new(),
            environment: BTreeMap::new(),
            directory: None,
            user: None,
            timeout: None,
            limits: ExecLimits::default(),
        }
    }
}

impl Sandboxes {
    /// Makes a sandbox that lives until its deadline.
    pub fn create(&self, recipe: &Recipe, lifetime: Duration) -> Result<Live, Fault> {
        if recipe.network != Network::None {
            return Err(Fault::new(
                Code::NetworkUnavailable,
                "a sandbox that outlives its command has no network yet",
            )
            .hint("use `belljar sandbox run --network outbound`, whose network ends with it"));
        }
        let after_ms = u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
        let spec = self.spec(recipe, Lifetime::Until { after_ms })?;
        let (cell, ..) = self.engine.start(&spec).and_then(|pending| pending.wait()).map_err(fault)?;
        Ok(Live { workdir: workdir_of(&spec), given: spec.given, id: spec.id, cell, gateway: None })
    }

    /// Makes a sandbox that ends with the value returned, or with this process.
    pub fn borrow(&self, recipe: &Recipe, sink: NetworkSink) -> Result<Live, Fault> {
        self.begin(recipe)?.ready(sink)
    }

    /// Begins to make such a sandbox; the caller may do other things meanwhile.
    pub fn begin(&self, recipe: &Recipe) -> Result<Starting, Fault> {
        let spec = self.spec(recipe, Lifetime::Owner)?;
        let pending = self.engine.start(&spec).map_err(fault)?;
        let workdir = workdir_of(&spec);
        let Recipe { network, .. } = *recipe;
        let engine = self.engine.clone();
        Ok(Starting { id: spec.id, workdir, given: spec.given, network, engine, pending })
    }

    /// Finds a sandbox by its id, or by the beginning of it when only one begins so.
    pub fn open(&self, id: &str) -> Result<Live, Fault> {
        let id = self.resolve(id)?;
        let mut cell = Cell::open(&self.engine.cells, &id).map_err(fault)?;
        let spec = cell.status().map_err(fault)?.spec;
        Ok(Live { id, cell, workdir: workdir_of(&spec), given: spec.given, gateway: None })
    }

    /// Takes a sandbox down; gives its whole id, and what could not be removed.
    pub fn remove(&self, id: &str) -> Result<(String, Vec<String>), Fault> {
        let id = self.resolve(id)?;
        let cell = Cell::open(&self.engine.cells, &id).map_err(fault)?;
        let failures = cell.destroy().map_err(fault)?;
        Ok((id, failures.iter().map(ToString::to_string).collect()))
    }

    fn resolve(&self, id: &str) -> Result<String, Fault> {
        let unknown = || Fault::new(Code::SandboxUnknown, format!("there is no sandbox `{id}`"));
        if id.is_empty() || id.contains('/') || id.starts_with('.') {
            return Err(unknown().hint(Code::SandboxUnknown.remedy()));
        }
        // A whole id needs no list of all others.
        if id.len() == PREFIX.len() + RANDOM && id.starts_with(PREFIX) && self.engine.cells.join(id).is_dir()
        {
            return Ok(id.to_owned());
        }
        let begins = |other: &String| other.starts_with(id) || other[PREFIX.len()..].starts_with(id);
        let found: Vec<String> = self.ids()?.into_iter().filter(begins).collect();
        match found.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(unknown().hint(Code::SandboxUnknown.remedy())),
            several => {
                let message = format!("`{id}` could be any of {}", several.join(", "));
                Err(Fault::new(Code::SandboxUnknown, message).hint("write more of the id"))
            }
        }
    }

    fn ids(&self) -> Result<Vec<String>, Fault> {
        let entries = match fs::read_dir(&self.engine.cells) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|error| unreadable(&self.engine.cells, error))?,
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut ids: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
        ids.sort();
        Ok(ids)
    }

    /// The sandboxes there are, oldest first.
    pub fn list(&self) -> Result<Vec<Info>, Fault> {
        let mut all = Vec::new();
        for id in self.ids()? {
            let status = Cell::open(&self.engine.cells, &id).and_then(|mut cell| cell.status());
            // One that ended since it was listed, or whose keeper was killed, is no sandbox any more.
            all.extend(status.ok().map(info));
        }
        all.sort_by_key(|info| info.created_ms);
        Ok(all)
    }

    /// Makes an independent copy of a sandbox's files in a new sandbox.
    pub fn fork(&self, id: &str, lifetime: Duration) -> Result<Live, Fault> {
        let mut parent = self.open(id)?;
        let status = parent.cell.status().map_err(fault)?;
        own_files(&status)?;
        let folder = belljar_cell::scratch::files(&status.spec, status.keeper);
        let mut spec = status.spec.clone();
        spec.id = new_id();
        spec.lifetime = Lifetime::Until { after_ms: u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX) };
        spec.origin = Some(Origin { folder, base: status.base });
        parent.cell.freeze().map_err(fault)?;
        let made = self.engine.start(&spec).and_then(|pending| pending.wait());
        let thawed = parent.cell.thaw().map_err(fault);
        let (cell, ..) = made.map_err(fault)?;
        thawed?;
        Ok(Live { workdir: workdir_of(&spec), given: spec.given, id: spec.id, cell, gateway: None })
    }

    fn spec(&self, recipe: &Recipe, lifetime: Lifetime) -> Result<CellSpec, Fault> {
        let (image, origin, workdir) = match &recipe.snapshot {
            None => (recipe.image.clone(), None, recipe.workdir.clone()),
            Some(name) => {
                let snapshot = self.find_snapshot(name)?;
                let image = self.image_below(&snapshot)?;
                let origin = self.origin(&snapshot)?;
                (image, Some(origin), Some(snapshot.workdir))
            }
        };
        let given = given(&image, recipe, workdir.as_deref());
        let workdir = workdir.unwrap_or_else(|| WORKDIR.to_owned());
        let target = PathBuf::from(&workdir);
        if !target.is_absolute()
            || target.components().any(|part| matches!(part, std::path::Component::ParentDir))
        {
            return Err(Fault::new(Code::Usage, format!("`{workdir}` is not an absolute path without `..`")));
        }
        let workspace = match (&recipe.workspace, &origin) {
            (Some(_), Some(_)) => {
                return Err(Fault::new(Code::Usage, "a snapshot brings its own working folder"));
            }
            (Some(source), None) => {
                let source = source.canonicalize().map_err(|error| unreadable(source, error))?;
                Workspace::Host { source, target }
            }
            (None, _) => Workspace::Own { target },
        };
        Ok(CellSpec {
            id: new_id(),
            cells: self.engine.cells.clone(),
            root: embedded::root(&image),
            image: image.to_string(),
            holds: embedded::holds(&image),
            given,
            workspace,
            certificates: host::certificates(),
            guest: Guest {
                uid: 1000,
                gid: 1000,
                name: "runner".to_owned(),
                home: PathBuf::from("/home/runner"),
            },
            hostname: recipe.hostname.clone(),
            limits: cell::Limits { disk: recipe.disk, ..embedded::limits(&recipe.limits) },
            isolation: embedded::isolation(recipe.isolation),
            network: embedded::network(recipe.network),
            lifetime,
            origin,
            powers: Powers::None,
            weaknesses: Vec::new(),
        })
    }
}

/// What the image brings along. Where it starts counts only when the caller did not say where the work is.
fn given(image: &Image, recipe: &Recipe, workdir: Option<&str>) -> Given {
    let Image::Stored(stored) = image else { return Given::default() };
    let directory = Some(&stored.settings.working_dir).filter(|folder| folder.starts_with('/'));
    let directory = directory.filter(|_| workdir.is_none() && recipe.workspace.is_none());
    Given {
        digest: Some(stored.config_digest.to_string()),
        environment: images::environment(&stored.settings).collect(),
        directory: directory.cloned(),
    }
}

/// What every sandbox's id begins with; cells of runs and trials are not sandboxes that a person made.
const PREFIX: &str = "sb-";
/// How many characters follow.
const RANDOM: usize = 12;

fn new_id() -> String {
    let ulid = Ulid::generate().to_string().to_lowercase();
    // The last characters are random; the first are the time, which all sandboxes of a minute share.
    format!("{PREFIX}{}", &ulid[ulid.len() - RANDOM..])
}

/// The moment so many microseconds after the beginning of 1970, which is how sandboxes tell time.
pub fn moment(micros: u64) -> Option<Moment> {
    let timestamp = jiff::Timestamp::from_microsecond(i64::try_from(micros).ok()?).ok()?;
    Some(Moment::from_timestamp(timestamp))
}

/// Where commands run when nobody says otherwise.
fn workdir_of(spec: &CellSpec) -> String {
    spec.given.directory.clone().unwrap_or_else(|| workspace_of(spec))
}

fn workspace_of(spec: &CellSpec) -> String {
    spec.workspace.target().to_string_lossy().into_owned()
}

fn own_files(status: &Status) -> Result<(), Fault> {
    match &status.spec.workspace {
        Workspace::Own { .. } => Ok(()),
        Workspace::Host { source, .. } => {
            let message = format!(
                "the sandbox works in {}, a folder of the host, which is not copied",
                source.display()
            );
            Err(Fault::new(Code::Usage, message)
                .hint("make the sandbox without --workspace, and copy files in and out"))
        }
    }
}

/// Everything about a sandbox, what is enforced included.
fn describe(cell: &mut Cell) -> Result<Info, Fault> {
    let status = cell.status().map_err(fault)?;
    Ok(Info { controls: cell.controls().map_err(fault)?, ..info(status) })
}

fn info(status: Status) -> Info {
    Info {
        state: status.state,
        workdir: workdir_of(&status.spec),
        image: status.spec.image,
        workspace: match status.spec.workspace {
            Workspace::Host { source, .. } => Some(source),
            Workspace::Own { .. } => None,
        },
        hostname: status.spec.hostname,
        limits: status.spec.limits,
        mode: status.created.mode,
        control_groups: status.created.groups,
        created_ms: status.created_ms,
        left_ms: status.left_ms,
        running: status.running,
        memory_bytes: status.memory,
        keeper: status.keeper,
        controls: Vec::new(),
        id: status.spec.id,
    }
}

fn fault(error: CellError) -> Fault {
    embedded::fault(error)
}

fn unreadable(path: &Path, error: io::Error) -> Fault {
    Fault::new(Code::OutputUnwritable, format!("{}: {error}", path.display())).caused_by(error)
}

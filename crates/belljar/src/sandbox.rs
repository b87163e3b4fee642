//! Sandboxes that live: made by one process, used by others, until somebody or their deadline ends them.

mod finish;
mod shelf;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_cell::cell::{
    self, CellSpec, DiskLimit, ExecEnd, ExecInfo, ExecLimits, ExecSpec, Full, Guest, Lifetime, Origin, Size,
    State, Status, Streams, User, Workspace,
};
use belljar_cell::client::{Cell, CellError, Interrupter, Pending};
use belljar_cell::log::Record;
use belljar_image::host;
use belljar_image::reference::Image;
use serde::Serialize;
use ulid::Ulid;

pub use self::finish::{Ending, Finish, Hand};
pub use self::shelf::{Snapshot, Swept};

use crate::engine::NetworkSink;
use crate::engine::embedded::{self, Embedded};
use crate::fault::{Code, Fault};
use crate::gateway::Gateway;
use crate::limits::Limits;
use crate::moment::Moment;
use crate::spec::{Isolation, Network};

/// Where the guest works when nobody says otherwise.
pub const WORKDIR: &str = "/workspace";
/// What a courier's errand is called in the list of commands; a command of the guest's always has a slash in it.
const ERRANDS: [&str; 2] = ["(put)", "(get)"];

/// The sandboxes of one user on this machine.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    /// The engine that makes them.
    pub engine: Embedded,
    /// The folder that holds one folder per snapshot.
    pub snapshots: PathBuf,
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
    /// Where the guest sees it.
    pub workdir: String,
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
            workdir: WORKDIR.to_owned(),
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
        Ok(Live { workdir: workdir_of(&spec), id: spec.id, cell, gateway: None })
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
        Ok(Starting { id: spec.id, workdir, network: recipe.network, engine: self.engine.clone(), pending })
    }

    /// Finds a sandbox by its id, or by the beginning of it when only one begins so.
    pub fn open(&self, id: &str) -> Result<Live, Fault> {
        let id = self.resolve(id)?;
        let mut cell = Cell::open(&self.engine.cells, &id).map_err(fault)?;
        let workdir = workdir_of(&cell.status().map_err(fault)?.spec);
        Ok(Live { id, cell, workdir, gateway: None })
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
        Ok(Live { workdir: workdir_of(&spec), id: spec.id, cell, gateway: None })
    }

    fn spec(&self, recipe: &Recipe, lifetime: Lifetime) -> Result<CellSpec, Fault> {
        let (image, origin, workdir) = match &recipe.snapshot {
            None => (recipe.image.clone(), None, recipe.workdir.clone()),
            Some(name) => {
                let snapshot = self.find_snapshot(name)?;
                let image = Image::find(&snapshot.image, Path::new("/")).map_err(|error| {
                    Fault::new(Code::ImageUnknown, format!("the snapshot's image is gone: {error}"))
                })?;
                let origin = self.origin(&snapshot)?;
                (image, Some(origin), snapshot.workdir)
            }
        };
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
            weaknesses: Vec::new(),
        })
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

fn workdir_of(spec: &CellSpec) -> String {
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

fn image_of(spec: &CellSpec) -> String {
    match &spec.root {
        cell::Root::Pieces(_) => "host".to_owned(),
        cell::Root::Directory(path) => path.display().to_string(),
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
        image: image_of(&status.spec),
        workdir: workdir_of(&status.spec),
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

/// A sandbox in the making, which ends with the value that comes of it.
#[derive(Debug)]
pub struct Starting {
    id: String,
    workdir: String,
    network: Network,
    engine: Embedded,
    pending: Pending,
}

impl Starting {
    /// Waits until it stands, and opens its network if it has one.
    pub fn ready(self, sink: NetworkSink) -> Result<Live, Fault> {
        let (mut cell, created, link) = self.pending.wait().map_err(fault)?;
        let gateway = match (created.link, link) {
            (Some(kind), Some(link)) => Some(self.engine.open_gateway(kind, link, sink)?),
            _ => None,
        };
        if self.network != Network::None {
            embedded::network_control(self.network, &cell.interfaces().map_err(fault)?)?;
        }
        Ok(Live { id: self.id, cell, workdir: self.workdir, gateway })
    }
}

/// What came of the start of a command.
#[derive(Debug)]
pub enum Launched {
    /// It runs, under this number.
    Running(u32),
    /// It was interrupted before it began.
    Over(Box<ExecEnd>),
}

/// A sandbox in use: one connection to it, with one command at a time. [`Live::another`] gives more.
#[derive(Debug)]
pub struct Live {
    /// Its id.
    pub id: String,
    /// Where commands run when nobody says otherwise.
    pub workdir: String,
    cell: Cell,
    gateway: Option<Gateway>,
}

impl Live {
    /// Another connection, for another thread.
    pub fn another(&self) -> Result<Live, Fault> {
        let cell = self.cell.another().map_err(fault)?;
        Ok(Live { id: self.id.clone(), workdir: self.workdir.clone(), cell, gateway: None })
    }

    /// What is known about it.
    pub fn info(&mut self) -> Result<Info, Fault> {
        describe(&mut self.cell)
    }

    /// Ends the running command from another thread.
    pub fn interrupter(&self) -> Interrupter {
        self.cell.interrupter()
    }

    /// Runs a command to its end with the streams given: standard input, output and error.
    pub fn exec(&mut self, execution: &Execution, streams: [BorrowedFd<'_>; 3]) -> Result<ExecEnd, Fault> {
        self.cell.exec(&self.spec(execution, Streams::Given)?, streams).map_err(fault)
    }

    /// Starts a command with the streams given: standard input, output and error. [`Live::end`] waits for it.
    pub fn launch(&mut self, execution: &Execution, streams: [BorrowedFd<'_>; 3]) -> Result<Launched, Fault> {
        let spec = self.spec(execution, Streams::Given)?;
        Ok(match self.cell.begin(&spec, &streams).map_err(fault)? {
            Ok(started) => Launched::Running(started.exec),
            Err(end) => Launched::Over(Box::new(end)),
        })
    }

    /// Starts a command on a terminal; its other end is given, and [`Live::end`] waits for the command.
    pub fn terminal(
        &mut self,
        execution: &Execution,
        size: Size,
    ) -> Result<(u32, std::os::fd::OwnedFd), Fault> {
        let spec = self.spec(execution, Streams::Terminal(size))?;
        match self.cell.begin(&spec, &[]).map_err(fault)? {
            Ok(started) => {
                let terminal = started.terminal.ok_or_else(|| fault(CellError::Unexpected))?;
                Ok((started.exec, terminal))
            }
            Err(_) => Err(Fault::new(Code::Interrupted, "interrupted before it began")),
        }
    }

    /// Starts a command whose output is kept; it goes on when this process ends.
    pub fn start(
        &mut self,
        execution: &Execution,
        stdin: BorrowedFd<'_>,
        limit: u64,
        full: Full,
    ) -> Result<u32, Fault> {
        let spec = self.spec(execution, Streams::Kept { limit, full })?;
        match self.cell.begin(&spec, &[stdin]).map_err(fault)? {
            Ok(started) => Ok(started.exec),
            Err(_) => Err(Fault::new(Code::Interrupted, "interrupted before it began")),
        }
    }

    /// Waits for the end of the command that was started over this connection.
    pub fn end(&mut self) -> Result<ExecEnd, Fault> {
        self.cell.end().map_err(fault)
    }

    /// Waits for the end of any command.
    pub fn wait(&mut self, exec: u32) -> Result<ExecEnd, Fault> {
        self.cell.wait(exec).map_err(fault)
    }

    /// The commands there are and were, oldest first.
    pub fn execs(&mut self) -> Result<Vec<ExecInfo>, Fault> {
        let mut all = self.cell.execs().map_err(fault)?;
        all.retain(|info| !info.command.first().is_some_and(|name| ERRANDS.contains(&name.as_str())));
        all.iter_mut().filter_map(|info| info.command.first_mut()).for_each(as_asked);
        Ok(all)
    }

    /// Sends a signal to the first process of a command.
    pub fn signal(&mut self, exec: u32, signal: i32) -> Result<(), Fault> {
        self.cell.signal(exec, signal).map_err(fault)
    }

    /// Kills a command and everything it started.
    pub fn kill(&mut self, exec: u32) -> Result<(), Fault> {
        self.cell.kill(exec).map_err(fault)
    }

    /// Gives a command's terminal another size.
    pub fn resize(&mut self, exec: u32, size: Size) -> Result<(), Fault> {
        self.cell.resize(exec, size).map_err(fault)
    }

    /// Reads the kept output of a command; see [`Cell::follow`].
    pub fn follow(
        &mut self,
        exec: u32,
        wait: bool,
        each: impl FnMut(Record) -> io::Result<bool>,
    ) -> Result<Option<ExecEnd>, Fault> {
        self.cell.follow(exec, wait, each).map_err(fault)
    }

    /// Unpacks a tar archive, read from `stream`, into a folder inside, as the guest.
    pub fn put(&mut self, path: &str, limits: (u64, u64), stream: BorrowedFd<'_>) -> Result<(), Fault> {
        self.cell.put(path, limits, stream).map_err(carrying)
    }

    /// Packs a file or folder inside into a tar archive, written to `stream`, as the guest.
    pub fn get(&mut self, path: &str, limits: (u64, u64), stream: BorrowedFd<'_>) -> Result<(), Fault> {
        self.cell.get(path, limits, stream).map_err(carrying)
    }

    /// Sets a new deadline.
    pub fn extend(&mut self, after: Duration) -> Result<(), Fault> {
        self.cell.extend(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)).map_err(fault)
    }

    /// Takes it down; what could not be removed is listed.
    pub fn destroy(self) -> Result<Vec<String>, Fault> {
        if let Some(gateway) = self.gateway {
            gateway.stop();
        }
        let failures = self.cell.destroy().map_err(fault)?;
        Ok(failures.iter().map(ToString::to_string).collect())
    }

    fn spec(&self, execution: &Execution, streams: Streams) -> Result<ExecSpec, Fault> {
        let Some((program, arguments)) = execution.command.split_first() else {
            return Err(Fault::new(Code::Usage, "no command was given"));
        };
        let mut environment = crate::plan::default_environment();
        if matches!(streams, Streams::Terminal(_)) {
            // Somebody looks.
            environment.remove("NO_COLOR");
        }
        environment.extend(execution.environment.clone());
        let path = environment.get("PATH").map_or("/usr/bin:/bin", String::as_str);
        let programs = [program].into_iter().chain(&execution.otherwise);
        Ok(ExecSpec {
            programs: programs.flat_map(|program| candidates(program, path)).collect(),
            arguments: arguments.to_vec(),
            directory: execution.directory.clone().unwrap_or_else(|| self.workdir.clone()),
            user: execution.user.map(|(uid, gid)| User { uid, gid }),
            timeout_ms: execution.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            limits: execution.limits,
            environment,
            streams,
        })
    }
}

/// The keeper remembers the first place where a program was looked for, which says nothing about where it was found.
fn as_asked(program: &mut String) {
    let environment = crate::plan::default_environment();
    let first = environment.get("PATH").and_then(|path| path.split(':').next()).unwrap_or("/usr/bin");
    if let Some(name) = program.strip_prefix(first).and_then(|rest| rest.strip_prefix('/')) {
        *program = name.to_owned();
    }
}

/// As a shell looks for a program.
fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    path.split(':')
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| format!("{folder}/{program}"))
        .collect()
}

fn fault(error: CellError) -> Fault {
    embedded::fault(error)
}

fn carrying(error: CellError) -> Fault {
    match error {
        CellError::Failed(failure) => Fault::new(Code::ArchiveRefused, failure.to_string()),
        other => fault(other),
    }
}

fn unreadable(path: &Path, error: io::Error) -> Fault {
    Fault::new(Code::OutputUnwritable, format!("{}: {error}", path.display())).caused_by(error)
}

//! Sandboxes that live: made by one process, used by others, until somebody or their deadline ends them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_cell::cell::{
    self, CellSpec, ExecEnd, ExecInfo, ExecLimits, ExecSpec, Full, Guest, Lifetime, Origin, Size, State,
    Status, Streams, User, Workspace,
};
use belljar_cell::client::{Cell, CellError, Interrupter};
use belljar_cell::copy::{self, Shift, copy_tree};
use belljar_cell::log::Record;
use belljar_image::host;
use belljar_image::reference::Image;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::engine::NetworkSink;
use crate::engine::embedded::{self, Embedded};
use crate::fault::{Code, Fault};
use crate::gateway::Gateway;
use crate::limits::Limits;
use crate::spec::{Isolation, Network};

/// Where the guest works when nobody says otherwise.
pub const WORKDIR: &str = "/workspace";
/// The file that says what a snapshot was made from.
const ABOUT: &str = "snapshot.json";
/// The most that a fork copies.
const COPY_LIMITS: copy::Limits = copy::Limits { bytes: 64 << 30, entries: 10_000_000 };

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
    /// What is enforced, and how that is known.
    pub controls: Vec<cell::Control>,
}

/// A snapshot: the files of a sandbox, kept as a base for others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// The sandbox it was taken from.
    pub sandbox: String,
    /// The image below it: `host` or a root directory.
    pub image: String,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
    /// Whether the sandbox stood still meanwhile.
    pub still: bool,
    /// The first outside id of the range that owns the files, when root made them.
    base: Option<u32>,
    /// Where the guest worked.
    workdir: String,
}

/// A command to be run in a sandbox.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The program and its arguments; a program without a slash is looked for along the `PATH` inside.
    pub command: Vec<String>,
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
    pub fn create(&self, recipe: &Recipe, lifetime: Duration) -> Result<Info, Fault> {
        if recipe.network != Network::None {
            return Err(Fault::new(
                Code::NetworkUnavailable,
                "a sandbox that outlives its command has no network yet",
            )
            .hint("use `belljar sandbox run --network outbound`, whose network ends with it"));
        }
        let after_ms = u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
        let spec = self.spec(recipe, Lifetime::Until { after_ms })?;
        let (mut cell, ..) = self.engine.start(&spec).and_then(|pending| pending.wait()).map_err(fault)?;
        Ok(info(cell.status().map_err(fault)?))
    }

    /// Makes a sandbox that ends with the value returned, or with this process.
    pub fn borrow(&self, recipe: &Recipe, mut sink: NetworkSink) -> Result<Live, Fault> {
        let spec = self.spec(recipe, Lifetime::Owner)?;
        let (mut cell, created, link) =
            self.engine.start(&spec).and_then(|pending| pending.wait()).map_err(fault)?;
        let gateway = match (created.link, link) {
            (Some(kind), Some(link)) => {
                Some(self.engine.open_gateway(kind, link, Box::new(move |event| sink(event)))?)
            }
            _ => None,
        };
        if recipe.network != Network::None {
            embedded::network_control(recipe.network, &cell.interfaces().map_err(fault)?)?;
        }
        Ok(Live { id: spec.id, cell, workdir: recipe.workdir.clone(), gateway })
    }

    /// Finds a sandbox by its id, or by the beginning of it when only one begins so.
    pub fn open(&self, id: &str) -> Result<Live, Fault> {
        let id = self.resolve(id)?;
        let mut cell = Cell::open(&self.engine.cells, &id).map_err(fault)?;
        let status = cell.status().map_err(fault)?;
        let workdir = status.spec.workspace.target().to_string_lossy().into_owned();
        Ok(Live { id, cell, workdir, gateway: None })
    }

    fn resolve(&self, id: &str) -> Result<String, Fault> {
        let unknown = || Fault::new(Code::SandboxUnknown, format!("there is no sandbox `{id}`"));
        if id.is_empty() || id.contains('/') || id.starts_with('.') {
            return Err(unknown().hint(Code::SandboxUnknown.remedy()));
        }
        let found: Vec<String> = self.ids()?.into_iter().filter(|other| other.starts_with(id)).collect();
        match found.as_slice() {
            [only] => Ok(only.clone()),
            _ if found.iter().any(|other| other == id) => Ok(id.to_owned()),
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
    pub fn fork(&self, id: &str, lifetime: Duration) -> Result<Info, Fault> {
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
        let (mut cell, ..) = made.map_err(fault)?;
        thawed?;
        Ok(info(cell.status().map_err(fault)?))
    }

    /// Keeps the files of a sandbox under a name.
    pub fn snapshot(&self, id: &str, name: &str) -> Result<Snapshot, Fault> {
        let folder = self.snapshot_folder(name)?;
        let mut sandbox = self.open(id)?;
        let status = sandbox.cell.status().map_err(fault)?;
        own_files(&status)?;
        fs::create_dir_all(&self.snapshots).map_err(|error| unreadable(&self.snapshots, error))?;
        if folder.exists() {
            let message = format!("there is a snapshot `{name}` already");
            return Err(
                Fault::new(Code::Usage, message).hint(format!("belljar sandbox snapshot --remove {name}"))
            );
        }
        // Under a name that is no snapshot's, so that a copy that was cut short is never taken for a whole one.
        let making = self.snapshots.join(format!(".making-{}", Ulid::generate()));
        let still = sandbox.cell.freeze().map_err(fault)?;
        let copied = self.keep(&status, name, &making, still);
        let thawed = sandbox.cell.thaw().map_err(fault);
        let snapshot = copied.and_then(|snapshot| {
            fs::rename(&making, &folder).map_err(|error| unreadable(&folder, error))?;
            Ok(snapshot)
        });
        if snapshot.is_err() {
            let _ = belljar_cell::remove::remove_tree(&making);
        }
        thawed?;
        snapshot
    }

    fn keep(&self, status: &Status, name: &str, making: &Path, still: bool) -> Result<Snapshot, Fault> {
        fs::create_dir(making).map_err(|error| unreadable(making, error))?;
        let shift = status.base.map(|base| Shift { from: base, to: base });
        copy_tree(
            &belljar_cell::scratch::files(&status.spec, status.keeper),
            &making.join("files"),
            shift,
            COPY_LIMITS,
        )
        .map_err(|failure| fault(CellError::Failed(failure)))?;
        let snapshot = Snapshot {
            name: name.to_owned(),
            sandbox: status.spec.id.clone(),
            image: image_of(&status.spec),
            created_ms: u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0),
            still,
            base: status.base,
            workdir: status.spec.workspace.target().to_string_lossy().into_owned(),
        };
        let text = serde_json::to_vec_pretty(&snapshot).unwrap_or_default();
        fs::write(making.join(ABOUT), text).map_err(|error| unreadable(making, error))?;
        Ok(snapshot)
    }

    fn snapshot_folder(&self, name: &str) -> Result<PathBuf, Fault> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 100 || name.starts_with('.') || !name.chars().all(plain) {
            let message = format!("`{name}` is not a name for a snapshot");
            return Err(Fault::new(Code::Usage, message).hint("use letters, digits, `-`, `_` and `.`"));
        }
        Ok(self.snapshots.join(name))
    }

    /// Finds a snapshot.
    pub fn find_snapshot(&self, name: &str) -> Result<Snapshot, Fault> {
        let folder = self.snapshot_folder(name)?;
        let unknown = |_| {
            Fault::new(Code::SnapshotUnknown, format!("there is no snapshot `{name}`"))
                .hint(Code::SnapshotUnknown.remedy())
        };
        let text = fs::read(folder.join(ABOUT)).map_err(unknown)?;
        serde_json::from_slice(&text).map_err(|error| unreadable(&folder, error.into()))
    }

    /// The snapshots there are, by name.
    pub fn list_snapshots(&self) -> Result<Vec<Snapshot>, Fault> {
        let entries = match fs::read_dir(&self.snapshots) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|error| unreadable(&self.snapshots, error))?,
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut all: Vec<Snapshot> = names
            .filter(|name| !name.starts_with('.'))
            .filter_map(|name| self.find_snapshot(&name).ok())
            .collect();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(all)
    }

    /// Removes a snapshot; sandboxes that started from it have their own copy.
    pub fn remove_snapshot(&self, name: &str) -> Result<(), Fault> {
        let snapshot = self.find_snapshot(name)?;
        let folder = self.snapshot_folder(&snapshot.name)?;
        belljar_cell::remove::remove_tree(&folder).map_err(|error| unreadable(&folder, error))
    }

    fn spec(&self, recipe: &Recipe, lifetime: Lifetime) -> Result<CellSpec, Fault> {
        let (image, origin, workdir) = match &recipe.snapshot {
            None => (recipe.image.clone(), None, recipe.workdir.clone()),
            Some(name) => {
                let snapshot = self.find_snapshot(name)?;
                let image = Image::find(&snapshot.image, Path::new("/")).map_err(|error| {
                    Fault::new(Code::ImageUnknown, format!("the snapshot's image is gone: {error}"))
                })?;
                let folder = self.snapshot_folder(name)?.join("files");
                (image, Some(Origin { folder, base: snapshot.base }), snapshot.workdir)
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
            limits: embedded::limits(&recipe.limits),
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

fn new_id() -> String {
    let ulid = Ulid::generate().to_string().to_lowercase();
    // The last characters are random; the first are the time, which all sandboxes of a minute share.
    format!("{PREFIX}{}", &ulid[ulid.len() - 12..])
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

fn info(status: Status) -> Info {
    Info {
        state: status.state,
        image: image_of(&status.spec),
        created_ms: status.created_ms,
        left_ms: status.left_ms,
        running: status.running,
        memory_bytes: status.memory,
        keeper: status.keeper,
        controls: status.created.controls,
        id: status.spec.id,
    }
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
        self.cell.status().map(info).map_err(fault)
    }

    /// Ends the running command from another thread.
    pub fn interrupter(&self) -> Interrupter {
        self.cell.interrupter()
    }

    /// Runs a command to its end with the streams given: standard input, output and error.
    pub fn exec(&mut self, execution: &Execution, streams: [BorrowedFd<'_>; 3]) -> Result<ExecEnd, Fault> {
        self.cell.exec(&self.spec(execution, Streams::Given)?, streams).map_err(fault)
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

    /// The commands there are and were.
    pub fn execs(&mut self) -> Result<Vec<ExecInfo>, Fault> {
        self.cell.execs().map_err(fault)
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
        environment.extend(execution.environment.clone());
        let path = environment.get("PATH").map_or("/usr/bin:/bin", String::as_str);
        Ok(ExecSpec {
            programs: candidates(program, path),
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

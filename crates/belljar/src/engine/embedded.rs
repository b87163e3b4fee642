//! The embedded engine: cells of `belljar-cell`, no daemon.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_cell::cell::{
    self, CellSpec, Created, Ended, ExecEnd, ExecLimits, ExecSpec, Guest, Lifetime, Piece, Refusal, Root,
    Streams, Workspace,
};
use belljar_cell::client::{Cell, CellError, Pending};
use belljar_cell::powers::Powers;
use belljar_cell::spawner::Spawner;
use belljar_image::host::{self, HostPiece};
use belljar_image::reference::Image;
use serde_json::json;

use crate::engine::{
    ArchiveLimits, Command, CommandLimits, CommandUser, DiskLimit, Engine, Exit, Made, NetworkSink, Order,
    Sandbox, Stop, Stopper, terminal,
};
use crate::fault::{Code, Fault};
use crate::gateway::{Gateway, GatewayOptions};
use crate::limits::Limits;
use crate::moment::Millis;
use crate::outcome::Ending;
use crate::record::{ControlRecord, EngineRecord, Usage};
use crate::spec::{Isolation, Network};

/// How long the kernel may take to remove a closed link.
const LINK_PATIENCE: Duration = Duration::from_secs(10);

/// Cells on this machine.
#[derive(Debug, Clone)]
pub struct Embedded {
    /// The folder that holds one folder per cell.
    pub cells: PathBuf,
    /// The resolvers that the gateway asks.
    pub resolvers: Vec<std::net::SocketAddr>,
    weaknesses: Vec<cell::Weakness>,
    keepers: Keepers,
}

/// Where keepers come from.
#[derive(Debug, Clone)]
enum Keepers {
    /// Forked from this process, while it has one thread.
    Here,
    /// Forked by a spawner, which is started when it is first needed.
    Apart(Arc<Apart>),
}

#[derive(Debug)]
struct Apart {
    program: PathBuf,
    spawner: Mutex<Option<Arc<Spawner>>>,
}

impl Embedded {
    /// An engine whose keepers are forked by a spawner: a copy of `program`, whose `main` calls
    /// `belljar_cell::spawner::run_if_asked`.
    pub fn new(program: PathBuf, cells: PathBuf, resolvers: Vec<std::net::SocketAddr>) -> Embedded {
        let keepers = Keepers::Apart(Arc::new(Apart { program, spawner: Mutex::new(None) }));
        Embedded { cells, resolvers, weaknesses: Vec::new(), keepers }
    }

    /// The same engine for a process that has one thread when it makes a cell: it forks the keeper itself, which is
    /// the quickest way.
    #[must_use]
    pub fn forking_here(self) -> Embedded {
        Embedded { keepers: Keepers::Here, ..self }
    }

    /// The same engine with deliberate faults, so that tests can show that they would notice.
    #[must_use]
    pub fn weakened(self, weaknesses: Vec<cell::Weakness>) -> Embedded {
        Embedded { weaknesses, ..self }
    }

    /// Asks for a cell.
    pub(crate) fn start(&self, spec: &CellSpec) -> Result<Pending, CellError> {
        match &self.keepers {
            Keepers::Here => Cell::start_here(spec),
            Keepers::Apart(apart) => Cell::start(&*apart.spawner()?, spec),
        }
    }
}

impl Apart {
    fn spawner(&self) -> Result<Arc<Spawner>, CellError> {
        let mut held = self.spawner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(spawner) = &*held {
            return Ok(Arc::clone(spawner));
        }
        let spawner = Arc::new(Spawner::start(&self.program)?);
        *held = Some(Arc::clone(&spawner));
        Ok(spawner)
    }
}

impl Engine for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn create(&self, order: &Order, sink: NetworkSink) -> Result<Made, Fault> {
        let spec = self.cell(order);
        let pending = self.start(&spec).map_err(fault)?;
        let (mut cell, created, link) = pending.wait().map_err(fault)?;
        let gateway = match (created.link, link) {
            (Some(kind), Some(link)) => Some(self.open_gateway(kind, link, sink)?),
            _ => None,
        };
        let engine = engine_record(&created);
        let mut controls: Vec<ControlRecord> = cell.controls().map_err(fault)?.iter().map(control).collect();
        match network_control(order.network, &cell.interfaces().map_err(fault)?) {
            // Whoever asked for a fault wants it.
            Err(_) if !self.weaknesses.is_empty() => {}
            control => controls.push(control?),
        }
        let guest = CommandUser { uid: order.user.uid, gid: order.user.gid };
        let only_user = (created.mode == "user").then_some(guest);
        Ok(Made { sandbox: Box::new(EmbeddedSandbox { cell, gateway, only_user }), engine, controls })
    }
}

impl Embedded {
    fn cell(&self, order: &Order) -> CellSpec {
        let (uid, gid) = (order.user.uid, order.user.gid);
        CellSpec {
            id: order.id.clone(),
            cells: self.cells.clone(),
            root: root(&order.image),
            image: order.image.to_string(),
            holds: holds(&order.image),
            // A run's plan says everything about its commands.
            given: cell::Given::default(),
            workspace: Workspace::Host {
                source: order.workspace.clone(),
                target: PathBuf::from(&order.workdir),
            },
            certificates: host::certificates(),
            guest: Guest { uid, gid, name: order.user.name.clone(), home: PathBuf::from(&order.user.home) },
            hostname: order.hostname.clone(),
            limits: cell::Limits { disk: order.disk.map(disk), ..limits(&order.limits) },
            isolation: isolation(order.isolation),
            network: network(order.network),
            lifetime: Lifetime::Owner,
            origin: None,
            powers: Powers::None,
            weaknesses: self.weaknesses.clone(),
        }
    }

    /// Serves a cell's link.
    pub(crate) fn open_gateway(
        &self,
        kind: belljar_cell::link::LinkKind,
        link: std::os::fd::OwnedFd,
        mut sink: NetworkSink,
    ) -> Result<Gateway, Fault> {
        let options = GatewayOptions::new(self.resolvers.clone());
        let sink = Box::new(move |event| sink(serde_json::to_value(event).unwrap_or_default()));
        Gateway::start(kind, link, options, sink).map_err(|error| {
            Fault::new(Code::NetworkUnavailable, format!("the gateway did not start: {error}"))
        })
    }
}

/// Limits as a cell knows them.
pub(crate) fn limits(limits: &Limits) -> cell::Limits {
    cell::Limits { memory: limits.memory.0, cpu_millis: limits.cpus.millis(), pids: limits.pids, disk: None }
}

fn disk(limit: DiskLimit) -> cell::DiskLimit {
    cell::DiskLimit { bytes: limit.bytes, inodes: limit.inodes }
}

/// What a cell does when a control cannot be had.
pub(crate) fn isolation(isolation: Isolation) -> cell::Isolation {
    match isolation {
        Isolation::Full => cell::Isolation::Full,
        Isolation::BestEffort => cell::Isolation::BestEffort,
    }
}

/// Whether a cell has a link.
pub(crate) fn network(network: Network) -> cell::Network {
    match network {
        Network::None => cell::Network::None,
        Network::Outbound => cell::Network::Link,
    }
}

/// What a cell is built on for an image.
pub(crate) fn root(image: &Image) -> Root {
    match image {
        Image::Directory(path) => Root::Layers(vec![path.clone()]),
        Image::Host => Root::Pieces(host::pieces().into_iter().map(piece).collect()),
        Image::Stored(stored) => Root::Layers(stored.layers.clone()),
    }
}

/// What is locked while a cell of an image lives.
pub(crate) fn holds(image: &Image) -> Vec<PathBuf> {
    match image {
        Image::Directory(_) | Image::Host => Vec::new(),
        Image::Stored(stored) => vec![stored.lock.clone()],
    }
}

fn piece(piece: HostPiece) -> Piece {
    match piece {
        HostPiece::Tree(path) => Piece::Host(path),
        HostPiece::Link { path, target } => Piece::Link { path, target },
    }
}

fn engine_record(created: &Created) -> EngineRecord {
    let kernel = rustix::system::uname();
    let facts = BTreeMap::from([
        ("kernel".to_owned(), json!(kernel.release().to_string_lossy())),
        ("machine".to_owned(), json!(kernel.machine().to_string_lossy())),
        ("control_groups".to_owned(), json!(created.groups)),
        ("mode".to_owned(), json!(created.mode)),
        ("link".to_owned(), json!(created.link)),
    ]);
    EngineRecord { name: "embedded".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), facts }
}

/// What the guest can reach, by the interfaces that it really has.
pub(crate) fn network_control(network: Network, interfaces: &[String]) -> Result<ControlRecord, Fault> {
    let (requested, most) = match network {
        Network::None => ("none", 1),
        Network::Outbound => ("outbound", 2),
    };
    let proof = format!("the guest's interfaces are {}", interfaces.join(", "));
    if interfaces.len() > most {
        return Err(Fault::new(
            Code::IsolationUnavailable,
            format!("network {requested} was asked for, and {proof}"),
        ));
    }
    let enforced = Some(requested.to_owned());
    Ok(ControlRecord { control: "network".to_owned(), requested: requested.to_owned(), enforced, proof })
}

fn control(control: &cell::Control) -> ControlRecord {
    ControlRecord {
        control: control.control.clone(),
        requested: control.requested.clone(),
        enforced: (control.enforced != "none").then(|| control.enforced.clone()),
        proof: control.proof.clone(),
    }
}

/// A cell with its gateway.
struct EmbeddedSandbox {
    cell: Cell,
    gateway: Option<Gateway>,
    /// The one user there is, where there is only one.
    only_user: Option<CommandUser>,
}

impl EmbeddedSandbox {
    /// Refuses a user who does not exist inside.
    fn check_user(&self, user: Option<CommandUser>) -> Result<(), Fault> {
        match (self.only_user, user) {
            (_, Some(CommandUser { uid: 0, .. } | CommandUser { gid: 0, .. })) => {
                Err(Fault::new(Code::IsolationUnavailable, "no command is root inside"))
            }
            (Some(only), Some(user)) if user != only => Err(Fault::new(
                Code::IsolationUnavailable,
                format!(
                    "a sandbox of an ordinary user without subordinate ids has one user inside, {}:{}, and {}:{} was asked for",
                    only.uid, only.gid, user.uid, user.gid
                ),
            )
            .hint("belljar doctor says how to get subordinate ids; or run it as root, or as the sandbox's own user")),
            _ => Ok(()),
        }
    }

    /// Runs a command on a terminal, which is served from here.
    fn exec_on_terminal(&mut self, spec: &ExecSpec, command: &Command) -> Result<ExecEnd, Fault> {
        let started = match self.cell.begin(spec, &[]).map_err(fault)? {
            Ok(started) => started,
            Err(end) => return Ok(end),
        };
        let unserved =
            |error| Fault::new(Code::SandboxFailed, "could not serve the terminal").caused_by(error);
        let terminal = started.terminal.ok_or(CellError::Unexpected).map_err(fault)?;
        let wait = || self.cell.end();
        terminal::serve(&terminal, command.stdin.as_ref(), &command.stdout, wait)
            .map_err(unserved)?
            .map_err(fault)
    }
}

impl Sandbox for EmbeddedSandbox {
    fn exec(&mut self, command: &Command) -> Result<Exit, Fault> {
        self.check_user(command.user)?;
        let spec = ExecSpec {
            programs: command.programs.clone(),
            name: None,
            arguments: command.arguments.clone(),
            environment: command.environment.clone(),
            directory: command.directory.clone(),
            user: command.user.map(|CommandUser { uid, gid }| cell::User { uid, gid }),
            timeout_ms: Some(millis(command.timeout)),
            limits: command_limits(command.limits),
            streams: match command.terminal {
                None => Streams::Given,
                Some(size) => Streams::Terminal(cell::Size { rows: size.rows, columns: size.columns }),
            },
        };
        if command.terminal.is_some() {
            return self.exec_on_terminal(&spec, command).map(|end| exit(&end));
        }
        let null = File::open("/dev/null")
            .map_err(|error| Fault::new(Code::SandboxFailed, "could not open /dev/null").caused_by(error))?;
        let stdin = command.stdin.as_ref().map_or(null.as_fd(), AsFd::as_fd);
        let streams = [stdin, command.stdout.as_fd(), command.stderr.as_fd()];
        self.cell.exec(&spec, streams).map(|end| exit(&end)).map_err(fault)
    }

    fn disconnect(&mut self) -> Result<(), Fault> {
        if let Some(failure) = self.gateway.take().and_then(|gateway| gateway.stop().failure) {
            return Err(Fault::new(Code::NetworkFailed, format!("the gateway failed: {failure}")));
        }
        let deadline = Instant::now() + LINK_PATIENCE;
        loop {
            let interfaces = self.cell.interfaces().map_err(fault)?;
            if interfaces == ["lo"] {
                return Ok(());
            }
            if Instant::now() > deadline {
                let message = format!("the guest still has the interfaces {}", interfaces.join(", "));
                return Err(Fault::new(Code::SandboxFailed, message));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stopper(&self) -> Stopper {
        let interrupter = self.cell.interrupter();
        Arc::new(move |stop| {
            let stop = match stop {
                Stop::Interrupted => cell::Stop::Interrupted,
                Stop::OutputLimit => cell::Stop::OutputLimit,
            };
            // A keeper that is gone has nothing to interrupt.
            drop(interrupter.interrupt(stop));
        })
    }

    fn another(&self) -> Result<Box<dyn Sandbox>, Fault> {
        let cell = self.cell.another().map_err(fault)?;
        Ok(Box::new(EmbeddedSandbox { cell, gateway: None, only_user: self.only_user }))
    }

    fn put(&mut self, path: &str, limits: ArchiveLimits, archive: BorrowedFd<'_>) -> Result<(), Fault> {
        self.cell.put(path, (limits.bytes, limits.entries), archive).map_err(carrying)
    }

    fn get(&mut self, path: &str, limits: ArchiveLimits, archive: BorrowedFd<'_>) -> Result<(), Fault> {
        self.cell.get(path, (limits.bytes, limits.entries), archive).map_err(carrying)
    }

    fn destroy(self: Box<Self>) -> Result<Vec<String>, Fault> {
        let EmbeddedSandbox { cell, gateway, .. } = *self;
        if let Some(gateway) = gateway {
            gateway.stop();
        }
        let failures = cell.destroy().map_err(fault)?;
        Ok(failures.iter().map(ToString::to_string).collect())
    }
}

fn command_limits(limits: CommandLimits) -> ExecLimits {
    ExecLimits {
        memory: limits.memory,
        cpu_millis: None,
        pids: limits.pids,
        cpu_time_ms: limits.processor_time.map(millis),
        open_files: limits.open_files,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What goes wrong with a courier is about the guest's files or the archive.
fn carrying(error: CellError) -> Fault {
    match error {
        CellError::Failed(failure) => Fault::new(Code::ArchiveRefused, failure.to_string()),
        other => fault(other),
    }
}

/// The end of a command as an engine tells it.
pub(crate) fn exit(end: &ExecEnd) -> Exit {
    let (ending, exit_code, signal) = ending(end);
    Exit {
        ending,
        exit_code,
        signal,
        survivors: end.survivors,
        not_started: match &end.ended {
            Ended::NotStarted(failure) => Some(failure.to_string()),
            Ended::Exited(_)
            | Ended::Signalled(_)
            | Ended::TimedOut
            | Ended::Interrupted
            | Ended::OutputLimit
            | Ended::CpuTimeLimit
            | Ended::CellEnded => None,
        },
        wall: Duration::from_micros(end.wall_us),
        usage: Usage {
            user_ms: Some(Millis::from_micros(end.user_us)),
            system_ms: Some(Millis::from_micros(end.system_us)),
            peak_memory_bytes: end.peak_memory,
            memory_kills: end.oom_kills,
            killed_processes: Some(u64::from(end.killed)),
            throttled_ms: end.throttled_us.map(Millis::from_micros),
            ..Usage::default()
        },
    }
}

/// The exit code of a program that was killed for memory is its own business; that it was, is the kernel's word.
fn ending(end: &ExecEnd) -> (Ending, i32, Option<i32>) {
    let starved = end.oom_kills.is_some_and(|kills| kills > 0);
    match &end.ended {
        // As a shell would tell it: 127 for what is not there, 126 for what may not be used.
        Ended::NotStarted(failure) if failure.errno == NOT_FOUND && failure.step.starts_with("start ") => {
            (Ending::Exited, 127, None)
        }
        Ended::NotStarted(_) => (Ending::Exited, 126, None),
        Ended::TimedOut => (Ending::TimedOut, 124, None),
        Ended::Interrupted | Ended::CellEnded => (Ending::Interrupted, 130, None),
        Ended::OutputLimit => (Ending::OutputLimit, 137, Some(KILLED)),
        Ended::CpuTimeLimit => (Ending::CpuTimeLimit, 137, Some(KILLED)),
        Ended::Exited(0) => (Ending::Exited, 0, None),
        Ended::Exited(code) if starved => (Ending::OutOfMemory, *code, None),
        Ended::Exited(code) if end.disk_full == Some(true) => (Ending::DiskLimit, *code, None),
        Ended::Exited(code) => (Ending::Exited, *code, None),
        Ended::Signalled(signal) if starved => (Ending::OutOfMemory, 128 + signal, Some(*signal)),
        Ended::Signalled(signal) => (Ending::Signalled, 128 + signal, Some(*signal)),
    }
}

/// The failure of a cell as a person meets it.
pub(crate) fn fault(error: CellError) -> Fault {
    let code = match &error {
        CellError::Refused(Refusal::Limits(_)) => Code::LimitsUnavailable,
        CellError::Refused(Refusal::Isolation(_)) => Code::IsolationUnavailable,
        CellError::Refused(Refusal::Link(_)) => Code::NetworkUnavailable,
        CellError::Failed(failure) if failure.errno == DISK_FULL => Code::DiskFull,
        CellError::NoSuchCell { .. } => Code::SandboxUnknown,
        CellError::NoSuchExec(_) => Code::ExecUnknown,
        CellError::StartKeeper { .. }
        | CellError::Threads
        | CellError::Talk { .. }
        | CellError::KeeperGone
        | CellError::Silent
        | CellError::Failed(_)
        | CellError::Unexpected => Code::SandboxFailed,
    };
    Fault::new(code, format!("the sandbox: {error}")).hint(code.remedy()).caused_by(error)
}

/// SIGKILL.
const KILLED: i32 = 9;
/// ENOENT, as it crosses the keeper's socket.
const NOT_FOUND: i32 = 2;
/// ENOSPC likewise.
const DISK_FULL: i32 = 28;

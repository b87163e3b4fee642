//! What a cell is, as data: everything the keeper needs to know, decided beforehand.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::link::LinkKind;
use crate::powers::{Building, Powers, Role};

/// A cell to be made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CellSpec {
    /// Unique name; also the name of its folder and its control groups.
    pub id: String,
    /// The folder that holds one folder per cell, with its lease and its writable layer.
    pub cells: PathBuf,
    /// What the guest sees as `/`.
    pub root: Root,
    /// What a person calls that; only told.
    #[serde(default)]
    pub image: String,
    /// Files that are locked, shared, for as long as the cell lives: who owns the layers then leaves them alone.
    #[serde(default)]
    pub holds: Vec<PathBuf>,
    /// What the image brings along for whoever runs commands; the cell itself has no use for it.
    #[serde(default)]
    pub given: Given,
    /// The folder the guest works in.
    pub workspace: Workspace,
    /// The host's bundle of certificate authorities, shown at [`CERTIFICATES`].
    pub certificates: Option<PathBuf>,
    /// Who the guest is inside.
    pub guest: Guest,
    /// The name of the machine inside.
    pub hostname: String,
    /// Kernel limits for the whole cell.
    pub limits: Limits,
    /// What to do when a limit cannot be set here.
    pub isolation: Isolation,
    /// Whether the cell starts with a link to the outside.
    pub network: Network,
    /// What ends it when nobody does.
    pub lifetime: Lifetime,
    /// Private files to start with instead of none.
    #[serde(default)]
    pub origin: Option<Origin>,
    /// What the guest may do beyond what any user may.
    #[serde(default)]
    pub powers: Powers,
    /// Deliberate faults, so that tests can show that they would notice.
    #[serde(default)]
    pub weaknesses: Vec<Weakness>,
}

/// What an image brings along for commands that do not say otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// What names the image by its content, where something does.
    pub digest: Option<String>,
    /// Variables.
    pub environment: BTreeMap<String, String>,
    /// Where commands start.
    pub directory: Option<String>,
}

/// Where every guest finds the certificate authorities that the host trusts.
pub const CERTIFICATES: &str = "/etc/belljar/ca-certificates.crt";

/// What the guest sees as `/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Root {
    /// A list of read-only pieces of this machine over an empty read-only root.
    Pieces(Vec<Piece>),
    /// Folders as the lower layers of an overlay, the lowest first; what the guest changes stays in the cell. A root
    /// directory is one of them alone. They may hold whiteouts in the form that an overlay with `userxattr` knows.
    Layers(Vec<PathBuf>),
}

/// One piece of a root that is made of pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// A file or folder of the host, read-only, at the same path.
    Host(PathBuf),
    /// A symbolic link.
    Link {
        /// Where it is.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// An empty folder.
    Folder(PathBuf),
}

/// The folder the guest works in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Workspace {
    /// A folder of the host: what the guest writes comes back owned by the caller.
    Host {
        /// Where it is on the host.
        source: PathBuf,
        /// Where the guest sees it.
        target: PathBuf,
    },
    /// A folder of the cell's own, gone with it.
    Own {
        /// Where the guest sees it.
        target: PathBuf,
    },
}

impl Workspace {
    /// Where the guest sees it.
    pub fn target(&self) -> &std::path::Path {
        match self {
            Workspace::Host { target, .. } | Workspace::Own { target } => target,
        }
    }
}

/// What ends a cell when nobody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// The end of the process that made it.
    Owner,
    /// A deadline; until then it may be used by any process of the same user.
    Until {
        /// Milliseconds from its creation.
        after_ms: u64,
    },
}

/// The private files of another cell, or of a snapshot, that a cell starts with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Origin {
    /// The folder that holds them, as [`crate::scratch`] lays it out.
    pub folder: PathBuf,
    /// The first outside id of the range that owns them, when root made them.
    pub base: Option<u32>,
}

/// Who the guest is inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Guest {
    /// User id inside; 0 only in a cell for building.
    pub uid: u32,
    /// Group id inside; 0 only in a cell for building.
    pub gid: u32,
    /// Login name.
    pub name: String,
    /// Home folder.
    pub home: PathBuf,
}

/// Kernel limits for the whole cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory; swap is off.
    pub memory: u64,
    /// Thousandths of a processor.
    pub cpu_millis: u32,
    /// Processes and threads.
    pub pids: u32,
    /// What may be written outside the image; `None` means that nobody asked for a limit.
    #[serde(default)]
    pub disk: Option<DiskLimit>,
}

/// How much may be written to the private files, a workspace of the cell's own among them; not to one of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLimit {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files, folders and links.
    pub inodes: u64,
}

/// What to do when a limit cannot be set here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolation {
    /// Refuse to make the cell.
    Full,
    /// Go on without, and say so.
    BestEffort,
}

/// Whether the cell has a link to the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Its own loopback only.
    None,
    /// A link whose other end is handed to the caller.
    Link,
}

/// A deliberate fault. Only tests ask for one, through the library: no task file, command line or guest can.
///
/// Whoever asks for a fault wants it: a cell that has one is not refused for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weakness {
    /// Leave the processes of a command alive when it ends.
    KeepProcesses,
    /// Put no syscall filter on.
    NoFilter,
    /// Leave the guest every capability over its own namespaces.
    KeepCapabilities,
    /// Let programs gain privileges, without which no filter can be put on either.
    NewPrivileges,
    /// Stay in the network namespace of the host.
    HostNetwork,
    /// Stay in the message queues and shared segments of the host.
    ShareMessages,
    /// Give all cells one `/tmp`.
    ShareTemporary,
    /// Make the first process the guest's own, without powers, and open to it.
    OpenFirstProcess,
    /// Cover nothing in `/proc`.
    ShowKernelFiles,
    /// Leave a descriptor open for the guest.
    LeakDescriptor,
    /// Do not map the owners of the workspace.
    ForeignOwner,
    /// Be root inside, whoever the guest is to be.
    RootGuest,
    /// Let crashes leave cores.
    KeepCores,
    /// Leave a signal ignored.
    IgnoreSignals,
}

impl CellSpec {
    /// Whether the cell is to have this fault.
    pub(crate) fn is_weak(&self, weakness: Weakness) -> bool {
        self.weaknesses.contains(&weakness)
    }

    /// What makes it a cell for building, if it is one.
    pub fn building(&self) -> Option<&Building> {
        match &self.powers {
            Powers::None => None,
            Powers::Build(building) => Some(building),
        }
    }

    /// What its guest is allowed to be.
    pub(crate) fn role(&self) -> Role {
        if self.building().is_some() { Role::Builder } else { Role::Guest }
    }
}

/// A command to be run in a cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecSpec {
    /// Programs to try in order; the first that exists is started. Absolute paths inside.
    pub programs: Vec<String>,
    /// What it is told that it is called; where it was found, when not said.
    #[serde(default)]
    pub name: Option<String>,
    /// The arguments after the program's name.
    pub arguments: Vec<String>,
    /// The whole environment.
    pub environment: BTreeMap<String, String>,
    /// Working directory inside.
    pub directory: String,
    /// Who runs it; the cell's guest when not said.
    #[serde(default)]
    pub user: Option<User>,
    /// When the command is killed, in milliseconds from its start; never when not said.
    pub timeout_ms: Option<u64>,
    /// Limits for this command alone, within those of the cell.
    #[serde(default)]
    pub limits: ExecLimits,
    /// Where its input comes from and its output goes.
    #[serde(default)]
    pub streams: Streams,
}

/// Who runs a command, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
}

/// Limits for one command; what is not said is the cell's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecLimits {
    /// Bytes of memory.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    #[serde(default)]
    pub cpu_millis: Option<u32>,
    /// Processes and threads.
    #[serde(default)]
    pub pids: Option<u32>,
    /// Processor time of the whole tree, in milliseconds.
    #[serde(default)]
    pub cpu_time_ms: Option<u64>,
    /// Open files of each process.
    #[serde(default)]
    pub open_files: Option<u64>,
}

/// Where a command's input comes from and its output goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Streams {
    /// Standard input, output and error come along with the request. The command ends with the connection.
    #[default]
    Given,
    /// A terminal is made; its other end goes back to the client. The command ends with the connection.
    Terminal(Size),
    /// Standard input comes along; the keeper keeps the output. The command outlives the connection.
    Kept {
        /// Bytes of output to keep.
        limit: u64,
        /// What happens at the limit.
        full: Full,
    },
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// What happens when a command has written all the output it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Full {
    /// It goes on, and the rest is counted and dropped.
    Drop,
    /// It is killed.
    Kill,
}

/// How a command ended, told by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It exited by itself.
    Exited(i32),
    /// A signal ended it.
    Signalled(i32),
    /// Its time was up and it was killed.
    TimedOut,
    /// The caller asked for its end.
    Interrupted,
    /// It wrote more output than it may and was killed.
    OutputLimit,
    /// It used more processor time than it may and was killed.
    CpuTimeLimit,
    /// The cell itself ended.
    CellEnded,
    /// It could not be started, by the guest's own doing: no such program, a folder it may not enter.
    NotStarted(Failure),
}

/// Everything known about a command that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// How it ended.
    pub ended: Ended,
    /// Processes of the command that were still alive when it ended and had to be killed; threads count where control
    /// groups do the counting.
    pub killed: u32,
    /// Processes of the command alive after the killing; counted, not assumed.
    pub survivors: u32,
    /// How often the kernel killed for lack of memory meanwhile; `None` where no limit is in force.
    pub oom_kills: Option<u64>,
    /// Wall time in microseconds.
    pub wall_us: u64,
    /// User time of the command's tree, as far as it was waited for.
    pub user_us: u64,
    /// System time likewise.
    pub system_us: u64,
    /// The command's peak of memory in bytes; of the whole cell where commands have no groups of their own.
    pub peak_memory: Option<u64>,
    /// Bytes read from and written to devices by the tree, as far as it was waited for.
    pub io: (u64, u64),
    /// How long the processor limit held it back, in microseconds.
    pub throttled_us: Option<u64>,
    /// How long it was held up for want of processor, memory and device time, in microseconds.
    pub pressure: Option<Pressure>,
    /// Bytes of output kept and dropped, where the keeper keeps it.
    pub output: Option<(u64, u64)>,
    /// Whether the cell's disk was full when it ended; `None` where there is no limit.
    pub disk_full: Option<bool>,
}

/// For how long some process had to wait, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// For a processor.
    pub cpu_us: u64,
    /// For memory.
    pub memory_us: u64,
    /// For a device.
    pub io_us: u64,
}

impl ExecEnd {
    /// The end of a command of which nothing else is known.
    pub fn bare(ended: Ended) -> ExecEnd {
        ExecEnd {
            ended,
            killed: 0,
            survivors: 0,
            oom_kills: None,
            wall_us: 0,
            user_us: 0,
            system_us: 0,
            peak_memory: None,
            io: (0, 0),
            throttled_us: None,
            pressure: None,
            output: None,
            disk_full: None,
        }
    }
}

/// One control: what was asked for, what is in force, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Its name, e.g. `memory`.
    pub control: String,
    /// What was asked for.
    pub requested: String,
    /// What is in force; `none` when it could not be had.
    pub enforced: String,
    /// Where the proof comes from.
    pub proof: String,
}

/// A cell that was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Created {
    /// The process id of its init on the host.
    pub init: i32,
    /// What kind of link comes with it.
    pub link: Option<LinkKind>,
    /// `root` or `user`: whose powers made it.
    pub mode: String,
    /// Which control groups hold it: `v1`, `v2` or `none`.
    pub groups: String,
}

/// The life of a cell; only the steps of [`State::may_become`] exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its parts are being made.
    Making,
    /// Commands may run.
    Ready,
    /// Its processes stand still while its files are copied.
    Frozen,
    /// It is being taken down.
    Ending,
}

impl State {
    /// Whether `next` may follow.
    pub fn may_become(self, next: State) -> bool {
        use State::{Ending, Frozen, Making, Ready};
        matches!((self, next), (Making, Ready | Ending) | (Ready, Frozen | Ending) | (Frozen, Ready | Ending))
    }
}

/// What is known about a living cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Where it is in its life.
    pub state: State,
    /// The keeper's process id.
    pub keeper: u32,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// What it was made from.
    pub spec: CellSpec,
    /// How it was made.
    pub created: Created,
    /// Milliseconds until its deadline, if it has one.
    pub left_ms: Option<u64>,
    /// The first outside id of its range, when root made it.
    pub base: Option<u32>,
    /// Commands that run.
    pub running: u32,
    /// Bytes of memory in use now.
    pub memory: Option<u64>,
}

/// A command, running or ended, as the keeper knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecInfo {
    /// Its number in the cell.
    pub exec: u32,
    /// What runs: program and arguments.
    pub command: Vec<String>,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// Whether its output is kept.
    pub kept: bool,
    /// How it ended, if it has.
    pub end: Option<ExecEnd>,
}

/// What a client asks of a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Make the cell.
    Create(Box<CellSpec>),
    /// Another connection, which comes along.
    Join,
    /// Run a command; its streams come along.
    Exec(Box<ExecSpec>),
    /// End the command that this connection started.
    Interrupt(Stop),
    /// Send a signal to the first process of a command.
    Signal {
        /// The command.
        exec: u32,
        /// The signal's number.
        signal: i32,
    },
    /// Kill a command with everything it started.
    Kill {
        /// The command.
        exec: u32,
    },
    /// Give a command's terminal another size.
    Resize {
        /// The command.
        exec: u32,
        /// The new size.
        size: Size,
    },
    /// Tell how a command ended, once it has.
    Wait {
        /// The command.
        exec: u32,
    },
    /// Hand out the kept output of a command: the log, and a counter that moves when the log grows.
    Follow {
        /// The command.
        exec: u32,
    },
    /// List the commands.
    Execs,
    /// Unpack an archive, which comes along as a stream, into a folder inside.
    Put {
        /// The folder.
        path: String,
        /// The most bytes and entries to take.
        limits: (u64, u64),
    },
    /// Pack a file or folder inside into the stream that comes along.
    Get {
        /// What to pack.
        path: String,
        /// The most bytes and entries to give.
        limits: (u64, u64),
    },
    /// Tell about the cell.
    Status,
    /// Tell what is in force.
    Controls,
    /// Set a new deadline.
    Extend {
        /// Milliseconds from now.
        after_ms: u64,
    },
    /// Let all processes stand still until this connection thaws them or ends.
    Freeze,
    /// Let them go on.
    Thaw,
    /// Name the network interfaces the guest has.
    Interfaces,
    /// Take the cell down.
    Destroy,
}

/// Why a client ends its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// Somebody wants it to end.
    Interrupted,
    /// It wrote more output than it may.
    OutputLimit,
}

/// What a keeper answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The cell is there; the keeper's descriptor comes along, and the link's if it has one.
    Created(Box<Created>),
    /// The command runs; its terminal comes along if it has one.
    Started {
        /// Its number in the cell.
        exec: u32,
    },
    /// The command ended.
    Ended(Box<ExecEnd>),
    /// The commands there are and were.
    Execs(Vec<ExecInfo>),
    /// The log comes along, and the counter.
    Log,
    /// What is known about the cell.
    Status(Box<Status>),
    /// What is in force.
    Controls(Vec<Control>),
    /// Whether the processes really stand still: without control groups they do not.
    Frozen(bool),
    /// The network interfaces the guest has now.
    Interfaces(Vec<String>),
    /// It is done.
    Done,
    /// The cell is gone; what could not be removed is listed.
    Destroyed(Vec<Failure>),
    /// A limit or an isolation cannot be had here.
    Refused(Refusal),
    /// There is no such command.
    NoSuchExec(u32),
    /// It failed.
    Failed(Failure),
}

/// Why a cell was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Limits cannot be set by this user.
    Limits(String),
    /// A namespace or another piece of isolation is not to be had.
    Isolation(String),
    /// The link to the outside is not to be had.
    Link(String),
}

//! What a cell is, as data: everything the keeper needs to know, decided beforehand.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::link::LinkKind;

/// A cell to be made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CellSpec {
    /// Unique name; also the name of its folder and its control groups.
    pub id: String,
    /// The folder that holds one folder per cell, with its lease and its writable layer.
    pub cells: PathBuf,
    /// What the guest sees as `/`.
    pub root: Root,
    /// The folder of the host that the guest may write to.
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
    /// Deliberate faults, so that tests can show that they would notice.
    #[serde(default)]
    pub weaknesses: Vec<Weakness>,
}

/// Where every guest finds the certificate authorities that the host trusts.
pub const CERTIFICATES: &str = "/etc/belljar/ca-certificates.crt";

/// What the guest sees as `/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Root {
    /// A list of read-only pieces of this machine over an empty read-only root.
    Pieces(Vec<Piece>),
    /// A root directory as the lower layer of an overlay; what the guest changes stays in the cell.
    Directory(PathBuf),
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

/// The folder of the host that the guest may write to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Workspace {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where the guest sees it.
    pub target: PathBuf,
}

/// Who the guest is inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Guest {
    /// User id inside, not 0.
    pub uid: u32,
    /// Group id inside, not 0.
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

/// A deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weakness {
    /// Leave the processes of a command alive when it ends.
    KeepProcesses,
}

/// A command to be run in a cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecSpec {
    /// Programs to try in order; the first that exists is started. Absolute paths inside.
    pub programs: Vec<String>,
    /// The arguments after the program's name.
    pub arguments: Vec<String>,
    /// The whole environment.
    pub environment: BTreeMap<String, String>,
    /// Working directory inside.
    pub directory: String,
    /// When the command is killed, in milliseconds from its start.
    pub timeout_ms: u64,
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
    /// The cell's peak of memory during the command, in bytes.
    pub peak_memory: Option<u64>,
}

impl ExecEnd {
    /// The end of a command that was interrupted before it began.
    pub(crate) fn not_begun() -> ExecEnd {
        ExecEnd {
            ended: Ended::Interrupted,
            killed: 0,
            survivors: 0,
            oom_kills: None,
            wall_us: 0,
            user_us: 0,
            system_us: 0,
            peak_memory: None,
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
    /// What is in force.
    pub controls: Vec<Control>,
    /// What kind of link comes with it.
    pub link: Option<LinkKind>,
    /// `root` or `user`: whose powers made it.
    pub mode: String,
    /// Which control groups hold it: `v1`, `v2` or `none`.
    pub groups: String,
}

/// What a client asks of a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Make the cell.
    Create(Box<CellSpec>),
    /// Run a command; stdin, stdout and stderr come along.
    Exec(Box<ExecSpec>),
    /// End the running command.
    Interrupt,
    /// Name the network interfaces the guest has.
    Interfaces,
    /// Take the cell down.
    Destroy,
}

/// What a keeper answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The cell is there; the link's descriptor comes along if it has one.
    Created(Box<Created>),
    /// The command ended.
    Ended(ExecEnd),
    /// The network interfaces the guest has now.
    Interfaces(Vec<String>),
    /// The cell is gone; what could not be removed is listed.
    Destroyed(Vec<Failure>),
    /// A limit or an isolation cannot be had here.
    Refused(Refusal),
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

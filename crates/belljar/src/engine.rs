//! The contract of every engine: where sandboxes come from and what they promise.

pub mod embedded;
mod terminal;

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_image::reference::Image;

use crate::fault::Fault;
use crate::limits::Limits;
use crate::outcome::Ending;
use crate::plan::PlannedUser;
use crate::record::{ControlRecord, EngineRecord, Usage};
use crate::spec::{Isolation, Network};

/// Where sandboxes come from.
///
/// The duties of an engine:
///
/// 1. A sandbox it returns enforces every control that was asked for, and each was probed before the engine returns.
///    What cannot be enforced is refused with a fault of kind `Environment`, unless the order says best effort.
/// 2. `Ok(Exit)` tells how the command ended, also when the guest itself had made its start impossible. `Err` means
///    that the engine or the machine could not run it.
/// 3. When `exec` returns, no process of the command is left; `Exit::survivors` says so because it was counted.
/// 4. Exit, times and usage come from outside the sandbox, never from anything the guest can write.
/// 5. `disconnect` returns only when every connection is closed and the guest has no interface but its loopback.
/// 6. The death of the calling process ends the sandbox; what it leaves on disk is under a lease that anybody can reap.
/// 7. Files in the workspace come back owned by the caller.
/// 8. `destroy` removes everything; what could not be removed is returned, not hidden.
/// 9. Any number of commands run at the same time, each over a sandbox of [`Sandbox::another`], and the end of one ends
///    nothing of the others.
/// 10. `put` and `get` work on the guest's files as the guest would: whatever is in an archive or in the way, nothing
///     outside the sandbox is read or written. An entry that would lead out is refused with `archive-refused`.
pub trait Engine: Send + Sync {
    /// The engine's name, as in `--engine`.
    fn name(&self) -> &'static str;

    /// Makes a sandbox. Network events go to `sink` from a thread of the engine's own.
    fn create(&self, order: &Order, sink: NetworkSink) -> Result<Made, Fault>;
}

/// Who is told what the guest does on the network; the payload is the gateway's own event.
pub type NetworkSink = Box<dyn FnMut(serde_json::Value) + Send>;

/// A sandbox to be made, everything decided.
#[derive(Debug, Clone)]
pub struct Order {
    /// A unique name.
    pub id: String,
    /// The root file system.
    pub image: Image,
    /// The folder of the host that the guest may write to.
    pub workspace: PathBuf,
    /// Where the guest sees it.
    pub workdir: String,
    /// Who the guest is.
    pub user: PlannedUser,
    /// The name of the machine inside.
    pub hostname: String,
    /// What the sandbox may use at most.
    pub limits: Limits,
    /// What happens when something cannot be enforced.
    pub isolation: Isolation,
    /// What the sandbox can reach until it is disconnected.
    pub network: Network,
    /// How much the guest may write to its private files; nobody asked for a limit when not said.
    pub disk: Option<DiskLimit>,
}

/// How much may be written to a sandbox's private files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimit {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files, folders and links.
    pub inodes: u64,
}

/// A sandbox that was made.
pub struct Made {
    /// The sandbox.
    pub sandbox: Box<dyn Sandbox>,
    /// The engine and facts of the machine.
    pub engine: EngineRecord,
    /// What was asked for and what is enforced.
    pub controls: Vec<ControlRecord>,
}

/// A live place to run commands in.
pub trait Sandbox: Send {
    /// Runs a command to its end.
    fn exec(&mut self, command: &Command) -> Result<Exit, Fault>;

    /// Closes every connection and takes the network away.
    fn disconnect(&mut self) -> Result<(), Fault>;

    /// Ends the running command from another thread.
    fn stopper(&self) -> Stopper;

    /// The same sandbox for another thread. Dropping it ends nothing but the command that runs over it.
    fn another(&self) -> Result<Box<dyn Sandbox>, Fault>;

    /// Unpacks a tar archive into a folder inside, as the guest; the folder is made when it is not there.
    fn put(&mut self, path: &str, limits: ArchiveLimits, archive: BorrowedFd<'_>) -> Result<(), Fault>;

    /// Packs a file or folder inside, as the guest. A folder's entries begin with its name.
    fn get(&mut self, path: &str, limits: ArchiveLimits, archive: BorrowedFd<'_>) -> Result<(), Fault>;

    /// Takes the sandbox down; what could not be removed is listed.
    fn destroy(self: Box<Self>) -> Result<Vec<String>, Fault>;
}

/// Ends the running command, and says why.
pub type Stopper = Arc<dyn Fn(Stop) + Send + Sync>;

/// Why a command is ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Somebody wants it to end.
    Interrupted,
    /// It wrote more output than it may; whoever reads the output counts it.
    OutputLimit,
}

/// How much is packed or unpacked at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Bytes of the archive.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
}

/// A command, what it may use, and where its input comes from and its output goes.
#[derive(Debug)]
pub struct Command {
    /// Programs to try in order, absolute paths inside.
    pub programs: Vec<String>,
    /// The arguments after the program's name.
    pub arguments: Vec<String>,
    /// The whole environment.
    pub environment: BTreeMap<String, String>,
    /// The working directory inside.
    pub directory: String,
    /// Who runs it; the sandbox's own guest when not said.
    pub user: Option<CommandUser>,
    /// When it is killed.
    pub timeout: Duration,
    /// Limits for this command alone, within those of the sandbox.
    pub limits: CommandLimits,
    /// Standard input; there is none to read when not said.
    pub stdin: Option<OwnedFd>,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
    /// A terminal between the command and its streams: what comes from `stdin` is typed, and all that the terminal
    /// shows goes to `stdout`.
    pub terminal: Option<TerminalSize>,
}

/// Who runs a command, by number inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Limits for one command; what is not said is the sandbox's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommandLimits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Processor time of the whole tree.
    pub processor_time: Option<Duration>,
    /// Open files of each process.
    pub open_files: Option<u64>,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// How a command ended, by evidence from outside the sandbox.
#[derive(Debug, Clone)]
pub struct Exit {
    /// How.
    pub ending: Ending,
    /// The exit code as a shell would tell it.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Processes left after its tree was killed.
    pub survivors: u32,
    /// Why it was never started, where that is the guest's own doing.
    pub not_started: Option<String>,
    /// How long it took.
    pub wall: Duration,
    /// What it used.
    pub usage: Usage,
}

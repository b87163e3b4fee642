//! The command line of `belljar sandbox`.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar::limits::{Bytes, Cpus};
use clap::{Args, Subcommand, ValueEnum};

use super::image::Fetch;
use crate::help;
use crate::typed::{Assignment, Identity, Period, SignalNumber};

/// Arguments of `sandbox`.
#[derive(Debug, Args)]
pub(crate) struct SandboxArguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: SandboxVerb,
}

/// What can be done with sandboxes.
#[derive(Debug, Subcommand)]
pub(crate) enum SandboxVerb {
    /// Make a sandbox that lives until its deadline; print its id
    #[command(after_help = help::SANDBOX_CREATE)]
    Create(CreateArguments),
    /// Run a command in a sandbox; pass its exit code on
    #[command(after_help = help::SANDBOX_EXEC)]
    Exec(ExecArguments),
    /// Open a login shell in a sandbox, on a terminal
    #[command(after_help = help::SANDBOX_SHELL)]
    Shell(ShellArguments),
    /// Run one command in a sandbox of its own, which is gone afterwards; pass its exit code on
    #[command(after_help = help::SANDBOX_RUN)]
    Run(Box<OneShotArguments>),
    /// Copy files into a sandbox or out of it
    #[command(after_help = help::SANDBOX_CP)]
    Cp(CopyArguments),
    /// List the sandboxes, oldest first
    #[command(after_help = help::SANDBOX_LS)]
    Ls,
    /// Say what a sandbox is made of, and what is enforced, and how that is known
    #[command(after_help = help::SANDBOX_INSPECT)]
    Inspect(OneArguments),
    /// List the commands of a sandbox, running and ended
    #[command(after_help = help::SANDBOX_PS)]
    Ps(OneArguments),
    /// Print the kept output of a command
    #[command(after_help = help::SANDBOX_LOGS)]
    Logs(LogsArguments),
    /// Wait for the end of a command; pass its exit code on
    #[command(after_help = help::SANDBOX_WAIT)]
    Wait(CommandArguments),
    /// Send a signal to a command, or kill it with everything it started
    #[command(after_help = help::SANDBOX_SIGNAL)]
    Signal(SignalArguments),
    /// Give a sandbox a new deadline, counted from now
    #[command(after_help = help::SANDBOX_EXTEND)]
    Extend(ExtendArguments),
    /// Make a new sandbox with a copy of another one's files; print its id
    #[command(after_help = help::SANDBOX_FORK)]
    Fork(ForkArguments),
    /// Keep the files of a sandbox under a name, for `create --from`
    #[command(after_help = help::SANDBOX_SNAPSHOT)]
    Snapshot(SnapshotArguments),
    /// Take sandboxes down, with everything that runs in them
    #[command(after_help = help::SANDBOX_RM)]
    Rm(RemoveArguments),
}

impl SandboxVerb {
    /// The words of the verbs whose exit code is a guest's: there a failure of ours is 125.
    pub(crate) const PASSING_ON: [&str; 4] = ["exec", "shell", "run", "wait"];

    /// Whether the exit code of the verb is a guest's.
    pub(crate) fn passes_on(&self) -> bool {
        matches!(
            self,
            SandboxVerb::Exec(_) | SandboxVerb::Shell(_) | SandboxVerb::Run(_) | SandboxVerb::Wait(_)
        )
    }
}

/// What a sandbox, or one command in it, may use at most.
#[derive(Debug, Args)]
pub(crate) struct Share {
    /// Memory: 512m, 2g
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Bytes>,
    /// Processors' worth of time: 2, 0.5
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cpus: Option<Cpus>,
    /// Processes and threads at the same time
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=4_194_302))]
    pub(crate) pids: Option<u32>,
}

/// What a sandbox is made of.
#[derive(Debug, Args)]
pub(crate) struct Make {
    /// Start from a snapshot instead of an image
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["image", "workspace", "workdir"])]
    pub(crate) from: Option<String>,
    /// Work in this folder of the host, instead of one of the sandbox's own
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Where the guest sees the folder it works in
    /// [default: /workspace]
    #[arg(long, value_name = "PATH")]
    pub(crate) workdir: Option<String>,
    /// What may be written outside --workspace: 500MB, 2g
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<Bytes>,
    /// How many files may be made [default: one for each 16 KiB of --disk]
    #[arg(long, value_name = "NUMBER", requires = "disk")]
    pub(crate) disk_files: Option<u64>,
    /// What happens when something cannot be enforced: refuse, or go on without and say so
    #[arg(long, value_name = "LEVEL", default_value = "full")]
    pub(crate) isolation: Isolation,
    /// The name of the machine inside
    #[arg(long, value_name = "NAME", default_value = "belljar")]
    pub(crate) hostname: String,
    #[command(flatten)]
    pub(crate) fetch: Fetch,
}

/// What happens when something cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isolation {
    /// The sandbox is refused.
    Full,
    /// It is made without.
    BestEffort,
}

/// What a sandbox can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// Nothing.
    None,
    /// The internet, not this machine.
    Outbound,
}

/// Arguments of `sandbox create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// The root file system: `host`, a name, a path; docs/images.md has all [default: host]
    #[arg(value_name = "IMAGE", conflicts_with = "from")]
    pub(crate) positional: Option<String>,
    /// The same as an option
    #[arg(long, value_name = "IMAGE", conflicts_with = "positional")]
    pub(crate) image: Option<String>,
    #[command(flatten)]
    pub(crate) make: Make,
    #[command(flatten)]
    pub(crate) share: Share,
    /// How long it lives: 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) ttl: Period,
}

/// How a command is run.
#[derive(Debug, Args)]
pub(crate) struct Manner {
    /// Pass standard input on; without this it is empty
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Run it on a terminal of its own
    #[arg(short, long, conflicts_with_all = ["plain", "output_limit"])]
    pub(crate) tty: bool,
    /// Set a variable; may be repeated
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    pub(crate) environment: Vec<Assignment>,
    /// Where it runs [default: the working folder of the sandbox]
    #[arg(short = 'w', long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,
    /// Who runs it, by number [default: 1000:1000]
    #[arg(short, long, value_name = "UID[:GID]")]
    pub(crate) user: Option<Identity>,
    /// Kill it when it takes longer than this: 500ms, 30s, 10m (exit code 124)
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Period>,
    /// Kill it when all its processes together have used this much processor time
    #[arg(long, value_name = "TIME")]
    pub(crate) cpu_time: Option<Period>,
    /// The most open files of each of its processes
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(3..))]
    pub(crate) open_files: Option<u64>,
    /// Kill it when it has written more output than this
    #[arg(long, value_name = "SIZE")]
    pub(crate) output_limit: Option<Bytes>,
    /// Show what a terminal would obey as `·`
    #[arg(long)]
    pub(crate) plain: bool,
}

/// Arguments of `sandbox exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArguments {
    /// The sandbox: its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) sandbox: String,
    /// Print the number of the command at once and let it run; its output is kept
    #[arg(short, long, conflicts_with_all = ["interactive", "tty", "plain"])]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) manner: Manner,
    #[command(flatten)]
    pub(crate) share: Share,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
}

/// Arguments of `sandbox shell`.
#[derive(Debug, Args)]
pub(crate) struct ShellArguments {
    /// The sandbox: its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) sandbox: String,
    /// Who runs it, by number [default: 1000:1000]
    #[arg(short, long, value_name = "UID[:GID]")]
    pub(crate) user: Option<Identity>,
}

/// Arguments of `sandbox run`.
#[derive(Debug, Args)]
pub(crate) struct OneShotArguments {
    /// The root file system: `host`, a name, a path; docs/images.md has all
    #[arg(long, value_name = "IMAGE", default_value = "host")]
    pub(crate) image: String,
    /// What it can reach
    #[arg(long, value_name = "WHAT", default_value = "none")]
    pub(crate) network: Network,
    #[command(flatten)]
    pub(crate) make: Make,
    #[command(flatten)]
    pub(crate) share: Share,
    #[command(flatten)]
    pub(crate) manner: Manner,
    /// The program and its arguments [default: what the image says]
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
}

/// Arguments of `sandbox cp`.
#[derive(Debug, Args)]
pub(crate) struct CopyArguments {
    /// What: a path, ID:PATH in a sandbox, or `-` for a tar archive on stdin
    #[arg(value_name = "SOURCE")]
    pub(crate) source: OsString,
    /// Where to: likewise; `-` for a tar archive on stdout
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: OsString,
    /// The most bytes, as an archive has them
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    pub(crate) max_size: Bytes,
    /// The most files, folders and links
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000)]
    pub(crate) max_entries: u64,
    /// Where symbolic links may lead that are copied out
    #[arg(long, value_name = "WHERE", default_value = "anywhere")]
    pub(crate) links: Links,
}

/// Where symbolic links may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Links {
    /// They are copied as they are.
    Anywhere,
    /// One that could lead out of what is copied ends the copy.
    Inside,
}

/// Arguments that name a sandbox.
#[derive(Debug, Args)]
pub(crate) struct OneArguments {
    /// The sandbox: its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) sandbox: String,
}

/// Arguments that name a command of a sandbox.
#[derive(Debug, Args)]
pub(crate) struct CommandArguments {
    /// The sandbox: its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) sandbox: String,
    /// The number of the command, as `exec --detach` and `ps` print it
    #[arg(value_name = "NUMBER")]
    pub(crate) command: u32,
}

/// Arguments of `sandbox logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArguments {
    #[command(flatten)]
    pub(crate) of: CommandArguments,
    /// Go on until the command ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Leave out the pieces up to this sequence number
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0, hide_default_value = true)]
    pub(crate) since: u64,
    /// Begin each line with its moment, sequence number and stream
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Show what a terminal would obey as `·`
    #[arg(long)]
    pub(crate) plain: bool,
}

/// Arguments of `sandbox signal`.
#[derive(Debug, Args)]
pub(crate) struct SignalArguments {
    #[command(flatten)]
    pub(crate) of: CommandArguments,
    /// By name or number; KILL kills everything that the command started, too
    #[arg(value_name = "SIGNAL", default_value = "TERM")]
    pub(crate) signal: SignalNumber,
    /// Kill the command and everything it started
    #[arg(long, conflicts_with = "signal")]
    pub(crate) tree: bool,
}

/// Arguments of `sandbox extend`.
#[derive(Debug, Args)]
pub(crate) struct ExtendArguments {
    /// The sandbox: its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) sandbox: String,
    /// How long it lives from now on: 90s, 30m, 12h, 7d
    #[arg(value_name = "TIME")]
    pub(crate) ttl: Period,
}

/// Arguments of `sandbox fork`.
#[derive(Debug, Args)]
pub(crate) struct ForkArguments {
    /// The sandbox: its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) sandbox: String,
    /// How long the new one lives: 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) ttl: Period,
}

/// Arguments of `sandbox snapshot`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    /// The sandbox: its id, or the beginning of it
    #[arg(value_name = "ID", required_unless_present_any = ["list", "remove"], requires = "name")]
    pub(crate) sandbox: Option<String>,
    /// The name of the snapshot
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// List the snapshots
    #[arg(long, conflicts_with_all = ["sandbox", "name", "remove"])]
    pub(crate) list: bool,
    /// Remove a snapshot; sandboxes that started from it have their own copy
    #[arg(long, value_name = "NAME", conflicts_with_all = ["sandbox", "name"])]
    pub(crate) remove: Option<String>,
}

/// Arguments of `sandbox rm`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArguments {
    /// Sandboxes: their ids, or the beginnings of them
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) sandboxes: Vec<String>,
    /// All sandboxes
    #[arg(long)]
    pub(crate) all: bool,
}

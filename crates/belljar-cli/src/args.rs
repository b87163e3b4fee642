//! The command line as typed.

mod build;
mod image;
mod sandbox;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anstream::ColorChoice;
use belljar::limits::Bytes;
use belljar::pin::Locking;
use belljar::{Code, Fault};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use self::build::{BuildArguments, SecretFile};
pub(crate) use self::image::{
    DebianVariant, Fetch, Format, ImageArguments, ImageBootstrapArguments, ImageExportArguments,
    ImageFsckArguments, ImageImportArguments, ImageOneArguments, ImagePruneArguments, ImagePullArguments,
    ImagePushArguments, ImageRemoveArguments, ImageTagArguments, ImageVerb, OwnersArguments,
};
pub(crate) use self::sandbox::{
    CommandArguments, CopyArguments, CreateArguments, ExecArguments, ExtendArguments, ForkArguments,
    Isolation, Links, LogsArguments, Make, Manner, Network, OneArguments, OneShotArguments, RemoveArguments,
    SandboxArguments, SandboxVerb, Share, ShellArguments, SignalArguments, SnapshotArguments,
};
use crate::voice::{Detail, Output, Voice};
use crate::words::Age;
use crate::{fault, help};

/// Runs code nobody has reviewed, under glass: isolated, observed, repeatable.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, about, max_term_width = 100, after_help = help::BELLJAR)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) manners: Manners,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What every verb takes.
#[derive(Debug, Args)]
pub(crate) struct Manners {
    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to use colours; `auto` asks the terminal and NO_COLOR.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    /// Tell more: every control, connection and notice.
    #[arg(short, long, global = true, action = ArgAction::SetTrue)]
    pub(crate) verbose: bool,
}

/// When colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// Where a terminal shows them and nobody objects.
    Auto,
    /// Always, also into files and pipes.
    Always,
    /// Never.
    Never,
}

impl From<Color> for ColorChoice {
    fn from(color: Color) -> ColorChoice {
        match color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        }
    }
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a task and leave a record
    #[command(after_help = help::RUN)]
    Run(RunArguments),
    /// Run a task: `run` with the task as an option
    #[command(after_help = help::RUN_TASK)]
    RunTask(RunTaskArguments),
    /// Say everything that a run would do, and do nothing
    #[command(after_help = help::PLAN)]
    Plan(PlanArguments),
    /// Compare two runs: what is the same, what may differ, what must not
    #[command(after_help = help::COMPARE)]
    Compare(CompareArguments),
    /// Make sandboxes, and use them
    #[command(after_help = help::SANDBOX, visible_alias = "sb")]
    Sandbox(SandboxArguments),
    /// Fetch, keep, make and hand on images
    #[command(after_help = help::IMAGE)]
    Image(ImageArguments),
    /// Build an image from a Dockerfile, without a daemon: each RUN in a sandbox of its own
    #[command(after_help = help::BUILD)]
    Build(Box<BuildArguments>),
    /// Look at the runs that were made
    #[command(after_help = help::RUNS)]
    Runs(RunsArguments),
    /// Say whether this machine can do what Belljar needs, and what to change
    #[command(after_help = help::DOCTOR)]
    Doctor(DoctorArguments),
    /// Hold an engine to its promises: run the tables of honest and hostile guests
    #[command(after_help = help::CONFORMANCE)]
    Conformance(ConformanceArguments),
    /// Remove what killed processes left behind
    #[command(after_help = help::GC)]
    Gc(GcArguments),
    /// Print the JSON Schema of a file that Belljar reads or writes
    #[command(after_help = help::SCHEMA)]
    Schema(SchemaArguments),
    /// Print the completions for a shell
    #[command(after_help = help::COMPLETIONS)]
    Completions(CompletionsArguments),
}

/// The folder of the runs, where a verb needs it.
#[derive(Debug, Args)]
pub(crate) struct Out {
    /// The folder that holds `runs/`
    #[arg(long, value_name = "DIR", default_value = Out::DEFAULT)]
    pub(crate) out: PathBuf,
}

impl Out {
    /// Where runs go when nobody says otherwise.
    pub(crate) const DEFAULT: &str = "artifacts";
}

/// What may be done with `belljar.lock`.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Lock {
    /// Refuse an image that belljar.lock does not pin, and write no lock
    #[arg(long, conflicts_with = "update_lock")]
    pub(crate) frozen: bool,
    /// Pin the image that is there now, whatever belljar.lock says of it
    #[arg(long)]
    pub(crate) update_lock: bool,
}

impl Lock {
    /// In the library's words; `otherwise` is what is done when nobody said anything.
    pub(crate) fn locking(self, otherwise: Locking) -> Locking {
        match self {
            Lock { frozen: true, .. } => Locking::Frozen,
            Lock { update_lock: true, .. } => Locking::Update,
            Lock { frozen: false, update_lock: false } => otherwise,
        }
    }
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// A task.yaml, or the folder that holds one
    pub(crate) task: PathBuf,
    #[command(flatten)]
    pub(crate) fetch: Fetch,
    #[command(flatten)]
    pub(crate) out: Out,
    #[command(flatten)]
    pub(crate) lock: Lock,
}

/// Arguments of `run-task`.
#[derive(Debug, Args)]
pub(crate) struct RunTaskArguments {
    /// A task.yaml, or the folder that holds one
    #[arg(long)]
    pub(crate) task: PathBuf,
    #[command(flatten)]
    pub(crate) fetch: Fetch,
    #[command(flatten)]
    pub(crate) out: Out,
    #[command(flatten)]
    pub(crate) lock: Lock,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// A task.yaml, or the folder that holds one
    pub(crate) task: PathBuf,
    #[command(flatten)]
    pub(crate) fetch: Fetch,
    #[command(flatten)]
    pub(crate) lock: Lock,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// A run: its id, the beginning or the end of it, its folder, or `latest`
    pub(crate) run_a: String,
    /// The other run
    pub(crate) run_b: String,
    #[command(flatten)]
    pub(crate) out: Out,
}

/// Arguments of `runs`.
#[derive(Debug, Args)]
pub(crate) struct RunsArguments {
    /// What to do with the runs.
    #[command(subcommand)]
    pub(crate) verb: RunsVerb,
}

/// What can be done with runs.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsVerb {
    /// List the runs, newest first
    #[command(after_help = help::RUNS_LS)]
    Ls(ListArguments),
    /// Show one run: stages, commands, controls, network, logs
    #[command(after_help = help::RUNS_SHOW)]
    Show(ShowArguments),
    /// Remove runs by a rule
    #[command(after_help = help::RUNS_PRUNE)]
    Prune(PruneArguments),
}

/// Arguments of `runs ls`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) out: Out,
}

/// Arguments of `runs show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// A run: its id, the beginning or the end of it, its folder, or `latest`
    #[arg(default_value = "latest")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) out: Out,
    /// Watch a run that is still going, until its end
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print one log instead, such as `run_stdout` or `setup_stderr`
    #[arg(long, value_name = "STAGE_STREAM", conflicts_with = "follow")]
    pub(crate) log: Option<String>,
}

/// Arguments of `runs prune`.
#[derive(Debug, Args)]
pub(crate) struct PruneArguments {
    #[command(flatten)]
    pub(crate) rule: PruneRule,
    /// Say what would go, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) out: Out,
}

/// Which runs are to go: exactly one rule.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PruneRule {
    /// Keep the newest N runs
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<usize>,
    /// Remove runs that started longer ago than this: 90s, 30m, 12h, 7d, 4w
    #[arg(long, value_name = "AGE")]
    pub(crate) older_than: Option<Age>,
    /// Remove the oldest runs until the rest takes no more than this: 500MB, 5GB
    #[arg(long, value_name = "SIZE")]
    pub(crate) to_size: Option<Bytes>,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) out: Out,
}

/// Arguments of `conformance`.
#[derive(Debug, Args)]
pub(crate) struct ConformanceArguments {
    /// The engine to be tried
    #[arg(long, value_name = "ENGINE", default_value = "embedded")]
    pub(crate) engine: EngineName,
    /// What its sandboxes are made of
    #[arg(long, value_name = "IMAGE", default_value = "host")]
    pub(crate) image: String,
    /// Which rows
    #[arg(long, value_name = "TABLE", default_value = "all")]
    pub(crate) table: TableName,
    /// Only rows with a name like this, where `*` stands for anything; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    pub(crate) only: Vec<String>,
    /// How many rows run at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) jobs: u8,
    /// Fail when a row could not be run for want of something
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print the rows and what each shows, and run nothing
    #[arg(long)]
    pub(crate) list: bool,
}

/// An engine by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// Cells on this machine, without a daemon.
    Embedded,
}

/// A table of the conformance suite by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableName {
    /// What honest programs rely on.
    Engine,
    /// What hostile programs try.
    Hostile,
    /// Both.
    All,
}

/// Arguments of `gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArguments {
    #[command(flatten)]
    pub(crate) out: Out,
}

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub(crate) struct SchemaArguments {
    /// Of which file
    #[arg(default_value = "task")]
    pub(crate) of: SchemaOf,
}

/// What has a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    /// A task file.
    Task,
    /// `run.json`.
    RunRecord,
    /// One line of `events.jsonl`.
    Event,
    /// `belljar.lock`.
    Lock,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// For which shell
    pub(crate) shell: Shell,
}

/// A command line that was not understood, or that asked for help.
#[derive(Debug)]
pub(crate) struct Refusal {
    error: clap::Error,
    glance: Glance,
}

impl Arguments {
    /// Reads the command line of this process and sets the colours for all of it.
    pub(crate) fn read() -> Result<Arguments, Refusal> {
        let typed: Vec<OsString> = std::env::args_os().collect();
        let glance = Glance::at(&typed);
        ColorChoice::from(glance.color).write_global();
        if let Some(arguments) = Arguments::read_quickly(&typed) {
            return Ok(arguments);
        }
        let command = Arguments::command().color(glance.color.into());
        let matches = command.try_get_matches_from(typed);
        let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
        arguments.map_err(|error| Refusal { error, glance })
    }

    /// Reads the verbs that are about speed, without building all others. What is not understood here is not
    /// understood at all, and told by whoever knows all of it.
    fn read_quickly(typed: &[OsString]) -> Option<Arguments> {
        let [_, group, verb, rest @ ..] = typed else { return None };
        if group != "sandbox" && group != "sb" {
            return None;
        }
        let build = match verb.to_str()? {
            "run" => OneShotArguments::augment_args,
            "exec" => ExecArguments::augment_args,
            _ => return None,
        };
        let command = Manners::augment_args(build(clap::Command::new("belljar").no_binary_name(true)));
        let matches = command.try_get_matches_from(rest).ok()?;
        let verb = match verb.to_str()? {
            "run" => SandboxVerb::Run(Box::new(OneShotArguments::from_arg_matches(&matches).ok()?)),
            _ => SandboxVerb::Exec(ExecArguments::from_arg_matches(&matches).ok()?),
        };
        let manners = Manners::from_arg_matches(&matches).ok()?;
        Some(Arguments { manners, verb: Verb::Sandbox(SandboxArguments { verb }) })
    }

    /// How answers are given.
    pub(crate) fn voice(&self) -> Voice {
        Voice {
            output: if self.manners.json { Output::Json } else { Output::Text },
            detail: if self.manners.verbose { Detail::Full } else { Detail::Brief },
        }
    }
}

impl From<Color> for clap::ColorChoice {
    fn from(color: Color) -> clap::ColorChoice {
        match color {
            Color::Auto => clap::ColorChoice::Auto,
            Color::Always => clap::ColorChoice::Always,
            Color::Never => clap::ColorChoice::Never,
        }
    }
}

/// What must be known before the command line is understood, because it may turn out not to be.
#[derive(Debug)]
struct Glance {
    output: Output,
    color: Color,
    /// Whether the exit code is a guest's, so that ours has to be another.
    passes_on: bool,
}

impl Glance {
    fn at(typed: &[OsString]) -> Glance {
        let words: Vec<&str> =
            typed.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--").collect();
        let joined = words.iter().find_map(|word| word.strip_prefix("--color="));
        let apart =
            words.iter().position(|word| *word == "--color").and_then(|at| words.get(at + 1)).copied();
        let color = joined.or(apart).and_then(|word| Color::from_str(word, false).ok());
        let verb = words.iter().position(|word| matches!(*word, "sandbox" | "sb")).map(|at| &words[at + 1..]);
        let verb = verb.and_then(|rest| rest.iter().find(|word| !word.starts_with('-')));
        Glance {
            output: if words.contains(&"--json") { Output::Json } else { Output::Text },
            color: color.unwrap_or(Color::Auto),
            passes_on: verb.is_some_and(|verb| SandboxVerb::PASSING_ON.contains(verb)),
        }
    }
}

impl Refusal {
    /// Prints the help that was asked for, or what is wrong; gives the exit code.
    pub(crate) fn tell(self) -> ExitCode {
        let asked = matches!(self.error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        if asked || self.glance.output == Output::Text {
            // Whoever closed the pipe does not want to read it.
            let _ = self.error.print();
        }
        match (asked, self.glance.output) {
            (true, _) => ExitCode::SUCCESS,
            (false, Output::Json) => ExitCode::from(fault::report(&self.fault(), Output::Json, self.code())),
            (false, Output::Text) => ExitCode::from(self.code()),
        }
    }

    fn code(&self) -> u8 {
        if self.glance.passes_on { fault::OURS } else { Code::Usage.kind().exit_code() }
    }

    fn fault(&self) -> Fault {
        let text = self.error.render().to_string();
        let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
        let tips = rest.lines().map(str::trim).filter_map(|line| line.strip_prefix("tip: "));
        let message = message.trim().strip_prefix("error: ").unwrap_or(message).to_owned();
        tips.fold(Fault::new(Code::Usage, message), Fault::hint).hint(Code::Usage.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the quick way makes of a command line, and what the whole does.
    fn both(words: &str) -> (Option<String>, Option<String>) {
        let typed: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let whole = Arguments::command().try_get_matches_from(&typed);
        let whole = whole.and_then(|matches| Arguments::from_arg_matches(&matches)).ok();
        (
            Arguments::read_quickly(&typed).map(|arguments| format!("{arguments:?}")),
            whole.map(|arguments| format!("{arguments:?}")),
        )
    }

    #[test]
    fn the_quick_way_understands_the_same() {
        for words in [
            "belljar sandbox run -- /bin/true",
            "belljar sb run --json -v ls -l --color",
            "belljar sandbox run --image x --pull always --squash",
            "belljar sandbox run --color never --image x --memory 1g --timeout 3s -it -e A=b -- sh",
            "belljar sandbox exec sb-1 --json -d -- ls --json",
            "belljar sandbox exec -i sb-1 cat -",
        ] {
            let (quick, whole) = both(words);
            assert!(quick.is_some() && quick == whole, "{words}\n{quick:?}\n{whole:?}");
        }
    }

    #[test]
    fn what_the_quick_way_refuses_is_refused() {
        for words in [
            "belljar sandbox run --pull sometimes",
            "belljar sandbox run --wrong -- true",
            "belljar sandbox run --help",
            "belljar sandbox run --from a --workspace b -- true",
            "belljar sandbox exec sb-1",
            "belljar sandbox exec -d -i sb-1 -- true",
            "belljar sandbox",
        ] {
            assert_eq!(both(words), (None, None), "{words}");
        }
        for words in ["belljar --json sandbox run -- true", "belljar sandbox ls"] {
            let (quick, whole) = both(words);
            assert!(quick.is_none() && whole.is_some(), "{words}");
        }
    }
}

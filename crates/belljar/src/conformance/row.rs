//! One row of a table: a guest program, what it needs, and what must come of it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::conformance::archive::Entry;
use crate::conformance::expectation::Expectation;
use crate::conformance::guest::Guest;
use crate::conformance::need::{Limit, Need};
use crate::engine::DiskLimit;
use crate::fault::Code;
use crate::limits::{Bytes, Cpus, Limits};
use crate::outcome::Ending;
use crate::spec::Network;

/// Which table a row belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Table {
    /// What honest programs rely on.
    Engine,
    /// What hostile programs try.
    Hostile,
}

impl Table {
    /// Both, in order.
    pub const ALL: [Table; 2] = [Table::Engine, Table::Hostile];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Table::Engine => "engine",
            Table::Hostile => "hostile",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a row holds an engine to; the numbered ones are the promises of SPECIFICATION.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// 1. Everything a command started is gone when its end is told.
    NothingSurvives,
    /// 2. No network, no powers, nothing of the host unless it was asked for.
    ClosedByDefault,
    /// 3. A control that was asked for is in force, or the sandbox is refused.
    AskedMeansEnforced,
    /// 4. Exit, times and counts come from outside the sandbox.
    CannotForge,
    /// 5. Output is kept byte for byte.
    ExactBytes,
    /// 7 of the engine's duties: files come back owned by the caller, and can be read and removed safely.
    FilesComeBack,
    /// 9. Endings are told apart by evidence.
    ToldApart,
    /// Plain programs find what they need.
    PlainProgramsRun,
}

impl Promise {
    /// All of them, in order.
    pub const ALL: [Promise; 8] = [
        Promise::NothingSurvives,
        Promise::ClosedByDefault,
        Promise::AskedMeansEnforced,
        Promise::CannotForge,
        Promise::ExactBytes,
        Promise::FilesComeBack,
        Promise::ToldApart,
        Promise::PlainProgramsRun,
    ];

    /// A few words for it.
    pub fn name(self) -> &'static str {
        match self {
            Promise::NothingSurvives => "nothing survives",
            Promise::ClosedByDefault => "closed by default",
            Promise::AskedMeansEnforced => "asked means enforced",
            Promise::CannotForge => "cannot forge",
            Promise::ExactBytes => "exact bytes",
            Promise::FilesComeBack => "files come back",
            Promise::ToldApart => "told apart",
            Promise::PlainProgramsRun => "plain programs run",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A guest program, what it needs, and what must come of it.
#[derive(Debug, Clone)]
pub struct Row {
    /// A stable name, unique in both tables.
    pub name: &'static str,
    /// What it shows, in one sentence.
    pub shows: &'static str,
    /// Its table.
    pub table: Table,
    /// What it holds an engine to.
    pub promise: Promise,
    /// What must be there for it to mean anything.
    pub needs: Vec<Need>,
    /// What its sandbox may use at most.
    pub(super) limits: Limits,
    /// How much may be written to its private files.
    pub(super) disk: Option<DiskLimit>,
    /// What its sandbox can reach.
    pub(super) network: Network,
    /// The code with which its sandbox must be refused, if it must.
    pub(super) refused: Option<Code>,
    /// What the host puts there before.
    pub(super) props: Vec<Prop>,
    /// What happens, in order.
    pub(super) acts: Vec<Act>,
    /// What must hold on the host afterwards.
    pub(super) checks: Vec<Check>,
    /// Whether other rows may run beside it.
    pub(super) company: Company,
}

/// Whether other rows may run beside a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// They may.
    Welcome,
    /// It measures time, or takes so much that others would notice.
    Unwelcome,
}

/// Something that the host puts there before a row begins.
#[derive(Debug, Clone)]
pub(super) enum Prop {
    /// A file in the workspace.
    File { name: &'static str, text: &'static str, mode: u32 },
    /// A workspace whose path on the host is hard to quote.
    OddWorkspace,
    /// A socket of the host in the workspace, with somebody behind it.
    WorkspaceSocket,
    /// An abstract socket of the host; `$ABSTRACT` is its name.
    AbstractSocket,
    /// A port of the host's loopback; `$PORT` is its number.
    LoopbackPort,
    /// Another sandbox whose guest runs meanwhile; the row begins when it has made a file `ready`.
    Neighbour(Box<Guest>),
}

/// Something that happens in a row.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// A command runs to its end.
    Run(Box<Guest>, Box<Expectation>),
    /// A command must be refused with this code.
    Denied(Box<Guest>, Code),
    /// Several commands run at the same time, each to its end.
    Together(Vec<(Guest, Expectation)>),
    /// An archive is unpacked into a folder inside.
    Put { path: &'static str, entries: Vec<Entry>, carried: Carried },
    /// A file or folder inside is packed, and kept until it is put back.
    Get { path: &'static str, carried: Carried },
    /// What was packed last is unpacked into a folder inside.
    PutBack { path: &'static str },
    /// The sandbox is taken down and made again under the same name, over the same workspace.
    Anew,
    /// The network is taken away.
    Disconnect,
}

/// What comes of carrying an archive in or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carried {
    /// All of it was carried.
    Done,
    /// It was refused for what it is.
    Refused,
}

/// Something that must hold on the host after a row.
#[derive(Debug, Clone)]
pub(super) enum Check {
    /// A file of the workspace has this text.
    FileHas { name: &'static str, text: &'static str },
    /// The workspace has no entry whose name begins so.
    NoFileLike(&'static str),
    /// Collecting these files gives exactly those, whatever the guest put in their place.
    Collects { patterns: &'static [&'static str], files: &'static [&'static str] },
    /// Nothing in the workspace changes any more.
    Still,
    /// The engine says that each control is enforced as it was asked for.
    Controls,
}

/// The limits of a row that says nothing about them: enough for one Python and its children.
pub(super) fn usual_limits() -> Limits {
    Limits { memory: Bytes(256 << 20), cpus: Cpus::from_millis(2000), pids: 64, ..Limits::default() }
}

/// A row of the engine table.
pub(super) fn engine(name: &'static str, promise: Promise, shows: &'static str) -> Row {
    Row::new(Table::Engine, name, promise, shows)
}

/// A row of the hostile table.
pub(super) fn hostile(name: &'static str, promise: Promise, shows: &'static str) -> Row {
    Row::new(Table::Hostile, name, promise, shows)
}

impl Row {
    fn new(table: Table, name: &'static str, promise: Promise, shows: &'static str) -> Row {
        Row {
            name,
            shows,
            table,
            promise,
            needs: Vec::new(),
            limits: usual_limits(),
            disk: None,
            network: Network::None,
            refused: None,
            props: Vec::new(),
            acts: Vec::new(),
            checks: Vec::new(),
            company: Company::Welcome,
        }
    }

    /// What a person types to run this row alone.
    pub fn path(&self) -> String {
        format!("{}/{}", self.table, self.name)
    }

    /// The same row with one more command.
    pub(super) fn runs(mut self, guest: Guest, expectation: Expectation) -> Row {
        self = guest.needs().into_iter().fold(self, Row::needs);
        self.acts.push(Act::Run(Box::new(guest), Box::new(expectation)));
        self
    }

    /// The same row with several commands at the same time.
    pub(super) fn runs_together(mut self, commands: Vec<(Guest, Expectation)>) -> Row {
        let needs: Vec<Need> = commands.iter().flat_map(|(guest, _)| guest.needs()).collect();
        self = needs.into_iter().fold(self, Row::needs);
        self.acts.push(Act::Together(commands));
        self
    }

    /// The same row with one more act that is no command.
    pub(super) fn then(mut self, act: Act) -> Row {
        self.acts.push(act);
        self
    }

    /// The same row with one more need.
    pub(super) fn needs(mut self, need: Need) -> Row {
        if !self.needs.contains(&need) {
            self.needs.push(need);
        }
        self
    }

    /// The same row with something that the host puts there.
    pub(super) fn with(mut self, prop: Prop) -> Row {
        if let Prop::Neighbour(guest) = &prop {
            self = guest.needs().into_iter().fold(self, Row::needs);
        }
        self.props.push(prop);
        self
    }

    /// The same row with one more thing that must hold afterwards.
    pub(super) fn checks(mut self, check: Check) -> Row {
        self.checks.push(check);
        self
    }

    /// The same row, never beside others.
    pub(super) fn alone(mut self) -> Row {
        self.company = Company::Unwelcome;
        self
    }

    /// The same row with so many MiB of memory, which must be enforced.
    pub(super) fn memory(mut self, mebibytes: u64) -> Row {
        self.limits.memory = Bytes(mebibytes << 20);
        self.needs(Need::Limit(Limit::Memory))
    }

    /// The same row with so many processes, which must be enforced.
    pub(super) fn pids(mut self, pids: u32) -> Row {
        self.limits.pids = pids;
        self.needs(Need::Limit(Limit::Processes))
    }

    /// The same row with room for many processes, where they are counted at all.
    pub(super) fn roomy(mut self) -> Row {
        self.limits.pids = 512;
        self
    }

    /// The same row with so many thousandths of a processor, which must be enforced.
    pub(super) fn processor(mut self, millis: u32) -> Row {
        self.limits.cpus = Cpus::from_millis(millis);
        self.needs(Need::Limit(Limit::Processor))
    }

    /// The same row with so many MiB and so many files of disk, which must be enforced.
    pub(super) fn disk(mut self, mebibytes: u64, inodes: u64) -> Row {
        self.disk = Some(DiskLimit { bytes: mebibytes << 20, inodes });
        self.needs(Need::Limit(Limit::Disk))
    }

    /// The same row, of a sandbox that must be refused with this code.
    pub(super) fn refused(mut self, code: Code) -> Row {
        self.refused = Some(code);
        self
    }

    /// The same row with a way to the outside.
    pub(super) fn linked(mut self) -> Row {
        self.network = Network::Outbound;
        self.needs(Need::Link)
    }
}

/// A command that exits by itself with this code.
pub(super) fn exits(code: i32) -> Expectation {
    Expectation::of(Ending::Exited, Some(code), None)
}

/// A command that a signal ends.
pub(super) fn dies(signal: i32) -> Expectation {
    Expectation::of(Ending::Signalled, Some(128 + signal), Some(signal))
}

/// A command whose time is up after this long; it is told soon after.
pub(super) fn times_out(after: Duration) -> Expectation {
    Expectation::of(Ending::TimedOut, Some(124), None).lasts(after, after + Duration::from_secs(5))
}

/// A command that the kernel ends for lack of memory.
pub(super) fn starves() -> Expectation {
    Expectation::of(Ending::OutOfMemory, None, None)
}

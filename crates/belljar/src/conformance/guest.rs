//! A guest program as data: what is started, with what, for how long.

use std::time::Duration;

use crate::conformance::need::{Limit, Need};
use crate::engine::{CommandLimits, CommandUser, TerminalSize};

/// What every Python guest begins with: system calls by name, and words for what held and what did not.
const PRELUDE: &str = include_str!("guests/prelude.py");
/// How long a guest may take that says nothing about it; only a broken engine or a buried machine needs it all.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command in a sandbox.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    /// What is started.
    pub(super) program: Program,
    /// Variables beside the usual ones.
    pub(super) environment: Vec<(&'static str, String)>,
    /// Whether the usual variables are there.
    pub(super) usual_environment: Usual,
    /// Where it starts; the workspace unless it says otherwise.
    pub(super) directory: Option<&'static str>,
    /// Who runs it; the usual guest when not said.
    pub(super) user: Option<CommandUser>,
    /// When it is killed.
    pub(super) timeout: Duration,
    /// Limits of its own.
    pub(super) limits: CommandLimits,
    /// What it can read.
    pub(super) input: Input,
    /// The size of its terminal, if it has one.
    pub(super) terminal: Option<TerminalSize>,
    /// Who reads its standard output.
    pub(super) reader: Reader,
    /// What the host does meanwhile.
    pub(super) meanwhile: Meanwhile,
}

/// Whether the usual variables are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usual {
    /// They are.
    There,
    /// The guest gets its own and nothing else; its processes cannot be found by the mark then.
    Left,
}

/// What is started.
#[derive(Debug, Clone)]
pub(super) enum Program {
    /// A script for the shell that every image has.
    Shell(String),
    /// A script for Python, after the prelude.
    Python(String),
    /// Exactly this.
    Exact {
        /// Programs to try in order.
        programs: Vec<String>,
        /// The arguments after the program's name.
        arguments: Vec<String>,
    },
}

/// What a guest can read from its standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    /// Nothing: it is at its end from the start.
    Nothing,
    /// These bytes, then its end.
    Bytes(Vec<u8>),
    /// Nothing, and no end either.
    Held,
    /// These bytes as soon as the guest has written something, and no end.
    Answer(&'static [u8]),
}

/// Who reads a guest's standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// Somebody, all of it.
    Eager,
    /// Nobody until the command has ended.
    Asleep,
    /// Nobody ever: the other end is closed.
    Gone,
}

/// What the host does while a guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meanwhile {
    /// It waits.
    Wait,
    /// It asks for the end as soon as the guest has written something.
    Stop,
    /// It asks for the end when the guest has written more than so many bytes.
    LimitOutput(usize),
    /// It collects files from the workspace, again and again.
    Collect,
    /// It gets this folder from the sandbox and puts a file `d/file` into it, again and again.
    Carry(&'static str),
}

impl Meanwhile {
    /// The folder inside that the host works on.
    pub(super) fn path(self) -> Option<&'static str> {
        match self {
            Meanwhile::Carry(path) => Some(path),
            Meanwhile::Wait | Meanwhile::Stop | Meanwhile::LimitOutput(_) | Meanwhile::Collect => None,
        }
    }
}

/// A script for `sh`.
pub(super) fn sh(script: impl Into<String>) -> Guest {
    Guest::of(Program::Shell(script.into()))
}

/// A script for Python, after the prelude.
pub(super) fn python(script: impl Into<String>) -> Guest {
    Guest::of(Program::Python(script.into()))
}

/// Exactly this program with these arguments.
pub(super) fn exact(program: &str, arguments: &[&str]) -> Guest {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Guest::of(Program::Exact { programs: vec![program.to_owned()], arguments })
}

impl Guest {
    fn of(program: Program) -> Guest {
        Guest {
            program,
            environment: Vec::new(),
            usual_environment: Usual::There,
            directory: None,
            user: None,
            timeout: PATIENCE,
            limits: CommandLimits::default(),
            input: Input::Nothing,
            terminal: None,
            reader: Reader::Eager,
            meanwhile: Meanwhile::Wait,
        }
    }

    /// The same guest with one more variable.
    pub(super) fn variable(mut self, name: &'static str, value: impl Into<String>) -> Guest {
        self.environment.push((name, value.into()));
        self
    }

    /// The same guest without the usual variables.
    pub(super) fn bare(mut self) -> Guest {
        self.usual_environment = Usual::Left;
        self
    }

    /// The same guest in another folder.
    pub(super) fn within(mut self, directory: &'static str) -> Guest {
        self.directory = Some(directory);
        self
    }

    /// The same guest, killed after so many milliseconds.
    pub(super) fn killed_after(mut self, millis: u64) -> Guest {
        self.timeout = Duration::from_millis(millis);
        self
    }

    /// The same guest, reading this.
    pub(super) fn reads(mut self, input: Input) -> Guest {
        self.input = input;
        self
    }

    /// The same guest as another user, whose group has the same number.
    pub(super) fn user(mut self, id: u32) -> Guest {
        self.user = Some(CommandUser { uid: id, gid: id });
        self
    }

    /// The same guest with limits of its own.
    pub(super) fn limited(mut self, limits: CommandLimits) -> Guest {
        self.limits = limits;
        self
    }

    /// The same guest on a terminal.
    pub(super) fn on_terminal(mut self, rows: u16, columns: u16) -> Guest {
        self.terminal = Some(TerminalSize { rows, columns });
        self
    }

    /// The same guest with another reader of its standard output.
    pub(super) fn read_by(mut self, reader: Reader) -> Guest {
        self.reader = reader;
        self
    }

    /// The same guest, while the host does something.
    pub(super) fn meanwhile(mut self, meanwhile: Meanwhile) -> Guest {
        self.meanwhile = meanwhile;
        self
    }

    /// What must be there for it.
    pub(super) fn needs(&self) -> Vec<Need> {
        let python = matches!(self.program, Program::Python(_)).then_some(Need::Program("python3"));
        let memory = self.limits.memory.map(|_| Need::Limit(Limit::Memory));
        let processes = self.limits.pids.map(|_| Need::Limit(Limit::Processes));
        let users = self.user.map(|_| Need::Users);
        [python, memory, processes, users].into_iter().flatten().collect()
    }
}

impl Program {
    /// Programs to try in order, and the arguments.
    pub(super) fn words(&self) -> (Vec<String>, Vec<String>) {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            Program::Shell(script) => (owned(&["/bin/sh", "/usr/bin/sh"]), owned(&["-c", script])),
            Program::Python(script) => (
                owned(&["/usr/bin/python3", "/usr/local/bin/python3"]),
                vec!["-IS".to_owned(), "-c".to_owned(), format!("{PRELUDE}\n{script}\nend()")],
            ),
            Program::Exact { programs, arguments } => (programs.clone(), arguments.clone()),
        }
    }
}

//! A guest program as data: what is started, with what, for how long.

use std::time::Duration;

use crate::conformance::need::Need;

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
    /// When it is killed.
    pub(super) timeout: Duration,
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
    /// It collects files from the workspace, again and again.
    Collect,
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
            timeout: PATIENCE,
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

    /// What the image must have for it.
    pub(super) fn need(&self) -> Option<Need> {
        match self.program {
            Program::Python(_) => Some(Need::Program("python3")),
            Program::Shell(_) | Program::Exact { .. } => None,
        }
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

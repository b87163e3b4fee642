//! What can be wrong with a task file, shown at the line where it is wrong.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::fault::{Code, Fault};
use crate::yaml::Mark;

/// A task file's text and the name it is shown under.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Source {
    /// The spot at a mark, with its line.
    pub(crate) fn spot(&self, mark: Mark) -> Box<Spot> {
        let text = self.text.replace("\r\n", "\n").replace('\r', "\n");
        let lines: Vec<&str> = text.split('\n').collect();
        // A parser may point behind the last line break: the end of the last line says more.
        let last = lines.len().saturating_sub(usize::from(text.ends_with('\n'))).max(1);
        let number = mark.line.min(last);
        let line = lines.get(number - 1).copied().unwrap_or_default();
        let column = if mark.line > last { line.chars().count() + 1 } else { mark.column };
        Box::new(Spot::new(&self.name, number, column, mark.width, line))
    }
}

/// A spot in a file: where it is, and its line with a caret under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The file.
    pub file: String,
    /// Line, from one.
    pub line: usize,
    /// Column in characters, from one.
    pub column: usize,
    shown: String,
    indent: usize,
    width: usize,
}

/// Characters shown of a long line before and after the spot.
const BEFORE: usize = 60;
const AFTER: usize = 60;

impl Spot {
    fn new(file: &str, line: usize, column: usize, width: usize, text: &str) -> Spot {
        let characters: Vec<char> = text.chars().map(visible).collect();
        let start = column.saturating_sub(1).min(characters.len());
        let from = start.saturating_sub(BEFORE);
        let to = characters.len().min(start + AFTER);
        let (head, tail) = (if from > 0 { "…" } else { "" }, if to < characters.len() { "…" } else { "" });
        let window: String = characters.get(from..to).unwrap_or_default().iter().collect();
        Spot {
            file: file.to_owned(),
            line,
            column,
            shown: format!("{head}{}{tail}", window.trim_end()),
            indent: start - from + usize::from(from > 0),
            width: width.clamp(1, (to - start).max(1)),
        }
    }

    fn caret(&self) -> String {
        format!("{}{}", " ".repeat(self.indent), "^".repeat(self.width))
    }
}

/// One column wide and harmless on a terminal.
fn visible(character: char) -> char {
    match character {
        '\t' => ' ',
        c if c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}') =>
        {
            '\u{fffd}'
        }
        c => c,
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        writeln!(f, "{margin} |")?;
        writeln!(f, "{}", format!("{number} | {}", self.shown).trim_end())?;
        write!(f, "{margin} | {}", self.caret())
    }
}

/// Shows what is wrong, then where.
fn at(spot: &Spot, cause: &str) -> String {
    format!("{}:{}:{}: {cause}\n{spot}", spot.file.escape_debug(), spot.line, spot.column)
}

/// What is wrong with a task file.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The file could not be read.
    #[error("cannot read the task file {}: {source}", shown(path))]
    Read {
        /// The path that was given or found.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder holds no task file.
    #[error("no task.yaml, task.yml or task.json in the folder {}", shown(path))]
    NoTaskFile {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds more than one task file.
    #[error("the folder {} holds both {first} and {second}", shown(path))]
    TwoTaskFiles {
        /// The folder.
        path: PathBuf,
        /// One file.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// The path is a device, a pipe or a socket.
    #[error("{} is neither a file nor a folder", shown(path))]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is larger than any task is.
    #[error("{file} is larger than {limit}, the most a task file may have")]
    TooLarge {
        /// The file.
        file: String,
        /// The most allowed.
        limit: crate::limits::Bytes,
    },
    /// The text is not one readable document.
    #[error("{}", at(spot, cause))]
    Syntax {
        /// Where.
        spot: Box<Spot>,
        /// What is wrong.
        cause: String,
        /// What to do.
        hint: Option<&'static str>,
    },
    /// A key that is not known at its place.
    #[error("{}", at(spot, &format!("unknown key `{key}` {place}")))]
    UnknownKey {
        /// Where.
        spot: Box<Spot>,
        /// The key, made printable.
        key: String,
        /// Which part of the task.
        place: String,
        /// What to do, most useful first.
        hints: Vec<String>,
    },
    /// A required key is not there.
    #[error("{}", at(spot, &format!("the key `{key}` is missing {place}")))]
    MissingKey {
        /// Where it should be.
        spot: Box<Spot>,
        /// The key.
        key: String,
        /// Which part of the task.
        place: String,
        /// What to do.
        hint: String,
    },
    /// A value of the wrong type.
    #[error("{}", at(spot, &format!("{key} must be {expected}, not {found}")))]
    WrongType {
        /// Where.
        spot: Box<Spot>,
        /// The key, as words.
        key: String,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
        /// What to do.
        hints: Vec<String>,
    },
    /// A value that is not allowed.
    #[error("{}", at(spot, cause))]
    WrongValue {
        /// Where.
        spot: Box<Spot>,
        /// What is wrong.
        cause: String,
        /// What to do, most useful first.
        hints: Vec<String>,
    },
    /// A path that leads out of its folder.
    #[error("{}", at(spot, cause))]
    PathEscapes {
        /// Where.
        spot: Box<Spot>,
        /// What is wrong.
        cause: String,
    },
    /// A format that this Belljar does not read.
    #[error("{}", at(spot, &format!("the task format is version {found}; this Belljar reads up to {newest}")))]
    Version {
        /// Where.
        spot: Box<Spot>,
        /// The version found.
        found: String,
        /// The newest version understood.
        newest: u32,
    },
    /// Something found wrong later, by a room that knows more than the text.
    #[error("{}", at(spot, cause))]
    Later {
        /// Where.
        spot: Box<Spot>,
        /// Under which code it is known.
        code: Code,
        /// What is wrong.
        cause: String,
    },
}

fn shown(path: &std::path::Path) -> String {
    path.display().to_string().escape_debug().to_string()
}

impl SpecError {
    /// The code a person meets this error under.
    pub fn code(&self) -> Code {
        match self {
            SpecError::Read { .. }
            | SpecError::NoTaskFile { .. }
            | SpecError::TwoTaskFiles { .. }
            | SpecError::NotAFile { .. }
            | SpecError::TooLarge { .. } => Code::SpecUnreadable,
            SpecError::Syntax { .. } => Code::SpecSyntax,
            SpecError::UnknownKey { .. } => Code::SpecUnknownKey,
            SpecError::MissingKey { .. } | SpecError::WrongType { .. } => Code::SpecType,
            SpecError::WrongValue { .. } => Code::SpecValue,
            SpecError::PathEscapes { .. } => Code::PathEscapes,
            SpecError::Version { .. } => Code::SpecVersion,
            SpecError::Later { code, .. } => *code,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            SpecError::Syntax { hint, .. } => hint.iter().map(|hint| (*hint).to_owned()).collect(),
            SpecError::MissingKey { hint, .. } => vec![hint.clone()],
            SpecError::UnknownKey { hints, .. }
            | SpecError::WrongType { hints, .. }
            | SpecError::WrongValue { hints, .. } => hints.clone(),
            SpecError::TwoTaskFiles { .. } => vec!["name the file instead of the folder".to_owned()],
            SpecError::Read { .. }
            | SpecError::NoTaskFile { .. }
            | SpecError::NotAFile { .. }
            | SpecError::TooLarge { .. }
            | SpecError::PathEscapes { .. }
            | SpecError::Version { .. }
            | SpecError::Later { .. } => Vec::new(),
        }
    }
}

impl From<SpecError> for Fault {
    fn from(error: SpecError) -> Fault {
        let mut fault = Fault::new(error.code(), error.to_string());
        fault.hints = error.hints();
        match error {
            SpecError::Read { source, .. } => fault.caused_by(source),
            _ => fault,
        }
    }
}

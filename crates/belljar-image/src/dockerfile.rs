//! Dockerfiles: from text to instructions with their lines.
//!
//! The rules are those of Docker's own reader, because a file that means one thing there and another here would be a
//! trap. What Belljar does not do is refused with its line, never passed over.

mod arguments;
mod flags;
mod instruction;
mod lines;
pub mod words;

pub use flags::{Mount, MountKind, Ownership, Sharing};
pub use instruction::{
    Argument, CommandLine, Healthcheck, Instruction, Network, Run, Security, Source, Transfer, parse_duration,
};
pub use lines::{Directives, HereDocument};

/// A Dockerfile that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    /// What its first lines set.
    pub directives: Directives,
    /// The ARGs before the first FROM.
    pub arguments: Vec<Step>,
    /// The stages in their order; there is at least one.
    pub stages: Vec<Stage>,
}

/// One instruction with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The line it starts in.
    pub line: usize,
    /// The line it ends in, with its here-documents.
    pub last: usize,
    /// Its lines, joined.
    pub text: String,
    /// What it says.
    pub instruction: Instruction,
}

/// A FROM and what follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The line of its FROM.
    pub line: usize,
    /// The FROM as written.
    pub text: String,
    /// What it starts from, before variables are filled in.
    pub image: String,
    /// Its name, in lowercase.
    pub name: Option<String>,
    /// `--platform`, before variables are filled in.
    pub platform: Option<String>,
    /// Its instructions.
    pub steps: Vec<Step>,
}

/// What is wrong, and in which line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct DockerfileError {
    /// The first line of the instruction.
    pub line: usize,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // Each says in words what it is.
pub enum Problem {
    #[error("the file is longer than {} bytes", lines::MOST_BYTES)]
    TooLong,
    #[error("the file has too many instructions")]
    TooMany,
    #[error("the file has no FROM: say what the image starts from")]
    NoStage,
    #[error("the directive `{0}` is given twice")]
    DirectiveTwice(String),
    #[error("`# escape={0}` is neither \\ nor `")]
    Escape(String),
    #[error("the here-document `{0}` is never ended: write `{0}` alone on a line")]
    OpenDocument(String),
    #[error("`{keyword}` is not an instruction{}", did_you_mean(nearest.as_deref()))]
    UnknownInstruction { keyword: String, nearest: Option<String> },
    #[error("`--{flag}` is not a flag of this instruction{}", did_you_mean(nearest.as_deref()))]
    UnknownFlag { flag: String, nearest: Option<String> },
    #[error("the flag `--{0}` is given twice")]
    FlagTwice(String),
    #[error("the flag `--{0}` needs a value: write `--{0}=…`")]
    FlagValue(String),
    #[error("the flag `--{0}` is either true or false")]
    Switch(String),
    #[error("{0} stands before the first FROM, where only ARG may")]
    BeforeFrom(String),
    #[error(
        "ONBUILD is not supported: write the instruction into the Dockerfile of the image that uses this one"
    )]
    Onbuild,
    #[error("`{0}` in a list is not a string: put it in double quotes")]
    NotAString(String),
    #[error("it has no arguments")]
    Nothing,
    #[error("it has arguments it does not take: `{0}`")]
    Surplus(String),
    #[error("`{0}` has no value: write `{0}=…`")]
    NoValue(String),
    #[error("`{0}` has no `=`: quote a value that has spaces")]
    NoEquals(String),
    #[error("`{0}` has no name before its `=`")]
    NoName(String),
    #[error("FROM takes an image, or an image, AS and a name")]
    From,
    #[error(
        "`{0}` is not a name for a stage: it starts with a letter, then letters, digits, `-`, `_` and `.`"
    )]
    StageName(String),
    #[error("the stage `{0}` is there twice")]
    StageTwice(String),
    #[error("it needs at least a source and a destination")]
    Destination,
    #[error("--from names `{0}`, which is not filled in: name a stage, and use the variable in its FROM")]
    FromVariable(String),
    #[error("SHELL needs a list in JSON: SHELL [\"/bin/sh\", \"-c\"]")]
    Shell,
    #[error("a command with a here-document cannot be a list in JSON")]
    DocumentInList,
    #[error("HEALTHCHECK takes NONE, or CMD and a command")]
    Healthcheck,
    #[error("`{value}` is not a value of `--{flag}`: {expected}")]
    FlagChoice { flag: &'static str, value: String, expected: &'static str },
    #[error("the mount type ssh is not supported: no agent reaches into a build; use a secret")]
    Ssh,
    #[error("`{kind}` is not a type of mount{}", did_you_mean(nearest.as_deref()))]
    MountKind { kind: String, nearest: Option<String> },
    #[error("the mount has no target")]
    MountTarget,
    #[error("the mount's `{0}` is given twice")]
    MountTwice(String),
    #[error("the mount's `{0}` has no value, or a wrong one")]
    MountValue(String),
    #[error("a mount of type {kind} has no `{field}`")]
    MountField { kind: String, field: String },
    #[error("the secret has no id")]
    SecretId,
}

impl Problem {
    fn at(self, line: usize) -> DockerfileError {
        DockerfileError { line, problem: self }
    }
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |nearest| format!(": did you mean `{nearest}`?"))
}

/// The name that differs least, when it differs little.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if name.len() > 64 {
        return None;
    }
    let candidates = known.iter().map(|known| (distance(name.as_bytes(), known.as_bytes()), *known));
    candidates.min().filter(|(distance, known)| *distance <= known.len().div_ceil(3)).map(|(_, known)| known)
}

/// How many letters must be changed, added or dropped.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (count, letter) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], count + 1);
        for (at, expected) in other.iter().enumerate() {
            let changed = diagonal + usize::from(!letter.eq_ignore_ascii_case(expected));
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

impl Dockerfile {
    /// Understands a whole file, or says what is wrong first.
    pub fn parse(text: &str) -> Result<Dockerfile, DockerfileError> {
        let (directives, lines) = lines::read(text)?;
        let mut file = Dockerfile { directives, arguments: Vec::new(), stages: Vec::new() };
        for line in lines {
            file.add(line)?;
        }
        if file.stages.is_empty() { Err(Problem::NoStage.at(1)) } else { Ok(file) }
    }

    fn add(&mut self, line: lines::Logical) -> Result<(), DockerfileError> {
        let text = line.text.trim();
        let (keyword, rest) = text.split_once(arguments::is_space).unwrap_or((text, ""));
        if keyword.eq_ignore_ascii_case("FROM") {
            let stage =
                instruction::from(rest).and_then(|stage| self.unique(stage)).map_err(|p| p.at(line.first))?;
            self.stages.push(Stage { line: line.first, text: text.to_owned(), ..stage });
            return Ok(());
        }
        let escape = self.directives.escape;
        let instruction =
            instruction::read(keyword, rest, line.documents, escape).map_err(|p| p.at(line.first))?;
        let step = Step { line: line.first, last: line.last, text: text.to_owned(), instruction };
        match self.stages.last_mut() {
            Some(stage) => stage.steps.push(step),
            None if matches!(step.instruction, Instruction::Arg(_)) => self.arguments.push(step),
            None => return Err(Problem::BeforeFrom(keyword.to_ascii_uppercase()).at(line.first)),
        }
        Ok(())
    }

    fn unique(&self, stage: Stage) -> Result<Stage, Problem> {
        match &stage.name {
            Some(name) if self.stages.iter().any(|stage| stage.name.as_ref() == Some(name)) => {
                Err(Problem::StageTwice(name.clone()))
            }
            _ => Ok(stage),
        }
    }
}

#[cfg(test)]
mod tests;

//! One instruction: its keyword, its flags, its arguments.

use super::arguments::{json, json_or_words, pairs, plain_words, quoted_words};
use super::flags::{self, Flags, Mount};
use super::lines::{HereDocument, announced};
use super::{Problem, Stage, nearest};

/// What a line says. Variables are not filled in yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// Copies, also from afar, and unpacks archives.
    Add(Transfer),
    /// Copies.
    Copy(Transfer),
    /// Declares variables of the build.
    Arg(Vec<Argument>),
    /// What a container runs, or the entry point's arguments.
    Cmd(CommandLine),
    /// What a container always runs.
    Entrypoint(CommandLine),
    /// Variables of the build and of containers.
    Env(Vec<(String, String)>),
    /// Ports that are said to be served.
    Expose(Vec<String>),
    /// How to ask a container whether it is well.
    Healthcheck(Healthcheck),
    /// What else is said of the image.
    Label(Vec<(String, String)>),
    /// Who made it.
    Maintainer(String),
    /// Runs a command.
    Run(Box<Run>),
    /// What runs the shell form.
    Shell(Vec<String>),
    /// What ends a container.
    Stopsignal(String),
    /// Who runs what follows.
    User(String),
    /// Folders that are meant to outlive a container.
    Volume(Vec<String>),
    /// Where what follows starts.
    Workdir(String),
}

/// A variable of the build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// Its value where the caller gives none.
    pub default: Option<String>,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandLine {
    /// A line for the shell.
    Shell(String),
    /// A list in JSON: run as it is.
    List(Vec<String>),
}

/// What COPY and ADD say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transfer {
    /// What is copied.
    pub sources: Vec<Source>,
    /// Where to.
    pub destination: String,
    /// The stage or image it comes from.
    pub from: Option<String>,
    /// The owner.
    pub chown: Option<String>,
    /// The mode.
    pub chmod: Option<String>,
    /// Patterns of what is left out.
    pub exclude: Vec<String>,
    /// Independent of what is below; done as a plain copy.
    pub link: bool,
    /// Keeps the folders above the sources.
    pub parents: bool,
    /// The digest of what comes from afar.
    pub checksum: Option<String>,
    /// Keeps `.git`.
    pub keep_git_dir: bool,
}

/// What one file of a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A path, a pattern, or for ADD an address.
    Path(String),
    /// A text in the Dockerfile itself.
    Document(HereDocument),
}

/// How to ask a container whether it is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Healthcheck {
    /// Not at all, whatever the base says.
    None,
    /// By a command.
    Command {
        /// The command.
        command: CommandLine,
        /// Nanoseconds between two, 0 for the default.
        interval: u64,
        /// Nanoseconds one may take.
        timeout: u64,
        /// Nanoseconds of grace at the start.
        start_period: u64,
        /// Nanoseconds between two in that time.
        start_interval: u64,
        /// How many must fail.
        retries: u64,
    },
}

/// The network of a RUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// What the build has.
    Default,
    /// None.
    None,
    /// The machine's own.
    Host,
}

/// What a RUN is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// What every RUN is.
    Sandbox,
    /// Everything.
    Insecure,
}

/// What RUN says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The command as written, without its here-documents.
    pub command: CommandLine,
    /// Its here-documents.
    pub documents: Vec<HereDocument>,
    /// What is mounted.
    pub mounts: Vec<Mount>,
    /// Its network.
    pub network: Network,
    /// What it is allowed.
    pub security: Security,
}

const KEYWORDS: &[&str] = &[
    "ADD",
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "RUN",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
];

/// Understands one line; FROM is read by `from`.
pub(super) fn read(
    keyword: &str,
    rest: &str,
    documents: Vec<HereDocument>,
    escape: char,
) -> Result<Instruction, Problem> {
    let (flags, rest) = flags::cut(rest);
    let keyword = keyword.to_ascii_uppercase();
    let known: &'static [&'static str] = match keyword.as_str() {
        "ADD" => &["chown", "chmod", "link", "keep-git-dir", "checksum", "exclude"],
        "COPY" => &["from", "chown", "chmod", "link", "parents", "exclude"],
        "RUN" => &["mount", "network", "security"],
        "HEALTHCHECK" => &["interval", "timeout", "start-period", "start-interval", "retries"],
        "ONBUILD" => return Err(Problem::Onbuild),
        _ => &[],
    };
    if !KEYWORDS.contains(&keyword.as_str()) {
        let nearest = nearest(&keyword, KEYWORDS).map(str::to_owned);
        return Err(Problem::UnknownInstruction { keyword: keyword.chars().take(64).collect(), nearest });
    }
    let flags = Flags::new(flags, known)?;
    if rest.is_empty() && !matches!(keyword.as_str(), "CMD" | "ENTRYPOINT") {
        return Err(Problem::Nothing);
    }
    Ok(match keyword.as_str() {
        "ADD" => Instruction::Add(transfer(&flags, rest, documents)?),
        "COPY" => Instruction::Copy(transfer(&flags, rest, documents)?),
        "ARG" => Instruction::Arg(
            quoted_words(rest, escape).iter().map(|word| argument(word)).collect::<Result<_, _>>()?,
        ),
        "CMD" => Instruction::Cmd(command(rest)?),
        "ENTRYPOINT" => Instruction::Entrypoint(command(rest)?),
        "ENV" => Instruction::Env(pairs(rest, escape)?),
        "EXPOSE" => Instruction::Expose(plain_words(rest)),
        "HEALTHCHECK" => Instruction::Healthcheck(healthcheck(&flags, rest)?),
        "LABEL" => Instruction::Label(pairs(rest, escape)?),
        "MAINTAINER" => Instruction::Maintainer(rest.to_owned()),
        "RUN" => Instruction::Run(Box::new(run(&flags, rest, documents)?)),
        "SHELL" => Instruction::Shell(shell(rest)?),
        "STOPSIGNAL" => Instruction::Stopsignal(rest.to_owned()),
        "USER" => Instruction::User(rest.to_owned()),
        "VOLUME" => Instruction::Volume(volumes(rest)?),
        _ => Instruction::Workdir(rest.to_owned()),
    })
}

/// Understands what stands after FROM.
pub(super) fn from(rest: &str) -> Result<Stage, Problem> {
    let (words, rest) = flags::cut(rest);
    let platform = Flags::new(words, &["platform"])?.text("platform")?;
    let words = plain_words(rest);
    let (image, name) = match &words[..] {
        [image] => (image, None),
        [image, r#as, name] if r#as.eq_ignore_ascii_case("as") => (image, Some(stage_name(name)?)),
        _ => return Err(Problem::From),
    };
    Ok(Stage { line: 0, text: String::new(), image: image.clone(), name, platform, steps: Vec::new() })
}

fn stage_name(name: &str) -> Result<String, Problem> {
    let lower = name.to_ascii_lowercase();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let good = lower.starts_with(|letter: char| letter.is_ascii_alphabetic()) && lower.chars().all(plain);
    if good && lower != "scratch" && lower != "context" {
        Ok(lower)
    } else {
        Err(Problem::StageName(name.to_owned()))
    }
}

fn argument(word: &str) -> Result<Argument, Problem> {
    match word.split_once('=') {
        Some(("", _)) => Err(Problem::NoName(word.to_owned())),
        Some((name, default)) => Ok(Argument { name: name.to_owned(), default: Some(default.to_owned()) }),
        None => Ok(Argument { name: word.to_owned(), default: None }),
    }
}

fn command(rest: &str) -> Result<CommandLine, Problem> {
    match json(rest) {
        Some(list) => list.map(CommandLine::List),
        // Nothing at all is an empty list, as it is for Docker.
        None if rest.is_empty() => Ok(CommandLine::List(Vec::new())),
        None => Ok(CommandLine::Shell(rest.to_owned())),
    }
}

fn shell(rest: &str) -> Result<Vec<String>, Problem> {
    match json(rest) {
        Some(Ok(list)) if !list.is_empty() => Ok(list),
        Some(Err(problem)) => Err(problem),
        _ => Err(Problem::Shell),
    }
}

fn volumes(rest: &str) -> Result<Vec<String>, Problem> {
    let volumes = json_or_words(rest)?;
    if volumes.is_empty() || volumes.iter().any(|volume| volume.trim().is_empty()) {
        return Err(Problem::Nothing);
    }
    Ok(volumes)
}

fn transfer(flags: &Flags, rest: &str, documents: Vec<HereDocument>) -> Result<Transfer, Problem> {
    let mut words = json_or_words(rest)?;
    let destination = words.pop().ok_or(Problem::Destination)?;
    if words.is_empty() {
        return Err(Problem::Destination);
    }
    let from = flags.text("from")?;
    if let Some(from) = from.iter().find(|from| from.contains('$')) {
        return Err(Problem::FromVariable(from.clone()));
    }
    Ok(Transfer {
        sources: words.into_iter().map(|word| source(word, &documents)).collect(),
        destination,
        from,
        chown: flags.text("chown")?,
        chmod: flags.text("chmod")?,
        exclude: flags.texts("exclude")?,
        link: flags.switch("link")?,
        parents: flags.switch("parents")?,
        checksum: flags.text("checksum")?,
        keep_git_dir: flags.switch("keep-git-dir")?,
    })
}

fn source(word: String, documents: &[HereDocument]) -> Source {
    let document =
        announced(&word).and_then(|here| documents.iter().find(|document| document.name == here.name));
    document.cloned().map_or(Source::Path(word), Source::Document)
}

fn run(flags: &Flags, rest: &str, documents: Vec<HereDocument>) -> Result<Run, Problem> {
    let command = command(rest)?;
    if !documents.is_empty() && matches!(command, CommandLine::List(_)) {
        return Err(Problem::DocumentInList);
    }
    let network = match flags.text("network")?.as_deref() {
        None | Some("default") => Network::Default,
        Some("none") => Network::None,
        Some("host") => Network::Host,
        Some(value) => return Err(choice("network", value, "default, none or host")),
    };
    let security = match flags.text("security")?.as_deref() {
        None | Some("sandbox") => Security::Sandbox,
        Some("insecure") => Security::Insecure,
        Some(value) => return Err(choice("security", value, "sandbox or insecure")),
    };
    let mounts = flags.texts("mount")?.iter().map(|text| flags::mount(text)).collect::<Result<_, _>>()?;
    Ok(Run { command, documents, mounts, network, security })
}

fn choice(flag: &'static str, value: &str, expected: &'static str) -> Problem {
    Problem::FlagChoice { flag, value: value.to_owned(), expected }
}

fn healthcheck(flags: &Flags, rest: &str) -> Result<Healthcheck, Problem> {
    let (kind, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if kind.eq_ignore_ascii_case("none") {
        return if rest.trim().is_empty() {
            Ok(Healthcheck::None)
        } else {
            Err(Problem::Surplus(rest.to_owned()))
        };
    }
    if !kind.eq_ignore_ascii_case("cmd") {
        return Err(Problem::Healthcheck);
    }
    let command = command(rest.trim())?;
    if command == CommandLine::List(Vec::new()) {
        return Err(Problem::Healthcheck);
    }
    let time = |flag: &'static str| -> Result<u64, Problem> {
        let Some(value) = flags.text(flag)? else { return Ok(0) };
        // Less than a millisecond is a mistake, and 0 means what the engine does by itself.
        let nanoseconds =
            parse_duration(&value).filter(|nanoseconds| *nanoseconds == 0 || *nanoseconds >= 1_000_000);
        nanoseconds.ok_or_else(|| choice(flag, &value, "a time of at least 1ms such as 30s or 1m30s"))
    };
    let retries = match flags.text("retries")? {
        None => 0,
        Some(value) => value.parse().map_err(|_| choice("retries", &value, "a number"))?,
    };
    Ok(Healthcheck::Command {
        command,
        interval: time("interval")?,
        timeout: time("timeout")?,
        start_period: time("start-period")?,
        start_interval: time("start-interval")?,
        retries,
    })
}

/// Nanoseconds of `1h2m3.5s` and the like.
pub fn parse_duration(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, after) = rest.split_at(digits);
        let end = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        total = total.checked_add(scaled(number, unit)?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if part.len() > 18 || (whole.is_empty() && part.is_empty()) {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.checked_mul(unit)? };
    let part = if part.is_empty() {
        0
    } else {
        u64::try_from(part.parse::<u128>().ok()? * u128::from(unit) / 10u128.pow(part.len() as u32)).ok()?
    };
    whole.checked_add(part)
}

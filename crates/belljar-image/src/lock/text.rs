//! The lock as text: TOML in which every line is a whole fact.
//!
//! Each line says of which image on which platform it speaks, so lines can be added, dropped and merged one by one, and
//! a difference shown by a version control system can be read without what stands around it. A list is numbered, a set
//! has its members as keys: two branches that add to it do not collide.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::{Entry, Identity, Intent, Locators, Lock, Pin};
use crate::digest::Digest;

/// The version of the format.
pub const LOCK_FORMAT: u32 = 1;

const TITLE: &str =
    "# What the images of these tasks are, to the byte. Written by `belljar run`; see docs/pinning.md.";
/// More layers than this no image has.
const MOST_LAYERS: usize = 500;

/// What is wrong with a lock, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {wrong}")]
pub struct LockError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub wrong: Wrong,
}

/// What can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// A merge was not finished.
    #[error("a merge left its mark here: keep the lines of one side, or of both")]
    Merge,
    /// Not a fact.
    #[error("{0}")]
    Syntax(&'static str),
    /// The first fact is not the version.
    #[error("the lock must begin with `version = {LOCK_FORMAT}`")]
    NoVersion,
    /// Another version.
    #[error("the lock has version {0}, and this Belljar knows version {LOCK_FORMAT} only")]
    Version(String),
    /// Said before.
    #[error("this was said in line {first} already: keep one of the two")]
    Twice {
        /// Where.
        first: usize,
    },
    /// A field that this version does not have.
    #[error("`{0}` is not known here")]
    Unknown(String),
    /// A field is missing.
    #[error("the entry of `{reference}` on {platform} lacks `{field}`")]
    Missing {
        /// The entry's reference.
        reference: String,
        /// The entry's platform.
        platform: String,
        /// What it lacks.
        field: String,
    },
    /// A value that cannot be one.
    #[error("{field} is wrong: {reason}")]
    Value {
        /// Of what.
        field: String,
        /// Why.
        reason: String,
    },
}

impl Wrong {
    fn at(self, line: usize) -> LockError {
        LockError { line, wrong: self }
    }
}

/// A value as a line has it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Text(String),
    Number(String),
    Yes,
}

/// What is left of a line when its image is known: the field, with the value and the line's number.
type Facts = BTreeMap<Vec<String>, (usize, Value)>;

impl Lock {
    /// Reads a lock; whatever is not understood is refused with its line.
    pub fn parse(text: &str) -> Result<Lock, LockError> {
        let mut entries: BTreeMap<Intent, (usize, Facts)> = BTreeMap::new();
        let mut versioned = None;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let Some((key, value)) = fact(line).map_err(|wrong| wrong.at(number))? else { continue };
            match versioned {
                None => {
                    versioned =
                        Some(version(&key, &value).map_err(|wrong| wrong.at(number)).map(|()| number)?)
                }
                Some(first) if key == ["version"] => return Err(Wrong::Twice { first }.at(number)),
                Some(_) => {
                    let (intent, field) = addressed(key).map_err(|wrong| wrong.at(number))?;
                    let (_, facts) = entries.entry(intent).or_insert_with(|| (number, Facts::new()));
                    if let Some((first, _)) = facts.insert(field, (number, value)) {
                        return Err(Wrong::Twice { first }.at(number));
                    }
                }
            }
        }
        if versioned.is_none() {
            return Err(Wrong::NoVersion.at(1));
        }
        let images = entries.into_iter().map(|(intent, (line, facts))| {
            let entry = Reader { intent: &intent, line, facts }.entry()?;
            Ok((intent, entry))
        });
        Ok(Lock { images: images.collect::<Result<_, LockError>>()? })
    }
}

fn version(key: &[String], value: &Value) -> Result<(), Wrong> {
    match value {
        _ if key != ["version"] => Err(Wrong::NoVersion),
        Value::Number(number) if *number == LOCK_FORMAT.to_string() => Ok(()),
        Value::Number(other) | Value::Text(other) => Err(Wrong::Version(other.clone())),
        Value::Yes => Err(Wrong::NoVersion),
    }
}

/// Takes the image and the platform off a key.
fn addressed(key: Vec<String>) -> Result<(Intent, Vec<String>), Wrong> {
    let whole = key.join(".");
    let mut parts = key.into_iter();
    match (parts.next().as_deref(), parts.next(), parts.next()) {
        (Some("images"), Some(reference), Some(platform)) => {
            Ok((Intent { reference, platform }, parts.collect()))
        }
        _ => Err(Wrong::Unknown(whole)),
    }
}

/// One line: nothing, or a key and a value.
fn fact(line: &str) -> Result<Option<(Vec<String>, Value)>, Wrong> {
    if ["<<<<<<<", "=======", ">>>>>>>", "|||||||"].iter().any(|mark| line.starts_with(mark)) {
        return Err(Wrong::Merge);
    }
    let line = line.trim_matches([' ', '\t']);
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut rest = Rest(line);
    let mut key = vec![rest.word()?];
    while rest.takes('.') {
        key.push(rest.word()?);
    }
    rest.0 = rest.0.trim_start_matches([' ', '\t']);
    if !rest.takes('=') {
        return Err(Wrong::Syntax("a line is written `key = value`"));
    }
    rest.0 = rest.0.trim_start_matches([' ', '\t']);
    let value = rest.value()?;
    if rest.0.is_empty() { Ok(Some((key, value))) } else { Err(Wrong::Syntax("something follows the value")) }
}

/// What of a line was not read yet.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    fn takes(&mut self, letter: char) -> bool {
        self.0.strip_prefix(letter).map(|rest| self.0 = rest).is_some()
    }

    /// A part of a key: plain or in quotes.
    fn word(&mut self) -> Result<String, Wrong> {
        if self.0.starts_with('"') {
            return self.quoted();
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let end = self.0.find(|c| !plain(c)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        if word.is_empty() { Err(Wrong::Syntax("a part of the key is missing")) } else { Ok(word.to_owned()) }
    }

    fn value(&mut self) -> Result<Value, Wrong> {
        if self.0.starts_with('"') {
            return self.quoted().map(Value::Text);
        }
        let word = std::mem::take(&mut self.0);
        let is_number = !word.is_empty() && word.len() < 10 && word.bytes().all(|byte| byte.is_ascii_digit());
        match word {
            "true" => Ok(Value::Yes),
            number if is_number => Ok(Value::Number(number.to_owned())),
            _ => Err(Wrong::Syntax("a value is a text in double quotes, a number or `true`")),
        }
    }

    fn quoted(&mut self) -> Result<String, Wrong> {
        let mut text = String::new();
        let mut letters = self.0.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.0 = self.0.get(at + 1..).unwrap_or_default();
                    return Ok(text);
                }
                '\\' => match letters.next() {
                    Some((_, escaped @ ('"' | '\\'))) => text.push(escaped),
                    _ => return Err(Wrong::Syntax("only \\\\ and \\\" are escapes here")),
                },
                letter if letter.is_control() => {
                    return Err(Wrong::Syntax("a text holds a control character"));
                }
                letter => text.push(letter),
            }
        }
        Err(Wrong::Syntax("a text does not end"))
    }
}

/// Takes the fields of one entry, one after the other; what is left over is not known.
struct Reader<'a> {
    intent: &'a Intent,
    line: usize,
    facts: Facts,
}

impl Reader<'_> {
    fn entry(mut self) -> Result<Entry, LockError> {
        let pin = self.pin()?;
        let locators = if pin.identity().is_some() { self.locators()? } else { Locators::default() };
        match self.facts.into_iter().next() {
            Some((field, (line, _))) => Err(Wrong::Unknown(field.join(".")).at(line)),
            None => Ok(Entry { pin, locators }),
        }
    }

    fn pin(&mut self) -> Result<Pin, LockError> {
        let (line, kind) = self.text("kind")?;
        Ok(match kind.as_str() {
            "image" => Pin::Image(self.identity()?),
            "build" => Pin::Build { context_hash: self.digest("context_hash")?, image: self.identity()? },
            "directory" => Pin::Directory { content_digest: self.digest("content_digest")? },
            "host" => Pin::Host { system: self.text("system")?.1, fingerprint: self.digest("fingerprint")? },
            other => {
                let reason = format!("`{other}` is none of image, build, directory, host");
                return Err(value("kind", reason).at(line));
            }
        })
    }

    fn identity(&mut self) -> Result<Identity, LockError> {
        let config_digest = self.digest("config_digest")?;
        let numbered = self.all("diff_ids");
        let mut diff_ids = BTreeMap::new();
        for (number, (line, found)) in numbered {
            let field = format!("diff_ids.{number}");
            let place = number.parse::<usize>().ok().filter(|place| place.to_string() == number);
            let place = place.filter(|place| *place < MOST_LAYERS);
            let Some(place) = place else { return Err(Wrong::Unknown(field).at(line)) };
            diff_ids.insert(place, as_digest(&field, line, &found)?);
        }
        match (0..diff_ids.len()).find(|place| !diff_ids.contains_key(place)) {
            Some(place) => Err(self.missing(&format!("diff_ids.{place}"))),
            None => Ok(Identity { config_digest, diff_ids: diff_ids.into_values().collect() }),
        }
    }

    fn locators(&mut self) -> Result<Locators, LockError> {
        let mut repo_digests = BTreeSet::new();
        for (name, (line, found)) in self.all("repo_digests") {
            let digest = name.rsplit_once('@').map(|(_, digest)| digest.parse::<Digest>());
            if found != Value::Yes || !matches!(digest, Some(Ok(_))) {
                return Err(value("repo_digests", "written `\"name@sha256:…\" = true`".to_owned()).at(line));
            }
            repo_digests.insert(name);
        }
        let mut optional = |field: &str| {
            let found = self.facts.remove(std::slice::from_ref(&field.to_owned()));
            found.map(|(line, found)| as_digest(field, line, &found)).transpose()
        };
        let manifest_digest = optional("manifest_digest")?;
        Ok(Locators { repo_digests, manifest_digest, docker_image_id: optional("docker_image_id")? })
    }

    /// Every fact of two words that begins with this one.
    fn all(&mut self, field: &str) -> Vec<(String, (usize, Value))> {
        let is_one = |key: &Vec<String>| key.len() == 2 && key.first().is_some_and(|word| word == field);
        let (these, others) = std::mem::take(&mut self.facts).into_iter().partition(|(key, _)| is_one(key));
        self.facts = others;
        let these: Facts = these;
        these.into_iter().filter_map(|(mut key, found)| Some((key.pop()?, found))).collect()
    }

    fn text(&mut self, field: &str) -> Result<(usize, String), LockError> {
        match self.facts.remove(std::slice::from_ref(&field.to_owned())) {
            Some((line, Value::Text(text))) => Ok((line, text)),
            Some((line, _)) => Err(value(field, "it must be a text in double quotes".to_owned()).at(line)),
            None => Err(self.missing(field)),
        }
    }

    fn digest(&mut self, field: &str) -> Result<Digest, LockError> {
        let (line, text) = self.text(field)?;
        as_digest(field, line, &Value::Text(text))
    }

    fn missing(&self, field: &str) -> LockError {
        let Intent { reference, platform } = self.intent.clone();
        Wrong::Missing { reference, platform, field: field.to_owned() }.at(self.line)
    }
}

fn value(field: &str, reason: String) -> Wrong {
    Wrong::Value { field: field.to_owned(), reason }
}

fn as_digest(field: &str, line: usize, found: &Value) -> Result<Digest, LockError> {
    let wrong = |reason: String| value(field, reason).at(line);
    match found {
        Value::Text(text) => {
            text.parse().map_err(|error: crate::digest::DigestError| wrong(error.to_string()))
        }
        Value::Number(_) | Value::Yes => Err(wrong("it must be a digest in double quotes".to_owned())),
    }
}

/// The one way to write a lock.
impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}\nversion = {LOCK_FORMAT}")?;
        for (intent, entry) in &self.images {
            let start = format!("images.{}.{}", quoted(&intent.reference), quoted(&intent.platform));
            for line in lines(entry) {
                writeln!(f, "{start}.{line}")?;
            }
        }
        Ok(())
    }
}

fn lines(entry: &Entry) -> Vec<String> {
    let said = |field: &str, digest: &Digest| format!("{field} = \"{digest}\"");
    let mut lines = vec![format!("kind = \"{}\"", entry.pin.kind())];
    match &entry.pin {
        Pin::Image(_) => {}
        Pin::Build { context_hash, .. } => lines.push(said("context_hash", context_hash)),
        Pin::Directory { content_digest } => lines.push(said("content_digest", content_digest)),
        Pin::Host { system, fingerprint } => {
            lines.push(format!("system = {}", quoted(system)));
            lines.push(said("fingerprint", fingerprint));
        }
    }
    if let Some(Identity { config_digest, diff_ids }) = entry.pin.identity() {
        lines.push(said("config_digest", config_digest));
        lines.extend(diff_ids.iter().enumerate().map(|(at, layer)| said(&format!("diff_ids.{at}"), layer)));
    }
    let Locators { repo_digests, manifest_digest, docker_image_id } = &entry.locators;
    lines.extend(repo_digests.iter().map(|name| format!("repo_digests.{} = true", quoted(name))));
    lines.extend(manifest_digest.iter().map(|digest| said("manifest_digest", digest)));
    lines.extend(docker_image_id.iter().map(|digest| said("docker_image_id", digest)));
    lines
}

/// In double quotes; a control character, which no reference has, is shown as a blank.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        let _ = match letter {
            '"' | '\\' => write!(quoted, "\\{letter}"),
            letter if letter.is_control() => write!(quoted, " "),
            letter => write!(quoted, "{letter}"),
        };
    }
    quoted + "\""
}

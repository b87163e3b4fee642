//! Two runs side by side: what is the same, what may differ and does, what must not differ and does.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::capture::{escape, plain};
use crate::digest::hexadecimal;
use crate::fault::{Code, Fault};
use crate::normalise::{Lines, Uses};
use crate::record::{CommandRecord, RunRecord};
use crate::runs::{RunState, load};
use crate::stage::{Actor, Stage, Stream};
use crate::stream::StreamRecord;
use crate::treediff;

/// How far two runs agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Something that must not differ does, and the outcome or an exit code is part of it.
    Different,
    /// The same outcome and exit codes, but output or files differ.
    Verdict,
    /// Identical after the normalisers.
    Normalised,
    /// Every compared byte is identical.
    Bitwise,
}

impl Grade {
    /// The grade's word.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Different => "different",
            Grade::Verdict => "verdict",
            Grade::Normalised => "normalised",
            Grade::Bitwise => "bitwise",
        }
    }
}

/// One difference, both sides of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// What differs: a field of the record, a log, a file.
    pub what: String,
    /// The first run's side.
    pub a: String,
    /// The second run's side.
    pub b: String,
    /// Why it may differ, or where in it the difference is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The comparison of two runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The first run's id.
    pub a: String,
    /// The second run's id.
    pub b: String,
    /// Whether nothing differs that must not.
    pub equal: bool,
    /// How far they agree.
    pub grade: Grade,
    /// What is the same.
    pub same: Vec<String>,
    /// What may differ, and does.
    pub may_differ: Vec<Difference>,
    /// What must not differ, and does.
    pub must_not_differ: Vec<Difference>,
}

/// Compares two run directories; reads them only, and trusts no file in them beyond its digest.
pub fn compare(a: &Path, b: &Path) -> Result<Comparison, Fault> {
    let (left, right) = (Side::open(a)?, Side::open(b)?);
    let mut fold = Fold::new();
    fold.asked(&left.record, &right.record);
    fold.facts(&left.record, &right.record);
    fold.stages(&left, &right);
    fold.outcome(&left.record, &right.record);
    fold.tree(&left, &right);
    Ok(fold.into_comparison(&left.record, &right.record))
}

/// One of the two runs.
struct Side<'a> {
    path: &'a Path,
    record: RunRecord,
}

impl Side<'_> {
    fn open(path: &Path) -> Result<Side<'_>, Fault> {
        let run = load(path)?;
        match run.state {
            RunState::Finished => Ok(Side { path, record: run.record }),
            RunState::Running | RunState::Abandoned | RunState::Damaged => {
                let message =
                    format!("the run {} has not ended, so it cannot be compared", run.record.run_id);
                Err(Fault::new(Code::Usage, message))
            }
        }
    }
}

/// The three lists while they grow.
struct Fold {
    same: Vec<String>,
    may: Vec<Difference>,
    must_not: Vec<Difference>,
    grade: Grade,
}

impl Fold {
    fn new() -> Fold {
        Fold { same: Vec::new(), may: Vec::new(), must_not: Vec::new(), grade: Grade::Bitwise }
    }

    fn may(&mut self, difference: Difference) {
        self.may.push(difference);
    }

    fn must_not(&mut self, difference: Difference, grade: Grade) {
        self.must_not.push(difference);
        self.grade = self.grade.min(grade);
    }

    fn into_comparison(self, a: &RunRecord, b: &RunRecord) -> Comparison {
        Comparison {
            a: a.run_id.clone(),
            b: b.run_id.clone(),
            equal: self.must_not.is_empty(),
            grade: self.grade,
            same: self.same,
            may_differ: self.may,
            must_not_differ: self.must_not,
        }
    }

    /// What was asked for, field by field.
    fn asked(&mut self, a: &RunRecord, b: &RunRecord) {
        let (a, b) = (a.asked(), b.asked());
        for (field, left) in a.as_object().into_iter().flatten() {
            let right = b.get(field).unwrap_or(&Value::Null);
            let mut found = Vec::new();
            differing(field, left, right, &mut found);
            if found.is_empty() {
                self.same.push(field.clone());
            }
            found.into_iter().for_each(|difference| self.must_not(difference, Grade::Different));
        }
    }

    /// What is recorded and never compared.
    fn facts(&mut self, a: &RunRecord, b: &RunRecord) {
        let mut found = Vec::new();
        differing("", &facts(a), &facts(b), &mut found);
        self.may.extend(found);
    }

    fn outcome(&mut self, a: &RunRecord, b: &RunRecord) {
        let word = |record: &RunRecord| record.verdict.as_ref().map_or("none", |v| v.outcome.name());
        self.value("outcome", word(a), word(b));
    }

    fn value(&mut self, what: impl Into<String>, a: impl fmt::Display, b: impl fmt::Display) {
        let (what, a, b) = (what.into(), a.to_string(), b.to_string());
        if a == b {
            self.same.push(what);
        } else {
            self.must_not(Difference { what, a, b, note: None }, Grade::Different);
        }
    }

    fn stages(&mut self, a: &Side<'_>, b: &Side<'_>) {
        for stage in Stage::ALL {
            match (a.record.stage(stage), b.record.stage(stage)) {
                (None, None) => {}
                (Some(left), Some(right)) => {
                    let word = |outcome: Option<_>| {
                        outcome.map_or("none".to_owned(), |o: crate::outcome::StageOutcome| o.to_string())
                    };
                    self.value(stage.name(), word(left.outcome), word(right.outcome));
                    self.commands(stage, (a, &left.commands), (b, &right.commands));
                }
                (left, right) => {
                    let word = |there: bool| if there { "began" } else { "never began" };
                    self.value(stage.name(), word(left.is_some()), word(right.is_some()));
                }
            }
        }
    }

    fn commands(&mut self, stage: Stage, a: (&Side<'_>, &[CommandRecord]), b: (&Side<'_>, &[CommandRecord])) {
        if a.1.len() != b.1.len() {
            self.value(format!("{stage}: number of commands"), a.1.len(), b.1.len());
        }
        for (index, (left, right)) in a.1.iter().zip(b.1).enumerate() {
            let name =
                if a.1.len() > 1 { format!("{stage} command {}", index + 1) } else { stage.to_string() };
            self.command(&name, stage, left, right);
            let compared = a.0.record.compares_output(stage) && b.0.record.compares_output(stage);
            for stream in [Stream::Stdout, Stream::Stderr] {
                let name = format!("{name} {}", stream.name());
                let (left, right) = ((a.0, pick(left, stream)), (b.0, pick(right, stream)));
                match compared {
                    true => self.stream(&name, left, right),
                    false => self.uncompared(&name, left.1, right.1),
                }
            }
        }
    }

    fn command(&mut self, name: &str, stage: Stage, a: &CommandRecord, b: &CommandRecord) {
        let mut found = Vec::new();
        differing(name, &ended(stage, a), &ended(stage, b), &mut found);
        if found.is_empty() {
            self.same.push(format!("{name} command and exit"));
        }
        found.into_iter().for_each(|difference| self.must_not(difference, Grade::Different));
    }

    /// Output that depends on a network or on the machine's own programs.
    fn uncompared(&mut self, what: &str, a: &StreamRecord, b: &StreamRecord) {
        if a.sha256 == b.sha256 {
            return self.same.push(what.to_owned());
        }
        let note = Some("printed with a network, or by programs of the machine".to_owned());
        self.may(Difference { what: what.to_owned(), a: size(a), b: size(b), note });
    }

    fn stream(&mut self, what: &str, a: (&Side<'_>, &StreamRecord), b: (&Side<'_>, &StreamRecord)) {
        let intact = [a, b].map(|(side, stream)| self.check_log(what, side, stream));
        if a.1.truncated() != b.1.truncated() {
            let difference = Difference {
                what: what.to_owned(),
                a: size(a.1),
                b: size(b.1),
                note: Some("one was cut".to_owned()),
            };
            return self.must_not(difference, Grade::Verdict);
        }
        if a.1.sha256 == b.1.sha256 {
            return self.same.push(what.to_owned());
        }
        if intact != [true, true] {
            return self.by_digest(what, a.1, b.1);
        }
        match first_difference(a, b) {
            Ok(Lined::Normalised { uses, sample }) => self.normalised(what, &uses, sample),
            Ok(Lined::Different(sample)) => self.must_not(sample.into_difference(what), Grade::Verdict),
            Err(_) => self.by_digest(what, a.1, b.1),
        }
    }

    fn normalised(&mut self, what: &str, uses: &Uses, sample: Option<Sample>) {
        let counts: Vec<String> = uses.iter().map(|(n, count)| format!("{} {count}", n.name())).collect();
        let note = match counts.is_empty() {
            true => "equal after normalisers, by recorded digest".to_owned(),
            false => format!("equal after normalisers: {}", counts.join(", ")),
        };
        let note = Some(note);
        let (a, b) = sample.map_or_else(Default::default, |sample| (sample.a, sample.b));
        self.may(Difference { what: what.to_owned(), a, b, note });
        self.grade = self.grade.min(Grade::Normalised);
    }

    /// Without trustworthy logs the recorded digests decide.
    fn by_digest(&mut self, what: &str, a: &StreamRecord, b: &StreamRecord) {
        let digest =
            |stream: &StreamRecord| stream.normalised.as_ref().map(|n| (n.version, n.sha256.clone()));
        if digest(a).is_some() && digest(a) == digest(b) {
            return self.normalised(what, &Uses::new(), None);
        }
        let note = Some("by recorded digest".to_owned());
        self.must_not(Difference { what: what.to_owned(), a: size(a), b: size(b), note }, Grade::Verdict);
    }

    /// Whether the log on disk still holds the recorded bytes; if not, that is said.
    fn check_log(&mut self, what: &str, side: &Side<'_>, stream: &StreamRecord) -> bool {
        let found = digest_on_disk(side.path, stream);
        if found.as_ref().is_ok_and(|found| *found == stream.sha256) {
            return true;
        }
        let found = found.map_or_else(|error| error.to_string(), |found| format!("sha256 {found}"));
        let note = Some(format!("{} of run {} is not as recorded", stream.path, side.record.run_id));
        let what = format!("{what} log");
        self.must_not(
            Difference { what, a: format!("sha256 {}", stream.sha256), b: found, note },
            Grade::Verdict,
        );
        false
    }

    /// What was not read cannot be called equal.
    fn unread(&mut self, a: &Side<'_>, b: &Side<'_>) {
        let count = |side: &Side<'_>| side.record.tree.as_ref().map_or(0, |tree| tree.unread);
        if count(a) + count(b) > 0 {
            let words = |side: &Side<'_>| format!("{} entries were not read", count(side));
            let note = Some(
                "files that are too large or may not be read are known by name and size only".to_owned(),
            );
            let difference = Difference { what: "tree, in part".to_owned(), a: words(a), b: words(b), note };
            self.must_not(difference, Grade::Verdict);
        }
    }

    fn tree(&mut self, a: &Side<'_>, b: &Side<'_>) {
        let digest = |side: &Side<'_>| side.record.tree.as_ref().map(|tree| tree.digest.clone());
        let (left, right) = (digest(a), digest(b));
        self.unread(a, b);
        if left == right {
            return self.same.extend(left.map(|_| "tree".to_owned()));
        }
        let word =
            |digest: Option<String>| digest.map_or_else(|| "not hashed".to_owned(), |text| plain(&text));
        let difference = Difference { what: "tree".to_owned(), a: word(left), b: word(right), note: None };
        self.must_not(difference, Grade::Verdict);
        let repo = |side: &Side<'_>| side.path.join("workspace").join("repo");
        for file in treediff::first_differences(&repo(a), &repo(b)) {
            self.must_not(file, Grade::Verdict);
        }
    }
}

fn pick(command: &CommandRecord, stream: Stream) -> &StreamRecord {
    match stream {
        Stream::Stdout => &command.stdout,
        Stream::Stderr => &command.stderr,
    }
}

fn size(stream: &StreamRecord) -> String {
    let digest = stream.sha256.get(..12).unwrap_or(&stream.sha256);
    format!("{} bytes, sha256 {digest}", stream.bytes)
}

/// The compared part of one command, streams apart.
fn ended(stage: Stage, command: &CommandRecord) -> Value {
    let mut value =
        json!({ "ending": command.ending, "exit_code": command.exit_code, "signal": command.signal });
    if stage.actor() == Actor::Guest {
        value["argv"] = json!(command.argv);
        value["cwd"] = json!(command.cwd);
    }
    value
}

fn facts(record: &RunRecord) -> Value {
    json!({
        "run_id": record.run_id,
        "belljar": record.belljar,
        "started": record.started,
        "duration_ms": record.duration_ms,
        "repo_url": record.repo_url,
        "engine": record.engine,
        "image": record.image.as_ref().map(|image| json!({ "reference": image.reference, "locators": image.locators })),
    })
}

/// Every leaf in which two values differ, by its dotted name.
fn differing(name: &str, a: &Value, b: &Value, found: &mut Vec<Difference>) {
    if a == b {
        return;
    }
    let (Value::Object(left), Value::Object(right)) = (a, b) else {
        return found.push(Difference { what: name.to_owned(), a: shown(a), b: shown(b), note: None });
    };
    let extra = right.keys().filter(|key| !left.contains_key(*key));
    for key in left.keys().chain(extra) {
        let inner = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        let side = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
        differing(&inner, &side(left), &side(right), found);
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => cut(&plain(text)),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => cut(&value.to_string()),
    }
}

/// How much of a line or value is shown.
const SHOWN: usize = 160;

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What a walk over two streams found.
enum Lined {
    /// Equal after the normalisers.
    Normalised { uses: Uses, sample: Option<Sample> },
    /// Different, first here.
    Different(Sample),
}

/// One line of both sides.
struct Sample {
    line: u64,
    a: String,
    b: String,
}

impl Sample {
    fn new(line: u64, a: &[u8], b: &[u8]) -> Sample {
        Sample { line, a: readable(a), b: readable(b) }
    }

    fn into_difference(self, what: &str) -> Difference {
        let note = Some(format!("first difference in line {}", self.line));
        Difference { what: what.to_owned(), a: self.a, b: self.b, note }
    }
}

fn readable(line: &[u8]) -> String {
    if line.is_empty() {
        return "(end of output)".to_owned();
    }
    cut(&plain(&escape(line.strip_suffix(b"\n").unwrap_or(line))))
}

fn first_difference(a: (&Side<'_>, &StreamRecord), b: (&Side<'_>, &StreamRecord)) -> io::Result<Lined> {
    let mut left = Lines::new(a.1.open(a.0.path)?);
    let mut right = Lines::new(b.1.open(b.0.path)?);
    let (mut line_a, mut line_b, mut number) = (Vec::new(), Vec::new(), 0);
    let (mut uses, mut sample) = (Uses::new(), None);
    loop {
        let more = left.next(&mut line_a)? | right.next(&mut line_b)?;
        if !more {
            return Ok(Lined::Normalised { uses, sample });
        }
        number += 1;
        if line_a == line_b {
            continue;
        }
        if left.normalised(&line_a, &mut uses) != right.normalised(&line_b, &mut Uses::new()) {
            return Ok(Lined::Different(Sample::new(number, &line_a, &line_b)));
        }
        sample.get_or_insert_with(|| Sample::new(number, &line_a, &line_b));
    }
}

/// SHA-256 of the kept bytes as they are on disk now.
fn digest_on_disk(run_dir: &Path, stream: &StreamRecord) -> io::Result<String> {
    let mut hasher = Sha256::new();
    if stream.kept_bytes > 0 {
        let mut source = stream.open(run_dir)?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match source.read(&mut buffer)? {
                0 => break,
                count => hasher.update(&buffer[..count]),
            }
        }
    }
    Ok(hexadecimal(&hasher.finalize()))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a {}", self.a)?;
        writeln!(f, "b {}", self.b)?;
        match self.equal {
            true => writeln!(f, "\nequal ({})", self.grade.name())?,
            false => writeln!(f, "\nnot equal ({})", self.grade.name())?,
        }
        write_list(f, "must not differ, and does", &self.must_not_differ)?;
        write_list(f, "may differ, and does", &self.may_differ)?;
        if self.same.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nthe same:\n  {}", self.same.join(", "))
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, title: &str, list: &[Difference]) -> fmt::Result {
    if list.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}:")?;
    list.iter().try_for_each(|difference| write_difference(f, difference))
}

fn write_difference(f: &mut fmt::Formatter<'_>, difference: &Difference) -> fmt::Result {
    match &difference.note {
        Some(note) => writeln!(f, "  {} ({note})", difference.what)?,
        None => writeln!(f, "  {}", difference.what)?,
    }
    if difference.a.is_empty() && difference.b.is_empty() {
        return Ok(());
    }
    writeln!(f, "    a  {}", difference.a)?;
    writeln!(f, "    b  {}", difference.b)
}

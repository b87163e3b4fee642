//! YAML and JSON text as a tree in which every node knows its place; the only door to the YAML parser.
//!
//! JSON is read by the same parser: what JSON allows, YAML 1.2 allows.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, Location, MergeKeyPolicy, NonFiniteFloatPolicy, Options, Spanned};

/// A place in a text: line and column count characters from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) width: usize,
}

impl Mark {
    /// The first character of the text.
    pub(crate) const START: Mark = Mark { line: 1, column: 1, width: 1 };

    fn from_location(location: Location) -> Mark {
        let count = |number: u64| usize::try_from(number).unwrap_or(1).max(1);
        Mark {
            line: count(location.line()),
            column: count(location.column()),
            width: count(location.span().len()),
        }
    }
}

/// A value with its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) mark: Mark,
    pub(crate) value: Value,
}

/// A value as written; numbers and truth values keep their spelling.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Bool { value: bool, spelling: String },
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key with its place, and its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) mark: Mark,
    pub(crate) node: Node,
}

/// Why a text is not one readable document.
#[derive(Debug)]
pub(crate) struct Flaw {
    pub(crate) mark: Mark,
    pub(crate) cause: String,
    pub(crate) hint: Option<&'static str>,
}

/// Reads the one document in `text`.
pub(crate) fn parse(text: &str) -> Result<Node, Flaw> {
    serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, strict())
        .map(|raw| place(raw, text))
        .map_err(|error| explain(&error))
}

/// Writes a value as YAML.
pub(crate) fn write(value: &impl serde::Serialize) -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string(value)
}

/// Far above what a task needs, far below what hurts.
fn strict() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: 50_000,
            max_events: 200_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_documents: 8,
        },
        strict_booleans: true,
        reject_unsupported_tags: true,
        merge_keys: MergeKeyPolicy::Error,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    }
}

/// A value straight from the parser.
enum Raw {
    Null,
    Bool(bool),
    Number,
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

fn place(raw: Spanned<Raw>, text: &str) -> Node {
    let spelling = || spelled(text, raw.defined);
    let mark = Mark::from_location(raw.defined);
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Bool(value) => Value::Bool { value, spelling: spelling() },
        Raw::Number => Value::Number(spelling()),
        Raw::Text(text) => Value::Text(text),
        Raw::List(items) => Value::List(items.into_iter().map(|item| place(item, text)).collect()),
        Raw::Map(entries) => Value::Map(entries.into_iter().map(|entry| place_entry(entry, text)).collect()),
    };
    Node { mark, value }
}

fn place_entry((key, value): (Spanned<String>, Spanned<Raw>), text: &str) -> Entry {
    Entry { mark: Mark::from_location(key.defined), key: key.value, node: place(value, text) }
}

/// The characters that stand at a place.
fn spelled(text: &str, location: Location) -> String {
    let span = location.span();
    let range = span.byte_offset().zip(span.byte_len()).and_then(|(start, length)| {
        let start = usize::try_from(start).ok()?;
        Some(start..start.checked_add(usize::try_from(length).ok()?)?)
    });
    range.and_then(|range| text.get(range)).unwrap_or_default().trim().to_owned()
}

fn explain(error: &Error) -> Flaw {
    let mark = error.location().map_or(Mark::START, Mark::from_location);
    let (cause, hint) = cause(error);
    Flaw { mark, cause, hint }
}

fn cause(error: &Error) -> (String, Option<&'static str>) {
    match error {
        Error::AliasError { error, .. } | Error::WithSnippet { error, .. } => cause(error),
        Error::MultipleDocuments { .. } => (
            "a second document begins here".to_owned(),
            Some("a task file holds one task; give each its own file"),
        ),
        Error::DuplicateMappingKey { key, .. } => (
            format!("the key `{}` is written twice", key.as_deref().unwrap_or("?").escape_debug()),
            Some("keep one of the two"),
        ),
        Error::MergeKeyNotAllowed { .. } => {
            ("merge keys (`<<`) are not part of the task format".to_owned(), Some("write the keys out"))
        }
        Error::UnsupportedTag { tag, .. } => (
            format!("the tag `{}` is not part of the task format", tag.escape_debug()),
            Some("remove the tag"),
        ),
        Error::UnknownAnchor { .. } => {
            ("this alias refers to an anchor that is not there".to_owned(), Some(STAR))
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => ("this alias contains itself".to_owned(), None),
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => (TOO_MUCH.to_owned(), Some(WRITE_OUT)),
        Error::Budget { breach, .. } => breached(breach),
        Error::Unexpected { .. } | Error::NullIntoString { .. } => {
            ("a key must be a plain word".to_owned(), Some(QUOTE))
        }
        other => scanner(other),
    }
}

const STAR: &str = "put text that begins with `*` in quotes";
const QUOTE: &str = "put text with special characters in quotes";
const TOO_MUCH: &str = "the file's aliases expand to far more than a task can hold";
const WRITE_OUT: &str = "write the values out instead of nesting aliases";

fn breached(breach: &BudgetBreach) -> (String, Option<&'static str>) {
    match breach {
        BudgetBreach::Depth { .. } => (DEEP.to_owned(), Some("a task needs four levels at most")),
        BudgetBreach::Documents { .. } => ("the file holds many documents".to_owned(), Some("keep one")),
        _ => (TOO_MUCH.to_owned(), Some(WRITE_OUT)),
    }
}

const DEEP: &str = "the file is nested too deeply";

/// The parser's own words, without the place it appends, and a hint for the common slips.
fn scanner(error: &Error) -> (String, Option<&'static str>) {
    let text = error.to_string();
    let words = text.split(" at line ").next().unwrap_or_default().trim().to_owned();
    let hint = match words.as_str() {
        w if w.contains("recursion limit") => {
            return (DEEP.to_owned(), Some("a task needs four levels at most"));
        }
        w if w.contains("tabs disallowed") => {
            return ("a tab indents this line".to_owned(), Some("YAML indents by spaces only"));
        }
        w if w.contains("mapping values are not allowed") => {
            Some("if `:` belongs to the text, put the text in quotes; otherwise check the indentation")
        }
        w if w.contains("unexpected character") => {
            return (words.replace(": `", " `").replace('\'', "`"), Some(QUOTE));
        }
        w if w.contains("escape") => Some("use single quotes to keep backslashes as they are"),
        _ => None,
    };
    (words, hint)
}

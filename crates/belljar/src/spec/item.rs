//! A value under its key: asked for in one form, it answers with the value or with an error at its line.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::spec::keys::{Place, SHORTCUTS, nearest};
use crate::spec_error::{Source, SpecError};
use crate::yaml::{Entry, Mark, Node, Value};

/// A value, its key's path, and the text it stands in.
#[derive(Clone)]
pub(crate) struct Item<'a> {
    pub(crate) source: &'a Source,
    pub(crate) path: String,
    pub(crate) node: &'a Node,
    /// The key, where the value itself has no place of its own.
    key_mark: Mark,
}

impl<'a> Item<'a> {
    /// The whole document.
    pub(crate) fn root(source: &'a Source, node: &'a Node) -> Item<'a> {
        Item { source, path: String::new(), node, key_mark: Mark::START }
    }

    fn mark(&self) -> Mark {
        match self.node.value {
            Value::Null | Value::Map(_) => self.key_mark,
            _ => self.node.mark,
        }
    }

    /// An error that the value has the wrong type.
    pub(crate) fn wrong_type(&self, expected: &str) -> SpecError {
        self.wrong_type_with(expected, Vec::new())
    }

    fn wrong_type_with(&self, expected: &str, mut hints: Vec<String>) -> SpecError {
        match self.node.value {
            Value::Null if self.path.is_empty() => hints.push("begin with `id: …`".to_owned()),
            Value::Null => hints.push("write a value after the key, or delete the key".to_owned()),
            _ => {}
        }
        SpecError::WrongType {
            spot: self.source.spot(self.mark()),
            key: if self.path.is_empty() { "the task".to_owned() } else { format!("`{}`", self.path) },
            expected: expected.to_owned(),
            found: self.found(),
            hints,
        }
    }

    /// An error that the value is not allowed.
    pub(crate) fn wrong_value(&self, cause: impl Into<String>) -> SpecError {
        self.wrong_value_with(cause, Vec::new())
    }

    /// An error that the value is not allowed, with what to do.
    pub(crate) fn wrong_value_with(&self, cause: impl Into<String>, hints: Vec<String>) -> SpecError {
        SpecError::WrongValue { spot: self.source.spot(self.mark()), cause: cause.into(), hints }
    }

    /// An error that the value is a path out of its folder.
    pub(crate) fn escapes(&self, cause: impl Into<String>) -> SpecError {
        SpecError::PathEscapes { spot: self.source.spot(self.mark()), cause: cause.into() }
    }

    /// An error that the file is of a newer format.
    pub(crate) fn newer(&self, found: &str, newest: u32) -> SpecError {
        SpecError::Version { spot: self.source.spot(self.mark()), found: found.to_owned(), newest }
    }

    fn found(&self) -> String {
        match &self.node.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool { spelling, .. } => format!("the truth value {}", short(spelling)),
            Value::Number(spelling) => format!("the number {}", short(spelling)),
            Value::Text(text) => format!("the text `{}`", short(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }

    /// The text; a number or truth value without quotes is refused.
    pub(crate) fn text(&self) -> Result<&'a str, SpecError> {
        match &self.node.value {
            Value::Text(text) => Ok(text),
            Value::Number(spelling) | Value::Bool { spelling, .. } => {
                Err(self.wrong_type_with("text", vec![format!("put it in quotes: \"{}\"", short(spelling))]))
            }
            _ => Err(self.wrong_type("text")),
        }
    }

    /// The text, or the spelling of a number: a commit may have digits only.
    pub(crate) fn text_or_number(&self) -> Result<&'a str, SpecError> {
        match &self.node.value {
            Value::Number(spelling) => Ok(spelling),
            _ => self.text(),
        }
    }

    /// The text, or the spelling of a number or truth value.
    pub(crate) fn spelling(&self) -> Result<&'a str, SpecError> {
        match &self.node.value {
            Value::Text(text) => Ok(text),
            Value::Number(spelling) | Value::Bool { spelling, .. } => Ok(spelling),
            _ => Err(self.wrong_type("text, a number or true or false")),
        }
    }

    /// A truth value.
    pub(crate) fn truth(&self) -> Result<bool, SpecError> {
        match &self.node.value {
            Value::Bool { value, .. } => Ok(*value),
            _ => Err(self.wrong_type("true or false")),
        }
    }

    /// A whole number between two bounds.
    pub(crate) fn whole(&self, least: u64, most: u64) -> Result<u64, SpecError> {
        let expected = format!("a whole number between {least} and {most}");
        let Value::Number(spelling) = &self.node.value else {
            return Err(self.wrong_type(&expected));
        };
        match spelling.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => {
                Err(self.wrong_value(format!("`{}` must be {expected}, not {}", self.path, short(spelling))))
            }
        }
    }

    /// An amount read from a number; with `Spelled::NumberOrText` also from text.
    pub(crate) fn amount<T: FromStr>(&self, expected: &str, spelled: Spelled) -> Result<T, SpecError>
    where
        T::Err: std::fmt::Display,
    {
        let text = match (&self.node.value, spelled) {
            (Value::Number(spelling), _) => spelling,
            (Value::Text(text), Spelled::NumberOrText) => text,
            _ => return Err(self.wrong_type(expected)),
        };
        text.parse().map_err(|error: T::Err| self.wrong_value(format!("`{}`: {error}", self.path)))
    }

    /// The items of a list.
    pub(crate) fn list(&self, of: &str) -> Result<Vec<Item<'a>>, SpecError> {
        let Value::List(nodes) = &self.node.value else {
            let hints = match &self.node.value {
                Value::Text(text) => vec![format!("write a list: [{}]", short(text))],
                _ => Vec::new(),
            };
            return Err(self.wrong_type_with(of, hints));
        };
        Ok(nodes.iter().enumerate().map(|(index, node)| self.child(index, node)).collect())
    }

    fn child(&self, index: usize, node: &'a Node) -> Item<'a> {
        Item { source: self.source, path: format!("{}[{index}]", self.path), node, key_mark: node.mark }
    }

    /// The entries of a mapping whose keys are free.
    pub(crate) fn entries(&self, of: &str) -> Result<Vec<(&'a str, Item<'a>, Item<'a>)>, SpecError> {
        let Value::Map(entries) = &self.node.value else { return Err(self.wrong_type(of)) };
        Ok(entries.iter().map(|entry| (entry.key.as_str(), self.key(entry), self.value(entry))).collect())
    }

    /// The key of an entry as an item of its own, to point at it.
    fn key(&self, entry: &'a Entry) -> Item<'a> {
        Item { key_mark: entry.mark, node: &NOTHING, path: self.path.clone(), source: self.source }
    }

    fn value(&self, entry: &'a Entry) -> Item<'a> {
        let path = match self.path.as_str() {
            "" => short(&entry.key),
            above => format!("{above}.{}", short(&entry.key)),
        };
        Item { source: self.source, path, node: &entry.node, key_mark: entry.mark }
    }

    /// One word of a closed list.
    pub(crate) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, SpecError> {
        let names: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        let expected = names.join(" or ");
        let Value::Text(text) = &self.node.value else { return Err(self.wrong_type(&expected)) };
        if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
            return Ok(*value);
        }
        let near = nearest(text, words.iter().map(|(word, _)| *word));
        let hints = near.map(|word| format!("did you mean `{word}`?")).into_iter().collect();
        Err(self
            .wrong_value_with(format!("`{}` must be {expected}, not `{}`", self.path, short(text)), hints))
    }

    /// The values under the keys of a place; unknown and doubled keys are errors.
    pub(crate) fn fields(&self, place: &'static Place) -> Result<Fields<'a>, SpecError> {
        let Value::Map(entries) = &self.node.value else {
            return Err(self.wrong_type("a mapping of keys to values"));
        };
        let mut fields = Fields { source: self.source, place, mark: self.key_mark, found: BTreeMap::new() };
        for entry in entries {
            fields.add(entry)?;
        }
        Ok(fields)
    }
}

static NOTHING: Node = Node { mark: Mark::START, value: Value::Null };

/// How an amount may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelled {
    /// As a number only.
    Number,
    /// As a number, or as text with a unit.
    NumberOrText,
}

/// The values of one place under their keys' proper names.
pub(crate) struct Fields<'a> {
    source: &'a Source,
    place: &'static Place,
    mark: Mark,
    found: BTreeMap<&'static str, &'a Entry>,
}

impl<'a> Fields<'a> {
    fn add(&mut self, entry: &'a Entry) -> Result<(), SpecError> {
        let Some(name) = self.place.proper(&entry.key) else {
            return Err(SpecError::UnknownKey {
                spot: self.source.spot(entry.mark),
                key: short(&entry.key),
                place: self.place.words(),
                hints: self.place.suggestions(&entry.key),
            });
        };
        match self.found.insert(name, entry) {
            None => Ok(()),
            Some(first) => Err(self.twice(&first.key, &entry.key, entry.mark)),
        }
    }

    fn twice(&self, first: &str, second: &str, mark: Mark) -> SpecError {
        SpecError::WrongValue {
            spot: self.source.spot(mark),
            cause: format!("`{first}` and `{second}` are two names of one thing, and both are given"),
            hints: vec!["keep one of the two".to_owned()],
        }
    }

    /// The value under a key.
    pub(crate) fn get(&self, name: &'static str) -> Option<Item<'a>> {
        self.found.get(name).map(|entry| Item {
            source: self.source,
            path: self.place.path_of(name),
            node: &entry.node,
            key_mark: entry.mark,
        })
    }

    /// The value under a key, or its fallback.
    pub(crate) fn read<T>(
        &self,
        name: &'static str,
        fallback: T,
        read: impl FnOnce(&Item<'a>) -> Result<T, SpecError>,
    ) -> Result<T, SpecError> {
        self.get(name).map_or(Ok(fallback), |item| read(&item))
    }

    /// The value under a required key.
    pub(crate) fn need(&self, name: &'static str) -> Result<Item<'a>, SpecError> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    /// An error that a required key is not there.
    pub(crate) fn missing(&self, name: &'static str) -> SpecError {
        SpecError::MissingKey {
            spot: self.source.spot(self.mark),
            key: name.to_owned(),
            place: self.place.words(),
            hint: format!("add `{name}: …`"),
        }
    }

    /// The value of a key here or of its shortcut at the top; both is an error.
    pub(crate) fn or_shortcut(
        here: Option<Item<'a>>,
        top: &Fields<'a>,
        shortcut: &'static str,
    ) -> Result<Option<Item<'a>>, SpecError> {
        match (here, top.found.get(shortcut)) {
            (Some(_), Some(entry)) => {
                let target = SHORTCUTS.iter().find(|known| known.name == shortcut).map(|known| known.target);
                Err(top.twice(target.unwrap_or_default(), shortcut, entry.mark))
            }
            (here, _) => Ok(here.or_else(|| top.get(shortcut))),
        }
    }
}

/// At most 60 characters, control characters escaped.
pub(crate) fn short(text: &str) -> String {
    let shown: String = text.chars().take(60).collect::<String>().escape_debug().to_string();
    let shown = shown.replace("\\'", "'").replace("\\\"", "\"");
    if text.chars().nth(60).is_some() { format!("{shown}…") } else { shown }
}

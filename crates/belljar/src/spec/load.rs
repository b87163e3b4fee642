//! From a path to a task: finding the file, reading it with a cap, and checking that it is text.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::fault::{Code, Fault};
use crate::limits::Bytes;
use crate::spec::{LoadedTask, TaskSpec, keys, reader};
use crate::spec_error::{Source, SpecError};
use crate::yaml::{self, Entry, Mark, Node, Value};

/// The most a task file may have.
pub const TASK_FILE_LIMIT: Bytes = Bytes(1 << 20);

/// The names a task file goes by in its folder.
const FILE_NAMES: &[&str] = &["task.yaml", "task.yml", "task.json"];

impl TaskSpec {
    /// Reads a task from `path`: a YAML or JSON file, or the folder that holds a `task.yaml`.
    pub fn load(path: &Path) -> Result<LoadedTask, Fault> {
        let path = find(path)?;
        let bytes = read_capped(&path)?;
        let spec = TaskSpec::from_bytes(&path.display().to_string(), &bytes)?;
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Ok(LoadedTask { spec, path, folder, bytes })
    }

    /// Reads a task from bytes; `name` is what messages call the file.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<TaskSpec, Fault> {
        let source = decode(name, bytes)?;
        Ok(reader::read(&source)?)
    }

    /// The task as YAML, each key under its proper name.
    pub fn to_yaml(&self) -> Result<String, Fault> {
        yaml::write(self)
            .map_err(|error| Fault::new(Code::Internal, "cannot write a task as YAML").caused_by(error))
    }
}

impl LoadedTask {
    /// A fault that points at the line of a key, such as `repo.commit` or `repo.patches[1]`.
    ///
    /// For rooms that find out later what is wrong with a value. When the key is not in the file,
    /// the nearest part of the task that is there is shown.
    pub fn fault_at(&self, key: &str, code: Code, cause: impl Into<String>) -> Fault {
        let cause = cause.into();
        let located = decode(&self.path.display().to_string(), &self.bytes)
            .and_then(|source| reader::parse(&source).map(|tree| (source, tree)));
        match located {
            Ok((source, tree)) => {
                SpecError::Later { spot: source.spot(locate(&tree, key)), code, cause }.into()
            }
            Err(_) => Fault::new(code, cause),
        }
    }
}

fn find(path: &Path) -> Result<PathBuf, SpecError> {
    let kind = metadata(path)?;
    if kind.is_file() {
        return Ok(path.to_owned());
    }
    if !kind.is_dir() {
        return Err(SpecError::NotAFile { path: path.to_owned() });
    }
    let mut there = FILE_NAMES.iter().filter(|name| path.join(name).is_file());
    match (there.next(), there.next()) {
        (Some(name), None) => Ok(path.join(name)),
        (Some(first), Some(second)) => Err(SpecError::TwoTaskFiles { path: path.to_owned(), first, second }),
        (None, _) => Err(SpecError::NoTaskFile { path: path.to_owned() }),
    }
}

fn metadata(path: &Path) -> Result<fs::Metadata, SpecError> {
    fs::metadata(path).map_err(|source| SpecError::Read { path: path.to_owned(), source })
}

/// Reads one byte more than allowed at most, so that the size check sees the excess.
fn read_capped(path: &Path) -> Result<Vec<u8>, SpecError> {
    let wrong = |source| SpecError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(wrong)?.take(TASK_FILE_LIMIT.0 + 1).read_to_end(&mut bytes).map_err(wrong)?;
    Ok(bytes)
}

/// The text of a task file, without byte order mark; anything that is not plain text is an error.
fn decode(name: &str, bytes: &[u8]) -> Result<Source, SpecError> {
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > TASK_FILE_LIMIT.0 {
        return Err(SpecError::TooLarge { file: name.to_owned(), limit: TASK_FILE_LIMIT });
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => return Err(not_utf8(name, bytes, error.valid_up_to())),
    };
    let source = Source { name: name.to_owned(), text: text.to_owned() };
    match text.find(|c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        None => Ok(source),
        Some(index) => Err(control_character(&source, index)),
    }
}

fn not_utf8(name: &str, bytes: &[u8], valid: usize) -> SpecError {
    let source = Source { name: name.to_owned(), text: String::from_utf8_lossy(bytes).into_owned() };
    let before = String::from_utf8_lossy(bytes.get(..valid).unwrap_or_default()).into_owned();
    let wide = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    SpecError::Syntax {
        spot: source.spot(mark_after(&before)),
        cause: if wide { "the file is UTF-16" } else { "this byte is not UTF-8" }.to_owned(),
        hint: Some("save the file as UTF-8"),
    }
}

fn control_character(source: &Source, index: usize) -> SpecError {
    let (before, after) = source.text.split_at_checked(index).unwrap_or_default();
    let character = after.chars().next().unwrap_or_default();
    SpecError::Syntax {
        spot: source.spot(mark_after(before)),
        cause: format!("the file holds the control character {}", character.escape_unicode()),
        hint: Some("delete it; in double quotes it can be written as an escape"),
    }
}

fn mark_after(before: &str) -> Mark {
    let before = before.replace("\r\n", "\n").replace('\r', "\n");
    let last = before.rsplit('\n').next().unwrap_or_default();
    Mark { line: before.matches('\n').count() + 1, column: last.chars().count() + 1, width: 1 }
}

/// The place of a key, or of the nearest part above it that is in the file.
fn locate(tree: &Node, key: &str) -> Mark {
    let shortcut = keys::SHORTCUTS.iter().find(|shortcut| shortcut.target == key);
    if let Some(entry) = shortcut.and_then(|shortcut| entry(tree, shortcut.name)) {
        return value_mark(entry);
    }
    let (mut node, mut mark, mut path) = (tree, Mark::START, String::new());
    for step in key.split('.') {
        let (name, index) = split_index(step);
        let place = keys::PLACES.iter().find(|place| place.path == path);
        let Some(found) = aliased(node, name, place.copied()) else { return mark };
        (node, mark) = (&found.node, value_mark(found));
        if let (Value::List(items), Some(index)) = (&node.value, index)
            && let Some(item) = items.get(index)
        {
            (node, mark) = (item, item.mark);
        }
        path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    }
    mark
}

fn split_index(step: &str) -> (&str, Option<usize>) {
    match step.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse().ok()),
        None => (step, None),
    }
}

fn aliased<'a>(node: &'a Node, name: &str, place: Option<&'static keys::Place>) -> Option<&'a Entry> {
    let Value::Map(entries) = &node.value else { return None };
    entries
        .iter()
        .find(|entry| entry.key == name || place.and_then(|place| place.proper(&entry.key)) == Some(name))
}

fn entry<'a>(node: &'a Node, name: &str) -> Option<&'a Entry> {
    aliased(node, name, None)
}

/// A value's own place where it is one word, else its key's.
fn value_mark(entry: &Entry) -> Mark {
    match entry.node.value {
        Value::Null | Value::Map(_) | Value::List(_) => entry.mark,
        _ => entry.node.mark,
    }
}

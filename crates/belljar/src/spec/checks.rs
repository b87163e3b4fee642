//! What the words in a task may be: names, addresses, paths, commands, patterns.

use std::path::{Component, Path};

use crate::spec::item::{Item, short};
use crate::spec_error::SpecError;

/// An id, a suite, a label or the name of a fix.
pub(crate) fn name(item: &Item<'_>) -> Result<String, SpecError> {
    let text = item.text()?;
    let first = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let rest = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if first && rest && text.len() <= 128 {
        return Ok(text.to_owned());
    }
    Err(item.wrong_value_with(
        format!("`{}` is not a valid name for `{}`", short(text), item.path),
        vec![
            "use letters, digits, `.`, `_` and `-`, at most 128, beginning with a letter or digit".to_owned(),
        ],
    ))
}

/// Text for people.
pub(crate) fn prose(item: &Item<'_>) -> Result<String, SpecError> {
    let text = item.text()?;
    match text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        None => Ok(text.to_owned()),
        Some(control) => Err(control_character(item, control)),
    }
}

fn control_character(item: &Item<'_>, control: char) -> SpecError {
    item.wrong_value(format!("`{}` holds the control character {}", item.path, control.escape_unicode()))
}

/// Not empty, on one line, without control characters.
fn one_line<'a>(item: &Item<'a>, text: &'a str) -> Result<&'a str, SpecError> {
    if text.trim().is_empty() {
        return Err(item.wrong_value(format!("`{}` is empty", item.path)));
    }
    match text.chars().find(|c| c.is_control()) {
        Some('\n' | '\r') => Err(item.wrong_value(format!("`{}` must be one line", item.path))),
        Some(control) => Err(control_character(item, control)),
        None => Ok(text),
    }
}

/// A word that a program could take for an option is refused.
fn no_option<'a>(item: &Item<'_>, text: &'a str) -> Result<&'a str, SpecError> {
    match text.starts_with('-') {
        true => Err(item.wrong_value(format!("`{}` must not begin with `-`", item.path))),
        false => Ok(text),
    }
}

/// Where a repository comes from.
pub(crate) fn address(item: &Item<'_>) -> Result<String, SpecError> {
    no_option(item, one_line(item, item.text()?)?).map(str::to_owned)
}

/// An image reference.
pub(crate) fn image(item: &Item<'_>) -> Result<String, SpecError> {
    address(item)
}

/// A commit, tag or branch by name; expressions such as `HEAD~1` are refused, they pin nothing.
pub(crate) fn commit(item: &Item<'_>) -> Result<String, SpecError> {
    let text = no_option(item, one_line(item, item.text_or_number()?)?)?;
    let forbidden = |c: char| c.is_whitespace() || "~^:?*[\\".contains(c);
    if text.contains(forbidden) || text.contains("..") || text.contains("@{") {
        return Err(item.wrong_value_with(
            format!("`{}` is not the name of a commit, tag or branch", short(text)),
            vec!["write the full commit id: git rev-parse HEAD".to_owned()],
        ));
    }
    Ok(text.to_owned())
}

/// A path that stays in `folder`.
pub(crate) fn path_inside(item: &Item<'_>, folder: &str) -> Result<String, SpecError> {
    let text = one_line(item, item.text()?)?;
    let mut parts = Path::new(text).components();
    if parts.any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(
            item.escapes(format!("`{}` must be a relative path inside {folder}, without `..`", item.path))
        );
    }
    Ok(text.to_owned())
}

/// Where nothing can be put: the kernel's own trees.
const KERNEL_TREES: &[&str] = &["/proc", "/sys", "/dev"];

/// What a checkout would hide, and nothing could run any more.
const SYSTEM_FOLDERS: &[&str] = &["/bin", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr"];

/// The working directory.
pub(crate) fn workdir(item: &Item<'_>) -> Result<String, SpecError> {
    let text = one_line(item, item.text()?)?;
    let normal: String = Path::new(text)
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => part.to_str().map(|part| format!("/{part}")),
            _ => None,
        })
        .collect();
    if !text.starts_with('/') {
        return Err(item.wrong_value(format!("`{}` must be an absolute path", item.path)));
    }
    if Path::new(text).components().any(|part| part == Component::ParentDir) {
        return Err(item.escapes(format!("`{}` must not contain `..`", item.path)));
    }
    if normal.is_empty() {
        return Err(item.wrong_value(format!("`{}` must not be `/`", item.path)));
    }
    if normal != text {
        return Err(item.wrong_value_with(
            format!("`{}` must be written in its shortest form", item.path),
            vec![format!("write `{normal}`")],
        ));
    }
    let in_kernel = KERNEL_TREES.iter().any(|tree| Path::new(text).starts_with(tree));
    match in_kernel || SYSTEM_FOLDERS.contains(&text) {
        true => {
            Err(item.wrong_value(format!("`{}` must not be {text}: the system needs that place", item.path)))
        }
        false => Ok(normal),
    }
}

/// A shell command: any text but an empty one.
pub(crate) fn command(item: &Item<'_>) -> Result<String, SpecError> {
    let text = item.text()?;
    if text.trim().is_empty() {
        return Err(item.wrong_value(format!("`{}` is an empty command", item.path)));
    }
    no_null(item, text)
}

fn no_null(item: &Item<'_>, text: &str) -> Result<String, SpecError> {
    match text.contains('\0') {
        true => {
            Err(item.wrong_value(format!("`{}` holds a NUL byte, which no program can be given", item.path)))
        }
        false => Ok(text.to_owned()),
    }
}

/// The name of an environment variable; `key` points at it.
pub(crate) fn variable_name(name: &str, key: &Item<'_>) -> Result<(), SpecError> {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    match first && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        true => Ok(()),
        false => Err(key.wrong_value_with(
            format!("`{}` is not a valid name of a variable", short(name)),
            vec!["use letters, digits and `_`, not beginning with a digit".to_owned()],
        )),
    }
}

/// The value of an environment variable.
pub(crate) fn variable_value(item: &Item<'_>) -> Result<String, SpecError> {
    no_null(item, item.spelling()?)
}

/// A regular expression.
pub(crate) fn pattern(item: &Item<'_>) -> Result<String, SpecError> {
    let text = item.text()?;
    match regex_lite::Regex::new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            Err(item.wrong_value(format!("`{}` is not a valid regular expression: {error}", item.path)))
        }
    }
}

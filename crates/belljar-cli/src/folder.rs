//! Folders as a person at this prompt would type them.

use std::path::Path;

use crate::args::Out;
use crate::guest;

/// A path, relative to the working directory if it lies below it.
pub(crate) fn shown(path: &Path) -> String {
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    let below = here.ok().and_then(|here| path.strip_prefix(here).ok().map(Path::to_path_buf));
    let path = below.filter(|below| !below.as_os_str().is_empty()).unwrap_or_else(|| path.to_path_buf());
    guest::line(&path.display().to_string())
}

/// The command that shows a run, given its directory and its id.
pub(crate) fn show_command(run: &Path, id: &str) -> String {
    let out = run.parent().and_then(Path::parent).map(shown).unwrap_or_default();
    let short = short(id, SHORT);
    match out.as_str() {
        Out::DEFAULT => format!("belljar runs show {short}"),
        _ => format!("belljar runs show {short} --out {}", quoted(&out)),
    }
}

/// How much of the end of an id is tried first.
pub(crate) const SHORT: usize = 7;

/// The end of an id.
pub(crate) fn short(id: &str, length: usize) -> &str {
    let start = id.len().saturating_sub(length);
    id.get(start..).unwrap_or(id)
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./~+=:,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

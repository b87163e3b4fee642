//! The pin as a person writes it: a SHA, a tag or a branch.

use super::error::RepoError;

/// A vetted `repo.commit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// A full SHA, lowercase: nothing can move it.
    Sha(String),
    /// Hexadecimal of another length: an abbreviated SHA, or a ref that looks like one.
    Short(String),
    /// A tag or a branch, or a full ref name.
    Ref(String),
}

impl Name {
    /// Refuses everything that git would read as an expression or an option.
    pub(super) fn parse(text: &str) -> Result<Name, RepoError> {
        if let Some(reason) = objection(text) {
            return Err(RepoError::CommitName {
                commit: text.escape_debug().to_string(),
                reason: reason.into(),
            });
        }
        let hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(match (hexadecimal, text.len()) {
            (true, 40 | 64) => Name::Sha(text.to_ascii_lowercase()),
            (true, 4..64) => Name::Short(text.to_ascii_lowercase()),
            _ => Name::Ref(text.to_owned()),
        })
    }

    /// The text to ask for.
    pub(super) fn text(&self) -> &str {
        match self {
            Name::Sha(text) | Name::Short(text) | Name::Ref(text) => text,
        }
    }
}

// The rules of git-check-ref-format, as far as they keep a name from being an expression.
fn objection(text: &str) -> Option<&'static str> {
    const EXPRESSION: &[char] = &[' ', '~', '^', ':', '?', '*', '[', '\\'];
    if text.is_empty() {
        Some("is empty")
    } else if text.starts_with('-') {
        Some("starts with a dash, as an option would")
    } else if text.chars().any(char::is_control) {
        Some("contains a control character")
    } else if matches!(text, "HEAD" | "FETCH_HEAD" | "ORIG_HEAD" | "@") {
        Some("is not a pin: it names whatever is there at the moment")
    } else if text.contains(EXPRESSION) || text.contains("..") || text.contains("@{") {
        Some("is an expression, not the name of a commit")
    } else if text.split('/').any(|part| part.is_empty() || part.starts_with('.') || part.ends_with(".lock"))
    {
        Some("is not a valid ref name")
    } else {
        None
    }
}

/// Whether this is a full object id of either hash.
pub(super) fn is_full_sha(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

//! Canonical JSON: one value has exactly one text, so that it can be hashed.
//!
//! Keys sorted by their UTF-8 bytes, no white space, whole numbers only, UTF-8 with the short escapes
//! for `"`, `\`, backspace, tab, line feed, form feed and return, `\u00xx` for the other control
//! characters below space, and nothing else escaped.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Number, Value};

use crate::digest::sha256;

/// Why a value has no canonical form.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    /// The value cannot be written as JSON at all.
    #[error("cannot write the value as JSON")]
    Json {
        /// What the writer said.
        source: serde_json::Error,
    },
    /// The value holds a number with a fraction.
    #[error("a canonical value holds whole numbers only, not {number}")]
    Fraction {
        /// The number.
        number: Number,
    },
}

/// The canonical JSON of a value.
pub fn to_string(value: &impl Serialize) -> Result<String, CanonicalError> {
    let value = serde_json::to_value(value).map_err(|source| CanonicalError::Json { source })?;
    let mut text = String::new();
    write_value(&mut text, &value)?;
    Ok(text)
}

/// `sha256:` and the hash of the canonical JSON of a value.
pub fn digest(value: &impl Serialize) -> Result<String, CanonicalError> {
    to_string(value).map(|text| format!("sha256:{}", sha256(text.as_bytes())))
}

fn write_value(text: &mut String, value: &Value) -> Result<(), CanonicalError> {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) if number.is_f64() => {
            return Err(CanonicalError::Fraction { number: number.clone() });
        }
        Value::Number(number) => text.push_str(&number.to_string()),
        Value::String(string) => write_string(text, string),
        Value::Array(items) => write_array(text, items)?,
        Value::Object(map) => write_object(text, map)?,
    }
    Ok(())
}

fn write_array(text: &mut String, items: &[Value]) -> Result<(), CanonicalError> {
    text.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_value(text, item)?;
    }
    text.push(']');
    Ok(())
}

fn write_object(text: &mut String, map: &serde_json::Map<String, Value>) -> Result<(), CanonicalError> {
    // Sorted here, whatever order the map keeps: another crate may turn on serde_json's `preserve_order`.
    let mut entries: Vec<(&String, &Value)> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    text.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_string(text, key);
        text.push(':');
        write_value(text, value)?;
    }
    text.push('}');
    Ok(())
}

fn write_string(text: &mut String, string: &str) {
    text.push('"');
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\u{8}' => text.push_str("\\b"),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\u{c}' => text.push_str("\\f"),
            '\r' => text.push_str("\\r"),
            c if c < ' ' => {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

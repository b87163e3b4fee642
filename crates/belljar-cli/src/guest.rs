//! What a guest or a stranger wrote, made harmless: it must not steer a terminal or forge our lines.

use belljar::{Code, Fault};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Text for one line: control characters become `·`, line ends become `⏎`.
pub(crate) fn line(text: &str) -> String {
    text.trim_end_matches(['\n', '\r']).chars().flat_map(shown).collect()
}

/// Text of many lines, each made harmless.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines().map(line)
}

fn shown(c: char) -> impl Iterator<Item = char> {
    let (c, times) = match c {
        '\t' => (' ', 4),
        '\n' => ('⏎', 1),
        c if is_steering(c) => ('·', 1),
        c => (c, 1),
    };
    std::iter::repeat_n(c, times)
}

/// Whether a terminal obeys this character instead of showing it: controls, and what turns the
/// direction of text, hides it, or joins it to its neighbour.
fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{e0000}'..='\u{e0fff}')
}

/// A value with every string in it made harmless for one line.
pub(crate) fn harmless<T: Serialize + DeserializeOwned>(value: &T) -> Result<T, Fault> {
    let failed = |error| Fault::new(Code::Internal, "could not copy a record").caused_by(error);
    let mut copy = serde_json::to_value(value).map_err(failed)?;
    clean(&mut copy);
    serde_json::from_value(copy).map_err(failed)
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = line(text),
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(fields) => {
            let cleaned = std::mem::take(fields).into_iter().map(|(key, mut value)| {
                clean(&mut value);
                (line(&key), value)
            });
            *fields = cleaned.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// JSON in which everything that a terminal might obey is written as an escape; no value changes.
pub(crate) fn json_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Line ends and tabs outside of strings; inside of them they are escaped already.
            '\n' | '\t' => escaped.push(c),
            c if is_steering(c) => {
                let mut units = [0; 2];
                c.encode_utf16(&mut units)
                    .iter()
                    .for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}")));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// A stream of a guest made harmless piece by piece: lines and tabs stay, a character cut in two is put together.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    /// The beginning of a character whose end is not yet there.
    begun: Vec<u8>,
}

impl Plain {
    /// The next piece, as it may be printed.
    pub(crate) fn shown(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.extend(chunk.valid().chars().map(stand_in));
            if chunks.peek().is_none() && may_go_on(chunk.invalid()) {
                self.begun = chunk.invalid().to_vec();
            } else if !chunk.invalid().is_empty() {
                text.push('·');
            }
        }
        text.into_bytes()
    }

    /// What is left at the end.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let begun = std::mem::take(&mut self.begun);
        if begun.is_empty() { Vec::new() } else { "·".into() }
    }
}

fn stand_in(c: char) -> char {
    match c {
        '\n' | '\t' => c,
        c if is_steering(c) => '·',
        c => c,
    }
}

/// Whether bytes that are no character yet could become one.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[2Jb\u{9b}31m\u{7}\u{8}\r\u{202e}z\tq\nerror: forged";

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(line(HOSTILE), "a·[2Jb·31m····z    q⏎error: forged");
    }

    #[test]
    fn a_stream_is_made_harmless_wherever_it_is_cut() {
        let bytes = [HOSTILE.as_bytes(), b"\xff\xe2\x82", "€\tü\n".as_bytes(), b"\xe2\x82"].concat();
        let whole = "a·[2Jb·31m····z\tq\nerror: forged··€\tü\n·";
        for cut in 0..bytes.len() {
            let mut plain = Plain::default();
            let pieces = [plain.shown(&bytes[..cut]), plain.shown(&bytes[cut..]), plain.rest()];
            assert_eq!(String::from_utf8(pieces.concat()).unwrap(), whole, "{cut}");
        }
    }

    #[test]
    fn a_whole_value_is_made_harmless() {
        let value = serde_json::json!({ "k\u{1b}": [HOSTILE, 1, null] });
        let clean = harmless(&value).unwrap().to_string();
        assert!(!clean.contains("\\u001b") && !clean.chars().any(is_steering), "{clean}");
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({ "text": HOSTILE, "tag": "\u{e0041}" });
        let text = json_escaped(&value.to_string());
        assert!(!text.chars().any(is_steering), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}

//! Names as text that cannot steer a terminal.

use std::fmt::Write;

/// How many bytes of a name are shown.
const MOST: usize = 240;

/// A name of arbitrary bytes on one line: what is not printable is escaped, and what is too long is cut.
pub(crate) fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name[..name.len().min(MOST)].utf8_chunks() {
        text.extend(chunk.valid().chars().flat_map(escaped));
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, r"\x{byte:02x}");
        }
    }
    if name.len() > MOST {
        text.push('…');
    }
    if text.is_empty() { "(no name)".to_owned() } else { text }
}

fn escaped(character: char) -> impl Iterator<Item = char> {
    let quote = matches!(character, '\'' | '"').then_some(character);
    let other = quote.is_none().then(|| character.escape_debug());
    quote.into_iter().chain(other.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_comes_through() {
        assert_eq!(shown("it's a \"name\" with ä".as_bytes()), "it's a \"name\" with ä");
        assert_eq!(shown(b"a\x1b[31m\nb\\\xff"), r"a\u{1b}[31m\nb\\\xff");
        assert_eq!(shown("right\u{202e}left".as_bytes()), r"right\u{202e}left");
        assert_eq!(shown(b""), "(no name)");
        let long = shown(&[b'x'; 1000]);
        assert_eq!(long.chars().count(), MOST + 1);
    }
}

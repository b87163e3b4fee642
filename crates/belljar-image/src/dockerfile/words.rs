//! Words as Docker reads them: quotes, escapes, and variables with their modifiers.

/// Where variables get their values.
pub trait Values {
    /// The value of a name, when it has one.
    fn value(&self, name: &str) -> Option<String>;
}

impl<F: Fn(&str) -> Option<String>> Values for F {
    fn value(&self, name: &str) -> Option<String> {
        self(name)
    }
}

/// Why a word could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// A quote without its partner.
    #[error("the quote {0} is opened and never closed")]
    Quote(char),
    /// `${` without `}`.
    #[error("`${{` is opened and never closed by `}}`")]
    Brace,
    /// `${}` and the like.
    #[error("`${{…}}` names no variable")]
    Name,
    /// A modifier Docker does not have.
    #[error(
        "`{0}` is not a modifier: use `:-`, `:+`, `:?`, `-`, `+`, `?`, `#`, `##`, `%`, `%%`, `/` or `//`"
    )]
    Modifier(String),
    /// `${x:?message}` without a value.
    #[error("the variable `{name}` must have a value: {message}")]
    Required {
        /// Which.
        name: String,
        /// What the file says about it.
        message: String,
    },
    /// It grew out of hand.
    #[error("the word becomes longer than {MOST} bytes when its variables are filled in")]
    TooLong,
    /// Too many levels of `${a:-${b:-…}}`.
    #[error("variables are nested deeper than {DEEPEST} levels")]
    TooDeep,
}

/// What a filled-in word may be long.
const MOST: usize = 1 << 20;
/// What may be nested.
const DEEPEST: usize = 32;

/// What is kept as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing: quotes and escapes do their work and are gone.
    Nothing,
    /// Quotes are ordinary letters, as in the text of a here-document.
    Quotes,
    /// Quotes and escapes do their work and stay; a variable without a value stays too.
    Everything,
}

/// Fills in one word.
pub fn expand(word: &str, escape: char, values: &dyn Values) -> Result<String, WordError> {
    Reader::new(word, escape, Keep::Nothing, values).all().map(|(text, _)| text)
}

/// Fills in the text of a here-document.
pub fn expand_text(text: &str, values: &dyn Values) -> Result<String, WordError> {
    Reader::new(text, '\\', Keep::Quotes, values).all().map(|(text, _)| text)
}

/// Fills in and cuts at the spaces that are not quoted, also at those inside of values.
pub fn expand_words(text: &str, escape: char, values: &dyn Values) -> Result<Vec<String>, WordError> {
    Reader::new(text, escape, Keep::Nothing, values).all().map(|(_, words)| words)
}

/// Cuts at the spaces that are not quoted, without filling in.
pub fn split(text: &str, keep: Keep) -> Result<Vec<String>, WordError> {
    let nothing = |_: &str| None;
    let mut reader = Reader::new(text, '\\', keep, &nothing);
    reader.keep_unset = true;
    reader.all().map(|(_, words)| words)
}

struct Reader<'a> {
    letters: Vec<char>,
    at: usize,
    escape: char,
    quotes: bool,
    raw_quotes: bool,
    raw_escapes: bool,
    keep_unset: bool,
    depth: usize,
    values: &'a dyn Values,
}

#[derive(Default)]
struct Words {
    done: Vec<String>,
    word: String,
    inside: bool,
}

impl Words {
    fn letter(&mut self, letter: char) {
        if letter.is_whitespace() {
            self.end();
        } else {
            self.raw(letter);
        }
    }

    fn raw(&mut self, letter: char) {
        self.word.push(letter);
        self.inside = true;
    }

    fn raw_text(&mut self, text: &str) {
        self.word.push_str(text);
        self.inside = true;
    }

    fn end(&mut self) {
        if self.inside {
            self.done.push(std::mem::take(&mut self.word));
            self.inside = false;
        }
    }
}

impl<'a> Reader<'a> {
    fn new(text: &str, escape: char, keep: Keep, values: &'a dyn Values) -> Reader<'a> {
        let everything = keep == Keep::Everything;
        Reader {
            letters: text.chars().collect(),
            at: 0,
            escape,
            quotes: keep != Keep::Quotes,
            raw_quotes: everything,
            raw_escapes: everything,
            keep_unset: false,
            depth: 0,
            values,
        }
    }

    fn peek(&self) -> Option<char> {
        self.letters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek();
        self.at += usize::from(letter.is_some());
        letter
    }

    fn all(mut self) -> Result<(String, Vec<String>), WordError> {
        self.until(None)
    }

    /// Up to a letter, which is passed over, or to the end.
    fn until(&mut self, stop: Option<char>) -> Result<(String, Vec<String>), WordError> {
        let mut text = String::new();
        let mut words = Words::default();
        while let Some(letter) = self.peek() {
            if text.len() > MOST {
                return Err(WordError::TooLong);
            }
            if stop == Some(letter) {
                self.at += 1;
                words.end();
                return Ok((text, words.done));
            }
            match letter {
                '$' => {
                    let value = self.dollar()?;
                    value.chars().for_each(|letter| words.letter(letter));
                    text.push_str(&value);
                }
                '\'' | '"' if self.quotes => {
                    let quoted = if letter == '"' { self.double()? } else { self.single()? };
                    words.raw_text(&quoted);
                    text.push_str(&quoted);
                }
                _ => self.plain(&mut text, &mut words),
            }
        }
        words.end();
        if stop.is_some() {
            return Err(WordError::Brace);
        }
        if text.len() > MOST { Err(WordError::TooLong) } else { Ok((text, words.done)) }
    }

    fn plain(&mut self, text: &mut String, words: &mut Words) {
        let Some(letter) = self.next() else { return };
        if letter != self.escape {
            words.letter(letter);
            text.push(letter);
            return;
        }
        if self.raw_escapes {
            words.raw(letter);
            text.push(letter);
        }
        // An escape at the very end escapes nothing, and is dropped.
        if let Some(letter) = self.next() {
            words.raw(letter);
            text.push(letter);
        }
    }

    fn single(&mut self) -> Result<String, WordError> {
        let mut text = String::new();
        self.quote(&mut text);
        loop {
            match self.peek() {
                None => return Err(WordError::Quote('\'')),
                Some('\'') => {
                    self.quote(&mut text);
                    return Ok(text);
                }
                Some(letter) => {
                    text.push(letter);
                    self.at += 1;
                }
            }
        }
    }

    fn quote(&mut self, text: &mut String) {
        let quote = self.next();
        text.extend(quote.filter(|_| self.raw_quotes));
    }

    fn double(&mut self) -> Result<String, WordError> {
        let mut text = String::new();
        self.quote(&mut text);
        loop {
            match self.peek() {
                None => return Err(WordError::Quote('"')),
                Some('"') => {
                    self.quote(&mut text);
                    return Ok(text);
                }
                Some('$') => text.push_str(&self.dollar()?),
                Some(letter) => {
                    self.at += 1;
                    if letter == self.escape {
                        self.escaped(&mut text);
                    } else {
                        text.push(letter);
                    }
                }
            }
            if text.len() > MOST {
                return Err(WordError::TooLong);
            }
        }
    }

    /// Between double quotes only three letters can be escaped; before others the escape is a letter.
    fn escaped(&mut self, text: &mut String) {
        if self.raw_escapes {
            text.push(self.escape);
        }
        match self.peek() {
            None => {}
            Some(letter) if letter == '"' || letter == '$' || letter == self.escape => {
                self.at += 1;
                text.push(letter);
            }
            Some(_) => text.push(self.escape),
        }
    }

    fn dollar(&mut self) -> Result<String, WordError> {
        self.at += 1;
        if self.peek() != Some('{') {
            let name = self.name();
            if name.is_empty() {
                return Ok("$".to_owned());
            }
            return Ok(self.plain_value(&name, &format!("${name}")));
        }
        self.at += 1;
        match self.peek() {
            None => return Err(WordError::Brace),
            Some('{' | '}' | ':') => return Err(WordError::Name),
            Some(_) => {}
        }
        if self.depth == DEEPEST {
            return Err(WordError::TooDeep);
        }
        self.depth += 1;
        let value = self.braced();
        self.depth -= 1;
        value
    }

    fn plain_value(&self, name: &str, written: &str) -> String {
        match self.values.value(name) {
            None if self.keep_unset => written.to_owned(),
            value => value.unwrap_or_default(),
        }
    }

    fn braced(&mut self) -> Result<String, WordError> {
        let name = self.name();
        match self.next() {
            None => Err(WordError::Brace),
            Some('}') => Ok(self.plain_value(&name, &format!("${{{name}}}"))),
            Some(':') => match self.next() {
                Some(modifier) => self.modified(&name, modifier, true),
                None => Err(WordError::Brace),
            },
            Some('/') => self.replaced(&name),
            Some(modifier) => self.modified(&name, modifier, false),
        }
    }

    fn modified(&mut self, name: &str, modifier: char, empty_is_unset: bool) -> Result<String, WordError> {
        let written = if empty_is_unset { format!(":{modifier}") } else { modifier.to_string() };
        if !matches!(modifier, '-' | '+' | '?' | '#' | '%') {
            return Err(WordError::Modifier(written));
        }
        let word = self.inner('}', matches!(modifier, '#' | '%'))?;
        let value = self.values.value(name);
        if value.is_none() && self.keep_unset {
            return Ok(format!("${{{name}{written}{word}}}"));
        }
        let present = value.clone().filter(|value| !(empty_is_unset && value.is_empty()));
        match modifier {
            '-' => Ok(present.unwrap_or(word)),
            '+' => Ok(present.map_or(String::new(), |_| word)),
            '?' => present.ok_or_else(|| WordError::Required { name: name.to_owned(), message: word }),
            _ => Ok(trimmed(&value.unwrap_or_default(), modifier, &word)),
        }
    }

    fn inner(&mut self, stop: char, raw_escapes: bool) -> Result<String, WordError> {
        let before = self.raw_escapes;
        self.raw_escapes |= raw_escapes;
        let word = self.until(Some(stop));
        self.raw_escapes = before;
        word.map(|(text, _)| text)
    }

    fn replaced(&mut self, name: &str) -> Result<String, WordError> {
        let every = self.peek() == Some('/');
        self.at += usize::from(every);
        let pattern = self.inner('/', true)?;
        let replacement = self.inner('}', true)?;
        let value = self.values.value(name).unwrap_or_default();
        Ok(replace(&value, &Pattern::new(&pattern), &replacement, every))
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        match self.peek() {
            Some(digit) if digit.is_ascii_digit() => {
                while let Some(digit) = self.peek().filter(char::is_ascii_digit) {
                    name.push(digit);
                    self.at += 1;
                }
            }
            Some(special @ ('@' | '*' | '#' | '?' | '-' | '$' | '!')) => {
                name.push(special);
                self.at += 1;
            }
            _ => {
                while let Some(letter) =
                    self.peek().filter(|letter| letter.is_alphanumeric() || *letter == '_')
                {
                    name.push(letter);
                    self.at += 1;
                }
            }
        }
        name
    }
}

/// A pattern of a shell: `*`, `?`, and `\` before what is meant as it is.
struct Pattern(Vec<Piece>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Letter(char),
    Any,
    Star,
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        let mut pieces = Vec::new();
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            let piece = match letter {
                '*' => Piece::Star,
                '?' => Piece::Any,
                '\\' => Piece::Letter(letters.next().unwrap_or('\\')),
                letter => Piece::Letter(letter),
            };
            // Two stars mean one, and would only cost time.
            if piece != Piece::Star || pieces.last() != Some(&Piece::Star) {
                pieces.push(piece);
            }
        }
        Pattern(pieces)
    }

    /// Whether it fits the whole text: the usual walk that returns to the last star, so that time stays bounded.
    fn fits(&self, text: &[char]) -> bool {
        let (mut at, mut piece, mut back) = (0, 0, None);
        while at < text.len() {
            match self.0.get(piece) {
                Some(Piece::Star) => {
                    back = Some((piece, at));
                    piece += 1;
                    continue;
                }
                Some(Piece::Any) => {}
                Some(Piece::Letter(letter)) if *letter == text[at] => {}
                _ => {
                    let Some((star, from)) = back else { return false };
                    back = Some((star, from + 1));
                    (piece, at) = (star + 1, from + 1);
                    continue;
                }
            }
            (piece, at) = (piece + 1, at + 1);
        }
        self.0[piece..].iter().all(|rest| *rest == Piece::Star)
    }
}

fn trimmed(value: &str, end: char, word: &str) -> String {
    let (pattern, longest) = match word.strip_prefix(end) {
        Some(rest) => (Pattern::new(rest), true),
        None => (Pattern::new(word), false),
    };
    let letters: Vec<char> = value.chars().collect();
    let mut lengths: Vec<usize> = (0..=letters.len()).collect();
    if longest {
        lengths.reverse();
    }
    for length in lengths {
        let rest = letters.len() - length;
        if end == '#' && pattern.fits(&letters[..length]) {
            return letters[length..].iter().collect();
        }
        if end == '%' && pattern.fits(&letters[rest..]) {
            return letters[..rest].iter().collect();
        }
    }
    value.to_owned()
}

fn replace(value: &str, pattern: &Pattern, replacement: &str, every: bool) -> String {
    let letters: Vec<char> = value.chars().collect();
    let (mut text, mut at) = (String::new(), 0);
    while at < letters.len() {
        let end = (at + 1..=letters.len()).rev().find(|end| pattern.fits(&letters[at..*end]));
        match end {
            Some(end) => {
                text.push_str(replacement);
                at = end;
                if !every {
                    break;
                }
            }
            None => {
                text.push(letters[at]);
                at += 1;
            }
        }
    }
    text.extend(&letters[at..]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str) -> Option<String> {
        match name {
            "x" => Some("value".to_owned()),
            "path" => Some("a/b/c.tar.gz".to_owned()),
            "empty" => Some(String::new()),
            "two" => Some("one two".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_filled_in_as_docker_does() {
        let table = [
            ("$x", "value"),
            ("${x}", "value"),
            ("a$x-b", "avalue-b"),
            ("$none", ""),
            ("$", "$"),
            ("a$", "a$"),
            ("$.x", "$.x"),
            (r"\$x", "$x"),
            (r"\\$x", r"\value"),
            ("'$x'", "$x"),
            ("\"$x\"", "value"),
            (r#""\$x""#, "$x"),
            (r#""a\b""#, r"a\b"),
            (r#""a\"b""#, "a\"b"),
            (r"a\b", "ab"),
            ("${none:-d}", "d"),
            ("${none-d}", "d"),
            ("${empty:-d}", "d"),
            ("${empty-d}", ""),
            ("${x:-d}", "value"),
            ("${none:-${x}}", "value"),
            ("${none:-'q'}", "q"),
            ("${x:+d}", "d"),
            ("${none:+d}", ""),
            ("${empty:+d}", ""),
            ("${empty+d}", "d"),
            ("${x:?e}", "value"),
            ("${empty?e}", ""),
            ("${path#*/}", "b/c.tar.gz"),
            ("${path##*/}", "c.tar.gz"),
            ("${path%.*}", "a/b/c.tar"),
            ("${path%%.*}", "a/b/c"),
            ("${path#nothing}", "a/b/c.tar.gz"),
            ("${path/b/B}", "a/B/c.tar.gz"),
            ("${path//a/A}", "A/b/c.tAr.gz"),
            (r"${path#\*}", "a/b/c.tar.gz"),
            ("$1x", "x"),
            ("trailing\\", "trailing"),
        ];
        for (word, expected) in table {
            assert_eq!(expand(word, '\\', &values).as_deref(), Ok(expected), "{word}");
        }
        assert_eq!(expand("`$x \\", '`', &values).as_deref(), Ok("$x \\"));
    }

    #[test]
    fn broken_words_say_what_is_wrong() {
        let wrong = |word: &str| expand(word, '\\', &values).unwrap_err();
        assert_eq!(wrong("'a"), WordError::Quote('\''));
        assert_eq!(wrong("\"a"), WordError::Quote('"'));
        for word in ["${", "${x", "${x:", "${x:-a", "${x/a", "${x/a/b"] {
            assert_eq!(wrong(word), WordError::Brace, "{word}");
        }
        for word in ["${}", "${:x}", "${{x}}"] {
            assert_eq!(wrong(word), WordError::Name, "{word}");
        }
        assert_eq!(wrong("${x!y}"), WordError::Modifier("!".to_owned()));
        assert_eq!(wrong("${x:=y}"), WordError::Modifier(":=".to_owned()));
        assert!(matches!(wrong("${none:?must be}"), WordError::Required { .. }));
        assert!(matches!(wrong("${empty:?must be}"), WordError::Required { .. }));
    }

    #[test]
    fn hostile_words_stay_bounded() {
        let nested = "${a:-".repeat(10_000);
        assert_eq!(expand(&nested, '\\', &values), Err(WordError::TooDeep));
        let huge = |_: &str| Some("x".repeat(1 << 19));
        assert_eq!(expand("$a$a$a", '\\', &huge), Err(WordError::TooLong));
        let long = |_: &str| Some("a".repeat(2000));
        let stars = format!("${{a#{}b}}", "*a".repeat(200));
        assert_eq!(expand(&stars, '\\', &long).map(|text| text.len()), Ok(2000));
    }

    #[test]
    fn words_are_cut_at_spaces_also_of_values() {
        assert_eq!(expand_words("80 $two '$two x'", '\\', &values).unwrap(), ["80", "one", "two", "$two x"]);
        assert_eq!(expand_words("\"$two\" a\\ b", '\\', &values).unwrap(), ["one two", "a b"]);
        assert_eq!(split("a '$b c' $d", Keep::Everything).unwrap(), ["a", "'$b c'", "$d"]);
    }

    #[test]
    fn texts_keep_their_quotes() {
        assert_eq!(expand_text("it's \"$x\" \\$x", &values).unwrap(), "it's \"value\" $x");
    }
}

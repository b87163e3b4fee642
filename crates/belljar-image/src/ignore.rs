//! `.dockerignore`: what of a context is not there for a build.
//!
//! The last pattern that fits decides, `!` takes back, and what fits a folder fits everything in it. As with Docker, an
//! excluded folder is entered only for an exception that starts with that folder's name.

use std::path::{Path, PathBuf};

/// What a file of patterns may be long.
pub const MOST_BYTES: u64 = 1 << 20;
/// How many patterns it may have: each is tried on each file.
const MOST_PATTERNS: usize = 4096;

/// Patterns in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore {
    patterns: Vec<Pattern>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    takes_back: bool,
    pieces: Vec<Piece>,
}

/// Why patterns could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IgnoreError {
    /// A class that is not closed, an escape without a letter, a lone `!`.
    #[error("line {line}: `{pattern}` is not a pattern: {reason}")]
    Pattern {
        /// Its line.
        line: usize,
        /// As written.
        pattern: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// More than anybody writes.
    #[error("there are more than {MOST_PATTERNS} patterns")]
    TooMany,
}

/// Where the patterns of a build are looked for, the first that exists counts.
pub fn candidates(context: &Path, dockerfile: &Path) -> [PathBuf; 2] {
    let mut beside = dockerfile.as_os_str().to_owned();
    beside.push(".dockerignore");
    [beside.into(), context.join(".dockerignore")]
}

impl Ignore {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Ignore, IgnoreError> {
        let mut ignore = Ignore::default();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            // A comment is one only in the first column.
            if !line.starts_with('#') && !line.trim().is_empty() {
                ignore.add(line.trim()).map_err(|reason| IgnoreError::Pattern {
                    line: index + 1,
                    pattern: line.trim().to_owned(),
                    reason,
                })?;
            }
            if ignore.patterns.len() > MOST_PATTERNS {
                return Err(IgnoreError::TooMany);
            }
        }
        Ok(ignore)
    }

    /// One pattern more, as from `--exclude`.
    pub fn add(&mut self, written: &str) -> Result<(), &'static str> {
        let (takes_back, rest) =
            written.strip_prefix('!').map_or((false, written), |rest| (true, rest.trim()));
        if rest.is_empty() {
            return Err("nothing follows the `!`");
        }
        let clean = clean(rest);
        let text = if clean.len() > 1 { clean.trim_start_matches('/').to_owned() } else { clean };
        let pieces = compile(&text, Stars::Folders)?;
        self.patterns.push(Pattern { text, takes_back, pieces });
        Ok(())
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether a path of the context, written with `/` and without a leading one, is left out.
    pub fn excludes(&self, path: &str) -> bool {
        let mut excluded = false;
        for pattern in &self.patterns {
            // Only what would change the answer is tried.
            if pattern.takes_back == excluded && pattern.fits_with_parents(path) {
                excluded = !pattern.takes_back;
            }
        }
        excluded
    }

    /// Whether an exception may be inside of a folder that is left out.
    pub fn enters(&self, folder: &str) -> bool {
        let start = format!("{folder}/");
        self.patterns
            .iter()
            .any(|pattern| pattern.takes_back && format!("{}/", pattern.text).starts_with(&start))
    }
}

impl Pattern {
    fn fits_with_parents(&self, path: &str) -> bool {
        let letters: Vec<char> = path.chars().collect();
        let parents = letters.iter().enumerate().filter(|(_, letter)| **letter == '/').map(|(at, _)| at);
        fits(&self.pieces, &letters) || parents.into_iter().any(|end| fits(&self.pieces, &letters[..end]))
    }
}

/// A path without `//`, `.` and `..` as far as that can be told from the text.
pub(crate) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    match (rooted, parts.is_empty()) {
        (true, _) => format!("/{}", parts.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => parts.join("/"),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Letter(char),
    /// One letter that is no slash.
    Any,
    /// Letters that are no slash.
    Star,
    /// Nothing, or folders with their slash.
    Folders,
    /// Everything.
    All,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// What two stars mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stars {
    /// As one.
    One,
    /// Any depth.
    Folders,
}

/// Whether a name fits a pattern of COPY: `*`, `?`, classes and escapes; a star stops at a slash.
pub fn glob(pattern: &str, name: &str) -> bool {
    let letters: Vec<char> = name.chars().collect();
    compile(pattern, Stars::One).is_ok_and(|pieces| fits(&pieces, &letters))
}

/// Why a pattern of COPY is none.
pub fn check_glob(pattern: &str) -> Result<(), &'static str> {
    compile(pattern, Stars::One).map(|_| ())
}

fn compile(pattern: &str, stars: Stars) -> Result<Vec<Piece>, &'static str> {
    let letters: Vec<char> = pattern.chars().collect();
    let mut pieces = Vec::new();
    let mut at = 0;
    while let Some(letter) = letters.get(at) {
        at += 1;
        match letter {
            '*' if stars == Stars::Folders && letters.get(at) == Some(&'*') => {
                at += 1;
                at += usize::from(letters.get(at) == Some(&'/'));
                pieces.push(if at == letters.len() { Piece::All } else { Piece::Folders });
            }
            '*' => pieces.push(Piece::Star),
            '?' => pieces.push(Piece::Any),
            '\\' => {
                pieces.push(Piece::Letter(*letters.get(at).ok_or("an escape at its end escapes nothing")?));
                at += 1;
            }
            '[' => {
                let (class, end) = class(&letters, at)?;
                pieces.push(class);
                at = end;
            }
            letter => pieces.push(Piece::Letter(*letter)),
        }
    }
    Ok(pieces)
}

fn class(letters: &[char], mut at: usize) -> Result<(Piece, usize), &'static str> {
    let open = "a class is not closed by `]`, or is empty";
    let negated = letters.get(at) == Some(&'^');
    at += usize::from(negated);
    let mut ranges = Vec::new();
    let letter = |at: &mut usize| -> Result<char, &'static str> {
        if letters.get(*at) == Some(&'\\') {
            *at += 1;
        } else if letters.get(*at) == Some(&'-') {
            return Err("a range has no start");
        }
        *at += 1;
        letters.get(*at - 1).copied().ok_or(open)
    };
    loop {
        if letters.get(at) == Some(&']') && !ranges.is_empty() {
            return Ok((Piece::Class { negated, ranges }, at + 1));
        }
        if letters.get(at) == Some(&']') {
            return Err(open);
        }
        let low = letter(&mut at)?;
        let mut high = low;
        if letters.get(at) == Some(&'-') {
            at += 1;
            high = letter(&mut at)?;
        }
        ranges.push((low, high));
    }
}

/// Filled from the end, so that time is the product of both lengths whatever the pattern is.
fn fits(pieces: &[Piece], text: &[char]) -> bool {
    let end = text.len();
    let mut after = vec![false; end + 1];
    after[end] = true;
    for piece in pieces.iter().rev() {
        let mut now = vec![false; end + 1];
        let mut later = false;
        for at in (0..=end).rev() {
            let letter = text.get(at).copied();
            let next = letter.is_some() && after[at + 1];
            now[at] = match piece {
                Piece::Letter(expected) => letter == Some(*expected) && next,
                Piece::Any => letter != Some('/') && next,
                Piece::Star => after[at] || (letter.is_some_and(|l| l != '/') && now[at + 1]),
                Piece::Folders => {
                    later |= letter == Some('/') && next;
                    after[at] || later
                }
                Piece::All => {
                    later |= after[at];
                    later
                }
                Piece::Class { negated, ranges } => {
                    let inside =
                        letter.is_some_and(|l| ranges.iter().any(|(low, high)| (*low..=*high).contains(&l)));
                    letter != Some('/') && next && inside != *negated
                }
            };
        }
        after = now;
    }
    after[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded<'a>(patterns: &str, paths: &[&'a str]) -> Vec<&'a str> {
        let ignore = Ignore::parse(patterns).unwrap();
        paths.iter().copied().filter(|path| ignore.excludes(path)).collect()
    }

    #[test]
    fn patterns_exclude_as_docker_does() {
        let paths =
            ["a", "a.md", "b/a.md", "b/c/a.md", "b/c/d", "dir/x", "x[1]", "#hash", "README.md", "sp ace"];
        for (patterns, expected) in [
            ("", &[][..]),
            ("a", &["a"]),
            ("/a", &["a"]),
            ("./a/", &["a"]),
            ("*.md", &["a.md", "README.md"]),
            ("*/*.md", &["b/a.md"]),
            ("**/*.md", &["a.md", "b/a.md", "b/c/a.md", "README.md"]),
            ("b/**/a.md", &["b/a.md", "b/c/a.md"]),
            ("b", &["b/a.md", "b/c/a.md", "b/c/d"]),
            ("b/**", &["b/a.md", "b/c/a.md", "b/c/d"]),
            ("b/c", &["b/c/a.md", "b/c/d"]),
            ("b\n!b/c", &["b/a.md"]),
            ("b\n!b/c\nb/c/d", &["b/a.md", "b/c/d"]),
            ("!b\nb", &["b/a.md", "b/c/a.md", "b/c/d"]),
            ("*.md\n! README.md", &["a.md"]),
            ("x\\[1\\]", &["x[1]"]),
            ("[ab].md", &["a.md"]),
            ("[^b].md", &["a.md"]),
            ("?.md", &["a.md"]),
            ("#hash\n  a  \n", &["a"]),
            (" #hash", &["#hash"]),
            ("sp ace", &["sp ace"]),
            ("x/../a", &["a"]),
            ("**", &paths),
            (
                "*\n!dir",
                &["a", "a.md", "b/a.md", "b/c/a.md", "b/c/d", "x[1]", "#hash", "README.md", "sp ace"],
            ),
            (".", &[]),
        ] {
            assert_eq!(excluded(patterns, &paths), expected, "{patterns:?}");
        }
    }

    #[test]
    fn excluded_folders_are_entered_for_exceptions_that_name_them() {
        let ignore = Ignore::parse("a\nb\n!a/b/c\n!*/d").unwrap();
        assert!(ignore.enters("a") && ignore.enters("a/b"));
        assert!(!ignore.enters("b") && !ignore.enters("a/c"));
    }

    #[test]
    fn broken_patterns_are_told() {
        for (text, line) in
            [("a\n[", 2), ("[]", 1), ("[a", 1), ("a\\", 1), ("!", 1), ("[-a]", 1), ("[a-]", 1)]
        {
            let Err(IgnoreError::Pattern { line: told, .. }) = Ignore::parse(text) else { panic!("{text}") };
            assert_eq!(told, line, "{text}");
        }
        assert_eq!(Ignore::parse(&"a\n".repeat(MOST_PATTERNS + 1)), Err(IgnoreError::TooMany));
    }

    #[test]
    fn hostile_patterns_take_bounded_time() {
        let pattern = "*a".repeat(500);
        assert!(!glob(&format!("{pattern}b"), &"a".repeat(4000)));
    }

    #[test]
    fn patterns_beside_the_dockerfile_come_first() {
        let [first, second] = candidates(Path::new("/c"), Path::new("/d/My.Dockerfile"));
        assert_eq!(first, Path::new("/d/My.Dockerfile.dockerignore"));
        assert_eq!(second, Path::new("/c/.dockerignore"));
    }
}

//! Lines for a shell, taken apart far enough to see which commands run, what is piped where, and what is substituted.
//!
//! It never fails: what a shell would refuse is read as far as it goes.

use std::collections::BTreeMap;

use crate::dockerfile::words;

/// How deep substitutions and groups may go; what is deeper is not looked at.
const DEEPEST: usize = 24;

/// Values that are known without running anything.
pub(super) type Known = BTreeMap<String, String>;

/// Pipelines, one after the other.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) pipelines: Vec<Vec<Command>>,
}

/// One part of a pipeline.
#[derive(Debug)]
pub(super) enum Command {
    Simple(Vec<Word>),
    Group(Script),
}

/// A word without its quotes, known variables filled in, and what it substitutes.
#[derive(Debug, Default)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) inner: Vec<Inner>,
    /// `<`, `>` and the like; the next word is where to.
    pub(super) redirects: bool,
}

/// Something in a word that is run.
#[derive(Debug)]
pub(super) struct Inner {
    /// `<(…)` or `>(…)`, not `$(…)`.
    pub(super) process: bool,
    pub(super) script: Script,
}

impl Word {
    pub(super) fn plain(text: &str) -> Word {
        Word { text: text.to_owned(), ..Word::default() }
    }
}

/// Takes a line or a text apart; assignments in it become known.
pub(super) fn parse(text: &str, known: &mut Known) -> Script {
    Parser { letters: text.chars().collect(), at: 0, depth: 0, known }.list(None)
}

struct Parser<'a> {
    letters: Vec<char>,
    at: usize,
    depth: usize,
    known: &'a mut Known,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.letters.get(self.at).copied()
    }

    fn second(&self) -> Option<char> {
        self.letters.get(self.at + 1).copied()
    }

    fn take(&mut self, letter: char) -> bool {
        let there = self.peek() == Some(letter);
        self.at += usize::from(there);
        there
    }

    /// Pipelines up to the letter that closes them, or to the end.
    fn list(&mut self, end: Option<char>) -> Script {
        let mut script = Script::default();
        let mut pipeline = Vec::new();
        self.depth += 1;
        loop {
            self.skip_space();
            let Some(letter) = self.peek() else { break };
            if Some(letter) == end {
                self.at += 1;
                break;
            }
            match letter {
                '|' if self.second() != Some('|') => {
                    self.at += 1;
                    self.take('&');
                    // A pipe at the end of a line goes on in the next.
                    while self.peek().is_some_and(char::is_whitespace) {
                        self.at += 1;
                    }
                }
                '|' | '&' | ';' | '\n' | ')' => {
                    self.at += 1;
                    self.take(letter);
                    script.pipelines.push(std::mem::take(&mut pipeline));
                }
                _ => {
                    let before = self.at;
                    pipeline.extend(self.command());
                    // What nothing understands is passed over, so that every round moves on.
                    self.at += usize::from(self.at == before);
                }
            }
        }
        self.depth -= 1;
        script.pipelines.push(pipeline);
        script.pipelines.retain(|pipeline| !pipeline.is_empty());
        script
    }

    fn skip_space(&mut self) {
        while let Some(letter) = self.peek() {
            match letter {
                '#' => {
                    while self.peek().is_some_and(|letter| letter != '\n') {
                        self.at += 1;
                    }
                }
                '\\' if self.second() == Some('\n') => self.at += 2,
                ' ' | '\t' | '\r' => self.at += 1,
                _ => return,
            }
        }
    }

    fn command(&mut self) -> Option<Command> {
        let opens = match self.peek() {
            Some('(') => Some(')'),
            Some('{') if self.second().is_none_or(char::is_whitespace) => Some('}'),
            _ => None,
        };
        if let Some(end) = opens {
            self.at += 1;
            if self.depth >= DEEPEST {
                return None;
            }
            return Some(Command::Group(self.list(Some(end))));
        }
        let words = self.words();
        self.remember(&words);
        (!words.is_empty()).then_some(Command::Simple(words))
    }

    /// Assignments before a command, or after `export`.
    fn remember(&mut self, words: &[Word]) {
        for word in words.iter().take(8) {
            match word.text.split_once('=') {
                Some((name, value)) if is_name(name) && word.inner.is_empty() => {
                    self.known.insert(name.to_owned(), value.to_owned());
                }
                _ if word.text == "export" => {}
                _ => return,
            }
        }
    }

    fn words(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                None | Some('|' | ';' | '\n' | '(' | ')') => return words,
                Some('&') if self.second() != Some('>') => return words,
                _ => {}
            }
            let before = self.at;
            match self.redirection() {
                Some(word) => words.push(word),
                None => words.push(self.word()),
            }
            if self.at == before {
                return words;
            }
        }
    }

    /// `2>&1`, `>>`, `<<<`, `&>`; not `<(`.
    fn redirection(&mut self) -> Option<Word> {
        let mut at = self.at;
        while self.letters.get(at).is_some_and(|letter| letter.is_ascii_digit() || *letter == '&') {
            at += 1;
        }
        let start = at;
        while self.letters.get(at).is_some_and(|letter| matches!(letter, '<' | '>')) {
            at += 1;
        }
        let process = at == start + 1 && self.letters.get(at) == Some(&'(');
        if at == start || process {
            return None;
        }
        let text = self.letters[start..at].iter().collect();
        at += usize::from(matches!(self.letters.get(at), Some('&' | '-' | '|')));
        self.at = at;
        Some(Word { text, redirects: true, ..Word::default() })
    }

    fn word(&mut self) -> Word {
        let mut word = Word::default();
        while let Some(letter) = self.peek() {
            match letter {
                ' ' | '\t' | '\r' | '\n' | '|' | '&' | ';' | ')' | '(' => break,
                '<' | '>' if self.second() == Some('(') => {
                    self.at += 2;
                    self.inner(&mut word, true);
                }
                '<' | '>' => break,
                '\'' => self.single(&mut word),
                '"' => self.double(&mut word),
                '\\' => {
                    self.at += 1;
                    word.text.extend(self.peek().filter(|letter| *letter != '\n'));
                    self.at += 1;
                }
                '`' => self.backtick(&mut word),
                '$' => self.dollar(&mut word),
                _ => {
                    word.text.push(letter);
                    self.at += 1;
                }
            }
        }
        word
    }

    fn inner(&mut self, word: &mut Word, process: bool) {
        if self.depth < DEEPEST {
            let script = self.list(Some(')'));
            word.inner.push(Inner { process, script });
        }
    }

    fn single(&mut self, word: &mut Word) {
        self.at += 1;
        while let Some(letter) = self.peek() {
            self.at += 1;
            if letter == '\'' {
                return;
            }
            word.text.push(letter);
        }
    }

    fn double(&mut self, word: &mut Word) {
        self.at += 1;
        while let Some(letter) = self.peek() {
            match letter {
                '"' => {
                    self.at += 1;
                    return;
                }
                '\\' if matches!(self.second(), Some('"' | '\\' | '$' | '`')) => {
                    word.text.extend(self.second());
                    self.at += 2;
                }
                '`' => self.backtick(word),
                '$' => self.dollar(word),
                _ => {
                    word.text.push(letter);
                    self.at += 1;
                }
            }
        }
    }

    fn backtick(&mut self, word: &mut Word) {
        self.at += 1;
        let start = self.at;
        while self.peek().is_some_and(|letter| letter != '`') {
            self.at += 1 + usize::from(self.peek() == Some('\\'));
        }
        let end = self.at.min(self.letters.len());
        let text: String =
            self.letters[start.min(end)..end].iter().filter(|letter| **letter != '\\').collect();
        self.at += 1;
        if self.depth < DEEPEST {
            let mut parser =
                Parser { letters: text.chars().collect(), at: 0, depth: self.depth, known: &mut *self.known };
            let script = parser.list(None);
            word.inner.push(Inner { process: false, script });
        }
    }

    fn dollar(&mut self, word: &mut Word) {
        self.at += 1;
        match self.peek() {
            Some('(') => {
                self.at += 1;
                self.inner(word, false);
            }
            Some('{') => {
                let rest = &self.letters[self.at..];
                let length = rest.iter().position(|letter| *letter == '}').map_or(rest.len(), |at| at + 1);
                self.variable(word, length);
            }
            Some(letter) if letter.is_ascii_alphabetic() || letter == '_' => {
                let rest = &self.letters[self.at..];
                let other = |letter: &char| !letter.is_ascii_alphanumeric() && *letter != '_';
                let length = rest.iter().position(other).unwrap_or(rest.len());
                self.variable(word, length);
            }
            _ => word.text.push('$'),
        }
    }

    /// A variable whose value nobody knows stays as it is written.
    fn variable(&mut self, word: &mut Word, length: usize) {
        let written: String = std::iter::once(&'$').chain(&self.letters[self.at..self.at + length]).collect();
        self.at += length;
        let name: String = written
            .chars()
            .skip(1)
            .skip_while(|l| *l == '{')
            .take_while(|l| l.is_alphanumeric() || *l == '_')
            .collect();
        let known: &Known = self.known;
        let values = |name: &str| known.get(name).cloned();
        let value = words::expand(&written, '\\', &values).ok();
        let value = value.filter(|value| known.contains_key(&name) || !value.is_empty());
        word.text.push_str(&value.unwrap_or(written));
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        script(&parse(text, &mut Known::new()))
    }

    fn script(script: &Script) -> String {
        let pipelines = script.pipelines.iter().map(|pipeline| {
            let commands = pipeline.iter().map(|command| match command {
                Command::Simple(words) => words.iter().map(word).collect::<Vec<_>>().join(" "),
                Command::Group(inner) => format!("({})", self::script(inner)),
            });
            commands.collect::<Vec<_>>().join(" | ")
        });
        pipelines.collect::<Vec<_>>().join("; ")
    }

    fn word(word: &Word) -> String {
        let inner = word.inner.iter().map(|inner| format!("[{}]", script(&inner.script)));
        format!("{}{}", word.text, inner.collect::<String>())
    }

    #[test]
    fn scripts_are_taken_apart() {
        for (text, expected) in [
            ("a b && c 'd e' | f; g", "a b; c d e | f; g"),
            ("a 2>&1 >x |& b", "a > 1 > x | b"),
            ("a # b | c\nd", "a; d"),
            ("a#b", "a#b"),
            ("(a; b) | { c; }", "(a; b) | (c)"),
            ("a \"$(b | c)\" `d` <(e)", "a [b | c] [d] [e]"),
            ("x=1; a $x ${x}y $z ${z:-w}", "x=1; a 1 1y $z w"),
            ("a \\| b\\\n c", "a | b c"),
            ("a \"unclosed", "a unclosed"),
            ("a 'b\nc' &", "a b\nc"),
            ("case x in a) b ;; esac", "case x in a; b; esac"),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        assert!(told(&"$(".repeat(100_000)).len() < 1000);
        assert!(told(&"(".repeat(100_000)).len() < 1000);
        told(&"`\\".repeat(10_000));
        told(&"\"${".repeat(10_000));
    }
}

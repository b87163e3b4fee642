//! From text to lines that belong together: directives, continuations, comments, here-documents.

use super::words::{self, Keep};
use super::{DockerfileError, Problem};

/// What a Dockerfile may be long.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// How many instructions it may have.
const MOST_INSTRUCTIONS: usize = 10_000;

/// What the first lines of a file set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directives {
    /// `# syntax=`: the frontend another builder would load. Here it is only told.
    pub syntax: Option<String>,
    /// `# escape=`: what continues a line and escapes a letter.
    pub escape: char,
    /// `# check=`: the settings of another linter. Here they are only told.
    pub check: Option<String>,
}

impl Default for Directives {
    fn default() -> Directives {
        Directives { syntax: None, escape: '\\', check: None }
    }
}

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HereDocument {
    /// The word that ends it.
    pub name: String,
    /// Its text as written.
    pub text: String,
    /// Variables in it are meant: its word was not quoted.
    pub expands: bool,
    /// `<<-`: leading tabs of each line are not meant.
    pub chomps: bool,
}

impl HereDocument {
    /// The text that is meant.
    pub fn content(&self) -> String {
        if !self.chomps {
            return self.text.clone();
        }
        self.text.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect()
    }
}

/// One instruction's lines, joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Logical {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) text: String,
    pub(super) documents: Vec<HereDocument>,
}

/// Joins what belongs together.
pub(super) fn read(text: &str) -> Result<(Directives, Vec<Logical>), DockerfileError> {
    if text.len() > MOST_BYTES {
        return Err(Problem::TooLong.at(1));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = Lines { lines: text.split_inclusive('\n').collect(), at: 0 };
    let directives = directives(&lines.lines)?;
    let mut logical = Vec::new();
    while let Some(instruction) = lines.instruction(directives.escape)? {
        logical.push(instruction);
        if logical.len() > MOST_INSTRUCTIONS {
            return Err(Problem::TooMany.at(lines.at));
        }
    }
    Ok((directives, logical))
}

/// They end with the first line that is none.
fn directives(lines: &[&str]) -> Result<Directives, DockerfileError> {
    let mut directives = Directives::default();
    let mut seen = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some((name, value)) = directive(line) else { break };
        let name = name.to_ascii_lowercase();
        if seen.contains(&name) {
            return Err(Problem::DirectiveTwice(name).at(index + 1));
        }
        match name.as_str() {
            "syntax" => directives.syntax = Some(value.to_owned()),
            "check" => directives.check = Some(value.to_owned()),
            "escape" => match value {
                "\\" => {}
                "`" => directives.escape = '`',
                _ => return Err(Problem::Escape(value.to_owned()).at(index + 1)),
            },
            _ => break,
        }
        seen.push(name);
    }
    Ok(directives)
}

fn directive(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix('#')?.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let plain = name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric());
    (plain && !value.is_empty()).then_some((name, value))
}

struct Lines<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let line = self.lines.get(self.at).copied()?;
        self.at += 1;
        Some(line)
    }

    fn instruction(&mut self, escape: char) -> Result<Option<Logical>, DockerfileError> {
        let start = loop {
            let Some(line) = self.next() else { return Ok(None) };
            if !is_comment(line) && !line.trim().is_empty() {
                break line.trim_start();
            }
        };
        let first = self.at;
        let (start, mut more) = continued(without_end(start), escape);
        let mut text = start.to_owned();
        while more {
            let Some(line) = self.next() else { break };
            // Both are allowed in the middle, as people write them there.
            if is_comment(line) || line.trim().is_empty() {
                continue;
            }
            let (part, goes_on) = continued(without_end(line), escape);
            text.push_str(part);
            more = goes_on;
        }
        let documents = self.documents(&text, first)?;
        Ok(Some(Logical { first, last: self.at, text, documents }))
    }

    fn documents(&mut self, text: &str, first: usize) -> Result<Vec<HereDocument>, DockerfileError> {
        if !may_have_documents(text) {
            return Ok(Vec::new());
        }
        let mut documents = documents_of(text);
        for document in &mut documents {
            loop {
                let Some(line) = self.next() else {
                    return Err(Problem::OpenDocument(document.name.clone()).at(first));
                };
                let end = without_end(line);
                let end = if document.chomps { end.trim_start_matches('\t') } else { end };
                if end == document.name {
                    break;
                }
                document.text.push_str(line);
            }
        }
        Ok(documents)
    }
}

fn may_have_documents(text: &str) -> bool {
    let Some((keyword, rest)) = text.split_once(char::is_whitespace) else { return false };
    let known = ["run", "copy", "add"].iter().any(|name| keyword.eq_ignore_ascii_case(name));
    known && text.contains("<<") && super::arguments::json(super::flags::cut(rest).1).is_none()
}

/// The here-documents a line announces; their texts are still empty.
fn documents_of(text: &str) -> Vec<HereDocument> {
    // A line whose quotes do not match announces nothing: the shell will say so.
    let words = words::split(text, Keep::Everything).unwrap_or_default();
    words.iter().filter_map(|word| announced(word)).collect()
}

/// What `<<EOF`, `3<<-'EOF'` and the like announce.
pub(super) fn announced(word: &str) -> Option<HereDocument> {
    let rest = word.trim_start_matches(|letter: char| letter.is_ascii_digit()).strip_prefix("<<")?;
    let (chomps, rest) = rest.strip_prefix('-').map_or((false, rest), |rest| (true, rest));
    if rest.is_empty() || rest.contains('<') {
        return None;
    }
    let [name] = words::split(rest, Keep::Nothing).ok()?.try_into().ok()?;
    let expands = words::split(rest, Keep::Everything).ok()? == [name.clone()];
    Some(HereDocument { name, text: String::new(), expands, chomps })
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

fn without_end(line: &str) -> &str {
    line.trim_end_matches(['\r', '\n'])
}

/// A line goes on after a single escape at its end; two of them are a letter.
fn continued(line: &str, escape: char) -> (&str, bool) {
    let trimmed = line.trim_end_matches([' ', '\t']);
    match trimmed.strip_suffix(escape) {
        Some(rest) if !rest.ends_with(escape) => (rest, true),
        _ => (line, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(file: &str) -> Vec<(usize, usize, String)> {
        read(file).unwrap().1.into_iter().map(|line| (line.first, line.last, line.text)).collect()
    }

    fn problem(file: &str) -> String {
        read(file).unwrap_err().to_string()
    }

    #[test]
    fn lines_go_on_over_comments_and_blank_lines() {
        let file = "\n# c\n  RUN a \\\n  # comment\n\n  && b \\  \n\t&& c\nRUN d\\\\\nRUN e\r\n";
        let expected = [
            (3, 7, "RUN a   && b \t&& c".to_owned()),
            (8, 8, "RUN d\\\\".to_owned()),
            (9, 9, "RUN e".to_owned()),
        ];
        assert_eq!(texts(file), expected);
        assert_eq!(texts("RUN a \\"), [(1, 1, "RUN a ".to_owned())]);
        assert_eq!(texts("\u{feff}FROM a"), [(1, 1, "FROM a".to_owned())]);
    }

    #[test]
    fn directives_come_first_or_not_at_all() {
        let (directives, lines) = read("# syntax = x/y:1\n#Escape=`\nRUN a `\nb\nRUN c\\\n").unwrap();
        assert_eq!((directives.syntax.as_deref(), directives.escape), (Some("x/y:1"), '`'));
        assert_eq!(lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["RUN a b", "RUN c\\"]);
        for file in ["# a comment\n# escape=`\nRUN a", "\n# escape=`\nRUN a", "# other=1\n# escape=`\nRUN a"]
        {
            assert_eq!(read(file).unwrap().0, Directives::default(), "{file}");
        }
        assert!(problem("# escape=x\n").contains("line 1"));
        assert!(problem("# escape=\\\n# escape=`\n").contains("twice"));
    }

    #[test]
    fn documents_are_taken_with_their_instruction() {
        let (_, lines) = read("RUN <<A cat <<-'B'\n$x\n\\\nA\n\tb\n\tB\nRUN c\n").unwrap();
        assert_eq!((lines.len(), lines[0].last), (2, 6));
        let [a, b] = &lines[0].documents[..] else { panic!("{lines:?}") };
        assert_eq!((a.name.as_str(), a.content().as_str(), a.expands), ("A", "$x\n\\\n", true));
        assert_eq!((b.name.as_str(), b.content().as_str(), b.expands), ("B", "b\n", false));
        assert!(problem("FROM a\nRUN <<EOF\nx\n").contains("EOF"));
        for plain in ["RUN cat <<<word\n", "RUN [\"cat\", \"<<EOF\"]\n", "RUN x '<<EOF'\n", "ENV a=<<EOF\n"] {
            assert!(read(plain).unwrap().1[0].documents.is_empty(), "{plain}");
        }
    }

    #[test]
    fn what_is_too_much_is_refused() {
        assert!(problem(&"a".repeat(MOST_BYTES + 1)).contains("longer"));
        assert!(problem(&"RUN a\n".repeat(MOST_INSTRUCTIONS + 1)).contains("instructions"));
    }
}

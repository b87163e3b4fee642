//! What comes from the network and is run unseen: `curl … | sh` in its many spellings.

use super::shell::{Command, Known, Script, Word, parse};

/// How often a command line inside a command line is followed.
const DEEPEST: usize = 6;

const DOWNLOADERS: &[&str] =
    &["curl", "wget", "wget2", "aria2c", "fetch", "lynx", "http", "https", "xh", "curlie"];
const SHELLS: &[&str] =
    &["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "rbash", "csh", "tcsh", "su"];
const INTERPRETERS: &[&str] =
    &["python", "perl", "ruby", "node", "nodejs", "php", "deno", "bun", "lua", "pypy"];
/// What runs the command that follows it.
const WRAPPERS: &[&str] = &[
    "sudo", "env", "exec", "command", "nohup", "time", "nice", "ionice", "timeout", "stdbuf", "busybox",
    "xargs", "doas", "su-exec", "gosu", "setsid", "chroot", "unshare", "builtin", "!", "if", "then", "do",
    "else", "elif", "while", "until", "export",
];

/// Whether a line runs what it downloads.
pub(super) fn runs_downloads(script: &Script) -> bool {
    found(script, DEEPEST)
}

/// Whether a command given as a list runs what it downloads.
pub(super) fn list_runs_downloads(list: &[String]) -> bool {
    simple(&list.iter().map(|text| Word::plain(text)).collect::<Vec<_>>(), DEEPEST)
}

fn found(script: &Script, depth: usize) -> bool {
    script.pipelines.iter().any(|pipeline| pipeline_found(pipeline, depth))
}

fn pipeline_found(pipeline: &[Command], depth: usize) -> bool {
    let mut downloaded = false;
    for command in pipeline {
        if downloaded && runs_input(command) {
            return true;
        }
        downloaded |= downloads(command);
        let inside = match command {
            Command::Group(script) => found(script, depth),
            Command::Simple(words) => simple(words, depth),
        };
        if inside {
            return true;
        }
    }
    false
}

/// One command by itself: what it substitutes, and the command line inside it.
fn simple(words: &[Word], depth: usize) -> bool {
    if words.iter().flat_map(|word| &word.inner).any(|inner| found(&inner.script, depth)) {
        return true;
    }
    let Some((head, rest)) = head(words) else { return false };
    let downloads = |word: &Word| word.inner.iter().any(|inner| has_download(&inner.script));
    let from_process = |word: &Word| word.inner.iter().any(|i| i.process && has_download(&i.script));
    if matches!(head, "eval" | "source" | ".") {
        return rest.iter().any(downloads) || (head == "eval" && again(&joined(rest), depth));
    }
    if rest.is_empty() && words.iter().any(|word| word.text.is_empty() && downloads(word)) {
        return true;
    }
    if !is_interpreter(head) {
        return false;
    }
    let here_text = |pair: &[Word]| pair[0].redirects && pair[0].text == "<<<" && downloads(&pair[1]);
    let code = code_of(head, rest);
    rest.iter().any(from_process)
        || rest.windows(2).any(here_text)
        || code.is_some_and(|word| downloads(word) || (is_shell(head) && again(&word.text, depth)))
}

fn joined(words: &[Word]) -> String {
    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
}

fn again(text: &str, depth: usize) -> bool {
    depth > 0 && found(&parse(text, &mut Known::new()), depth - 1)
}

/// The word after `-c`, `-lc`, `-e`.
fn code_of<'a>(name: &str, words: &'a [Word]) -> Option<&'a Word> {
    let at = words.iter().position(|word| gives_code(name, &word.text))?;
    words.get(at + 1)
}

/// Whether code follows an option; for a shell `-e` is something else.
fn gives_code(name: &str, option: &str) -> bool {
    let letters = match bare(name) {
        _ if is_shell(name) || name.starts_with('$') => "c",
        "python" | "pypy" => "c",
        "php" => "r",
        _ => "eEp",
    };
    let short = option.starts_with('-') && !option.starts_with("--");
    short && option.contains(|letter| letters.contains(letter)) || matches!(option, "--eval" | "--print")
}

fn bare(name: &str) -> &str {
    name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.')
}

/// The program that is run in the end, and its arguments.
fn head(words: &[Word]) -> Option<(&str, &[Word])> {
    let mut rest = words;
    let mut wrapped = false;
    loop {
        let (first, after) = rest.split_first()?;
        let name = program(&first.text);
        let assigns = first.text.contains('=') && !first.text.starts_with('-');
        if first.redirects {
            rest = after.get(1..)?;
            continue;
        }
        // The options of a wrapper, and their values, come before what it runs.
        let skipped = wrapped
            && !is_interpreter(name)
            && !DOWNLOADERS.contains(&name)
            && !WRAPPERS.contains(&name)
            && (first.text.starts_with('-') || is_value(&first.text, after));
        if assigns || skipped {
            rest = after;
            continue;
        }
        if WRAPPERS.contains(&name) {
            (rest, wrapped) = (after, true);
            continue;
        }
        return Some((name, after));
    }
}

/// A word between a wrapper and what it runs: a number, a user.
fn is_value(text: &str, after: &[Word]) -> bool {
    let number = text.starts_with(|letter: char| letter.is_ascii_digit());
    number || after.first().is_some_and(|next| is_interpreter(program(&next.text)) || next.text == "-")
}

fn program(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_shell(name: &str) -> bool {
    SHELLS.contains(&name)
}

fn is_interpreter(name: &str) -> bool {
    // Whose name is a variable may be anything; the usual one is meant.
    is_shell(name)
        || INTERPRETERS.contains(&bare(name))
        || matches!(name, "$SHELL" | "${SHELL}" | "$BASH" | "${BASH}")
}

fn downloads(command: &Command) -> bool {
    match command {
        Command::Group(script) => has_download(script),
        Command::Simple(words) => {
            head(words).is_some_and(|(name, _)| DOWNLOADERS.contains(&name))
                || words.iter().flat_map(|word| &word.inner).any(|inner| has_download(&inner.script))
        }
    }
}

fn has_download(script: &Script) -> bool {
    script.pipelines.iter().flatten().any(downloads)
}

/// Whether a command runs what it reads.
fn runs_input(command: &Command) -> bool {
    match command {
        Command::Group(script) => script.pipelines.iter().flatten().any(runs_input),
        Command::Simple(words) => {
            let substituted = words.iter().flat_map(|word| &word.inner).filter(|inner| inner.process);
            substituted.into_iter().any(|inner| inner.script.pipelines.iter().flatten().any(runs_input))
                || head(words).is_some_and(|(name, rest)| {
                    matches!(name, "source" | ".")
                        && operands(rest).first().is_some_and(|file| is_input(file))
                        || is_interpreter(name) && reads_program(name, rest)
                })
        }
    }
}

/// An interpreter with a script, a module or code of its own only reads data.
fn reads_program(name: &str, arguments: &[Word]) -> bool {
    let options = arguments.iter().map(|word| word.text.as_str()).take_while(|text| text.starts_with('-'));
    for option in options {
        match option {
            "-" | "-s" | "--" => return true,
            _ if gives_code(name, option) || (!is_shell(name) && option.starts_with("-m")) => return false,
            _ if is_shell(name) && !option.starts_with("--") && option.contains('s') => return true,
            _ => {}
        }
    }
    operands(arguments).first().is_none_or(|file| is_input(file))
}

fn is_input(file: &str) -> bool {
    matches!(file, "-" | "/dev/stdin" | "/dev/fd/0" | "/proc/self/fd/0")
}

fn operands(arguments: &[Word]) -> Vec<&str> {
    let mut operands = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        // The next word belongs to a redirection, and to the one option of a shell that has a value.
        if word.redirects || word.text == "-o" {
            words.next();
        } else if !word.text.starts_with('-') || word.text == "-" {
            operands.push(word.text.as_str());
        }
    }
    operands
}

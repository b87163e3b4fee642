//! What must come of a guest, as data, and how it is compared with what came.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::capture::escape;
use crate::conformance::bench::{Ran, Stream};
use crate::outcome::Ending;

/// The most characters of a guest's output that a difference shows.
const SHOWN: usize = 600;

/// What a guest prints when something worked that must not.
const BREACH: &str = "BREACH:";

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What.
    pub what: String,
    /// How it must be.
    pub expected: String,
    /// How it is.
    pub seen: String,
}

impl Difference {
    pub(super) fn new(
        what: impl Into<String>,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) -> Difference {
        Difference { what: what.into(), expected: expected.into(), seen: seen.into() }
    }
}

/// What must come of one command. No command may leave survivors, and no row says that again.
#[derive(Debug, Clone)]
pub(super) struct Expectation {
    /// Any of these; any at all when there is none.
    endings: Vec<End>,
    started: Started,
    stdout: Text,
    stderr: Text,
    wall: Option<(Duration, Duration)>,
    usage: Vec<Used>,
}

/// One way to end; a code that is not said may be any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    ending: Ending,
    exit_code: Option<i32>,
    signal: Option<i32>,
}

/// Whether the command was ever started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Started {
    Yes,
    No,
    Perhaps,
}

/// What must be in a stream. `{mark}` and `{outside}` stand for the row's own.
#[derive(Debug, Clone)]
pub(super) enum Text {
    /// Whatever it likes.
    Anything,
    /// Exactly these bytes.
    Is(Vec<u8>),
    /// These words somewhere.
    Has(&'static str),
    /// Lines of a program that tried so many things, none of which worked.
    AllHeld(usize),
    /// These words, and no word of a breach: where the number of attempts depends on the image.
    NoBreach(&'static str),
    /// One whole number within these bounds.
    Number(u64, u64),
    /// So many bytes, which repeat this pattern.
    Repeats { pattern: &'static [u8], bytes: usize },
    /// At least so many bytes.
    AtLeast(usize),
}

/// A bound on what a command used; a figure that is not told does not meet it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Used {
    /// Processes that were killed at its end, at least.
    Killed(u64),
    /// Kills for lack of memory, at least.
    MemoryKills(u64),
    /// No kill for lack of memory.
    NoMemoryKill,
    /// Processor time in milliseconds, between these.
    Processor(u64, u64),
    /// Peak memory in MiB, between these.
    PeakMemory(u64, u64),
    /// Milliseconds held back by the processor limit, at least.
    Throttled(u64),
}

impl Expectation {
    /// A command that ends like this.
    pub(super) fn of(ending: Ending, exit_code: Option<i32>, signal: Option<i32>) -> Expectation {
        Expectation::ends(vec![End { ending, exit_code, signal }])
    }

    /// A command that ends in one of these ways.
    pub(super) fn any_of(endings: &[(Ending, Option<i32>)]) -> Expectation {
        let end = |(ending, exit_code): &(Ending, Option<i32>)| End {
            ending: *ending,
            exit_code: *exit_code,
            signal: None,
        };
        Expectation::ends(endings.iter().map(end).collect())
    }

    /// A command that ends, in whatever way, or could not be started by the guest's own doing.
    pub(super) fn any() -> Expectation {
        Expectation { started: Started::Perhaps, ..Expectation::ends(Vec::new()) }
    }

    fn ends(endings: Vec<End>) -> Expectation {
        Expectation {
            endings,
            started: Started::Yes,
            stdout: Text::Anything,
            stderr: Text::Anything,
            wall: None,
            usage: Vec::new(),
        }
    }

    /// The same, with exactly this standard output.
    pub(super) fn out(self, text: impl Into<Vec<u8>>) -> Expectation {
        self.stdout(Text::Is(text.into()))
    }

    /// The same, with exactly this standard error.
    pub(super) fn err(self, text: impl Into<Vec<u8>>) -> Expectation {
        self.stderr(Text::Is(text.into()))
    }

    /// The same, with standard output like this.
    pub(super) fn stdout(mut self, text: Text) -> Expectation {
        self.stdout = text;
        self
    }

    /// The same, with standard error like this.
    pub(super) fn stderr(mut self, text: Text) -> Expectation {
        self.stderr = text;
        self
    }

    /// The same, of a command that could not be started by the guest's own doing.
    pub(super) fn not_started(mut self) -> Expectation {
        self.started = Started::No;
        self
    }

    /// The same, taking no less and no more than this.
    pub(super) fn lasts(mut self, least: Duration, most: Duration) -> Expectation {
        self.wall = Some((least, most));
        self
    }

    /// The same, ended within so many seconds.
    pub(super) fn within_seconds(self, seconds: u64) -> Expectation {
        self.lasts(Duration::ZERO, Duration::from_secs(seconds))
    }

    /// The same, with one more bound on what it used.
    pub(super) fn uses(mut self, used: Used) -> Expectation {
        self.usage.push(used);
        self
    }

    /// Everything that is not as it must be; `own` puts the row's own words in the place of those that stand for them.
    pub(super) fn differences(&self, ran: &Ran, own: &dyn Fn(&str) -> String) -> Vec<Difference> {
        let mut found = Vec::new();
        found.extend(self.ending(ran));
        found.extend(self.start(ran));
        found.extend(survivors(ran));
        found.extend(self.stdout.difference("stdout", &ran.stdout, own));
        found.extend(self.stderr.difference("stderr", &ran.stderr, own));
        found.extend(self.wall(ran));
        found.extend(self.usage.iter().filter_map(|used| used.difference(ran)));
        // Whoever reads about a failure wants its last words.
        if !found.is_empty() && matches!(self.stderr, Text::Anything) && !ran.stderr.bytes.is_empty() {
            found.push(Difference::new("stderr", "anything", shown(&ran.stderr.bytes)));
        }
        found
    }

    fn ending(&self, ran: &Ran) -> Option<Difference> {
        let exit = &ran.exit;
        let seen = End { ending: exit.ending, exit_code: Some(exit.exit_code), signal: exit.signal };
        if self.endings.is_empty() || self.endings.iter().any(|end| end.covers(&seen)) {
            return None;
        }
        let expected: Vec<String> = self.endings.iter().map(ToString::to_string).collect();
        Some(Difference::new("ending", expected.join(" or "), seen.to_string()))
    }

    fn start(&self, ran: &Ran) -> Option<Difference> {
        let reason = ran.exit.not_started.as_deref();
        match (self.started, reason) {
            (Started::Yes, Some(reason)) => Some(Difference::new("start", "started", reason)),
            (Started::No, None) => Some(Difference::new("start", "not started, and the reason", "started")),
            (Started::Yes, None) | (Started::No, Some(_)) | (Started::Perhaps, _) => None,
        }
    }

    fn wall(&self, ran: &Ran) -> Option<Difference> {
        let (least, most) = self.wall?;
        let took = ran.exit.wall;
        let expected = format!("{} to {} ms", least.as_millis(), most.as_millis());
        (took < least || took > most)
            .then(|| Difference::new("wall time", expected, format!("{} ms", took.as_millis())))
    }
}

fn survivors(ran: &Ran) -> Option<Difference> {
    let count = ran.exit.survivors;
    (count != 0).then(|| Difference::new("survivors", "0", count.to_string()))
}

impl End {
    fn covers(&self, seen: &End) -> bool {
        self.ending == seen.ending
            && (self.exit_code.is_none() || (self.exit_code, self.signal) == (seen.exit_code, seen.signal))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.ending)?;
        self.exit_code.map_or(Ok(()), |code| write!(f, ", code {code}"))?;
        self.signal.map_or(Ok(()), |signal| write!(f, ", signal {signal}"))
    }
}

impl Text {
    fn difference(&self, name: &str, stream: &Stream, own: &dyn Fn(&str) -> String) -> Option<Difference> {
        let bytes = stream.bytes.as_slice();
        let text = String::from_utf8_lossy(bytes);
        let differs = |expected: String| Some(Difference::new(name, expected, shown(bytes)));
        // Of many attempts, those that worked are what matters.
        let breaches = |expected: String| {
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(BREACH)).collect();
            let seen = if lines.is_empty() { shown(bytes) } else { lines.join("\n") };
            Some(Difference::new(name, expected, seen))
        };
        match self {
            Text::Anything => None,
            Text::Is(wanted) => {
                let wanted = match std::str::from_utf8(wanted) {
                    Ok(text) => own(text).into_bytes(),
                    Err(_) => wanted.clone(),
                };
                if wanted == bytes { None } else { differs(shown(&wanted)) }
            }
            Text::Has(words) if text.contains(&own(words)) => None,
            Text::Has(words) => differs(format!("has {words:?}")),
            Text::AllHeld(count) => {
                let wanted = format!("all held {count}\n");
                if text.ends_with(&wanted) && !text.contains(BREACH) { None } else { breaches(wanted) }
            }
            Text::NoBreach(words) => {
                if text.contains(words) && !text.contains(BREACH) {
                    None
                } else {
                    breaches((*words).to_owned())
                }
            }
            Text::Number(least, most) => match text.trim().parse::<u64>() {
                Ok(number) if (*least..=*most).contains(&number) => None,
                Ok(_) | Err(_) => differs(format!("a number from {least} to {most}")),
            },
            Text::Repeats { pattern, bytes: count } => {
                let right =
                    bytes.len() == *count && bytes.chunks(pattern.len()).all(|c| pattern.starts_with(c));
                if right { None } else { differs(format!("{count} bytes of {}", escape(pattern))) }
            }
            Text::AtLeast(count) if bytes.len() >= *count => None,
            Text::AtLeast(count) => {
                Some(Difference::new(name, format!("at least {count} bytes"), format!("{}", bytes.len())))
            }
        }
    }
}

impl Used {
    fn difference(self, ran: &Ran) -> Option<Difference> {
        let usage = &ran.exit.usage;
        let millis = |time: Option<crate::moment::Millis>| time.map(|time| time.as_micros() / 1000);
        let both = || Some(millis(usage.user_ms)? + millis(usage.system_ms)?);
        let (what, seen, least, most) = match self {
            Used::Killed(least) => ("killed processes", usage.killed_processes, least, u64::MAX),
            Used::MemoryKills(least) => ("memory kills", usage.memory_kills, least, u64::MAX),
            Used::NoMemoryKill => ("memory kills", usage.memory_kills, 0, 0),
            Used::Processor(least, most) => ("processor time in ms", both(), least, most),
            Used::PeakMemory(least, most) => {
                ("peak memory in MiB", usage.peak_memory_bytes.map(|bytes| bytes >> 20), least, most)
            }
            Used::Throttled(least) => ("throttled time in ms", millis(usage.throttled_ms), least, u64::MAX),
        };
        let expected = match most {
            u64::MAX => format!("at least {least}"),
            most => format!("{least} to {most}"),
        };
        match seen {
            Some(figure) if (least..=most).contains(&figure) => None,
            Some(figure) => Some(Difference::new(what, expected, figure.to_string())),
            None => Some(Difference::new(what, expected, "not told")),
        }
    }
}

/// Bytes as a person can read them: the beginning and the end when there is much.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = escape(&bytes[..bytes.len().min(SHOWN)]);
    if bytes.len() <= SHOWN {
        return text;
    }
    let (half, last) = (SHOWN / 2, &bytes[bytes.len() - SHOWN / 2..]);
    format!("{} […{} bytes…] {}", escape(&bytes[..half]), bytes.len() - 2 * half, escape(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(bytes: &[u8]) -> Stream {
        Stream { bytes: bytes.to_vec(), ..Stream::default() }
    }

    fn differs(text: &Text, bytes: &[u8]) -> bool {
        let own = |text: &str| text.replace("{mark}", "m1");
        text.difference("stdout", &stream(bytes), &own).is_some()
    }

    #[test]
    fn texts_are_compared_as_they_say() {
        for (text, right, wrong) in [
            (Text::Is(b"a {mark}\n".to_vec()), b"a m1\n".as_slice(), b"a m2\n".as_slice()),
            (Text::Is(vec![0xff, 0]), b"\xff\x00", b"\xff"),
            (Text::Has("b{mark}"), b"abm1c", b"abc"),
            (Text::AllHeld(2), b"held: x\nheld: y\nall held 2\n", b"BREACH: z\nall held 2\n"),
            (Text::NoBreach("all held "), b"held: x\nall held 1\n", b"BREACH: z\nall held 2\n"),
            (Text::AllHeld(2), b"all held 2\n", b"all held 1\n"),
            (Text::Number(3, 5), b"4\n", b"6\n"),
            (Text::Number(3, 5), b"3", b"three"),
            (Text::Repeats { pattern: b"ab", bytes: 5 }, b"ababa", b"abab"),
            (Text::Repeats { pattern: b"ab", bytes: 4 }, b"abab", b"abba"),
            (Text::AtLeast(2), b"ab", b"a"),
        ] {
            assert!(!differs(&text, right), "{text:?} {right:?}");
            assert!(differs(&text, wrong), "{text:?} {wrong:?}");
        }
        assert!(!differs(&Text::Anything, b"x"));
    }

    #[test]
    fn long_output_is_shown_by_its_ends() {
        let text = shown(&[b'x'; 5000]);
        assert!(text.len() < 700 && text.contains("[…4400 bytes…]"), "{text}");
    }
}

//! One line of the display: a mark with its word, a name, a time, a note.

use belljar::outcome::StageOutcome;
use owo_colors::OwoColorize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How a thing stands; never told by its colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It is as it should be.
    Good,
    /// It is not.
    Bad,
    /// It deserves a look.
    Doubtful,
    /// It only is.
    Plain,
    /// It goes on; this is the frame of the wheel.
    Busy(usize),
}

const WHEEL: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

impl Mark {
    /// The mark in its colour.
    pub(crate) fn shown(self) -> String {
        match self {
            Mark::Good => "✓".green().to_string(),
            Mark::Bad => "✗".red().to_string(),
            Mark::Doubtful => "!".yellow().to_string(),
            Mark::Plain => "·".dimmed().to_string(),
            Mark::Busy(frame) => WHEEL[frame % WHEEL.len()].cyan().to_string(),
        }
    }
}

impl From<StageOutcome> for Mark {
    fn from(outcome: StageOutcome) -> Mark {
        match outcome {
            StageOutcome::Ok => Mark::Good,
            StageOutcome::Failed => Mark::Bad,
            StageOutcome::Skipped => Mark::Plain,
            StageOutcome::Interrupted => Mark::Doubtful,
        }
    }
}

/// A line in columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// How it stands.
    pub(crate) mark: Mark,
    /// What.
    pub(crate) name: String,
    /// How it stands, in words.
    pub(crate) word: String,
    /// How long it took.
    pub(crate) time: String,
    /// Anything else; the first to be cut when there is no room.
    pub(crate) note: String,
}

impl Line {
    /// The line, cut to a width if there is one.
    pub(crate) fn shown(&self, width: Option<usize>) -> String {
        let columns = format!("{:<13}  {:<13} {:>11}", self.name, self.word, self.time);
        let room = width.map(|width| width.saturating_sub(columns.width() + 6));
        let note = match room {
            Some(room) => cut(&self.note, room),
            None => self.note.clone(),
        };
        let (name, rest) =
            columns.split_at(columns.char_indices().nth(13).map_or(columns.len(), |(at, _)| at));
        let columns = format!("  {} {}{rest}", self.mark.shown(), name.bold());
        match note.as_str() {
            "" => columns.trim_end().to_owned(),
            note => format!("{columns}  {}", note.dimmed()),
        }
    }
}

/// Text cut to so many columns, with `…` where something is missing.
pub(crate) fn cut(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= room
    };
    let kept: String = text.chars().take_while(fits).collect();
    if room == 0 { String::new() } else { kept + "…" }
}

/// Text in pieces of so many columns, so that no terminal breaks it at a place of its own.
pub(crate) fn broken(text: &str, room: Option<usize>) -> Vec<String> {
    let room = room.unwrap_or(usize::MAX).max(2);
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.width() > room {
        let (piece, after) = rest.split_at(end(rest, room));
        pieces.push(piece.to_owned());
        rest = after;
    }
    pieces.push(rest.to_owned());
    pieces
}

/// Where to break: after the last space of the second half, or else where the room ends.
fn end(text: &str, room: usize) -> usize {
    let mut used = 0;
    let over = |(_, c): &(usize, char)| {
        used += c.width().unwrap_or(0);
        used > room
    };
    let most = text.char_indices().find(over).map_or(text.len(), |(at, _)| at);
    text[..most].rfind(' ').map(|space| space + 1).filter(|space| *space > most / 2).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_columns_not_by_characters() {
        assert_eq!(cut("plain", 5), "plain");
        assert_eq!(cut("plainer", 5), "plai…");
        assert_eq!(cut("日本語日本語", 6), "日本…");
        assert_eq!(cut("x", 0), "");
        assert_eq!(broken("日本語x", Some(4)), ["日本", "語x"]);
        assert_eq!(broken("of many words", Some(9)), ["of many ", "words"]);
        assert_eq!(broken("", Some(4)), [""]);
        assert_eq!(broken("as it is", None), ["as it is"]);
    }
}

//! The lower part of a terminal, redrawn in place with one write, so that nothing flickers.

use std::fmt::Write as _;
use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};

/// Without a terminal's word: the size of the oldest one.
const FALLBACK: (usize, usize) = (80, 24);

/// A block of lines at the end of the terminal.
#[derive(Debug)]
pub(crate) struct Canvas {
    drawn: usize,
    colours: Colours,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colours {
    On,
    Off,
}

impl Canvas {
    /// A canvas on stderr with nothing on it.
    pub(crate) fn new() -> Canvas {
        let colours = match AutoStream::choice(&io::stderr()) {
            ColorChoice::Never => Colours::Off,
            ColorChoice::Auto | ColorChoice::Always | ColorChoice::AlwaysAnsi => Colours::On,
        };
        Canvas { drawn: 0, colours }
    }

    /// The columns to fill; one fewer than there are, because a terminal forgets what stands in the last.
    pub(crate) fn width(&self) -> usize {
        self.size().0.saturating_sub(1)
    }

    /// Whether the terminal is ours to move on, not another job's of the same shell.
    fn is_ours(&self) -> bool {
        rustix::termios::tcgetpgrp(io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
    }

    /// Columns and rows.
    fn size(&self) -> (usize, usize) {
        match rustix::termios::tcgetwinsize(io::stderr()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            Ok(_) | Err(_) => FALLBACK,
        }
    }

    /// Prints lines that stay, and below them the block that the next call replaces.
    pub(crate) fn paint(&mut self, staying: &[String], block: &[String]) {
        let block = if self.is_ours() { block } else { &[] };
        if staying.is_empty() && block.is_empty() && self.drawn == 0 {
            return;
        }
        let rows = self.size().1.saturating_sub(1).max(1);
        let block = &block[..block.len().min(rows)];
        let text = self.text(staying, block);
        // A terminal that is gone shows nothing; the run goes on.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        self.drawn = block.len();
    }

    /// One update: held back until it is whole, without wrapping, so that a line is always one row.
    fn text(&self, staying: &[String], block: &[String]) -> String {
        let mut text = String::from("\x1b[?2026h\x1b[?7l\r");
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        for line in staying.iter().chain(block) {
            let _ = writeln!(text, "{}\x1b[K", self.coloured(line));
        }
        text + "\x1b[J\x1b[?7h\x1b[?2026l"
    }

    fn coloured(&self, line: &str) -> String {
        match self.colours {
            Colours::On => line.to_owned(),
            Colours::Off => anstream::adapter::strip_str(line).to_string(),
        }
    }
}

//! The last lines of a command, for when it fails.

use std::collections::VecDeque;

/// How many of a command's last lines an error shows, and how long one may be.
const LAST_LINES: usize = 20;
const LONGEST_LINE: usize = 2000;

/// The last lines of an output.
#[derive(Default)]
pub(super) struct Tail {
    lines: VecDeque<Vec<u8>>,
}

impl Tail {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.lines.back().is_none_or(|line| line.ends_with(b"\n")) {
                self.lines.push_back(Vec::new());
            }
            if let Some(line) = self.lines.back_mut() {
                let room = LONGEST_LINE.saturating_sub(line.len());
                line.extend_from_slice(&part[..part.len().min(room)]);
                if part.ends_with(b"\n") && !line.ends_with(b"\n") {
                    line.push(b'\n');
                }
            }
            if self.lines.len() > LAST_LINES {
                self.lines.pop_front();
            }
        }
    }

    pub(super) fn text(&self) -> String {
        self.lines.iter().map(|line| String::from_utf8_lossy(line)).collect()
    }
}

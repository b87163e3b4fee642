//! The name of an entry as a way down from a folder.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, openat};

use super::ladder::{MOST_LEVELS, Opened};
use super::{MOST_NAME, Refusal};

/// A relative path without `.`, `..` and empty parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    /// Each part with a slash after it.
    path: Vec<u8>,
    /// Where the last part begins.
    last: usize,
    /// How many parts there are.
    parts: usize,
}

impl Way {
    /// Reads a path of arbitrary bytes; one without any part but `.` is the folder itself.
    pub(super) fn parse(name: &[u8]) -> Result<Way, Refusal> {
        match name.first() {
            None => return Err(Refusal::Empty),
            Some(b'/') => return Err(Refusal::Absolute),
            Some(_) if name.len() > MOST_NAME => return Err(Refusal::TooLong),
            Some(_) if name.contains(&0) => return Err(Refusal::ZeroByte),
            Some(_) => {}
        }
        let mut way = Way { path: Vec::with_capacity(name.len() + 1), last: 0, parts: 0 };
        for part in name.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return Err(Refusal::Upwards),
                _ => {}
            }
            way.last = way.path.len();
            way.parts += 1;
            way.path.extend_from_slice(part);
            way.path.push(b'/');
        }
        if way.parts > MOST_LEVELS { Err(Refusal::TooLong) } else { Ok(way) }
    }

    /// Whether it is the folder itself.
    pub(super) fn is_top(&self) -> bool {
        self.path.is_empty()
    }

    /// The way to the folder that the last part is in, each part with a slash after it.
    pub(super) fn parent(&self) -> &[u8] {
        &self.path[..self.last]
    }

    /// The last part; empty for the folder itself.
    pub(super) fn name(&self) -> &[u8] {
        self.path[self.last..].strip_suffix(b"/").unwrap_or(b"")
    }

    /// The whole, each part with a slash after it.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// How many folders lie between the top and the last part.
    pub(super) fn depth(&self) -> usize {
        self.parts.saturating_sub(1)
    }
}

/// The parts of a path whose every part has a slash after it.
pub(super) fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

/// Opens the folder that this path leads to, following no link.
pub(crate) fn descend(top: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = Opened::Pass.flags();
    let mut folder = openat(top, ".", flags, Mode::empty())?;
    for part in parts(path) {
        folder = openat(&folder, part, flags, Mode::empty())?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cleaned_or_refused() {
        for (name, parent, last) in [
            ("a", "", "a"),
            ("./a//b/./c/", "a/b/", "c"),
            ("...", "", "..."),
            ("a/..b", "a/", "..b"),
            (".", "", ""),
            ("./", "", ""),
        ] {
            let way = Way::parse(name.as_bytes()).unwrap();
            assert_eq!((way.parent(), way.name()), (parent.as_bytes(), last.as_bytes()), "{name}");
            assert_eq!(way.is_top(), last.is_empty());
        }
        for (name, reason) in [
            ("", Refusal::Empty),
            ("/", Refusal::Absolute),
            ("/etc/passwd", Refusal::Absolute),
            ("..", Refusal::Upwards),
            ("a/../b", Refusal::Upwards),
            ("a/b/..", Refusal::Upwards),
            ("./../a", Refusal::Upwards),
            ("a\0b", Refusal::ZeroByte),
        ] {
            assert_eq!(Way::parse(name.as_bytes()), Err(reason), "{name:?}");
        }
        assert_eq!(Way::parse(&vec![b'x'; MOST_NAME + 1]), Err(Refusal::TooLong));
        assert_eq!(Way::parse("d/".repeat(MOST_LEVELS + 1).as_bytes()), Err(Refusal::TooLong));
    }
}

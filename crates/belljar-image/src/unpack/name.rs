//! What the name of an entry means.

use super::{Limits, UnpackError, shown};

/// Before the name of what is hidden.
const WHITEOUT: &[u8] = b".wh.";
/// Before names that the file system AUFS kept for itself.
const RESERVED: &[u8] = b".wh..wh.";
/// Hides everything that lower layers have in the folder it is in.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The longest name that Linux knows.
const LONGEST: usize = 255;

/// Where an entry belongs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    Root,
    /// A name in a folder.
    Name {
        folder: &'a [u8],
        name: &'a [u8],
    },
    /// A name in a folder, to be hidden.
    Whiteout {
        folder: &'a [u8],
        name: &'a [u8],
    },
    /// A folder, to hide what is below it.
    Opaque {
        folder: &'a [u8],
    },
    /// Nowhere: AUFS left it over.
    Reserved,
}

/// Finds where an entry belongs; a name that is no good, or that leads out of the layer, is refused.
pub(super) fn read<'a>(path: &'a [u8], limits: &Limits) -> Result<Place<'a>, UnpackError> {
    let refuse = |what| Err(UnpackError::Name { path: shown(path), what });
    if path.is_empty() {
        return refuse("it is empty");
    }
    if path.contains(&0) {
        return refuse("it has a NUL in it");
    }
    if path.len() > limits.path {
        return Err(UnpackError::PathTooLong { path: shown(path), limit: limits.path });
    }
    let mut reserved = false;
    for name in names(path) {
        if name == b".." {
            return refuse("`..` leads out of where it is");
        }
        if name.len() > LONGEST {
            return Err(UnpackError::NameTooLong { path: shown(path) });
        }
        reserved |= name.starts_with(RESERVED);
    }
    let (folder, name) = split(path);
    if name.is_empty() {
        return Ok(Place::Root);
    }
    if names(folder).any(|name| name.starts_with(WHITEOUT) && !name.starts_with(RESERVED)) {
        return refuse("it is in a folder whose name hides another");
    }
    if name == OPAQUE && !names(folder).any(|name| name.starts_with(RESERVED)) {
        return Ok(Place::Opaque { folder });
    }
    if reserved {
        return Ok(Place::Reserved);
    }
    match name.strip_prefix(WHITEOUT) {
        None => Ok(Place::Name { folder, name }),
        Some(b"" | b"." | b"..") => refuse("it hides no name"),
        Some(name) => Ok(Place::Whiteout { folder, name }),
    }
}

/// Whether a folder can have this name, which some link leads through.
pub(super) fn is_plain(name: &[u8]) -> bool {
    name.len() <= LONGEST && !name.starts_with(WHITEOUT)
}

/// The folder and the last name of a path; slashes and dots at its end do not count.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let mut end = path.len();
    loop {
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let name = &path[start..end];
        if !name.is_empty() && name != b"." {
            return (&path[..start], name);
        }
        if start == 0 {
            return (b"", b"");
        }
        end = start - 1;
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &[u8]) -> Result<Place<'_>, String> {
        read(path, &Limits::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_say_where_entries_belong() {
        let name = |folder, name| Ok(Place::Name { folder, name });
        let whiteout = |folder, name| Ok(Place::Whiteout { folder, name });
        let rows: [(&[u8], Result<Place<'_>, String>); 13] = [
            (b"a", name(b"", b"a")),
            (b"./a/b/", name(b"./a/", b"b")),
            (b"/a//b/./", name(b"/a//", b"b")),
            (b".", Ok(Place::Root)),
            (b"./", Ok(Place::Root)),
            (b"//", Ok(Place::Root)),
            (b"a/.wh.b", whiteout(b"a/", b"b")),
            (b".wh.b/", whiteout(b"", b"b")),
            (b"a/.wh..wh..opq", Ok(Place::Opaque { folder: b"a/" })),
            (b".wh..wh.plnk/1.2", Ok(Place::Reserved)),
            (b".wh..wh.", Ok(Place::Reserved)),
            (b".wh..wh.plnk/.wh..wh..opq", Ok(Place::Reserved)),
            (b".wh.\xff", whiteout(b"", b"\xff")),
        ];
        for (path, expected) in rows {
            assert_eq!(place(path), expected, "{}", path.escape_ascii());
        }
    }

    #[test]
    fn names_that_are_no_good_are_refused() {
        let long = [b'x'; 256];
        let wrong: [&[u8]; 10] =
            [b"", b"..", b"a/..", b"../a", b"a/../../b", b".wh.", b".wh..", b".wh...", b".wh.a/b", &long];
        for path in wrong {
            assert!(place(path).is_err(), "{}", path.escape_ascii());
        }
        assert!(place(&b"a/".repeat(3000)).is_err());
    }
}

//! Archives as data, also those that no honest packer makes.

/// The size of a block of a tar archive.
const BLOCK: usize = 512;
/// The longest name that a header holds by itself.
const SHORT: usize = 100;

/// One entry of an archive. `{mark}` and `{outside}` stand for the row's own.
#[derive(Debug, Clone)]
pub(super) enum Entry {
    /// A file.
    File(&'static [u8], &'static str),
    /// A folder.
    Folder(&'static [u8]),
    /// A symbolic link and where it leads.
    Link(&'static [u8], &'static str),
    /// A further name of a file.
    HardLink(&'static [u8], &'static str),
    /// A device of the same numbers as `/dev/null`.
    Device(&'static [u8]),
    /// Bytes that are no entry at all.
    Garbage(&'static [u8]),
    /// The archive ends here, without its end mark.
    Cut,
}

/// The archive of these entries; `own` puts the row's own words in the place of those that stand for them.
pub(super) fn archive(entries: &[Entry], own: &dyn Fn(&str) -> String) -> Vec<u8> {
    let own = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => own(text).into_bytes(),
        Err(_) => bytes.to_vec(),
    };
    let mut out = Vec::new();
    for entry in entries {
        match entry {
            Entry::File(name, text) => put(&mut out, b'0', &own(name), b"", text.as_bytes()),
            Entry::Folder(name) => put(&mut out, b'5', &own(name), b"", b""),
            Entry::Link(name, target) => put(&mut out, b'2', &own(name), &own(target.as_bytes()), b""),
            Entry::HardLink(name, target) => put(&mut out, b'1', &own(name), &own(target.as_bytes()), b""),
            Entry::Device(name) => put(&mut out, b'3', &own(name), b"", b""),
            Entry::Garbage(bytes) => out.extend_from_slice(bytes),
            Entry::Cut => return out,
        }
    }
    out.extend_from_slice(&[0; 2 * BLOCK]);
    out
}

fn put(out: &mut Vec<u8>, kind: u8, name: &[u8], target: &[u8], content: &[u8]) {
    let mut records = Vec::new();
    for (key, value) in [("path", name), ("linkpath", target)] {
        if value.len() > SHORT {
            records.extend(record(key, value));
        }
    }
    if !records.is_empty() {
        block(out, b'x', b"long", b"", &records);
    }
    block(out, kind, name, target, content);
}

/// One line of an extended header, which begins with its own length.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn block(out: &mut Vec<u8>, kind: u8, name: &[u8], target: &[u8], content: &[u8]) {
    let mut header = [0; BLOCK];
    let mode = if kind == b'5' { "0000755" } else { "0000644" };
    let size = format!("{:011o}", content.len());
    let fields: [(usize, &[u8]); 12] = [
        (0, &name[..name.len().min(SHORT)]),
        (100, mode.as_bytes()),
        (108, b"0000000"),
        (116, b"0000000"),
        (124, size.as_bytes()),
        (136, b"00000000000"),
        (148, b"        "),
        (156, &[kind]),
        (157, &target[..target.len().min(SHORT)]),
        (257, b"ustar\x0000"),
        (329, b"0000001"),
        (337, b"0000003"),
    ];
    for (at, bytes) in fields {
        header[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    /// Whether the embedded engine's own reader takes it.
    fn unpacks(entries: &[Entry]) -> bool {
        use belljar_cell::archive::{Limits, Rules, unpack};
        let folder = tempfile::tempdir().unwrap();
        let into = OwnedFd::from(std::fs::File::open(folder.path()).unwrap());
        let bytes = archive(entries, &|text| text.replace("{outside}", &"x".repeat(150)));
        unpack(bytes.as_slice(), into, Rules::strict(Limits { bytes: 1 << 20, entries: 10 })).is_ok()
    }

    #[test]
    fn archives_are_what_they_say() {
        assert!(unpacks(&[Entry::Folder(b"d"), Entry::File(b"d/a", "text"), Entry::HardLink(b"d/b", "d/a")]));
        assert!(unpacks(&[Entry::File(b"{outside}", "text"), Entry::Link(b"l", "/{outside}/y")]));
        assert!(unpacks(&[Entry::File(b"\xff\xfe", "text")]));
        assert!(!unpacks(&[Entry::File(b"../a", "text")]));
        assert!(!unpacks(&[Entry::Garbage(&[7; 1024])]));
        assert!(!unpacks(&[Entry::File(b"a", "text"), Entry::Cut]));
    }
}

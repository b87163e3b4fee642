//! Tars that are sound, of entries that get in each other's way: few names, all kinds, links everywhere.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Entry {
    kind: u8,
    path: Vec<u8>,
    target: Vec<u8>,
    mode: u16,
    owner: (u8, u8),
    time: i32,
    body: u8,
    record: u8,
}

const NAMES: [&str; 16] = [
    "a", "b", "c", "d", "..", ".", "", ".wh.a", ".wh.b", ".wh..wh..opq", ".wh..wh.plnk", ".wh.", "a", "b", "\u{fc}", "/",
];
const KINDS: [u8; 16] = *b"0001112225550346";
const RECORDS: [&str; 8] = [
    "",
    "29 SCHILY.xattr.user.a=value\n",
    "41 SCHILY.xattr.user.overlay.opaque=yyyy\n",
    "20 mtime=1700000.25\n",
    "15 uid=1000000\n",
    "44 SCHILY.xattr.trusted.overlay.redirect=/a\n",
    "14 path=a/b/c\n",
    "33 SCHILY.xattr.security.capabili=",
];

fuzz_target!(|entries: Vec<Entry>| {
    let mut archive = Vec::new();
    for entry in entries.iter().take(200) {
        let record = RECORDS[usize::from(entry.record) % RECORDS.len()];
        if !record.is_empty() && entry.record > 127 {
            append(&mut archive, b'x', b"x", b"", entry, record.as_bytes());
        }
        let kind = KINDS[usize::from(entry.kind) % KINDS.len()];
        let body = vec![b'z'; usize::from(entry.body)];
        let body = if kind == b'0' { &body[..] } else { b"" };
        append(&mut archive, kind, path(&entry.path).as_bytes(), path(&entry.target).as_bytes(), entry, body);
    }
    belljar_fuzz::check(&archive);
});

fn path(choice: &[u8]) -> String {
    let names: Vec<&str> = choice.iter().take(6).map(|byte| NAMES[usize::from(byte % 16)]).collect();
    names.join("/")
}

fn append(archive: &mut Vec<u8>, kind: u8, path: &[u8], target: &[u8], entry: &Entry, body: &[u8]) {
    let mut block = [0; 512];
    block[..path.len().min(100)].copy_from_slice(&path[..path.len().min(100)]);
    let mut field = |at: usize, text: String| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    field(100, format!("{:07o}", entry.mode & 0o7777));
    field(108, format!("{:07o}", entry.owner.0));
    field(116, format!("{:07o}", entry.owner.1));
    field(124, format!("{:011o}", body.len()));
    field(136, format!("{:011o}", entry.time.unsigned_abs()));
    field(257, "ustar\x0000".to_owned());
    field(148, " ".repeat(8));
    block[156] = kind;
    block[157..157 + target.len().min(100)].copy_from_slice(&target[..target.len().min(100)]);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    archive.extend_from_slice(&block);
    archive.extend_from_slice(body);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

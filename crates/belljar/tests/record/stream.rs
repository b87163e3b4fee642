//! Output on its way to its log, and the normalisers.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use belljar::capture::{Capture, Tail, append_marker, escape};
use belljar::expectation::{OutputMatch, search};
use belljar::normalise::{self, Normaliser, Uses};
use belljar::stage::{Stage, Stream};
use belljar::stream::{Dropped, StreamRecord};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("logs")).unwrap();
    folder
}

fn copy(folder: &TempDir, cap: u64, bytes: &[u8]) -> StreamRecord {
    Capture::new(folder.path(), Stage::Run, Stream::Stdout, cap).copy(bytes, |_| {})
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_are_exact_up_to_the_cap_and_counted_beyond() {
    let folder = folder();
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    let record = copy(&folder, 100_000, &bytes);
    let kept = std::fs::read(folder.path().join("logs/run_stdout.txt")).unwrap();
    assert_eq!(kept, bytes[..100_000]);
    assert_eq!((record.bytes, record.kept_bytes, record.dropped_bytes), (200_000, 100_000, 100_000));
    assert_eq!(record.dropped_because, Some(Dropped::Cap));
    assert_eq!(record.sha256, sha256(&bytes[..100_000]));
    assert_eq!(record.preview.omitted_bytes, 100_000 - 4096);
}

#[test]
fn a_cap_that_is_just_reached_drops_nothing() {
    let folder = folder();
    let record = copy(&folder, 5, b"12345");
    assert_eq!((record.kept_bytes, record.dropped_bytes, record.dropped_because), (5, 0, None));
}

#[test]
fn a_second_command_and_a_marker_share_the_file_and_not_the_hash() {
    let folder = folder();
    let first = copy(&folder, 100, b"first\n");
    append_marker(folder.path(), &first, "\n[belljar: timed out after 5 s; output kept]\n").unwrap();
    let second = copy(&folder, 100, b"second\n");
    assert_eq!(first.sha256, sha256(b"first\n"));
    assert_eq!((first.offset, first.bytes), (0, 6));
    assert_eq!((second.sha256.clone(), second.bytes), (sha256(b"second\n"), 7));
    let mut text = String::new();
    second.open(folder.path()).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "second\n");
    assert_eq!(search(folder.path(), &first, Some("timed out")).unwrap(), OutputMatch::Missing);
    assert_eq!(search(folder.path(), &first, Some("^fir")).unwrap(), OutputMatch::Found);
    assert_eq!(search(folder.path(), &first, None).unwrap(), OutputMatch::NotAsked);
    assert!(search(folder.path(), &first, Some("(")).is_err());
}

#[test]
fn a_full_disk_stops_the_keeping_and_never_the_draining() {
    let folder = folder();
    std::os::unix::fs::symlink("/dev/full", folder.path().join("logs/run_stdout.txt")).unwrap();
    let mut seen = 0;
    let bytes = vec![b'x'; 300_000];
    let record = Capture::new(folder.path(), Stage::Run, Stream::Stdout, 1 << 20)
        .copy(&bytes[..], |piece| seen += piece.len());
    assert_eq!((record.bytes, record.kept_bytes, seen), (300_000, 0, 300_000));
    assert_eq!(record.dropped_because, Some(Dropped::DiskFull));
    let gone =
        Capture::new(&folder.path().join("missing"), Stage::Run, Stream::Stdout, 9).copy(&b"abc"[..], |_| {});
    assert_eq!((gone.bytes, gone.dropped_because), (3, Some(Dropped::Unwritable)));
}

#[test]
fn a_pipe_is_drained_in_a_thread() {
    let folder = folder();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let capture = Capture::new(folder.path(), Stage::Run, Stream::Stderr, 1000);
    let thread = capture.spawn(OwnedFd::from(reader), |_| {}).unwrap();
    writer.write_all(&vec![0xff; 500_000]).unwrap();
    drop(writer);
    let record = thread.join().unwrap();
    assert_eq!((record.bytes, record.kept_bytes), (500_000, 1000));
    assert!(record.preview.head.starts_with(r"\xff\xff"));
}

#[test]
fn a_log_path_cannot_lead_out_of_the_run() {
    let folder = folder();
    std::os::unix::fs::symlink("/etc", folder.path().join("etc")).unwrap();
    for path in ["/etc/hostname", "../x", "etc/hostname", "logs"] {
        let stream = StreamRecord { path: path.to_owned(), kept_bytes: 1, ..StreamRecord::default() };
        assert!(stream.open(folder.path()).is_err(), "{path}");
    }
}

#[test]
fn a_tail_is_bounded_and_cannot_steer_a_terminal() {
    let mut tail = Tail::new(2);
    tail.push(&vec![b'x'; 100_000]);
    tail.push(b"\none\ntwo \x1b[31mred\x07\nthree");
    insta::assert_snapshot!(tail.lines().join("\n"), @r#"
    two ·[31mred·
    three
    "#);
}

#[test]
fn normalisers_take_what_honest_runs_print_differently() {
    let mut uses = Uses::new();
    let lines = [
        "=================== 1 failed in 0.02s ===================",
        "== 1 failed in 63.20s (0:01:03) ==",
        "Ran 3 tests in 0.001s",
        "took 12 ms, then 1m 3.5s, then 40 µs",
        "<object at 0x7f3a5c0d1e50> but 0xff stays",
        "2026-11-15T09:24:21.123456Z and 2026-11-15 09:24:21,5 +0100 and 12:00:01",
        "Sun Nov 15 09:24:21 UTC 2026",
        "/tmp/tmpab12cd_9/x /tmp/pytest-of-root/pytest-17/test_a0 /tmp/tmp.AbCdEf1234 /tmp/mine.txt",
        "pid 4711, process 12, PID: 9",
        "version 3.11.2 costs 5 euros, sha 0123456789abcdef",
    ];
    let changed: Vec<String> = lines
        .iter()
        .map(|line| String::from_utf8(normalise::line(line.as_bytes(), &mut uses).into_owned()).unwrap())
        .collect();
    insta::assert_snapshot!(changed.join("\n"), @r#"
    == 1 failed in <duration> ==
    == 1 failed in <duration> ==
    Ran 3 tests in <duration>
    took <duration>, then <duration>, then <duration>
    <object at <address>> but 0xff stays
    <timestamp> and <timestamp> and <timestamp>
    <timestamp>
    /tmp/<temp_path>/x /tmp/<temp_path>/test_a0 /tmp/<temp_path> /tmp/mine.txt
    pid <pid>, process <pid>, PID: <pid>
    version 3.11.2 costs 5 euros, sha 0123456789abcdef
    "#);
    insta::assert_snapshot!(serde_json::to_string(&uses).unwrap(), @r#"{"duration":6,"timestamp":4,"temp_path":3,"address":1,"pid":3}"#);
    assert_eq!(uses.len(), Normaliser::ALL.len(), "every pattern compiles and is used");
}

#[test]
fn bytes_that_are_not_text_pass_through() {
    let mut uses = Uses::new();
    let line = normalise::line(b"\xff took 0.5s \xfe\n", &mut uses).into_owned();
    assert_eq!(line, b"\xff took <duration> \xfe\n");
}

proptest! {
    #[test]
    fn normalising_twice_changes_nothing_more(line in "[ -~]{0,80}") {
        let once = normalise::line(line.as_bytes(), &mut Uses::new()).into_owned();
        let twice = normalise::line(&once, &mut Uses::new()).into_owned();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn any_bytes_are_kept_exactly_whatever_the_cap(bytes in prop::collection::vec(any::<u8>(), 0..9000), cap in 0_u64..9000) {
        let folder = folder();
        let record = copy(&folder, cap, &bytes);
        let kept = std::fs::read(folder.path().join("logs/run_stdout.txt")).unwrap();
        prop_assert_eq!(&kept[..], &bytes[..bytes.len().min(cap as usize)]);
        prop_assert_eq!(record.kept_bytes + record.dropped_bytes, record.bytes);
        prop_assert_eq!(&record.sha256, &sha256(&kept));
        if record.preview.omitted_bytes == 0 {
            prop_assert_eq!(unescape(&record.preview.head), kept);
        }
        normalise::stream(folder.path(), &record).unwrap();
    }

    #[test]
    fn escaping_loses_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(unescape(&escape(&bytes)), bytes);
    }
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        match after.strip_prefix('x') {
            Some(hex) => {
                out.push(u8::from_str_radix(&hex[..2], 16).unwrap());
                rest = &hex[2..];
            }
            None => {
                out.push(b'\\');
                rest = &after[1..];
            }
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

//! Kept output: read by anybody, from any point, byte for byte.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::{Value, json};

use super::{Guard, Yard, eventually};

fn pieces(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn output_is_kept_and_told_apart() {
    let yard = Yard::new();
    let id = yard.create("");
    let number =
        yard.background(&id, r"printf 'a\033\377\0'; echo problem >&2; sleep 0.1; printf 'end'; exit 9");
    assert_eq!(yard.tell(["wait", &id, &number]).code, 9);
    let output = yard.command(["logs", &id, &number]).output().unwrap();
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"a\x1b\xff\0end"[..], &b"problem\n"[..])
    );
    let plain = yard.tell(["logs", &id, &number, "--plain"]);
    assert_eq!((plain.out.as_str(), plain.err.as_str()), ("a···end", "problem\n"));
    let stamped = yard.tell(["logs", &id, &number, "--timestamps"]);
    let line = stamped.out.lines().next().unwrap();
    assert!(
        line.starts_with("20") && line.contains("Z ") && line.ends_with(" stdout a···end"),
        "{stamped:?}"
    );
    let lines = pieces(&yard.tell(["logs", &id, &number, "--json", "--follow"]).fine());
    assert_eq!(
        (&lines[0]["seq"], &lines[0]["stream"], &lines[0]["base64"]),
        (&json!(1), &json!("stdout"), &json!("YRv/AA=="))
    );
    assert!(lines.iter().any(|line| line["stream"] == "stderr" && line["text"] == "problem\n"), "{lines:?}");
    assert_eq!(lines.last().unwrap()["end"]["exit_code"], 9);
    let told = yard.tell(["logs", &id, "99"]);
    assert!(told.code == 2 && told.err.contains("[exec-unknown]"), "{told:?}");
    yard.sh(&id, "echo").fine();
    let told = yard.tell(["logs", &id, "2"]);
    assert!(told.code != 0 && told.err.contains("was not kept"), "{told:?}");
}

/// A reader is killed in the middle; another one goes on behind the last piece that the first one saw.
#[test]
fn a_reader_that_was_killed_is_caught_up_by_another() {
    let yard = Yard::new();
    let id = yard.create("");
    let script = "for i in $(seq 200); do echo line $i; sleep 0.01; done";
    let number = yard.background(&id, script);
    let mut reader = yard.start(["logs", &id, &number, "--json", "--follow"]);
    let _guard = Guard::over(&reader);
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    let seen: Vec<Value> =
        (0..50).map(|_| serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()).collect();
    reader.kill().unwrap();
    reader.wait().unwrap();
    let last = seen.last().unwrap()["seq"].as_u64().unwrap();
    let rest = yard.tell(["logs", &id, &number, "--json", "--follow", "--since", &last.to_string()]).fine();
    let rest = pieces(&rest);
    assert_eq!(rest[0]["seq"], last + 1);
    assert_eq!(rest.last().unwrap()["end"]["exit_code"], 0);
    let text: String = seen.iter().chain(&rest).filter_map(|piece| piece["text"].as_str()).collect();
    let expected: String = (1..=200).map(|line| format!("line {line}\n")).collect();
    assert_eq!(text, expected);
}

#[test]
fn a_follower_sees_output_as_it_comes_and_may_leave() {
    let yard = Yard::new();
    let id = yard.create("");
    let number = yard.background(
        &id,
        "echo first; cat /tmp/gate; echo last; mkfifo /tmp/gate 2>/dev/null; exec sleep 600",
    );
    let mut follower = yard.command(["logs", &id, &number, "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let guard = Guard::over(&follower);
    let mut first = [0; 6];
    follower.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"first\n");
    drop(follower.stdout.take());
    yard.tell(["signal", &id, &number]).fine();
    assert!(follower.wait().unwrap().success() && !guard.has_killed());
    let told = yard.tell(["wait", &id, &number]);
    assert_eq!(told.code, 143, "{told:?}");
}

#[test]
fn kept_output_has_a_limit() {
    let yard = Yard::new();
    let id = yard.create("");
    let told = yard.tell(["exec", "-d", "--output-limit", "5000", &id, "--", "yes"]);
    let number = told.fine();
    let told = yard.tell(["wait", &id, &number, "--json"]);
    let object = told.json();
    assert_eq!(
        (&object["ending"], &object["kept_output_bytes"]),
        (&json!("output_limit"), &json!(5000)),
        "{object}"
    );
    assert_eq!(yard.tell(["logs", &id, &number]).out.len(), 5000);
}

#[test]
fn many_readers_do_not_wear_a_sandbox_out() {
    let yard = Yard::new();
    let id = yard.create("");
    let number = yard.background(&id, "echo here; exec sleep 600");
    eventually("output", || !yard.tell(["logs", &id, &number]).out.is_empty());
    let keeper = yard.inspect(&id)["keeper"].as_u64().unwrap();
    let open = || crate::ground::entries(std::path::Path::new(&format!("/proc/{keeper}/fd"))).len();
    let before = open();
    for _ in 0..30 {
        assert_eq!(yard.tell(["logs", &id, &number]).fine(), "here");
    }
    assert!(open() < before + 10, "the keeper holds {} descriptors more", open() - before);
}

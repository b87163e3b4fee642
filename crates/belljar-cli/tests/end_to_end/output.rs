//! Output: exact to the byte, bounded, and never held in memory.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::ground::{Ground, sha256_of};
use crate::remains::{self, Process};

const MEGABYTE: u64 = 1 << 20;
/// How much more memory a hundred times the output may take; buffers of pipes and allocators come and go.
const SLACK_KILOBYTES: u64 = 8 * 1024;

/// Bytes that are no text, the same on every machine.
fn flood(bytes: u64) -> String {
    format!(r"yes $'\xff\xfe not text \xc3\x28 \xf0\x90' | head -c {bytes}")
}

#[test]
fn a_hundred_megabytes_are_kept_byte_for_byte() {
    let ground = Ground::new();
    let (out, err) = (flood(100 * MEGABYTE), r"printf 'bad \xff\xfe end\n'");
    let limits = json!({"environment": {"limits": {"output": "128MiB"}}});
    let report = ground.run(&ground.task("flood", &format!("{out}; {err} >&2"), &limits)).expect("passed", 0);
    let (stdout, stderr) = (report.command()["stdout"].clone(), report.command()["stderr"].clone());
    assert_eq!((&stdout["bytes"], &stdout["dropped_bytes"]), (&json!(100 * MEGABYTE), &json!(0)), "{report}");
    assert_eq!(stdout["sha256"], json!(sha256_of(&out, ground.base())), "{report}");
    assert_eq!(
        sha256_of("cat logs/run_stdout.txt", report.dir()),
        stdout["sha256"].as_str().unwrap(),
        "{report}"
    );
    assert_eq!(report.log("run_stderr.txt"), b"bad \xff\xfe end\n", "{report}");
    assert_eq!(stderr["bytes"], json!(11), "{report}");
}

#[test]
fn beyond_the_cap_bytes_are_counted_and_dropped() {
    let ground = Ground::new();
    let cap = 3 * MEGABYTE + 17;
    let limits = json!({"environment": {"limits": {"output": cap}}});
    let report = ground.run(&ground.task("capped", &flood(100 * MEGABYTE), &limits)).expect("passed", 0);
    let stdout = report.command()["stdout"].clone();
    assert_eq!(stdout["bytes"], json!(100 * MEGABYTE), "{report}");
    assert_eq!(
        (&stdout["kept_bytes"], &stdout["dropped_bytes"]),
        (&json!(cap), &json!(100 * MEGABYTE - cap)),
        "{report}"
    );
    assert_eq!(stdout["dropped_because"], "cap", "{report}");
    assert_eq!(stdout["sha256"], json!(sha256_of(&flood(cap), ground.base())), "{report}");
    assert_eq!(report.log("run_stdout.txt").len() as u64, cap, "{report}");
}

/// The most memory that Belljar and its keeper held, in kilobytes.
#[derive(Debug, Default, Clone, Copy)]
struct Peaks {
    client: u64,
    keeper: u64,
}

fn peaks(ground: &Ground, bytes: u64) -> Peaks {
    let limits = json!({"environment": {"limits": {"output": "128MiB"}}});
    // Stays a while, so that its keeper is seen when all of the output has passed through it.
    let task = ground.task(&format!("peak_{bytes}"), &format!("{}; sleep 2", flood(bytes)), &limits);
    let mut command = ground.belljar();
    command.arg("run").arg(&task).arg("--out").arg(ground.path("out"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("belljar starts");
    let client = Process::living(i32::try_from(child.id()).unwrap()).expect("belljar lives");
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let mut keeper = None;
    let status = loop {
        keeper = keeper.or_else(|| remains::keeper_now(client.pid));
        for (name, process) in [("client", Some(&client)), ("keeper", keeper.as_ref())] {
            let peak = process.and_then(|process| process.kilobytes("VmHWM"));
            let most = seen.entry(name).or_default();
            *most = (*most).max(peak.unwrap_or_default());
        }
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.success(), "the run of {bytes} bytes failed");
    Peaks { client: seen["client"], keeper: seen["keeper"] }
}

#[test]
fn memory_does_not_grow_with_output() {
    let ground = Ground::new();
    let (small, large) = (peaks(&ground, MEGABYTE), peaks(&ground, 100 * MEGABYTE));
    eprintln!("peak of 1 MB: {small:?} kB, of 100 MB: {large:?} kB");
    assert!(small.client > 0 && small.keeper > 0, "the memory could not be read: {small:?}");
    assert!(large.client < small.client + SLACK_KILOBYTES, "belljar grew: {small:?} to {large:?}");
    assert!(large.keeper < small.keeper + SLACK_KILOBYTES, "the keeper grew: {small:?} to {large:?}");
}

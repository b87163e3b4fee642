//! Guests that try to pass their failure off as somebody else's, and what is told of them.

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::ground::{Ground, runs_in};

fn warnings(record: &Value) -> Vec<String> {
    let all = record["warnings"].as_array().unwrap();
    all.iter().map(|warning| warning["code"].as_str().unwrap().to_owned()).collect()
}

/// A folder that the guest shuts stays the caller's, and the run is judged by its command.
fn what_the_guest_shut_is_looked_at_all_the_same(caller: Caller) {
    let ground = Ground::of(caller);
    let report = ground.run_command("mkdir d; touch d/f; chmod 400 d; chmod 000 .").expect("passed", 0);
    assert!(report.record()["tree"]["digest"].is_string(), "{report}");
    let report = ground.run(&ground.task("again", "true", &json!({"setup": ["chmod 000 ."]})));
    assert_eq!(report.record()["verdict"]["owner"], "task", "{report}");
    assert_eq!(report.command()["exit_code"], 126, "{report}");
    assert!(report.text("run_stderr.txt").contains("could not be started: enter /workspace"), "{report}");
}

#[test]
fn what_the_guest_of_root_shut() {
    what_the_guest_shut_is_looked_at_all_the_same(Caller::Root);
}

#[test]
fn what_the_guest_of_the_delegated_user_shut() {
    what_the_guest_shut_is_looked_at_all_the_same(Caller::Delegated);
}

#[test]
fn what_cannot_be_kept_is_left_out_with_a_word() {
    let ground = Ground::new();
    let command = "mkdir out; echo small > out/small; truncate -s 2G out/large; ln -s /etc/passwd out/link";
    let report = ground.run(&ground.task("keeps", command, &json!({"collect": ["out"]}))).expect("passed", 0);
    let record = report.record();
    assert_eq!(record["collected"][0]["path"], "collected/out/small", "{report}");
    assert_eq!(record["collected"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(warnings(&record), ["not-collected"], "{report}");
    assert_eq!(record["tree"]["unread"], 1, "the large file is not read\n{report}");
}

#[test]
fn files_that_were_not_read_are_never_called_equal() {
    let ground = Ground::new();
    let task = ground.task("huge", "truncate -s 2G huge", &json!({}));
    let (a, b) = (ground.run(&task).expect("passed", 0), ground.run(&task).expect("passed", 0));
    let compare = |a: &std::path::Path, b: &std::path::Path| {
        ground.ask(&["compare", a.to_str().unwrap(), b.to_str().unwrap()])
    };
    let (code, object) = compare(a.dir(), b.dir());
    assert_eq!((code, &object["equal"]), (1, &json!(false)), "{object}");
}

#[test]
fn a_kill_for_memory_is_told_also_when_the_command_passes() {
    let ground = Ground::new();
    let command = "python3 -c 'x = bytearray(300 << 20)'; exit 0";
    let limits = json!({"environment": {"limits": {"memory": "64MiB"}}});
    let report = ground.run(&ground.task("forgiving", command, &limits)).expect("passed", 0);
    assert_eq!(warnings(&report.record()), ["memory-kills"], "{report}");
    assert!(report.command()["usage"]["memory_kills"].as_u64() > Some(0), "{report}");
}

#[test]
fn an_exit_code_that_no_signal_gives_is_only_a_failure() {
    let ground = Ground::new();
    ground.run_command("exit 150").expect("failed", 1);
    ground.run_command("kill -SEGV $$").expect("killed_by_signal", 1);
}

#[test]
fn a_patch_that_is_named_twice_is_frozen_once() {
    let ground = Ground::new();
    ground.write("tasks/twice/p.diff", "--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+x\n");
    let report =
        ground.run(&ground.task("twice", "true", &json!({"repo": {"patches": ["p.diff", "./p.diff"]}})));
    let record = report.record();
    assert_eq!(record["verdict"]["outcome"], "patch_failed", "the second time it does not apply\n{report}");
    assert_eq!(runs_in(&ground.path("out")).len(), 1, "{report}");
}

/// The words are those of Debian's `python3 -m venv` on a machine without the package.
#[test]
fn a_missing_python3_venv_is_named() {
    let ground = Ground::new();
    let words = "The virtual environment was not created successfully because ensurepip is not available.";
    let task = ground.task("no_venv", "true", &json!({"setup": [format!("echo '{words}'; exit 1")]}));
    let report = ground.run(&task).expect("setup_failed", 1);
    let advice = report.record()["warnings"][0]["message"].as_str().unwrap().to_owned();
    assert!(advice.contains("apt-get install python3-venv"), "{advice}");
}

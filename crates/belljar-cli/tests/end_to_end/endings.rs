//! How commands end: by themselves, by the clock, by the kernel; told apart by evidence, not by exit codes.

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::ground::{Ground, sha256_of};
use crate::remains;

/// Forks twice, leaves its session, ignores every polite signal, says so, and sleeps.
const STUBBORN: &str = r#"
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
print("partial output", flush=True)
sys.stderr.write("last words of the parent"); sys.stderr.flush()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("grandchild", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"#;

fn a_stubborn_guest_is_gone(caller: Caller) {
    let ground = Ground::of(caller);
    ground.write("repo/stubborn.py", STUBBORN);
    let mark = format!("stubborn-{}", ground.base().display());
    let bounds = json!({"environment": {"timeout_sec": 1.5, "env": {"GROUND_MARK": mark}}});
    let report = ground.run(&ground.task("stubborn", "python3 stubborn.py", &bounds)).expect("timeout", 124);
    // No patience here: when the result is reported, everything is gone already.
    let left = remains::marked(&[mark]);
    assert!(left.is_empty(), "still running: {left:?}\n{report}");

    let command = report.command();
    assert_eq!((&command["ending"], &command["exit_code"]), (&json!("timed_out"), &json!(124)), "{report}");
    assert_eq!(command["survivors"], 0, "{report}");
    assert!(command["usage"]["killed_processes"].as_u64() >= Some(2), "the guest did not fork\n{report}");
    assert!(
        report.dir().join("workspace/repo/grandchild").exists(),
        "the guest did not fork twice\n{report}"
    );
    assert_eq!(report.text("run_stdout.txt"), "partial output\n", "{report}");
    expect_marker_outside(&report, "last words of the parent");
}

/// The marker comes after the guest's last byte, and size and hash cover the guest's bytes only.
fn expect_marker_outside(report: &crate::report::Report, words: &str) {
    let (stderr, text) = (report.command()["stderr"].clone(), report.text("run_stderr.txt"));
    let marker =
        text.strip_prefix(words).unwrap_or_else(|| panic!("the guest's words are not first\n{report}"));
    assert!(marker.contains("timed out"), "there is no marker\n{report}");
    assert_eq!(stderr["bytes"], json!(words.len()), "{report}");
    assert_eq!(stderr["kept_bytes"], json!(words.len()), "{report}");
    assert_eq!(
        stderr["sha256"],
        json!(sha256_of(&format!("printf '%s' '{words}'"), report.dir())),
        "{report}"
    );
}

#[test]
fn a_stubborn_guest_is_gone_when_the_result_is_reported() {
    a_stubborn_guest_is_gone(Caller::Root);
}

#[test]
fn a_stubborn_guest_of_the_delegated_user_is_gone() {
    a_stubborn_guest_is_gone(Caller::Delegated);
}

#[test]
fn a_stubborn_guest_is_gone_without_control_groups() {
    let ground = Ground::of(Caller::Plain);
    ground.write("repo/stubborn.py", STUBBORN);
    let bounds = json!({"environment": {"timeout_sec": 1.5, "isolation": "best-effort"}});
    let report = ground.run(&ground.task("stubborn", "python3 stubborn.py", &bounds)).expect("timeout", 124);
    assert_eq!(report.command()["survivors"], 0, "{report}");
    remains::expect_gone(&[], &["stubborn.py".to_owned() + "\0"], "after the timeout");
}

#[test]
fn what_a_passing_command_leaves_running_is_gone() {
    let ground = Ground::new();
    let mark = format!("left-{}", ground.base().display());
    let environment = json!({"environment": {"env": {"GROUND_MARK": mark}}});
    let command = "(setsid sleep 600 &) ; nohup sleep 600 > /dev/null 2>&1 & echo done";
    let report = ground.run(&ground.task("leaves", command, &environment)).expect("passed", 0);
    assert_eq!(remains::marked(&[mark]), [], "{report}");
    assert_eq!(report.command()["survivors"], 0, "{report}");
    assert_eq!(report.command()["usage"]["killed_processes"], 2, "{report}");
}

fn a_memory_eater_is_out_of_memory(caller: Caller) {
    let ground = Ground::of(caller);
    let command = r#"echo before; python3 -c 'b = bytearray(512 << 20); print(len(b))'"#;
    let limits = json!({"environment": {"limits": {"memory": "64MiB"}}});
    let report = ground.run(&ground.task("hungry", command, &limits)).expect("out_of_memory", 1);
    assert_eq!(report.command()["ending"], "out_of_memory", "{report}");
    assert_eq!(report.text("run_stdout.txt"), "before\n", "{report}");
}

#[test]
fn a_memory_eater_of_root() {
    a_memory_eater_is_out_of_memory(Caller::Root);
}

#[test]
fn a_memory_eater_of_the_delegated_user() {
    a_memory_eater_is_out_of_memory(Caller::Delegated);
}

#[test]
fn exit_137_and_124_by_themselves_prove_nothing() {
    let ground = Ground::new();
    // The outcome says what the shell reports; the ending is what the kernel says.
    for (code, outcome) in [(137, "killed_by_signal"), (124, "failed"), (143, "killed_by_signal")] {
        let report = ground.run_command(&format!("exit {code}"));
        assert_eq!(report.record()["verdict"]["outcome"], outcome, "{report}");
        let command = report.command();
        assert_eq!((&command["ending"], &command["exit_code"]), (&json!("exited"), &json!(code)), "{report}");
        assert_eq!(command["signal"], Value::Null, "{report}");
        assert_eq!(report.code, Some(1), "{report}");
    }
}

#[test]
fn a_guest_that_kills_itself_is_killed_by_a_signal() {
    let ground = Ground::new();
    let report = ground.run_command("kill -KILL $$").expect("killed_by_signal", 1);
    assert_eq!(report.command()["signal"], 9, "{report}");
}

#[test]
fn expected_failure_is_not_met_by_a_timeout_or_a_missing_program() {
    let ground = Ground::new();
    let expected = json!({"expect": {"result": "fail"}, "environment": {"timeout_sec": 0.5}});
    ground.run(&ground.task("slow", "sleep 60", &expected)).expect("timeout", 124);
    ground.run(&ground.task("missing", "no-such-program", &expected)).expect("command_not_found", 1);
    ground.run(&ground.task("passes", "true", &expected)).expect("unexpected_pass", 1);
}

#[test]
fn a_setup_that_fails_or_hangs_is_the_tasks_failure_with_a_record() {
    let ground = Ground::new();
    let setup =
        |commands: Value| json!({"setup": {"commands": commands, "network": "none", "timeout_sec": 1}});
    let failing = ground.task("setup_fails", "true", &setup(json!(["echo one", "exit 3", "echo three"])));
    let report = ground.run(&failing).expect("setup_failed", 1);
    assert_eq!(report.text("setup_stdout.txt"), "one\n", "{report}");
    assert_eq!(report.stage("setup")["commands"].as_array().unwrap().len(), 2, "{report}");
    let hanging = ground.task("setup_hangs", "true", &setup(json!(["sleep 60"])));
    ground.run(&hanging).expect("setup_timeout", 124);
}

//! Guests that attack the machine's resources.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::caller::Caller;
use crate::ground::{Ground, runs_in};
use crate::remains;
use crate::report::Report;

const BOMB: &str = "bomb() { bomb | bomb & }; bomb; sleep 600";

fn start(ground: &Ground, task: &std::path::Path, out: &std::path::Path) -> Child {
    let mut command = ground.belljar();
    command.arg("run").arg(task).arg("--out").arg(out);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("belljar starts")
}

/// Waits until the guest's command runs.
fn wait_for_guest(out: &std::path::Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let begun = || {
        let journals = runs_in(out).into_iter().map(|run| std::fs::read_to_string(run.join("events.jsonl")));
        journals.flatten().any(|text| text.contains(r#""event":"command_started""#))
    };
    while !begun() {
        assert!(Instant::now() < deadline, "the guest never started");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn a_fork_bomb_is_contained(caller: Caller) {
    let ground = Ground::of(caller);
    let mark = format!("bomb-{}", ground.base().display());
    let bounds =
        json!({"environment": {"timeout_sec": 4, "limits": {"pids": 64}, "env": {"GROUND_MARK": mark}}});
    let out = ground.path("out_of_the_bomb");
    std::fs::create_dir(&out).unwrap();
    ground.give("out_of_the_bomb");
    let mut bomb = start(&ground, &ground.task("bomb", BOMB, &bounds), &out);
    wait_for_guest(&out);
    let meanwhile = ground.run_command("echo alive").expect("passed", 0);
    assert_eq!(meanwhile.text("run_stdout.txt"), "alive\n", "{meanwhile}");
    assert!(
        bomb.try_wait().unwrap().is_none(),
        "the bomb ended before the other task did; it proves nothing"
    );
    let most = remains::marked(std::slice::from_ref(&mark)).len();
    assert!(most <= 64, "{most} processes at once");

    let status = bomb.wait().unwrap();
    let left = remains::marked(&[mark]);
    assert!(left.is_empty(), "still running: {left:?}");
    let dir = runs_in(&out).into_iter().next();
    let output = std::process::Output { status, stdout: Vec::new(), stderr: Vec::new() };
    let report = Report::new(&output, dir).expect("timeout", 124);
    assert_eq!(report.command()["survivors"], 0, "{report}");
    assert!(
        report.command()["usage"]["killed_processes"].as_u64() > Some(10),
        "the bomb did not go off\n{report}"
    );
}

#[test]
fn a_fork_bomb_is_contained_and_the_host_stays_responsive() {
    a_fork_bomb_is_contained(Caller::Root);
}

#[test]
fn a_fork_bomb_of_the_delegated_user_is_contained() {
    a_fork_bomb_is_contained(Caller::Delegated);
}

#[test]
fn nothing_the_guest_writes_becomes_the_verdict() {
    let ground = Ground::new();
    let forged = r#"echo '{"status":"finished","verdict":{"outcome":"passed"}}' > run.json;
        echo '{"event":"run_finished","verdict":{"outcome":"passed"}}' > events.jsonl; cp run.json ../run.json;
        echo '1 passed in 0.01s'; exit 1"#;
    let report = ground.run_command(forged).expect("failed", 1);
    assert_eq!(report.command()["exit_code"], 1, "{report}");
}

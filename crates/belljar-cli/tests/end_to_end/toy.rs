//! The first thing anybody runs: the toy task, from a fresh clone of this project.

use crate::caller::Caller;
use crate::ground::{Ground, project, tool};

fn the_toy_fails_as_expected(caller: Caller) {
    let ground = Ground::of(caller);
    let clone = ground.path("clone");
    tool("git", &["clone", "--quiet", &project().to_string_lossy(), &clone.to_string_lossy()], ground.base());
    ground.give("clone");
    let report = ground.run(&clone.join("tasks/custom-dev/toy_fail_pytest")).expect("failed_as_expected", 0);

    assert_eq!(report.command()["exit_code"].as_i64(), Some(1), "the exit code is a number\n{report}");
    assert!(report.text("run_stdout.txt").contains("test_calc.py::test_add"), "{report}");
    assert_eq!(report.record()["network"]["run"], "none", "{report}");
    let events = report.events();
    let connected = |event: &&serde_json::Value| {
        let names = event["detail"]["names"].as_array().cloned().unwrap_or_default();
        event["event"] == "network"
            && event["detail"]["kind"] == "opened"
            && names.iter().any(|name| name == "pypi.org")
    };
    assert!(
        events.iter().any(|event| connected(&event)),
        "pytest did not come through the gateway\n{report}"
    );
    assert_eq!(ground.cells(), [] as [std::path::PathBuf; 0], "{report}");
}

#[test]
fn from_a_fresh_clone_as_root() {
    the_toy_fails_as_expected(Caller::Root);
}

#[test]
fn from_a_fresh_clone_as_the_delegated_user() {
    the_toy_fails_as_expected(Caller::Delegated);
}

//! Ordinary users: what cannot be enforced is refused, or recorded when the task allows it.

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::ground::{Ground, runs_in};
use crate::remains;

const LIMITS: [&str; 3] = ["memory", "pids", "cpu_millis"];

fn control(record: &Value, name: &str) -> Value {
    let controls = record["isolation"]["controls"].as_array().expect("controls");
    let found = controls.iter().find(|control| control["control"] == name);
    found.unwrap_or_else(|| panic!("no control {name} in {controls:?}")).clone()
}

#[test]
fn without_delegation_the_default_limits_are_refused() {
    let ground = Ground::of(Caller::Plain);
    let report = ground.run_command("true");
    assert_eq!(report.code, Some(3), "{report}");
    if report.made().is_some() {
        assert_eq!(report.record()["error"]["code"], "limits-unavailable", "{report}");
        assert_eq!(report.record()["verdict"]["outcome"], "environment_refused", "{report}");
        assert!(!report.events().iter().any(|event| event["event"] == "command_started"), "{report}");
    }
    assert_eq!(ground.cells().len(), 0, "a cell is left\n{report}");
    remains::expect_gone(&[], &[ground.base().to_string_lossy().into_owned()], "after the refusal");
    assert!(runs_in(&ground.path("out")).len() < 2);
}

#[test]
fn without_delegation_best_effort_runs_and_says_what_is_missing() {
    let ground = Ground::of(Caller::Plain);
    let task =
        ground.task("best_effort", "echo ran; id -u", &json!({"environment": {"isolation": "best-effort"}}));
    let report = ground.run(&task).expect("passed", 0);
    let record = report.record();
    assert!(report.text("run_stdout.txt").starts_with("ran\n"), "{report}");
    for name in LIMITS {
        assert_eq!(control(&record, name)["enforced"], Value::Null, "{name}\n{report}");
        let warned = |warning: &Value| warning["message"].as_str().unwrap().contains(name);
        assert!(record["warnings"].as_array().unwrap().iter().any(warned), "no warning for {name}\n{report}");
    }
    assert_eq!(record["isolation"]["level"], "best-effort", "{report}");
}

#[test]
fn with_delegation_every_limit_is_enforced() {
    let ground = Ground::of(Caller::Delegated);
    let report = ground.run_command("true").expect("passed", 0);
    let record = report.record();
    for name in LIMITS {
        let control = control(&record, name);
        assert_eq!(control["enforced"], control["requested"], "{name}\n{report}");
    }
    assert_eq!(record["warnings"], json!([]), "{report}");
}

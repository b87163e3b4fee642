//! `belljar compare`: equal runs are called equal, and one changed byte is named.

use std::path::Path;

use serde_json::{Value, json};

use crate::ground::Ground;
use crate::report::Report;

const COMMAND: &str = "echo 'assertion failed: left 4, right 5'; echo result > result.txt; exit 1";

fn run(ground: &Ground, command: &str) -> Report {
    let expected = json!({"expect": {"result": "fail"}});
    ground.run(&ground.task("compared", command, &expected)).expect("failed_as_expected", 0)
}

fn compare(ground: &Ground, a: &Path, b: &Path) -> (i32, Value) {
    ground.ask(&["compare", &a.to_string_lossy(), &b.to_string_lossy()])
}

/// What must not differ and does, with the part of the plan that the change itself is.
fn named(comparison: &Value) -> Vec<String> {
    let differences = comparison["must_not_differ"].as_array().expect("a list of differences");
    differences.iter().map(|difference| difference["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn two_runs_have_their_own_directories_and_are_equal() {
    let ground = Ground::new();
    let (a, b) = (run(&ground, COMMAND), run(&ground, COMMAND));
    assert_ne!(a.dir(), b.dir());
    let (code, comparison) = compare(&ground, a.dir(), b.dir());
    assert_eq!((code, &comparison["equal"]), (0, &json!(true)), "{comparison:#}");
    assert!(
        !comparison["may_differ"].as_array().unwrap().is_empty(),
        "what varied is listed: {comparison:#}"
    );
    assert_eq!(a.record()["result_digest"], b.record()["result_digest"]);
}

#[track_caller]
fn expect_difference(ground: &Ground, a: &Report, b: &Report, words: &str) {
    let (code, comparison) = compare(ground, a.dir(), b.dir());
    assert_eq!((code, &comparison["equal"]), (1, &json!(false)), "{comparison:#}");
    assert!(named(&comparison).iter().any(|what| what.contains(words)), "no `{words}` in {comparison:#}");
}

/// The same task twice, on a repository whose program answers differently: only the result differs.
fn on_changed_machine(first: &str, second: &str, words: &str) {
    let ground = Ground::new();
    // The guest sees the root directory given as image; the task and the code stay the same.
    let image = crate::images::small_root(&ground);
    let task = ground.task(
        "compared",
        "/bin/answer",
        &json!({
            "environment": {"image": image.to_string_lossy()},
            "expect": {"result": "fail"},
        }),
    );
    let answer = |script: &str| {
        std::fs::write(image.join("bin/answer"), format!("#!/bin/bash\n{script}\n")).unwrap();
        ground.run(&task).expect("failed_as_expected", 0)
    };
    let (a, b) = (answer(first), answer(second));
    expect_difference(&ground, &a, &b, words);
}

// `/bin/answer` is made executable by `small_root`.

#[test]
fn one_changed_byte_in_the_output_is_named() {
    on_changed_machine("echo left 4, right 5; exit 1", "echo left 4, right 6; exit 1", "run stdout");
}

#[test]
fn a_changed_exit_code_is_named() {
    on_changed_machine("exit 1", "exit 2", "exit_code");
}

#[test]
fn a_changed_file_is_named() {
    on_changed_machine("echo a > written.txt; exit 1", "echo b > written.txt; exit 1", "written.txt");
}

#[test]
fn another_task_is_never_equal() {
    let ground = Ground::new();
    let (a, b) = (run(&ground, COMMAND), run(&ground, &COMMAND.replace("right 5", "right 6")));
    expect_difference(&ground, &a, &b, "plan_digest");
}

#[test]
fn an_unfinished_or_missing_run_is_not_compared() {
    let ground = Ground::new();
    let run = run(&ground, COMMAND);
    let (code, answer) = compare(&ground, run.dir(), &ground.path("out/runs/none"));
    assert_eq!(code, 2, "{answer:#}");
}

//! Every example ends as its task file says it does.

use std::fs;

use crate::ground::{Ground, entries, project};
use crate::report::Report;

/// The ground comes along, because the run directory goes with it.
fn example(name: &str) -> (Ground, Report) {
    let ground = Ground::new();
    let report = ground.run(&project().join("tasks/examples").join(name));
    (ground, report)
}

#[test]
fn passing() {
    let (_ground, report) = example("passing");
    report.expect("passed", 0);
}

#[test]
fn times_out() {
    let (_ground, report) = example("times_out");
    let report = report.expect("timeout", 124);
    assert!(report.text("run_stdout.txt").starts_with("step 1\n"), "{report}");
}

#[test]
fn needs_more_memory() {
    let (_ground, report) = example("needs_more_memory");
    let report = report.expect("out_of_memory", 1);
    assert!(report.text("run_stdout.txt").starts_with("held 8 MiB\n"), "{report}");
}

#[test]
fn leaves_processes_behind() {
    let (_ground, report) = example("leaves_processes_behind");
    let report = report.expect("passed", 0);
    let command = report.command();
    assert_eq!(
        (&command["survivors"], &command["usage"]["killed_processes"]),
        (&0.into(), &3.into()),
        "{report}"
    );
}

/// An example without a test is one that may have stopped working.
#[test]
fn every_example_has_a_test_a_header_and_a_pinned_commit() {
    let folders = entries(&project().join("tasks/examples"));
    let names: Vec<String> =
        folders.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["leaves_processes_behind", "needs_more_memory", "passing", "times_out"]);
    let toy = project().join("tasks/custom-dev/toy_fail_pytest");
    for folder in folders.iter().chain([&toy]) {
        let text = fs::read_to_string(folder.join("task.yaml")).unwrap();
        assert!(text.starts_with('#'), "{} has no header", folder.display());
        assert!(text.contains("\n  commit: "), "{} has no pinned commit", folder.display());
    }
}

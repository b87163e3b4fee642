//! Every example ends as its task file says it does.

use std::fs;

use crate::ground::{Ground, entries, project};
use crate::report::Report;

fn example(ground: &Ground, name: &str) -> Report {
    ground.run(&project().join("tasks/examples").join(name))
}

#[test]
fn passing() {
    example(&Ground::new(), "passing").expect("passed", 0);
}

#[test]
fn times_out() {
    let report = example(&Ground::new(), "times_out").expect("timeout", 124);
    assert!(report.text("run_stdout.txt").starts_with("step 1\n"), "{report}");
}

#[test]
fn needs_more_memory() {
    let report = example(&Ground::new(), "needs_more_memory").expect("out_of_memory", 1);
    assert!(report.text("run_stdout.txt").starts_with("held 8 MiB\n"), "{report}");
}

#[test]
fn leaves_processes_behind() {
    let report = example(&Ground::new(), "leaves_processes_behind").expect("passed", 0);
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

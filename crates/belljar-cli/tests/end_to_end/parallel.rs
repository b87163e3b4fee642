//! Several Belljars at once on one cold cache.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};

use serde_json::json;

use crate::ground::{Ground, runs_in};
use crate::sources::Repository;

const RUNS: usize = 8;

#[test]
fn eight_processes_share_one_cold_cache() {
    let ground = Ground::new();
    let repository = Repository::new(&ground, "project");
    let task = ground.task(
        "parallel",
        "cat answer.txt",
        &json!({
            "repo": {"url": "../../project", "commit": repository.first},
            "setup": {"commands": ["echo set up > $HOME/mark"], "network": "none"},
        }),
    );
    let start = || -> Child {
        let mut command = ground.belljar();
        command.arg("run").arg(&task).arg("--out").arg(ground.path("out"));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("belljar starts")
    };
    let mut children: Vec<Child> = (0..RUNS).map(|_| start()).collect();
    let codes: Vec<Option<i32>> = children.iter_mut().map(|child| child.wait().unwrap().code()).collect();
    assert_eq!(codes, vec![Some(0); RUNS]);
    let runs = runs_in(&ground.path("out"));
    assert_eq!(runs.len(), RUNS, "{runs:?}");
    let logs: BTreeSet<String> =
        runs.iter().map(|run| std::fs::read_to_string(run.join("logs/run_stdout.txt")).unwrap()).collect();
    assert_eq!(logs, BTreeSet::from(["the question\n".to_owned()]));
    assert_eq!(ground.cells().len(), 0);
}

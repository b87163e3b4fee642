//! What the measuring programs have in common.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_cell::cell::{
    CellSpec, ExecLimits, ExecSpec, Guest, Isolation, Lifetime, Limits, Network, Root, Streams, Workspace,
};
use belljar_cell::powers::Powers;

/// A closed cell over a root directory.
pub(crate) fn spec(id: String, cells: &Path, root: &Path, limits: Limits) -> CellSpec {
    CellSpec {
        id,
        cells: cells.to_owned(),
        root: Root::Layers(vec![root.to_owned()]),
        image: String::new(),
        holds: Vec::new(),
        given: belljar_cell::cell::Given::default(),
        workspace: Workspace::Own { target: PathBuf::from("/workspace") },
        certificates: None,
        guest: Guest { uid: 1000, gid: 1000, name: "runner".into(), home: PathBuf::from("/home/runner") },
        hostname: "belljar".into(),
        limits,
        isolation: Isolation::Full,
        network: Network::None,
        lifetime: Lifetime::Owner,
        origin: None,
        powers: Powers::None,
        weaknesses: Vec::new(),
    }
}

/// A command with nothing special about it.
pub(crate) fn exec(program: &str, arguments: &[&str]) -> ExecSpec {
    ExecSpec {
        programs: vec![program.into()],
        name: None,
        arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
        environment: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
        directory: "/".into(),
        user: None,
        timeout_ms: Some(600_000),
        limits: ExecLimits::default(),
        streams: Streams::Given,
    }
}

/// How many lines a program prints.
pub(crate) fn lines_of(program: &str, arguments: &[&str]) -> usize {
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().count()
}

/// How many mounts this process sees.
pub(crate) fn mounts() -> usize {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count()
}

/// How many control groups there are of cells whose id begins so.
pub(crate) fn groups(prefix: &str) -> usize {
    lines_of("find", &["/sys/fs/cgroup", "-type", "d", "-name", &format!("belljar-cell-{prefix}*")])
}

/// What there is more of than before. The last keepers may still be on their way out, and whoever adopts orphans on this
/// machine may take its time to reap them.
pub(crate) fn left_since(
    before: &BTreeMap<String, usize>,
    traces: impl Fn() -> BTreeMap<String, usize>,
) -> Vec<String> {
    let mut left = Vec::new();
    for _ in 0..100 {
        let after = traces();
        let more = before.iter().filter(|(what, count)| after[*what] > **count);
        left = more.map(|(what, _)| what.clone()).collect();
        if left.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    left
}

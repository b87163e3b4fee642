//! `belljar.lock`: what is pinned stays, what drifted is refused, what is killed leaves a whole lock.

mod stored;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ground::{Ground, tool};
use crate::images::small_root;

/// A task on the root directory `image`, as a path that starts at the task.
fn task_on_root(ground: &Ground, id: &str) -> PathBuf {
    ground.task(id, "/bin/answer", &json!({"environment": {"image": "../../image"}}))
}

fn belljar(ground: &Ground, verb: &str, task: &Path, flags: &[&str]) -> Output {
    let mut command = ground.belljar();
    command.arg(verb).arg(task).args(flags).arg("--json");
    if verb == "run" {
        command.arg("--out").arg(ground.path("out"));
    }
    command.output().expect("belljar starts")
}

/// The exit code and the object that was printed.
fn told(output: &Output) -> (i32, Value) {
    let object = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    (output.status.code().unwrap(), object)
}

fn run(ground: &Ground, task: &Path, flags: &[&str]) -> (i32, Value) {
    told(&belljar(ground, "run", task, flags))
}

fn plan(ground: &Ground, task: &Path, flags: &[&str]) -> (i32, Value) {
    told(&belljar(ground, "plan", task, flags))
}

fn code_of(answer: &(i32, Value)) -> (i32, &str) {
    (answer.0, answer.1["error"]["code"].as_str().unwrap_or_default())
}

fn answer_with(ground: &Ground, text: &str) {
    fs::write(ground.path("image/bin/answer"), format!("#!/bin/bash\necho {text}\n")).unwrap();
}

fn lock_of(ground: &Ground, id: &str) -> Option<String> {
    fs::read_to_string(ground.path(&format!("tasks/{id}/belljar.lock"))).ok()
}

#[test]
fn a_root_directory_is_pinned_when_asked_and_held_from_then_on() {
    let ground = Ground::new();
    small_root(&ground);
    answer_with(&ground, "one");
    let task = task_on_root(&ground, "rooted");
    assert_eq!(code_of(&run(&ground, &task, &["--frozen"])), (2, "image-unpinned"));
    let (code, first) = run(&ground, &task, &[]);
    assert_eq!(
        (code, &first["image"]["pinned"], &first["image"]["lock"]["state"]),
        (0, &json!(false), &json!("unpinned"))
    );
    assert_eq!(lock_of(&ground, "rooted"), None, "nobody asked for a lock");

    let (code, pinned) = run(&ground, &task, &["--update-lock"]);
    let lock = lock_of(&ground, "rooted").expect("a lock beside the task");
    assert_eq!((code, &pinned["image"]["pinned"]), (0, &json!(true)), "{pinned:#}");
    assert_eq!(pinned["image"]["lock"]["state"], "pinned");
    assert_eq!(pinned["image"]["lock"]["path"], "belljar.lock");
    assert_eq!(pinned["image"]["lock"]["reference"], "../../image");
    assert!(!lock.contains(ground.base().to_str().unwrap()), "a path of this machine: {lock}");
    let content = pinned["image"]["identity"]["content_digest"].as_str().unwrap();
    assert!(lock.contains(content), "{lock}");
    assert_ne!(first["plan_digest"], pinned["plan_digest"], "the plan is of the pinned bytes");

    for flags in [&[][..], &["--frozen"], &["--update-lock"]] {
        let (code, verified) = run(&ground, &task, flags);
        assert_eq!((code, verified["image"]["lock"]["state"].as_str()), (0, Some("verified")), "{flags:?}");
        assert_eq!(verified["plan_digest"], pinned["plan_digest"]);
    }

    answer_with(&ground, "two");
    for flags in [&[][..], &["--frozen"]] {
        let drifted = run(&ground, &task, flags);
        assert_eq!(code_of(&drifted), (5, "image-drift"), "{flags:?}");
        let error = drifted.1["error"].to_string();
        assert!(error.contains(content) && error.matches("sha256:").count() >= 2, "both sides: {error}");
        assert!(error.contains("--update-lock"), "the way out: {error}");
        assert_eq!(code_of(&plan(&ground, &task, flags)), (5, "image-drift"), "{flags:?}");
    }
    assert_eq!(lock_of(&ground, "rooted").as_ref(), Some(&lock), "drift changes nothing");
    let (code, updated) = run(&ground, &task, &["--update-lock"]);
    assert_eq!((code, updated["image"]["lock"]["state"].as_str()), (0, Some("updated")));
    assert_eq!(run(&ground, &task, &["--frozen"]).0, 0);
}

#[test]
fn a_plan_writes_a_lock_only_when_asked() {
    let ground = Ground::new();
    small_root(&ground);
    let task = task_on_root(&ground, "planned");
    assert_eq!(plan(&ground, &task, &[]).0, 0);
    assert_eq!(code_of(&plan(&ground, &task, &["--frozen"])), (2, "image-unpinned"));
    assert_eq!(lock_of(&ground, "planned"), None);
    let (code, planned) = plan(&ground, &task, &["--update-lock"]);
    assert_eq!((code, planned["lock"]["state"].as_str()), (0, Some("pinned")));
    assert_eq!(plan(&ground, &task, &["--frozen"]).1["plan_digest"], planned["plan_digest"]);
    assert_eq!(run(&ground, &task, &[]).1["plan_digest"], planned["plan_digest"]);
}

/// The same suite in another place: the same lock, the same plan, and bytes that were copied are the same bytes.
#[test]
fn a_suite_with_its_lock_has_the_same_plan_elsewhere() {
    let (here, there) = (Ground::new(), Ground::new());
    small_root(&here);
    for ground in [&here, &there] {
        task_on_root(ground, "moved");
    }
    here.write("tasks/belljar.lock", "version = 1\n");
    let task = here.path("tasks/moved/task.json");
    let (code, first) = run(&here, &task, &["--update-lock"]);
    assert_eq!((code, first["image"]["lock"]["path"].as_str()), (0, Some("../belljar.lock")));
    assert_eq!(first["image"]["lock"]["reference"], "../image", "it starts at the lock");
    assert_eq!(lock_of(&here, "moved"), None, "the suite's lock is the task's");
    for what in ["image", "tasks/belljar.lock"] {
        let (from, to) = (here.path(what), there.path(what));
        // Without times and owners, as a fresh copy.
        tool(
            "cp",
            &["-r", "--no-dereference", "--preserve=mode", from.to_str().unwrap(), to.to_str().unwrap()],
            here.base(),
        );
    }
    let (code, second) = run(&there, &there.path("tasks/moved/task.json"), &["--frozen"]);
    assert_eq!((code, &second["plan_digest"]), (0, &first["plan_digest"]), "{second:#}");
    assert_eq!(second["result_digest"], first["result_digest"]);
}

#[test]
fn the_machine_itself_is_never_frozen() {
    let ground = Ground::new();
    let task = ground.task("hosted", "true", &json!({}));
    assert_eq!(code_of(&run(&ground, &task, &["--frozen"])), (2, "image-unpinned"));
    assert_eq!(run(&ground, &task, &[]).0, 0);
    assert_eq!(lock_of(&ground, "hosted"), None, "a lock is not made to say that nothing is locked");
    assert_eq!(run(&ground, &task, &["--update-lock"]).0, 0);
    assert!(lock_of(&ground, "hosted").unwrap().contains("kind = \"host\""));
    let (code, record) = run(&ground, &task, &[]);
    assert_eq!((code, &record["image"]["pinned"]), (0, &json!(false)));
    assert_eq!(code_of(&run(&ground, &task, &["--frozen"])), (2, "image-unpinned"));
}

#[test]
fn a_lock_that_is_not_understood_is_shown_with_its_line() {
    let ground = Ground::new();
    let task = ground.task("broken", "true", &json!({}));
    for (text, code, words) in [
        ("version = 1\n<<<<<<< ours\n", "lock-unreadable", "line 2"),
        ("version = 9\n", "lock-version", "version 9"),
    ] {
        ground.write("tasks/broken/belljar.lock", text);
        let refused = run(&ground, &task, &[]);
        assert_eq!(code_of(&refused), (2, code));
        assert!(refused.1["error"]["message"].as_str().unwrap().contains(words), "{:#}", refused.1);
    }
}

/// Root writes into any folder but one that is mounted read-only.
#[test]
fn a_folder_that_cannot_be_written_is_told() {
    let ground = Ground::new();
    small_root(&ground);
    let task = task_on_root(&ground, "sealed");
    let folder = task.parent().unwrap().to_str().unwrap().to_owned();
    let program = ground.path("belljar");
    let script = format!(
        "mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}' && \
         exec '{}' plan '{}' --update-lock --json",
        program.display(),
        task.display()
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("BELLJAR_HOME", ground.path("home")).current_dir(ground.base());
    let refused = told(&command.output().expect("unshare starts"));
    assert_eq!(code_of(&refused), (4, "lock-unwritable"), "{:#}", refused.1);
    assert!(
        refused.1["error"]["message"].as_str().unwrap().contains("Read-only file system"),
        "{:#}",
        refused.1
    );
    assert_eq!(lock_of(&ground, "sealed"), None);
}

#[test]
fn runs_at_the_same_time_lose_no_entry() {
    const TASKS: usize = 8;
    let ground = Ground::new();
    small_root(&ground);
    ground.write("tasks/belljar.lock", "version = 1\n");
    // Each task has a root of its own, and all have one lock.
    let tasks: Vec<PathBuf> = (0..TASKS)
        .map(|number| {
            let name = format!("image-{number}");
            tool("cp", &["-a", "image", &name], ground.base());
            let image = json!({"environment": {"image": format!("../../{name}")}});
            ground.task(&format!("task-{number}"), "true", &image)
        })
        .collect();
    let start = |task: &PathBuf| {
        let mut command = ground.belljar();
        command.arg("plan").arg(task).arg("--update-lock");
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("belljar starts")
    };
    let mut children: Vec<_> = tasks.iter().map(start).collect();
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    let lock = fs::read_to_string(ground.path("tasks/belljar.lock")).unwrap();
    assert_eq!(lock.matches("kind = \"directory\"").count(), TASKS, "{lock}");
    for task in &tasks {
        assert_eq!(plan(&ground, task, &["--frozen"]).0, 0, "{}", task.display());
    }
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_lock() {
    const KILLS: u32 = 40;
    let ground = Ground::new();
    small_root(&ground);
    let task = task_on_root(&ground, "killed");
    let start = || {
        let mut command = ground.belljar();
        command.arg("plan").arg(&task).arg("--update-lock");
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("belljar starts")
    };
    let began = Instant::now();
    assert!(start().wait().unwrap().success());
    let whole = began.elapsed() + Duration::from_millis(2);
    let mut survived = 0;
    for number in 0..KILLS {
        answer_with(&ground, &number.to_string());
        let before = lock_of(&ground, "killed").unwrap();
        let mut victim = start();
        std::thread::sleep(whole * number / KILLS);
        let _ = victim.kill();
        survived += u32::from(victim.wait().unwrap().success());
        // The old lock, which drifts, or the new one, which holds; never something in between.
        let answer = plan(&ground, &task, &["--frozen"]);
        let expected =
            if lock_of(&ground, "killed").unwrap() == before { (5, "image-drift") } else { (0, "") };
        assert_eq!(code_of(&answer), expected, "kill {number}: {:#}", answer.1);
    }
    assert!(survived < KILLS, "no kill hit");
    assert!(start().wait().unwrap().success(), "what a kill left is in nobody's way");
    let left: Vec<_> =
        fs::read_dir(task.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// A lock that anybody may read stays so, whatever the caller's mask is.
#[test]
fn a_lock_can_be_committed() {
    let ground = Ground::new();
    small_root(&ground);
    let task = task_on_root(&ground, "shared");
    assert_eq!(plan(&ground, &task, &["--update-lock"]).0, 0);
    let mode = ground.path("tasks/shared/belljar.lock").metadata().unwrap().permissions();
    assert_eq!(mode, Permissions::from_mode(0o100_644));
}

//! Pinned images of a registry whose tag moves, and of files that change.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::{answer_with, code_of, lock_of, run};
use crate::ground::Ground;
use crate::images::registry::Registry;
use crate::images::small_root;

/// Runs a verb of `belljar image` in another home, as somebody else who publishes images.
fn publish(ground: &Ground, arguments: &[&str]) -> String {
    let mut command = ground.belljar();
    command.env("BELLJAR_HOME", ground.path("publisher")).arg("image").args(arguments);
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "image {arguments:?}: {words}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// An image whose program answers this; gives the digest of its configuration.
fn image_that_answers(ground: &Ground, text: &str) -> String {
    answer_with(ground, text);
    publish(ground, &["import", "./image"])
}

/// The same caller on a machine that has nothing yet.
fn forget_everything(ground: &Ground) {
    fs::remove_dir_all(ground.path("home")).unwrap();
    fs::create_dir(ground.path("home")).unwrap();
}

fn printed(record: &Value) -> String {
    let path = PathBuf::from(record["path"].as_str().unwrap()).join("logs/run_stdout.txt");
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn state(record: &Value) -> &str {
    record["image"]["lock"]["state"].as_str().unwrap_or_default()
}

/// What a run is told, and what it uses: the exit code, what was done with the lock, what the program answered.
#[track_caller]
fn expect(answer: &(i32, Value), done: &str, printed_text: &str) {
    let (code, record) = answer;
    assert_eq!((*code, state(record)), (0, done), "{record:#}");
    assert_eq!(printed(record), printed_text);
}

/// A registry with one image that answers `one`.
struct Published {
    ground: Ground,
    registry: Registry,
    name: String,
    /// The image's digest.
    one: String,
}

impl Published {
    fn new() -> Published {
        let ground = Ground::new();
        small_root(&ground);
        let registry = Registry::open();
        let name = format!("{}/team/app:1", registry.address());
        let one = image_that_answers(&ground, "one");
        publish(&ground, &["push", &one, &name]);
        Published { ground, registry, name, one }
    }
}

#[test]
fn a_tag_that_moves_does_not_move_what_is_pinned() {
    let Published { ground, registry, name, one } = Published::new();
    let task = ground.task("tagged", "/bin/answer", &json!({"environment": {"image": name}}));

    let refused = run(&ground, &task, &["--frozen"]);
    assert_eq!(code_of(&refused), (2, "image-unpinned"));
    assert!(!ground.path("home/images").exists(), "it was refused before anything was fetched");

    let first = run(&ground, &task, &[]);
    expect(&first, "pinned", "one");
    let lock = lock_of(&ground, "tagged").unwrap();
    assert!(lock.contains(&one) && lock.contains("repo_digests.") && lock.contains("diff_ids.0"), "{lock}");

    let two = image_that_answers(&ground, "two");
    assert_ne!(one, two);
    publish(&ground, &["push", &two, &name]);
    for flags in [&[][..], &["--pull", "always"], &["--frozen"], &["--pull", "never"]] {
        expect(&run(&ground, &task, flags), "verified", "one");
    }
    forget_everything(&ground);
    let fetched = run(&ground, &task, &["--frozen"]);
    expect(&fetched, "verified", "one");
    assert_eq!(fetched.1["plan_digest"], first.1["plan_digest"], "another machine, the same plan");
    assert_eq!(lock_of(&ground, "tagged").as_ref(), Some(&lock));

    expect(&run(&ground, &task, &["--update-lock"]), "updated", "two");
    expect(&run(&ground, &task, &[]), "verified", "two");

    // Without the registry, what is in the store is enough; without the store, nothing is.
    drop(registry);
    expect(&run(&ground, &task, &["--frozen"]), "verified", "two");
    forget_everything(&ground);
    assert_eq!(run(&ground, &task, &[]).0, 4);
}

/// Where the pinned bytes cannot be had by any digest, the tag is asked; what it means now is the same, or is drift.
#[test]
fn pinned_bytes_that_nobody_has_are_drift() {
    let Published { ground, registry: _registry, name, one } = Published::new();
    let task = ground.task("lost", "/bin/answer", &json!({"environment": {"image": name}}));
    expect(&run(&ground, &task, &[]), "pinned", "one");
    let lock = lock_of(&ground, "lost").unwrap();
    let is_locator = |line: &&str| !line.contains("repo_digests") && !line.contains("manifest_digest");
    let bare: String = lock.lines().filter(is_locator).flat_map(|line| [line, "\n"]).collect();
    ground.write("tasks/lost/belljar.lock", &bare);

    forget_everything(&ground);
    expect(&run(&ground, &task, &["--frozen"]), "verified", "one");

    let two = image_that_answers(&ground, "two");
    publish(&ground, &["push", &two, &name]);
    forget_everything(&ground);
    for flags in [&[][..], &["--frozen"]] {
        let drifted = run(&ground, &task, flags);
        assert_eq!(code_of(&drifted), (5, "image-drift"), "{:#}", drifted.1);
        let error = drifted.1["error"].to_string();
        assert!(error.contains(&one) && error.contains(&two) && error.contains("--update-lock"), "{error}");
    }
    assert_eq!(lock_of(&ground, "lost").unwrap(), bare);
    expect(&run(&ground, &task, &["--update-lock"]), "updated", "two");
}

#[test]
fn an_archive_that_changes_is_drift() {
    let ground = Ground::new();
    small_root(&ground);
    let export = |text: &str| {
        let image = image_that_answers(&ground, text);
        let archive = ground.path("tasks/archived/app.tar");
        let _ = fs::remove_file(&archive);
        publish(&ground, &["export", &image, archive.to_str().unwrap()]);
        image
    };
    let image = json!({"environment": {"image": "docker-archive:app.tar"}});
    let task = ground.task("archived", "/bin/answer", &image);
    let one = export("one");
    let first = run(&ground, &task, &[]);
    expect(&first, "pinned", "one");
    assert_eq!(first.1["image"]["lock"]["reference"], "docker-archive:./app.tar");
    expect(&run(&ground, &task, &["--frozen"]), "verified", "one");
    let two = export("two");
    for flags in [&[][..], &["--frozen"]] {
        let drifted = run(&ground, &task, flags);
        assert_eq!(code_of(&drifted), (5, "image-drift"), "{:#}", drifted.1);
        let error = drifted.1["error"].to_string();
        assert!(error.contains(&one) && error.contains(&two), "{error}");
    }
    expect(&run(&ground, &task, &["--update-lock"]), "updated", "two");
}

/// A first run in a folder that cannot be written uses the image, and says that it is not pinned.
#[test]
fn a_first_run_that_cannot_pin_says_so() {
    let ground = Ground::new();
    small_root(&ground);
    let one = image_that_answers(&ground, "one");
    let archive = ground.path("tasks/sealed/app.tar");
    let task =
        ground.task("sealed", "/bin/answer", &json!({"environment": {"image": "docker-archive:app.tar"}}));
    publish(&ground, &["export", &one, archive.to_str().unwrap()]);
    let folder = task.parent().unwrap().display();
    let script = format!(
        "mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}' && exec '{}' run '{}' --out '{}' --json",
        ground.path("belljar").display(),
        task.display(),
        ground.path("out").display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("BELLJAR_HOME", ground.path("home")).current_dir(ground.base());
    let answer = super::told(&command.output().expect("unshare starts"));
    expect(&answer, "not_written", "one");
    let warnings = answer.1["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning["code"] == "not-pinned"), "{warnings:?}");
    assert_eq!(lock_of(&ground, "sealed"), None);
}

/// What Docker has under a name is looked at as it is; when it has nothing, what was taken from it before is enough.
#[test]
fn an_image_that_docker_replaced_is_drift_and_one_that_it_lost_is_in_the_store() {
    let ground = Ground::new();
    small_root(&ground);
    let host = std::env::var("BELLJAR_GROUND_DOCKER_HOST").expect("no Docker to test with: run scripts/test");
    let name = format!("belljar-pinning-{}:1", std::process::id());
    let docker = |arguments: &str| {
        let script = format!("tar -C image -c . | docker {arguments}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("DOCKER_HOST", &host).current_dir(ground.base());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let image = json!({"environment": {"image": format!("docker:{name}")}});
    let task = ground.task("kept", "/bin/answer", &image);
    let run = |flags: &[&str]| {
        let mut command = ground.belljar();
        command.env("DOCKER_HOST", &host).arg("run").arg(&task).args(flags).arg("--json");
        super::told(&command.arg("--out").arg(ground.path("out")).output().unwrap())
    };
    answer_with(&ground, "one");
    docker(&format!("import - {name}"));
    expect(&run(&[]), "pinned", "one");
    expect(&run(&["--frozen"]), "verified", "one");
    answer_with(&ground, "two");
    docker(&format!("import - {name}"));
    let drifted = run(&[]);
    docker(&format!("rmi {name}"));
    assert_eq!(code_of(&drifted), (5, "image-drift"), "{:#}", drifted.1);
    expect(&run(&["--frozen"]), "verified", "one");
    forget_everything(&ground);
    assert_eq!(code_of(&run(&[])), (2, "image-unknown"));
}

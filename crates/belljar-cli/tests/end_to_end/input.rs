//! Wrong input: one message, the documented exit code, nothing half-made.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::ground::{Ground, entries, runs_in, tool};
use crate::sources::Repository;

/// Demands a refusal before anything is made.
#[track_caller]
fn expect_refused(ground: &Ground, task: &Path, out: &Path, code: &str, exit: i32) {
    let existed = out.exists();
    let output = out.to_string_lossy().into_owned();
    let (found, answer) = ground.ask(&["run", &task.to_string_lossy(), "--out", &output]);
    let error = &answer["error"];
    assert_eq!((found, &error["code"]), (exit, &json!(code)), "{answer:#}");
    assert!(!error["message"].as_str().unwrap_or_default().is_empty(), "no message: {answer:#}");
    assert_eq!(entries(&out.join("runs")), [] as [PathBuf; 0], "half-made runs are left");
    assert_eq!(out.exists(), existed, "the output folder was made for nothing");
    assert_eq!(ground.cells(), [] as [PathBuf; 0], "cells are left");
}

/// A task with something wrong, refused with a code.
#[track_caller]
fn wrong(changes: &Value, code: &str) {
    let ground = Ground::new();
    Repository::new(&ground, "project");
    let task = ground.task("wrong", "true", changes);
    expect_refused(&ground, &task, &ground.path("new"), code, 2);
}

#[test]
fn an_unknown_key() {
    wrong(&json!({"environment": {"timout_sec": 3}}), "spec-unknown-key");
}

#[test]
fn a_wrong_type() {
    wrong(&json!({"setup": {"commands": "not a list of commands", "timeout_sec": "soon"}}), "spec-type");
}

#[test]
fn a_missing_commit() {
    wrong(&json!({"repo": {"url": "../../project"}}), "repo-commit-missing");
}

#[test]
fn an_unknown_image() {
    wrong(&json!({"environment": {"image": "./nowhere.tar"}}), "image-unknown");
}

#[test]
fn an_unreadable_repository() {
    wrong(&json!({"repo": {"url": "../../no-such-place"}}), "repo-source");
}

#[test]
fn a_path_that_escapes() {
    wrong(&json!({"repo": {"patches": ["../../../outside.patch"]}}), "path-escapes");
}

#[test]
fn a_collected_path_that_escapes() {
    wrong(&json!({"collect": ["../../../etc/passwd"]}), "path-escapes");
}

#[test]
fn a_task_that_is_not_there() {
    let ground = Ground::new();
    expect_refused(&ground, &ground.path("tasks/none/task.yaml"), &ground.path("new"), "spec-unreadable", 2);
}

#[test]
fn a_repository_this_user_may_not_read() {
    let ground = Ground::of(Caller::Delegated);
    ground.write("closed/file", "x");
    tool("chown", &["root", "closed"], ground.base());
    tool("chmod", &["700", "closed"], ground.base());
    let task = ground.task("closed", "true", &json!({"repo": {"url": "../../closed"}}));
    expect_refused(&ground, &task, &ground.path("out"), "repo-source", 2);
}

#[test]
fn an_output_folder_that_cannot_be_written() {
    let ground = Ground::of(Caller::Delegated);
    let task = ground.task("nowhere", "true", &json!({}));
    expect_refused(&ground, &task, Path::new("/proc/belljar"), "output-unwritable", 4);
    expect_refused(&ground, &task, &ground.path("repo/hello.txt/below"), "output-unwritable", 4);
}

/// A small disk, unmounted at the end.
struct Disk {
    path: PathBuf,
}

impl Disk {
    fn mount(ground: &Ground, size: &str) -> Disk {
        let path = ground.path("disk");
        std::fs::create_dir(&path).unwrap();
        let options = format!("size={size},mode=0755");
        tool("mount", &["-t", "tmpfs", "-o", &options, "ground", &path.to_string_lossy()], ground.base());
        Disk { path }
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut ballast = std::fs::File::create(self.path.join("ballast")).unwrap();
        let full = std::io::copy(&mut std::io::repeat(0), &mut ballast).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount").arg(&self.path).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} is still mounted", self.path.display());
    }
}

#[test]
fn a_disk_that_is_full_before_the_start() {
    let ground = Ground::new();
    let disk = Disk::mount(&ground, "256k");
    disk.fill();
    let task = ground.task("full", "true", &json!({}));
    expect_refused(&ground, &task, &disk.path, "disk-full", 4);
    assert_eq!(entries(&disk.path), [disk.path.join("ballast")]);
}

#[test]
fn a_disk_that_fills_up_by_output() {
    let ground = Ground::new();
    let disk = Disk::mount(&ground, "4m");
    let task = ground.task("filling", "yes | head -c 20000000", &json!({}));
    let report = ground.run_into(&task, &disk.path).expect("disk_full", 4);
    assert_eq!(runs_in(&disk.path).len(), 1, "{report}");
    assert_eq!(report.record()["status"], "finished", "{report}");
    assert_eq!(ground.cells(), [] as [PathBuf; 0], "{report}");
    let stdout = &report.command()["stdout"];
    assert_eq!(
        (&stdout["bytes"], &stdout["dropped_because"]),
        (&json!(20_000_000), &json!("disk_full")),
        "{report}"
    );
}

#[test]
fn a_disk_that_the_guest_fills_up() {
    let ground = Ground::new();
    let disk = Disk::mount(&ground, "4m");
    let task = ground.task("filled", "head -c 20000000 /dev/zero > big; echo $?; sync", &json!({}));
    let report = ground.run_into(&task, &disk.path);
    assert_eq!(report.code, Some(4), "{report}");
    assert_eq!(report.record()["verdict"]["outcome"], "disk_full", "{report}");
    assert_eq!(ground.cells(), [] as [PathBuf; 0], "{report}");
}

//! Forks and snapshots: independent of what they were made from, deletions included.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;

use super::Yard;
use crate::caller::Caller;
use crate::ground::entries;
use crate::images::small_root;

fn a_fork_is_independent(caller: Caller, image: &str) {
    let yard = Yard::of(caller);
    let parent = yard.tell(["create", image]).fine();
    yard.sh(&parent, "echo one > kept; echo two > removed; mkdir d; ln kept d/hard; ln -s kept link; echo home > ~/f; touch /tmp/t; rm removed").fine();
    let child = yard.tell(["fork", &parent]).fine();
    assert_ne!(child, parent);
    let seen = "ls; cat kept d/hard ~/f; readlink link; stat -c %u kept; ls /tmp/t";
    let expected = "d\nkept\nlink\none\none\nhome\nkept\n1000\n/tmp/t";
    assert_eq!(yard.sh(&child, seen).fine(), expected);
    yard.sh(&child, "echo child > kept; echo new > only-child; rm link").fine();
    yard.sh(&parent, "echo parent > only-parent; rm -r d").fine();
    assert_eq!(yard.sh(&parent, "ls; cat kept").fine(), "kept\nlink\nonly-parent\none");
    assert_eq!(yard.sh(&child, "ls; cat kept d/hard").fine(), "d\nkept\nonly-child\nchild\nchild");
    yard.tell(["rm", &parent]).fine();
    assert_eq!(yard.sh(&child, "cat only-child").fine(), "new");
    let grandchild = yard.tell(["fork", &child, "--ttl", "5m"]).fine();
    assert_eq!(yard.sh(&grandchild, "cat kept").fine(), "child");
}

#[test]
fn a_fork_is_independent_for_root() {
    a_fork_is_independent(Caller::Root, "host");
}

#[test]
fn a_fork_is_independent_for_an_ordinary_user() {
    a_fork_is_independent(Caller::Delegated, "host");
}

#[test]
fn a_fork_is_independent_over_a_root_directory() {
    let Some(root) = std::env::var_os("BELLJAR_GROUND_ROOT") else { return };
    a_fork_is_independent(Caller::Root, &root.to_string_lossy());
}

/// What is deleted of the image stays deleted in the copy.
#[test]
fn a_copy_keeps_deletions_of_the_image() {
    let yard = Yard::new();
    let image = small_root(&yard.ground);
    for program in ["rm", "mkdir"] {
        fs::copy(Path::new("/usr/bin").join(program), image.join("bin").join(program)).unwrap();
    }
    fs::create_dir_all(image.join("data/sub/inner")).unwrap();
    fs::write(image.join("data/gone"), "image").unwrap();
    fs::write(image.join("data/changed"), "image").unwrap();
    for name in ["data", "data/sub", "data/sub/inner", "data/gone", "data/changed"] {
        chown(image.join(name), Some(1000), Some(1000)).unwrap();
    }
    let parent = yard.tell(["create".as_ref(), image.as_os_str()]).fine();
    let script = "cd /data; rm gone; rm -r sub; mkdir sub; echo guest > changed; echo guest > sub/new";
    yard.sh(&parent, script).fine();
    let child = yard.tell(["fork", &parent]).fine();
    yard.tell(["snapshot", &parent, "changed"]).fine();
    let third = yard.tell(["create", "--from", "changed"]).fine();
    for id in [&parent, &child, &third] {
        assert_eq!(
            yard.sh(id, "cd /data; ls . sub; cat changed").fine(),
            ".:\nchanged\nsub\n\nsub:\nnew\nguest"
        );
    }
    assert_eq!(fs::read_to_string(image.join("data/changed")).unwrap(), "image");
}

/// Processes stand still while the files are copied, and go on afterwards.
#[test]
fn a_fork_of_a_busy_sandbox_goes_on() {
    let yard = Yard::new();
    let parent = yard.create("");
    let number = yard.background(
        &parent,
        "i=0; while :; do i=$((i+1)); echo $i > counter.new; mv counter.new counter; done",
    );
    super::eventually("a count", || yard.sh(&parent, "cat counter").code == 0);
    let child = yard.tell(["fork", &parent]).fine();
    let count =
        |id: &str| yard.sh(id, "cat counter 2>/dev/null || cat counter").fine().parse::<u64>().unwrap();
    let first = count(&parent);
    super::eventually("more counts", || count(&parent) > first);
    assert_eq!(count(&child), count(&child));
    assert_eq!(yard.inspect(&child)["running"], 0);
    yard.tell(["signal", &parent, &number, "--tree"]).fine();
}

fn a_snapshot_is_a_base_for_others(caller: Caller) {
    let yard = Yard::of(caller);
    let id = yard.create("--workdir /work");
    yard.sh(&id, "echo prepared > file").fine();
    assert_eq!(yard.tell(["snapshot", &id, "base-1"]).fine(), "base-1");
    let told = yard.tell(["snapshot", &id, "base-1"]);
    assert!(told.code == 2 && told.err.contains("already"), "{told:?}");
    yard.tell(["rm", &id]).fine();
    let listed = yard.say("snapshot --list --json").json();
    assert_eq!(
        (&listed["snapshots"][0]["name"], &listed["snapshots"][0]["sandbox"]),
        (&json!("base-1"), &json!(id))
    );
    assert!(yard.say("snapshot --list").fine().contains("base-1"));
    let (first, second) = (yard.create("--from base-1"), yard.create("--from base-1"));
    yard.sh(&first, "echo changed > file").fine();
    assert_eq!(yard.sh(&second, "pwd; cat file").fine(), "/work\nprepared");
    assert_eq!(yard.say("run --from base-1 -- cat file").fine(), "prepared");
    assert_eq!(yard.say("snapshot --remove base-1").fine(), "base-1");
    assert_eq!(yard.sh(&second, "cat file").fine(), "prepared");
    let told = yard.say("create --from base-1");
    assert!(told.code == 2 && told.err.contains("[snapshot-unknown]"), "{told:?}");
    assert_eq!(yard.say("snapshot --list").fine(), "no snapshots");
    assert_eq!(entries(&yard.ground.path("home/snapshots")), Vec::<PathBuf>::new());
    for name in ["", ".hidden", "a/b", "..", "-x", "ü"] {
        assert_eq!(yard.tell(["snapshot", &second, "--", name]).code, 2, "{name:?}");
    }
}

#[test]
fn a_snapshot_is_a_base_for_others_for_root() {
    a_snapshot_is_a_base_for_others(Caller::Root);
}

#[test]
fn a_snapshot_is_a_base_for_others_for_an_ordinary_user() {
    a_snapshot_is_a_base_for_others(Caller::Delegated);
}

#[test]
fn a_snapshot_is_a_base_for_others_for_a_user_with_subordinate_ids() {
    a_snapshot_is_a_base_for_others(Caller::Mapped);
}

#[test]
fn a_sandbox_that_works_on_the_host_is_not_copied() {
    let yard = Yard::new();
    let id = yard.tell(["create", "--workspace", "repo"]).fine();
    for words in [["fork", id.as_str()].as_slice(), &["snapshot", &id, "name"]] {
        let told = yard.tell(words);
        assert!(told.code == 2 && told.err.contains("a folder of the host"), "{told:?}");
    }
    assert_eq!(yard.sh(&id, "cat hello.txt").fine(), "hello");
}

/// Half a snapshot is removed by `gc`, and never while somebody makes one.
#[test]
fn half_made_snapshots_are_cleared_away() {
    let yard = Yard::new();
    let id = yard.create("");
    yard.tell(["snapshot", &id, "whole"]).fine();
    for name in [".making-01ABC", ".gone-01DEF"] {
        fs::create_dir_all(yard.ground.path(&format!("home/snapshots/{name}/files/deep"))).unwrap();
        fs::write(yard.ground.path(&format!("home/snapshots/{name}/files/deep/file")), vec![0; 100_000])
            .unwrap();
    }
    let shelf = fs::File::open(yard.ground.path("home/snapshots")).unwrap();
    shelf.lock_shared().unwrap();
    let (_, swept) = yard.ground.ask(&["gc"]);
    assert_eq!(swept["removed_snapshots"], json!([]), "somebody is at it");
    drop(shelf);
    let text = yard.ground.belljar().arg("gc").stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert_eq!(text.matches("removed half a snapshot").count(), 2, "{text}");
    assert_eq!(entries(&yard.ground.path("home/snapshots")), [yard.ground.path("home/snapshots/whole")]);
}

//! What is said about `belljar.lock`.

use std::fs;

use crate::house::{House, assert_told};

/// A task on a folder that looks like a root directory; a plan looks no closer.
fn rooted(house: &House) -> String {
    fs::create_dir_all(house.path().join("root/bin")).unwrap();
    fs::write(house.path().join("root/bin/sh"), "one").unwrap();
    let text = "id: t\nrepo: {url: repo}\nenvironment: {image: ./root}\nrun: {command: 'true'}\n";
    house.file("t.yaml", text)
}

#[test]
fn drift_is_told_with_both_sides_and_the_way_out() {
    let house = House::new();
    let task = rooted(&house);
    let told = house.told(&["plan", &task, "--update-lock"]);
    assert!(told.contains("\npinned ./root for linux/"), "{told}");
    assert!(house.told(&["plan", &task]).contains("\n./root is what belljar.lock pins for linux/"));
    fs::write(house.path().join("root/bin/sh"), "two").unwrap();
    assert_told!(house.told(&["plan", &task]), @"
    exit 5
    --- stdout
    --- stderr
    error: t.yaml:3:22: the image `./root` is not what belljar.lock pins
        the lock has  a root directory with the content [DIGEST]
        there is now  a root directory with the content [DIGEST]
        |
      3 | environment: {image: ./root}
        |                      ^^^^^^

    hint: if the change is meant, accept it with --update-lock and commit belljar.lock; if not, bring the pinned image back
    [image-drift]
    ");
}

#[test]
fn a_refusal_says_why_and_what_to_do() {
    let house = House::new();
    let task = rooted(&house);
    assert_told!(house.told(&["run", &task, "--frozen"]), @"
    exit 2
    --- stdout
    --- stderr
    error: t.yaml:3:22: the image `./root` cannot be held to belljar.lock: the root directory is not pinned
        |
      3 | environment: {image: ./root}
        |                      ^^^^^^

    hint: pin it with --update-lock, and commit belljar.lock
    [image-unpinned]
    ");
    let task = house.command_task("h", "true");
    assert_told!(house.told(&["run", &task, "--frozen"]), @"
    exit 2
    --- stdout
    --- stderr
    error: h.yaml:6:10: the image `host` cannot be held to belljar.lock: it is this machine itself and cannot be pinned
        |
      6 |   image: host
        |          ^^^^

    hint: choose an image that can be pinned: docs/images.md lists them
    [image-unpinned]
    ");
    house.file("belljar.lock", "version = 1\nimages.x = 3\n");
    assert_told!(house.told(&["run", &task]), @"
    exit 2
    --- stdout
    --- stderr
    error: [HOUSE]/belljar.lock: line 2: `images.x` is not known here

    hint: mend the line that the message names; after a merge keep the lines of both sides, each fact once
    [lock-unreadable]
    ");
    assert_told!(house.told(&["run", &task, "--frozen", "--update-lock"]), @"
    exit 2
    --- stdout
    --- stderr
    error: the argument '--frozen' cannot be used with '--update-lock'

    Usage: belljar run --frozen <TASK>

    For more information, try '--help'.
    ");
}

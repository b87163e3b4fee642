//! Images in the store: imported, pushed, pulled, run, checked, removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::registry::Registry;
use super::small_root;
use crate::caller::Caller;
use crate::ground::{Ground, tool};

/// A root as a tar, every file root's; `more` are options of tar.
fn root_tar(ground: &Ground, name: &str, more: &[&str]) -> PathBuf {
    let (image, tar) = (small_root(ground), ground.path(name));
    let mut arguments = vec!["--sort=name", "--owner=0", "--group=0", "--numeric-owner"];
    let (folder, file) = (image.to_string_lossy().into_owned(), tar.to_string_lossy().into_owned());
    arguments.extend(more);
    arguments.extend(["-C", &folder, "-cf", &file, "."]);
    tool("tar", &arguments, Path::new("/"));
    ground.give(name);
    tar
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Asks, and demands success.
#[track_caller]
fn ask(ground: &Ground, arguments: &[&str]) -> Value {
    let (code, value) = ground.ask(arguments);
    assert_eq!(code, 0, "{arguments:?}: {value}");
    value
}

/// Asks, and demands a failure of this code.
#[track_caller]
fn refused(ground: &Ground, arguments: &[&str], code: &str, exit: i32) {
    let (found, value) = ground.ask(arguments);
    assert_eq!((found, value["error"]["code"].as_str()), (exit, Some(code)), "{arguments:?}: {value}");
    assert!(!value["error"]["hints"].as_array().unwrap().is_empty(), "{value}");
}

/// What a command in a sandbox of an image prints.
#[track_caller]
fn prints(ground: &Ground, image: &str, command: &[&str]) -> String {
    let mut belljar = ground.belljar();
    belljar.args(["sandbox", "run", "--image", image, "--isolation", "best-effort"]);
    if !command.is_empty() {
        belljar.arg("--").args(command);
    }
    let output = belljar.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Every file of the store that holds content, with its number on the disk.
fn content(ground: &Ground) -> String {
    let images = ground.path("home/images");
    tool("sh", &["-c", "find blobs layers -printf '%p %i %T@\\n' | sort"], &images)
}

fn there_and_back(caller: Caller) {
    let ground = Ground::of(caller);
    let registry = Registry::open();
    let tar = root_tar(&ground, "root.tar", &[]);
    let imported = ask(&ground, &["image", "import", &text(&tar), "app:1"]);
    let digest = imported["config_digest"].as_str().unwrap();
    assert_eq!(imported["names"], json!(["docker.io/library/app:1"]));
    assert_eq!(prints(&ground, "app:1", &["cat", "/etc/marker"]), "a root of its own");

    let name = format!("{}/team/app:1", registry.address());
    let pushed = ask(&ground, &["image", "push", "app:1", &name]);
    let pinned = pushed["name"].as_str().unwrap().to_owned();
    ask(&ground, &["image", "rm", "app:1"]);
    assert_eq!(ask(&ground, &["image", "ls"])["images"], json!([]));
    assert!(!content(&ground).contains("tree"), "{}", content(&ground));

    let pulled = ask(&ground, &["image", "pull", &name]);
    assert_eq!(pulled["config_digest"], digest);
    let before = content(&ground);
    assert_eq!(ask(&ground, &["image", "pull", &name])["config_digest"], digest);
    assert_eq!(before, content(&ground), "the second pull made something anew");
    assert_eq!(prints(&ground, &name, &["cat", "/etc/marker"]), "a root of its own");
    assert_eq!(prints(&ground, &pinned, &["cat", "/etc/marker"]), "a root of its own");
    assert_eq!(prints(&ground, digest, &["cat", "/etc/marker"]), "a root of its own");

    let environment = json!({"environment": {"image": name, "isolation": "best-effort"}});
    let report = ground.run(&ground.task("of_registry", "cat /etc/marker", &environment)).expect("passed", 0);
    assert_eq!(report.text("run_stdout.txt"), "a root of its own\n");
    let image = report.record()["image"].clone();
    assert_eq!((&image["kind"], &image["pinned"]), (&json!("oci"), &json!(true)), "{report}");
    assert_eq!(image["identity"]["config_digest"], digest, "{report}");
    let shown = ask(&ground, &["image", "inspect", &name]);
    assert_eq!(image["identity"]["diff_ids"], shown["diff_ids"], "{report}");
    assert!(ask(&ground, &["image", "fsck", "--deep"])["ok"].as_bool().unwrap());
}

#[test]
fn an_image_there_and_back_for_root() {
    there_and_back(Caller::Root);
}

#[test]
fn an_image_there_and_back_for_an_ordinary_user() {
    there_and_back(Caller::Delegated);
}

#[test]
fn a_whole_debian_runs_its_python() {
    let ground = Ground::new();
    let tar = std::env::var("BELLJAR_GROUND_TAR").expect("BELLJAR_GROUND_TAR is not set: run scripts/test");
    let registry = std::env::var("BELLJAR_GROUND_REGISTRY").expect("run scripts/test");
    let name = format!("{registry}/belljar-test/debian:{}", std::process::id());
    ask(&ground, &["image", "import", &tar, &name]);
    ask(&ground, &["image", "push", &name]);
    ask(&ground, &["image", "rm", &name]);
    assert_eq!(prints(&ground, &name, &["python3", "-c", "print(6*7)"]), "42");
}

#[test]
fn a_debian_is_made_without_a_registry_and_twice_the_same() {
    let made = || {
        let ground = Ground::new();
        let mut arguments = vec!["image", "bootstrap", "tools:1", "busybox-static", "--variant", "extract"];
        let mirror = std::env::var("BELLJAR_GROUND_MIRROR").ok();
        arguments.extend(mirror.iter().flat_map(|mirror| ["--mirror", mirror.as_str()]));
        let digest = ask(&ground, &arguments)["config_digest"].clone();
        assert_eq!(prints(&ground, "tools:1", &["/bin/busybox", "echo", "works"]), "works");
        digest
    };
    assert_eq!(made(), made());
    let ground = Ground::new();
    refused(&ground, &["image", "bootstrap", "tools:1", "a,b"], "usage", 2);
    let mut belljar = ground.belljar();
    let output = belljar.env("PATH", ground.path("repo")).args(["image", "bootstrap", "tools:1"]).output();
    assert_eq!(output.unwrap().status.code(), Some(3));
}

#[test]
fn owners_that_a_user_cannot_give_are_refused_or_squashed() {
    let ground = Ground::of(Caller::Delegated);
    let tar = text(&root_tar(&ground, "foreign.tar", &["--owner=33", "--group=33"]));
    refused(&ground, &["image", "import", &tar, "app:1"], "image-foreign-owners", 3);
    refused(&ground, &["sandbox", "create", "--image", &tar], "image-foreign-owners", 3);
    let imported = ask(&ground, &["image", "import", &tar, "app:1", "--squash"]);
    assert_eq!(imported["ownership"], "squashed");
    assert_eq!(prints(&ground, "app:1", &["cat", "/etc/marker"]), "a root of its own");
}

#[test]
fn with_subordinate_ids_owners_are_exact() {
    let ground = Ground::of(Caller::Mapped);
    let tar = text(&root_tar(&ground, "foreign.tar", &["--owner=33", "--group=33"]));
    assert_eq!(ask(&ground, &["image", "import", &tar, "app:1", "--squash"])["ownership"], "exact");
    let listed = prints(&ground, "app:1", &["ls", "-ln", "/etc/marker"]);
    let owners: Vec<&str> = listed.split_whitespace().skip(2).take(2).collect();
    assert_eq!(owners, ["33", "33"], "{listed}");
    assert!(ask(&ground, &["image", "fsck", "--deep"])["ok"].as_bool().unwrap());
    ask(&ground, &["image", "rm", "app:1"]);
    assert!(!content(&ground).contains("tree"), "{}", content(&ground));
}

#[test]
fn an_image_there_and_back_with_subordinate_ids() {
    there_and_back(Caller::Mapped);
}

#[test]
fn a_file_is_imported_once_and_again_when_it_changes() {
    let ground = Ground::new();
    let tar = root_tar(&ground, "root.tar", &[]);
    let image = text(&tar);
    assert_eq!(prints(&ground, &image, &["cat", "/etc/marker"]), "a root of its own");
    let before = content(&ground);
    assert_eq!(prints(&ground, &image, &["cat", "/etc/marker"]), "a root of its own");
    assert_eq!(before, content(&ground), "it was imported again");
    fs::write(ground.path("image/etc/marker"), "another one\n").unwrap();
    tool("tar", &["-C", &text(&ground.path("image")), "-cf", &image, "."], Path::new("/"));
    assert_eq!(prints(&ground, &image, &["cat", "/etc/marker"]), "another one");
    assert_eq!(ask(&ground, &["image", "ls"])["images"].as_array().unwrap().len(), 2);
}

#[test]
fn what_was_exported_is_the_same_image_elsewhere() {
    let (ground, other) = (Ground::new(), Ground::new());
    let tar = root_tar(&ground, "root.tar", &["--gzip"]);
    let digest = ask(&ground, &["image", "import", &text(&tar), "app:1"])["config_digest"].clone();
    let file = text(&ground.path("out/app.tar"));
    ask(&ground, &["image", "export", "app:1", &file]);
    assert_eq!(ask(&other, &["image", "import", &file, "app:2"])["config_digest"], digest);
    let layout = text(&ground.path("out/layout"));
    ask(&ground, &["image", "export", "app:1", &layout, "--format", "layout"]);
    let third = Ground::new();
    assert_eq!(prints(&third, &format!("oci:{layout}"), &["cat", "/etc/marker"]), "a root of its own");
    assert_eq!(ask(&third, &["image", "ls"])["images"][0]["config_digest"], digest);

    let mut export = ground.belljar();
    let mut export = export.args(["image", "export", "app:1", "-"]).stdout(Stdio::piped()).spawn().unwrap();
    let fourth = Ground::new();
    let mut import = fourth.belljar();
    let import =
        import.args(["image", "import", "-", "--json"]).stdin(export.stdout.take().unwrap()).output();
    assert!(export.wait().unwrap().success());
    let value: Value = serde_json::from_slice(&import.unwrap().stdout).unwrap();
    assert_eq!(value["config_digest"], digest);
}

#[test]
fn nonsense_and_what_is_nowhere_are_told_apart() {
    let ground = Ground::new();
    let registry = Registry::open();
    let nowhere = format!("{}/none:1", registry.address());
    refused(&ground, &["image", "pull", &nowhere], "image-unknown", 2);
    refused(&ground, &["image", "pull", "My App"], "image-unknown", 2);
    refused(&ground, &["image", "pull", "a//b"], "image-unknown", 2);
    refused(&ground, &["image", "pull", "./path"], "image-unknown", 2);
    refused(&ground, &["image", "inspect", "app:1"], "image-absent", 2);
    refused(&ground, &["image", "rm", "sha256:0123456789"], "image-absent", 2);
    refused(&ground, &["sandbox", "create", &nowhere, "--pull", "never"], "image-absent", 2);
    refused(&ground, &["sandbox", "create", "snapshot:none"], "image-unknown", 2);
    refused(&ground, &["sandbox", "create", "./none.tar"], "image-unknown", 2);
    refused(&ground, &["sandbox", "run", "--image", &nowhere], "image-unknown", 125);
    let report = ground.run(&ground.task("nowhere", "true", &json!({"environment": {"image": nowhere}})));
    assert_eq!((report.code, report.made()), (Some(2), None), "{report}");
    drop(registry);
    let gone = json!({"environment": {"image": nowhere}});
    let report = ground.run(&ground.task("gone", "true", &gone)).expect("image_failed", 4);
    assert_eq!(report.record()["error"]["code"], "registry-unreachable", "{report}");
    assert_eq!(report.stage("prepare_image")["outcome"], "failed", "{report}");
}

#[test]
fn credentials_come_from_the_file_and_wrong_ones_are_denied() {
    let ground = Ground::new();
    let registry = Registry::closed();
    let tar = root_tar(&ground, "root.tar", &[]);
    ask(&ground, &["image", "import", &text(&tar), "app:1"]);
    let name = format!("{}/app:1", registry.address());
    let push = |password: Option<&str>| {
        let mut belljar = ground.belljar();
        belljar.env("DOCKER_CONFIG", ground.path("docker"));
        if let Some(password) = password {
            let login = json!({"auths": {registry.address(): {"username": "ann", "password": password}}});
            ground.write("docker/config.json", login.to_string());
        }
        let output = belljar.args(["image", "push", "app:1", &name, "--json"]).output().unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), value)
    };
    for password in [None, Some("hunter2")] {
        let (code, value) = push(password);
        assert_eq!((code, &value["error"]["code"]), (Some(4), &json!("registry-denied")), "{value}");
        assert!(!value.to_string().contains("hunter2"), "{value}");
    }
    let (code, value) = push(Some("open sesame"));
    assert_eq!(code, Some(0), "{value}");
}

#[test]
fn bytes_that_were_changed_are_never_an_image() {
    let ground = Ground::new();
    let registry = Registry::open();
    let tar = root_tar(&ground, "root.tar", &["--gzip"]);
    let name = format!("{}/app:1", registry.address());
    ask(&ground, &["image", "import", &text(&tar), &name]);
    let pushed = ask(&ground, &["image", "push", &name]);
    ask(&ground, &["image", "rm", &name]);
    let manifest = fs::read(registry.blob(pushed["manifest_digest"].as_str().unwrap())).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let blob = registry.blob(manifest["layers"][0]["digest"].as_str().unwrap());
    let good = fs::read(&blob).unwrap();
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    fs::write(&blob, bad).unwrap();
    refused(&ground, &["image", "pull", &name], "image-corrupt", 4);
    assert_eq!(ask(&ground, &["image", "ls"])["images"], json!([]));
    fs::write(&blob, &good).unwrap();
    ask(&ground, &["image", "pull", &name]);
    assert_eq!(prints(&ground, &name, &["cat", "/etc/marker"]), "a root of its own");

    // Only compressed bytes are left here, and they are damaged: they are fetched again.
    let layer = manifest["layers"][0]["digest"].as_str().unwrap().replace("sha256:", "");
    let here = ground.path("home/images/blobs/sha256").join(layer);
    let mut bad = good;
    bad[middle] ^= 1;
    fs::write(&here, bad).unwrap();
    tool("sh", &["-c", "rm -r layers/sha256/* images/* names/*"], &ground.path("home/images"));
    ask(&ground, &["image", "pull", &name]);
    assert_eq!(prints(&ground, &name, &["cat", "/etc/marker"]), "a root of its own");
    assert!(ask(&ground, &["image", "fsck", "--deep"])["ok"].as_bool().unwrap());
}

#[test]
fn damage_in_the_store_is_found_and_mended() {
    let ground = Ground::new();
    let registry = Registry::open();
    let tar = root_tar(&ground, "root.tar", &[]);
    let name = format!("{}/app:1", registry.address());
    ask(&ground, &["image", "import", &text(&tar), &name]);
    let marker = "find layers -path '*/tree/etc/marker'";
    let marker = ground.path("home/images").join(tool("sh", &["-c", marker], &ground.path("home/images")));
    fs::write(&marker, "a root of theirs\n").unwrap();
    let (code, value) = ground.ask(&["image", "fsck", "--deep"]);
    assert_eq!(
        (code, &value["ok"], &value["findings"][0]["cure"]),
        (4, &json!(false), &json!("left")),
        "{value}"
    );
    let value = ask(&ground, &["image", "fsck", "--deep", "--repair"]);
    assert_eq!(value["findings"][0]["cure"], "mended", "{value}");
    assert_eq!(prints(&ground, &name, &["cat", "/etc/marker"]), "a root of its own");

    ask(&ground, &["image", "push", &name]);
    fs::write(&marker, "a root of theirs\n").unwrap();
    fs::remove_dir_all(ground.path("home/images/blobs/sha256")).unwrap();
    let value = ask(&ground, &["image", "fsck", "--deep", "--repair", "--fetch"]);
    assert_eq!(value["fetched"], json!([name]), "{value}");
    assert_eq!(prints(&ground, &name, &["cat", "/etc/marker"]), "a root of its own");
}

#[test]
fn several_names_uses_and_a_budget() {
    let ground = Ground::new();
    let registry = Registry::open();
    let tar = root_tar(&ground, "root.tar", &[]);
    ask(&ground, &["image", "import", &text(&tar), "app:1"]);
    ask(&ground, &["image", "tag", "app:1", "app:2"]);
    assert_eq!(ask(&ground, &["image", "rm", "app:1"])["images"], json!([]));
    let id = ask(&ground, &["sandbox", "create", "app:2"])["id"].as_str().unwrap().to_owned();
    refused(&ground, &["image", "rm", "app:2"], "image-in-use", 2);
    // It cannot be fetched again, so a budget alone does not take it; then it can, but it is in use.
    assert_eq!(ask(&ground, &["image", "prune", "--budget", "0"])["images"], json!([]));
    let name = format!("{}/app:1", registry.address());
    ask(&ground, &["image", "push", "app:2", &name]);
    assert_eq!(ask(&ground, &["image", "prune", "--budget", "0"])["images"], json!([]));
    ask(&ground, &["sandbox", "rm", &id]);
    assert_eq!(ask(&ground, &["image", "prune", "--budget", "0"])["images"].as_array().unwrap().len(), 1);
    assert_eq!(ask(&ground, &["image", "du"])["bytes"], 0);

    ask(&ground, &["image", "pull", &name]);
    fs::write(ground.path("image/etc/marker"), "another one\n").unwrap();
    tool("tar", &["-C", &text(&ground.path("image")), "-cf", &text(&tar), "."], Path::new("/"));
    ask(&ground, &["image", "import", &text(&tar), "other:1"]);
    let other = format!("{}/other:1", registry.address());
    ask(&ground, &["image", "push", "other:1", &other]);
    ask(&ground, &["image", "pull", &other, "--budget", "1kB"]);
    let left = ask(&ground, &["image", "ls"]);
    assert_eq!(left["images"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(prints(&ground, &other, &["cat", "/etc/marker"]), "another one");
}

#[test]
fn two_that_pull_at_once_get_one_image() {
    let ground = Ground::new();
    let registry = Registry::open();
    let tar = root_tar(&ground, "root.tar", &[]);
    let name = format!("{}/app:1", registry.address());
    let digest = ask(&ground, &["image", "import", &text(&tar), &name])["config_digest"].clone();
    ask(&ground, &["image", "push", &name]);
    ask(&ground, &["image", "rm", &name]);
    let start = || {
        let mut belljar = ground.belljar();
        belljar.args(["image", "pull", &name]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let pulls: Vec<_> = (0..4).map(|_| start()).collect();
    for pull in pulls {
        let output = pull.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), digest.as_str().unwrap());
    }
    assert!(ask(&ground, &["image", "fsck", "--deep"])["ok"].as_bool().unwrap());
}

/// An image of Docker's own that goes with this.
struct Built(String);

impl Built {
    fn new(ground: &Ground) -> Built {
        let tag = format!("belljar-test/settings-{}:1", std::process::id());
        let base = std::env::var("BELLJAR_GROUND_IMAGE").expect("BELLJAR_GROUND_IMAGE: run scripts/test");
        let recipe = format!(
            "FROM {base}\nENV PATH=/opt/tool/bin:/usr/bin:/bin GREETING=hello HOME=/root ODD.NAME=x\n\
             COPY hi /opt/tool/bin/hi\nWORKDIR /srv/app\nUSER root\nENTRYPOINT [\"hi\"]\nCMD [\"there\"]\n"
        );
        ground.write("context/Dockerfile", recipe);
        let hi =
            ground.write("context/hi", "#!/bin/sh\necho \"$GREETING $1 from $PWD as $(id -u) in $HOME\"\n");
        fs::set_permissions(hi, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let output = docker().args(["build", "-q", "-t", &tag]).arg(ground.path("context")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Built(tag)
    }
}

fn docker() -> Command {
    let host =
        std::env::var("BELLJAR_GROUND_DOCKER_HOST").expect("BELLJAR_GROUND_DOCKER_HOST: run scripts/test");
    let mut docker = Command::new("docker");
    docker.env("DOCKER_HOST", host).env("DOCKER_BUILDKIT", "0");
    docker
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = docker().args(["rmi", "-f", &self.0]).output();
    }
}

#[test]
fn what_an_image_says_of_its_commands_counts_but_not_who_they_are() {
    let ground = Ground::new();
    let built = Built::new(&ground);
    let import = ground
        .belljar()
        .env("DOCKER_HOST", std::env::var("BELLJAR_GROUND_DOCKER_HOST").unwrap())
        .args(["image", "import", &format!("docker:{}", built.0), "hi:1", "--json"])
        .output()
        .unwrap();
    assert!(import.status.success(), "{import:?}");
    assert_eq!(prints(&ground, "hi:1", &[]), "hello there from /srv/app as 1000 in /home/runner");
    assert_eq!(prints(&ground, "hi:1", &["hi", "you"]), "hello you from /srv/app as 1000 in /home/runner");
    let id = ask(&ground, &["sandbox", "create", "hi:1"])["id"].as_str().unwrap().to_owned();
    let said =
        ground.belljar().args(["sandbox", "exec", &id, "-e", "GREETING=bye", "hi", "all"]).output().unwrap();
    assert_eq!(said.stdout, b"bye all from /srv/app as 1000 in /home/runner\n", "{said:?}");
    ask(&ground, &["sandbox", "rm", &id]);
    // The task's working folder is where its code is; its login shell does not drop the image's path.
    let environment = json!({"environment": {"image": "hi:1", "env": {"GREETING": "hey"}}});
    let report = ground.run(&ground.task("settings", "hi task", &environment)).expect("passed", 0);
    assert_eq!(report.text("run_stdout.txt"), "hey task from /workspace as 1000 in /home/runner\n");
}

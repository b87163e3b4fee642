//! A plain root directory as image, and images of the store.

pub(crate) mod registry;
mod store;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::caller::Caller;
use crate::ground::{Ground, tool};

/// A root directory with a shell and a few programs of this machine, and a `bin/answer` for a test to fill in.
pub(crate) fn small_root(ground: &Ground) -> PathBuf {
    let image = ground.path("image");
    for folder in ["bin", "etc", "tmp"] {
        fs::create_dir_all(image.join(folder)).unwrap();
    }
    let mut files = BTreeSet::new();
    for program in ["bash", "cat", "ls"] {
        let source = Path::new("/usr/bin").join(program);
        fs::copy(&source, image.join("bin").join(program)).unwrap();
        files.extend(libraries(&source));
    }
    symlink("bash", image.join("bin/sh")).unwrap();
    for file in files {
        let target = image.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, &target).unwrap();
    }
    fs::write(image.join("etc/marker"), "a root of its own\n").unwrap();
    fs::write(image.join("bin/answer"), "#!/bin/bash\n").unwrap();
    fs::set_permissions(image.join("bin/answer"), Permissions::from_mode(0o755)).unwrap();
    ground.give("image");
    image
}

/// The absolute paths among what `ldd` prints.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let text = tool("ldd", &[&program.to_string_lossy()], Path::new("/"));
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

fn a_root_directory_is_the_whole_system(caller: Caller) {
    let ground = Ground::of(caller);
    let image = small_root(&ground);
    let before = tool("find", &[".", "-printf", "%p %s %m %U %T@\n"], &image);
    let command = "cat /etc/marker hello.txt; ls /usr/bin 2>&1; echo x > /etc/new; echo x > mine; ls /";
    let task = ground.task("own_root", command, &json!({"environment": {"image": image.to_string_lossy()}}));
    let report = ground.run(&task).expect("passed", 0);
    let text = report.text("run_stdout.txt");
    assert!(text.starts_with("a root of its own\nhello\n"), "{report}");
    assert!(!text.contains("python"), "the host's /usr is visible\n{report}");
    assert_eq!(report.record()["image"]["kind"], "directory", "{report}");
    assert!(report.dir().join("workspace/repo/mine").exists(), "{report}");
    let after = tool("find", &[".", "-printf", "%p %s %m %U %T@\n"], &image);
    assert_eq!(before, after, "the guest changed its image");
}

#[test]
fn a_root_directory_for_root() {
    a_root_directory_is_the_whole_system(Caller::Root);
}

#[test]
fn a_root_directory_for_the_delegated_user() {
    a_root_directory_is_the_whole_system(Caller::Delegated);
}

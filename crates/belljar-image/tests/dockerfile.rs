//! What the builder makes of a context, beside what Docker makes of it. Needs root and the test ground.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belljar_image::build::{BuildSpec, Cache, RunEnd, RunStep, Runner, StoreDepot, build};
use belljar_image::dockerfile::Dockerfile;
use belljar_image::ignore::Ignore;
use belljar_image::oci::{ImageConfig, Platform};
use belljar_image::store::{Owners, Store};

struct NoRunner;

impl Runner for NoRunner {
    fn run(
        &mut self,
        _: &RunStep,
        _: &[PathBuf],
        _: &Path,
        _: &mut dyn FnMut(&[u8]),
    ) -> Result<RunEnd, Box<dyn std::error::Error + Send + Sync>> {
        Err("these builds run nothing".into())
    }
}

fn docker(arguments: &[&str]) -> Command {
    let host = std::env::var_os("BELLJAR_GROUND_DOCKER_HOST")
        .expect("BELLJAR_GROUND_DOCKER_HOST is not set: run scripts/test");
    let mut command = Command::new("docker");
    command.env("DOCKER_HOST", host).env("DOCKER_BUILDKIT", "0").args(arguments).stderr(Stdio::inherit());
    command
}

/// Files with their modes and owners, from an archive.
fn listing(tar: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(tar);
    let mut files: Vec<String> = Vec::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        let (path, header) = (entry.path().unwrap().display().to_string(), entry.header());
        // What an engine puts into every container is not the image's.
        let engines = ["dev/", "etc/", "proc/", "sys/", ".dockerenv"];
        if path.starts_with("x/") && !engines.contains(&path.as_str()) {
            let link =
                entry.link_name().unwrap().map(|link| format!(" -> {}", link.display())).unwrap_or_default();
            let (mode, uid, gid) =
                (header.mode().unwrap() & 0o7777, header.uid().unwrap(), header.gid().unwrap());
            files.push(format!("{path}{link} {mode:o} {uid}:{gid}"));
        }
    }
    files.sort();
    files
}

fn by_docker(context: &Path) -> (Vec<String>, ImageConfig) {
    let built = docker(&["build", "-q", "--no-cache"]).arg(context).output().unwrap();
    assert!(built.status.success(), "docker build failed");
    let image = String::from_utf8(built.stdout).unwrap().trim().to_owned();
    let made = docker(&["create", &image, "none"]).output().unwrap();
    let container = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let files = listing(&docker(&["export", &container]).output().unwrap().stdout);
    let saved = docker(&["save", &image]).output().unwrap().stdout;
    docker(&["rm", &container]).output().unwrap();
    docker(&["rmi", &image]).output().unwrap();
    let name = format!("{}.json", image.trim_start_matches("sha256:"));
    let mut archive = tar::Archive::new(saved.as_slice());
    let config = archive.entries().unwrap().map(Result::unwrap).find(|entry| {
        let path = entry.path().unwrap().display().to_string();
        path == name || path == format!("blobs/sha256/{}", name.trim_end_matches(".json"))
    });
    (files, serde_json::from_reader(config.expect("no configuration")).unwrap())
}

fn by_belljar(folder: &Path, context: &Path) -> (Vec<String>, ImageConfig) {
    let place = |name: &str| {
        fs::create_dir(folder.join(name)).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o700)).unwrap();
        folder.join(name)
    };
    let store = Store::open(&place("store"), Owners::Exact).unwrap();
    let mut depot = StoreDepot::new(&store, &place("cache")).unwrap();
    let ignore = fs::read_to_string(context.join(".dockerignore")).unwrap_or_default();
    let spec = BuildSpec {
        dockerfile: Dockerfile::parse(&fs::read_to_string(context.join("Dockerfile")).unwrap()).unwrap(),
        context: Some(context.to_owned()),
        ignore: Ignore::parse(&ignore).unwrap(),
        target: None,
        arguments: BTreeMap::new(),
        platform: Platform::here(),
        epoch: 0,
        cache: Cache::Ignore,
    };
    let built = build(&spec, &mut depot, &mut NoRunner, &mut |_| {}).unwrap();
    let image = store.image(&built.digest.to_string()).unwrap().unwrap();
    let mut files = BTreeMap::new();
    for tree in &image.layers {
        walk(tree, &tree.join("x"), &mut files);
    }
    (files.into_iter().map(|(path, rest)| format!("{path}{rest}")).collect(), built.config)
}

fn walk(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    let Ok(meta) = folder.symlink_metadata() else { return };
    let name = folder.strip_prefix(root).unwrap().display().to_string();
    let end = format!("{:o} {}:{}", meta.mode() & 0o7777, meta.uid(), meta.gid());
    if meta.is_dir() {
        files.insert(format!("{name}/"), format!(" {end}"));
        fs::read_dir(folder).unwrap().for_each(|entry| walk(root, &entry.unwrap().path(), files));
    } else if meta.is_symlink() {
        files.insert(name, format!(" -> {} {end}", fs::read_link(folder).unwrap().display()));
    } else {
        files.insert(name, format!(" {end}"));
    }
}

fn context(folder: &Path, ignore: &str, dockerfile: &str) -> PathBuf {
    let context = folder.join("context");
    let files = [
        "a",
        "a.md",
        "README.md",
        "b/a.md",
        "b/c/a.md",
        "b/c/d",
        "b/e",
        "node/x/y",
        "x[1]",
        "#hash",
        "sp ace",
    ];
    for file in files {
        let path = context.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, file).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    }
    std::os::unix::fs::symlink("../a", context.join("b/link")).unwrap();
    fs::write(context.join(".dockerignore"), ignore).unwrap();
    fs::write(context.join("Dockerfile"), dockerfile).unwrap();
    context
}

/// What both sides make of it.
#[allow(clippy::type_complexity)]
fn both(ignore: &str, dockerfile: &str) -> ((Vec<String>, ImageConfig), (Vec<String>, ImageConfig)) {
    assert!(rustix::process::geteuid().is_root(), "root is needed to keep owners: run scripts/test");
    let folder = tempfile::tempdir().unwrap();
    let context = context(folder.path(), ignore, dockerfile);
    (by_docker(&context), by_belljar(folder.path(), &context))
}

#[test]
fn ignored_files_are_those_docker_ignores() {
    for ignore in [
        "",
        "b",
        "/b/c",
        "*.md\n!README.md",
        "**/*.md",
        "b\n!b/c",
        "b\n!b/c/d",
        "*\n!b/c\n!a",
        "b/**\n!b/e",
        "*\n!*/e",
        "b\n!**/d",
        "[ab]\n",
        "x\\[1\\]\n#hash\n",
        " #hash",
        "sp ace",
        "?\n!b/e",
        "b/*/d",
        "./b/../a",
        "node/",
        "**/x",
        "b/**/a.md",
        "Dockerfile\n.dockerignore",
    ] {
        let (docker, belljar) = both(ignore, "FROM scratch\nCOPY . /x/\n");
        let names = |files: &[String]| -> Vec<String> {
            let names = files.iter().map(|line| line.rsplitn(3, ' ').last().unwrap_or_default().to_owned());
            names.collect()
        };
        assert_eq!(names(&belljar.0), names(&docker.0), "patterns {ignore:?}");
    }
}

#[test]
fn copies_and_settings_are_those_docker_makes() {
    for lines in [
        "COPY a /x/y/z",
        "COPY a /x/",
        "COPY b /x/",
        "COPY --chown=5:6 b /x/deep/er/",
        "COPY --chown=7 a.md /x/y/",
        "WORKDIR /x/w\nCOPY *.md ./",
        "COPY b/link /x/l",
        "COPY b/c node /x/",
        "ENV A=1 B=\"two words\"\nENV C $A\nLABEL l=$C m='x y'\nCOPY a /x/\nEXPOSE 80 90-91/udp\nUSER 5:$A",
        "COPY a /x/\nCMD [\"a\", \"b \\\"c\\\"\"]\nENTRYPOINT e $A\nVOLUME /v /w\nSTOPSIGNAL 9\nARG Q=1 \nSHELL [\"/s\", \"-c\"]\nCMD x",
        "COPY a /x/\nHEALTHCHECK --interval=5s --retries=2 CMD h\nMAINTAINER me",
    ] {
        let (docker, belljar) = both("", &format!("FROM scratch\n{lines}\n"));
        assert_eq!(belljar.0, docker.0, "{lines}");
        assert_eq!(belljar.1.config, docker.1.config, "{lines}");
        let told = |config: &ImageConfig| -> Vec<(String, bool)> {
            let steps = config.history.iter().filter(|step| !step.created_by.contains("HEALTHCHECK"));
            // What is copied is named by a digest of another kind.
            let text = |text: &str| text.split_once(" in ").map_or(text.to_owned(), |(_, to)| to.to_owned());
            steps.map(|step| (text(&step.created_by), step.empty_layer)).collect()
        };
        assert_eq!(told(&belljar.1), told(&docker.1), "{lines}");
    }
}

//! A place where images are built: the ground's Debian in a store, and a context.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use belljar_image::import::{self, Wanted};
use belljar_image::store::{Owners, Store};

use super::flat::Flat;
use crate::ground::{Ground, tool};

/// What the ground's Debian is called, by Docker too.
pub(crate) const BASE: &str = "belljar-ground/debian:12";

/// A place where images are built.
pub(crate) struct Shop {
    pub(crate) ground: Ground,
}

/// What a build said.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Shop {
    /// Root's, with the ground's Debian.
    pub(crate) fn new() -> Shop {
        let ground = Ground::new();
        let from = prepared().display().to_string();
        tool("cp", &["-a", &from, &ground.path("home/images").display().to_string()], ground.base());
        fs::create_dir(ground.path("context")).unwrap();
        Shop { ground }
    }

    pub(crate) fn store(&self) -> Store {
        Store::open(&self.ground.path("home/images"), Owners::Exact).unwrap()
    }

    pub(crate) fn context(&self) -> PathBuf {
        self.ground.path("context")
    }

    /// Empties the context and writes a Dockerfile that starts from the ground's Debian.
    pub(crate) fn dockerfile(&self, lines: &str) {
        fs::remove_dir_all(self.context()).unwrap();
        fs::create_dir(self.context()).unwrap();
        self.put("Dockerfile", &lines.replace("BASE", BASE));
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        self.ground.write(&format!("context/{path}"), text);
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.ground.belljar();
        command.arg("build").args(arguments).arg(self.context());
        command
    }

    pub(crate) fn build(&self, arguments: &[&str]) -> Told {
        Told::new(&self.command(arguments).output().expect("belljar starts"))
    }

    /// Builds something that must succeed; gives the image as it would be exported.
    pub(crate) fn make(&self, arguments: &[&str]) -> Flat {
        let told = self.build(arguments);
        assert_eq!(told.code, 0, "{told:?}");
        self.flat(told.stdout.trim())
    }

    pub(crate) fn flat(&self, digest: &str) -> Flat {
        let store = self.store();
        let image = store.image(digest).unwrap().unwrap();
        let layers = image.manifest_layers.iter().map(|layer| {
            let mut bytes = Vec::new();
            store.blob(layer.digest).unwrap().expect("the layer's bytes").read_to_end(&mut bytes).unwrap();
            bytes
        });
        Flat::new(image.config.clone(), &layers.collect::<Vec<_>>())
    }

    /// Builds one RUN that must succeed; gives what it said.
    pub(crate) fn run(&self, command: &str) -> String {
        self.dockerfile(&format!("FROM BASE\nRUN {command}\n"));
        let told = self.build(&["--no-cache"]);
        assert_eq!(told.code, 0, "{told:?}");
        told.stderr
    }
}

/// A store with the ground's Debian as Docker has it, made once and copied by each test.
fn prepared() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let lock = File::create(folder.join("build-store.lock")).unwrap();
    lock.lock().unwrap();
    let image = String::from_utf8(docker(&["image", "inspect", "-f", "{{.Id}}", BASE])).unwrap();
    let made = folder.join(format!("build-store-{}", image.trim().replace(':', "-")));
    if made.exists() {
        return made;
    }
    let new = folder.join("build-store.new");
    let _ = fs::remove_dir_all(&new);
    fs::create_dir(&new).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o700)).unwrap();
    let archive = folder.join("build-store.tar");
    docker(&["save", "-o", &archive.display().to_string(), BASE]);
    let store = Store::open(&new, Owners::Exact).unwrap();
    let imported = import::import_archive(&store, File::open(&archive).unwrap(), &Wanted::default(), &|_| {});
    let full = BASE.parse::<belljar_image::reference::Reference>().unwrap().to_string();
    store.name(imported.unwrap().image.config_digest, &full).unwrap();
    fs::remove_file(&archive).unwrap();
    fs::rename(&new, &made).unwrap();
    made
}

/// Docker of the test ground, by its classic builder.
pub(crate) fn docker(arguments: &[&str]) -> Vec<u8> {
    let host = std::env::var_os("BELLJAR_GROUND_DOCKER_HOST")
        .expect("BELLJAR_GROUND_DOCKER_HOST is not set: run scripts/test");
    let mut command = Command::new("docker");
    command.env("DOCKER_HOST", host).env("DOCKER_BUILDKIT", "0").args(arguments);
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {arguments:?}: {words}");
    output.stdout
}

impl Told {
    fn new(output: &Output) -> Told {
        Told {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

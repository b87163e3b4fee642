//! Images between this store and other tools: what one writes the others take, and it stays the same image.
//!
//! These need the test ground (`scripts/ground`) and skopeo; without them they fail, they do not skip.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::fs;
use std::path::Path;
use std::process::Command;

use belljar_image::digest::Digest;
use belljar_image::export;
use belljar_image::import::{self, Imported, Wanted};
use belljar_image::store::{Depth, Mend, Notice, Owners, Store, StoredImage};

fn quiet(_: Notice) {}

fn ground(name: &str) -> String {
    let name = format!("BELLJAR_GROUND_{name}");
    std::env::var(&name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/test"))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn docker(arguments: &[&str]) -> String {
    run(Command::new("docker").env("DOCKER_HOST", ground("DOCKER_HOST")).args(arguments))
}

fn skopeo(arguments: &[&str]) -> String {
    run(Command::new("skopeo").arg("--insecure-policy").args(arguments))
}

struct Bench {
    folder: tempfile::TempDir,
    store: Store,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("images"), Owners::Exact).unwrap();
        Bench { folder, store }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn import(&self, name: &str) -> Imported {
        import::import(&self.store, Path::new(&self.path(name)), &Wanted::default(), &quiet).unwrap()
    }

    fn export(&self, image: &StoredImage, name: &str) {
        let mut file = fs::File::create(self.path(name)).unwrap();
        export::export_archive(&self.store, std::slice::from_ref(image), &mut file).unwrap();
    }
}

/// A name that no other test has, and an image of two layers under it, which goes with this.
struct Built(String);

impl Built {
    fn new(bench: &Bench, name: &str) -> Built {
        let tag = format!("belljar-test/{name}:{}", std::process::id());
        fs::create_dir(bench.path("context")).unwrap();
        fs::write(bench.path("context/added"), name).unwrap();
        let recipe =
            "FROM scratch\nCOPY Dockerfile /usr/recipe\nCOPY added /srv/added\nENV A=b\nCMD [\"it\"]\n";
        fs::write(bench.path("context/Dockerfile"), recipe).unwrap();
        let mut build = Command::new("docker");
        build.env("DOCKER_HOST", ground("DOCKER_HOST")).env("DOCKER_BUILDKIT", "0");
        run(build.args(["build", "-q", "-t", &tag, &bench.path("context")]));
        Built(tag)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let mut remove = Command::new("docker");
        let _ = remove.env("DOCKER_HOST", ground("DOCKER_HOST")).args(["rmi", "-f", &self.0]).output();
    }
}

/// What Docker says of an image: its configuration's digest where it has its classic store, and its layers.
fn inspected(reference: &str) -> (Digest, Vec<Digest>) {
    let text = docker(&["image", "inspect", reference]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let layers = value[0]["RootFS"]["Layers"].as_array().unwrap().iter();
    let layers = layers.map(|layer| layer.as_str().unwrap().parse().unwrap()).collect();
    (value[0]["Id"].as_str().unwrap().parse().unwrap(), layers)
}

fn identity(image: &StoredImage) -> (Digest, Vec<Digest>) {
    (image.config_digest, image.diff_ids.clone())
}

#[test]
fn what_docker_saves_is_the_same_image_here_and_goes_back_as_the_same() {
    let bench = Bench::new();
    let built = Built::new(&bench, "there-and-back");
    let expected = inspected(&built.0);
    docker(&["save", "-o", &bench.path("saved.tar"), &built.0]);
    let imported = bench.import("saved.tar");
    assert_eq!(identity(&imported.image), expected);
    assert!(imported.names.iter().any(|name| name.ends_with(&built.0)), "{:?}", imported.names);
    assert_eq!(fs::read(imported.image.layers.last().unwrap().join("srv/added")).unwrap(), b"there-and-back");
    assert!(bench.store.fsck(Depth::Deep, Mend::No).unwrap().is_clean());

    let tag = Built(format!("belljar-test/back:{}", std::process::id()));
    bench.store.name(imported.image.config_digest, &tag.0).unwrap();
    let image = bench.store.image(&tag.0).unwrap().unwrap();
    bench.export(&image, "exported.tar");
    docker(&["rmi", "-f", &built.0]);
    docker(&["load", "-q", "-i", &bench.path("exported.tar")]);
    assert_eq!(inspected(&tag.0), expected);
}

#[test]
fn what_skopeo_makes_of_it_is_the_same_image_in_every_format() {
    let bench = Bench::new();
    let built = Built::new(&bench, "formats");
    let expected = inspected(&built.0);
    docker(&["save", "-o", &bench.path("saved.tar"), &built.0]);
    let from = format!("docker-archive:{}", bench.path("saved.tar"));
    for (format, name, tail) in [
        ("oci", "layout", ":it"),
        ("oci-archive", "layout.tar", ":it"),
        ("docker-archive", "docker.tar", ":example/it:1"),
    ] {
        skopeo(&["copy", "-q", &from, &format!("{format}:{}{tail}", bench.path(name))]);
        let other = Bench::new();
        let found =
            import::import(&other.store, Path::new(&bench.path(name)), &Wanted::default(), &quiet).unwrap();
        // On the way to OCI skopeo leaves out of the configuration what only Docker has.
        let config = skopeo(&["inspect", "--config", "--raw", &format!("{format}:{}", bench.path(name))]);
        assert_eq!(identity(&found.image), (Digest::of(config.as_bytes()), expected.1.clone()), "{format}");
        assert!(other.store.fsck(Depth::Quick, Mend::No).unwrap().is_clean());
    }
    // Layers that came compressed, as skopeo makes them, and as they came from Docker, are the same trees.
    let one = bench.import("layout");
    assert_eq!(bench.import("saved.tar").image.layers, one.image.layers);
    assert_eq!(bench.store.disk_usage().unwrap().layers, one.image.diff_ids.len() as u64);
}

#[test]
fn what_is_exported_here_others_take_as_the_same_image() {
    let bench = Bench::new();
    let built = Built::new(&bench, "taken");
    docker(&["save", "-o", &bench.path("saved.tar"), &built.0]);
    skopeo(&[
        "copy",
        "-q",
        &format!("docker-archive:{}", bench.path("saved.tar")),
        &format!("oci:{}", bench.path("zipped")),
    ]);
    for source in ["saved.tar", "zipped"] {
        let other = Bench::new();
        let found =
            import::import(&other.store, Path::new(&bench.path(source)), &Wanted::default(), &quiet).unwrap();
        let expected = found.image.config_digest;
        other.store.name(expected, "example/it:1").unwrap();
        let image = other.store.image("example/it:1").unwrap().unwrap();
        other.export(&image, "out.tar");
        export::export_layout(&other.store, &[image], Path::new(&other.path("out"))).unwrap();
        for from in [
            format!("docker-archive:{}", other.path("out.tar")),
            format!("oci-archive:{}:1", other.path("out.tar")),
            format!("oci:{}:1", other.path("out")),
        ] {
            let config = skopeo(&["inspect", "--config", "--raw", &from]);
            assert_eq!(Digest::of(config.as_bytes()), expected, "{source} as {from}");
            // It reads every byte and checks it.
            let copy = format!("dir:{}", other.path("copy"));
            skopeo(&["copy", "-q", &from, &copy]);
        }
        let podman = |arguments: &[&str]| {
            let folders =
                ["--root", &other.path("podman"), "--runroot", &other.path("podman-run")].map(str::to_owned);
            run(Command::new("podman").args(folders).args(["--storage-driver", "vfs"]).args(arguments))
        };
        podman(&["load", "-q", "-i", &other.path("out.tar")]);
        let id = podman(&["image", "inspect", "--format", "{{.Id}}", "docker.io/example/it:1"]);
        assert_eq!(Digest::from_hex(id.trim()), Some(expected), "{source}");
    }
}

#[test]
fn a_whole_system_is_imported_from_its_folder_and_runs_elsewhere() {
    let bench = Bench::new();
    let root = ground("ROOT");
    let folder = import::import(&bench.store, Path::new(&root), &Wanted::default(), &quiet).unwrap().image;
    assert!(bench.store.fsck(Depth::Quick, Mend::No).unwrap().is_clean());
    let tag = Built(format!("belljar-test/system:{}", std::process::id()));
    bench.store.name(folder.config_digest, &tag.0).unwrap();
    bench.export(&bench.store.image(&tag.0).unwrap().unwrap(), "system.tar");
    docker(&["load", "-q", "-i", &bench.path("system.tar")]);
    assert_eq!(inspected(&tag.0), identity(&folder));
    let said = docker(&["run", "--rm", "--network=none", &tag.0, "python3", "-c", "print(1 + 1)"]);
    assert_eq!(said, "2\n");
}

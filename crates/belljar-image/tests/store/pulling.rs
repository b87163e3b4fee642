//! Pulls from a real registry into the store: killed at any point, and wanted by several at once.

use std::fs::File;
use std::io::{self, Read};
use std::process::Stdio;
use std::sync::atomic::AtomicBool;

use belljar_image::digest::Digest;
use belljar_image::oci::Platform;
use belljar_image::reference::Name;
use belljar_image::registry::{self, Client, Progress, Settings};
use belljar_image::store::{Depth, Mend, Notice, Store};

use crate::crash::Killed;
use crate::ground::Registry;
use crate::made::{Made, Place, child, owners, quiet, sizeable, variable};
use crate::relay::Relay;

static GO_ON: AtomicBool = AtomicBool::new(false);

fn watch() -> registry::Watch<'static> {
    registry::Watch { cancel: &GO_ON, progress: &|_: Progress| {} }
}

fn name(address: &str) -> Name {
    format!("{address}/some/image:1").parse().unwrap()
}

struct Blobs(Made);

impl registry::Origin for Blobs {
    fn open(&self, digest: Digest, offset: u64) -> io::Result<Box<dyn Read + '_>> {
        let bytes = self.0.file(digest).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(&bytes[usize::try_from(offset).unwrap()..]))
    }
}

/// A registry that has the image.
fn filled() -> Registry {
    let registry = Registry::start();
    let image = sizeable();
    let manifest = image.manifest.clone();
    let client = Client::new(Settings::default()).unwrap();
    client.push(&name(&registry.address()), &manifest, &Blobs(image), None, watch()).unwrap();
    registry
}

/// Pulls when the gate opens, where there is one, and tells what it did.
#[test]
#[ignore = "a part of other tests, which start it as a process of its own"]
fn pull() {
    let store = Store::open(&variable("STORE"), owners()).unwrap();
    if std::env::var_os("GATE").is_some() {
        File::open(variable("GATE")).unwrap().lock_shared().unwrap();
    }
    let client = Client::new(Settings::default()).unwrap();
    let told = |notice: Notice| println!("told {notice:?}");
    let image = name(variable("REGISTRY").to_str().unwrap());
    let pulled = store.pull(&client, &image, &Platform::here(), &told, watch()).unwrap();
    assert_eq!(pulled.config_digest, sizeable().image());
}

#[test]
fn killed_at_any_time_of_a_pull() {
    let registry = filled();
    Killed::new(Place::new(), "pulling::pull", &[("REGISTRY", registry.address())]).at_any_time();
}

#[test]
fn processes_that_pull_the_same_image_do_the_work_once() {
    let registry = filled();
    let relay = Relay::start(registry.port);
    let (place, image) = (Place::new(), sizeable());
    let gate = File::create(place.path("gate")).unwrap();
    gate.lock().unwrap();
    let paths = ["images", "gate"].map(|name| place.path(name).display().to_string());
    let address = relay.address();
    let variables = [("STORE", paths[0].as_str()), ("GATE", &paths[1]), ("REGISTRY", &address)];
    let start = || child("pulling::pull", &variables).stdout(Stdio::piped()).spawn().unwrap();
    let children: Vec<_> = (0..3).map(|_| start()).collect();
    gate.unlock().unwrap();
    let mut told = String::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        told += &String::from_utf8(output.stdout).unwrap();
    }
    for layer in 0..2 {
        let unpacking = format!("told {:?}", Notice::Unpacking(image.diff_id(layer)));
        assert_eq!(told.matches(&unpacking).count(), 1, "{told}");
        let fetched = format!("get /v2/some/image/blobs/{}", Digest::of(image.blob(layer)));
        assert_eq!(relay.asked(&fetched).len(), 1);
    }
    assert!(place.store.fsck(Depth::Deep, Mend::No).unwrap().is_clean());
    assert!(place.store.layer(image.diff_id(0), &quiet).unwrap().is_some());
}

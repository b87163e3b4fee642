//! Push and pull with the real registry, and what happens when the way to it is cut.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_image::digest::Digest;
use belljar_image::registry::{Progress, RegistryError, Settings, Watch};

use crate::folder::Folder;
use crate::ground::Registry;
use crate::relay::{Direction, Relay};
use crate::sample::{Sample, client, here, list, name, settings, watch};

fn there(folder: &Folder, sample: &Sample) {
    for (digest, bytes) in &sample.blobs {
        assert_eq!(folder.read(*digest).as_ref(), Some(bytes));
    }
    assert_eq!(folder.read(sample.digest()).as_ref(), Some(&sample.manifest));
    let mut layers = folder.layers.lock().unwrap().clone();
    let mut expected = sample.layers.clone();
    layers.sort();
    expected.sort();
    assert_eq!(layers, expected);
}

#[test]
fn what_was_pushed_is_pulled_and_pulling_again_transfers_nothing() {
    let registry = Registry::start();
    let relay = Relay::start(registry.port);
    let sample = Sample::new(&[300_000, 1, 70_000, 0], "amd64");
    let (client, folder) = (client(settings()), Folder::new());
    let image = name(&format!("{}/a/b:1", relay.address()));

    let pushed = client.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    assert_eq!(pushed.digest, sample.digest());
    assert_eq!(relay.asked("patch /v2/").len(), 4, "the empty blob needs none, the configuration does");

    relay.forget();
    client.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    assert_eq!((relay.asked("patch /v2/").len(), relay.asked("post /v2/").len()), (0, 0));
    assert_eq!(relay.asked("head /v2/").len(), 5);

    let pulled = client.pull(&image, &here(), &folder, watch()).unwrap();
    assert_eq!(pulled.resolved.digest, sample.digest());
    assert_eq!(pulled.resolved.name, image.clone().pinned(sample.digest()));
    assert_eq!(pulled.config.rootfs.diff_ids, sample.layers);
    there(&folder, &sample);

    relay.forget();
    let again = client.pull(&image, &here(), &folder, watch()).unwrap();
    assert_eq!(again, pulled);
    assert_eq!((relay.asked("head /v2/").len(), relay.asked("get /v2/").len()), (1, 0));
    assert!(relay.answered() < 2000, "{} bytes", relay.answered());

    relay.forget();
    client.pull(&pulled.resolved.name, &here(), &folder, watch()).unwrap();
    assert_eq!((relay.asked("head /v2/").len(), relay.asked("get /v2/").len()), (0, 0));
}

#[test]
fn a_blob_is_taken_from_another_repository() {
    let registry = Registry::start();
    let relay = Relay::start(registry.port);
    let sample = Sample::new(&[50_000], "amd64");
    let client = client(settings());
    let at = |path: &str| name(&format!("{}/{path}", relay.address()));
    client.push(&at("first"), &sample.manifest, &sample, None, watch()).unwrap();
    relay.forget();
    client.push(&at("second"), &sample.manifest, &sample, Some("first"), watch()).unwrap();
    assert_eq!((relay.asked("post /v2/").len(), relay.asked("patch /v2/").len()), (2, 0));
    let folder = Folder::new();
    client.pull(&at("second"), &here(), &folder, watch()).unwrap();
    there(&folder, &sample);
}

#[test]
fn the_image_for_the_machine_is_chosen_from_a_list() {
    let registry = Registry::start();
    let client = client(settings());
    let at = |tag: &str| name(&format!("{}/multi:{tag}", registry.address()));
    let (amd, arm) = (Sample::new(&[1000], "amd64"), Sample::new(&[2000], "arm64"));
    for (sample, tag) in [(&amd, "amd"), (&arm, "arm")] {
        client.push(&at(tag), &sample.manifest, sample, None, watch()).unwrap();
    }
    let both = list(&[(&arm, "arm64"), (&amd, "amd64")]);
    let pushed = client.push_list(&at("all"), &both, watch()).unwrap();
    assert_eq!(pushed.digest, Digest::of(&both));

    let folder = Folder::new();
    let pulled = client.pull(&at("all"), &here(), &folder, watch()).unwrap();
    assert_eq!(pulled.resolved.digest, amd.digest());
    assert_eq!(pulled.resolved.lists, [(Digest::of(&both), both.clone())]);
    assert_eq!(folder.read(Digest::of(&both)), Some(both));
    there(&folder, &amd);

    let mut wanted = here();
    wanted.architecture = "riscv64".to_owned();
    let error = client.pull(&at("all"), &wanted, &folder, watch()).unwrap_err().to_string();
    assert!(error.ends_with("nothing for linux/riscv64; there is: linux/arm64, linux/amd64"), "{error}");
    let error = client.pull(&at("arm"), &here(), &Folder::new(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::NoPlatform { .. }), "{error}");
}

#[test]
fn what_is_not_there_is_told() {
    let registry = Registry::start();
    let client = client(settings());
    for image in ["none:1", &format!("none@{}", Digest::of(b"x"))] {
        let image = name(&format!("{}/{image}", registry.address()));
        let error = client.pull(&image, &here(), &Folder::new(), watch()).unwrap_err();
        assert!(matches!(error, RegistryError::NotFound { .. }), "{error}");
        assert!(error.to_string().contains("in repository none"), "{error}");
    }
    drop(registry);
    let image = name("127.0.0.1:1/x");
    let error = client.pull(&image, &here(), &Folder::new(), watch()).unwrap_err().to_string();
    assert_eq!(error, "registry 127.0.0.1:1 cannot be reached: nobody listens there");
}

#[test]
fn a_pull_that_is_cut_goes_on_where_it_was() {
    let registry = Registry::start();
    let relay = Relay::start(registry.port);
    let sample = Sample::new(&[3_000_000], "amd64");
    let client = client(settings());
    let image = name(&format!("{}/x", relay.address()));
    client.push(&image, &sample.manifest, &sample, None, watch()).unwrap();

    relay.forget();
    relay.cut(Direction::Answers, 3, 700_000);
    let (folder, retries) = (Folder::new(), Mutex::new(Vec::new()));
    let note = |progress: Progress| {
        if let Progress::Retry { reason, .. } = progress {
            retries.lock().unwrap().push(reason);
        }
    };
    client.pull(&image, &here(), &folder, Watch { progress: &note, ..watch() }).unwrap();
    there(&folder, &sample);
    assert_eq!((relay.cuts_left(), relay.asked("range: bytes=").len()), (0, 3));
    assert_eq!(retries.lock().unwrap().len(), 3);
    assert!(relay.answered() < 3_200_000, "nothing is fetched twice: {}", relay.answered());
}

#[test]
fn a_pull_that_was_ended_is_resumed_by_the_next_and_a_damaged_part_is_thrown_away() {
    let registry = Registry::start();
    let relay = Relay::start(registry.port);
    let sample = Sample::new(&[3_000_000], "amd64");
    let once = client(Settings { attempts: 1, ..settings() });
    let image = name(&format!("{}/x", relay.address()));
    once.push(&image, &sample.manifest, &sample, None, watch()).unwrap();

    let folder = Folder::new();
    relay.cut(Direction::Answers, 1, 1_000_000);
    let error = once.pull(&image, &here(), &folder, watch()).unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { .. }), "{error}");
    let part = folder.part(sample.layers[0]);
    let length = fs::metadata(&part).unwrap().len();
    assert!(length > 500_000 && length < 3_000_000, "{length}");
    relay.forget();
    once.pull(&image, &here(), &folder, watch()).unwrap();
    assert_eq!(relay.asked("range: bytes="), [format!("range: bytes={length}-")]);
    there(&folder, &sample);

    for damage in [vec![7; 1000], vec![7; 3_000_000], vec![7; 3_000_001]] {
        let folder = Folder::new();
        fs::write(folder.part(sample.layers[0]), &damage).unwrap();
        client(settings()).pull(&image, &here(), &folder, watch()).unwrap();
        there(&folder, &sample);
    }
}

#[test]
fn a_push_that_is_cut_ends_well() {
    let registry = Registry::start();
    let relay = Relay::start(registry.port);
    let sample = Sample::new(&[5_000_000], "amd64");
    let image = name(&format!("{}/x", relay.address()));
    relay.cut(Direction::Requests, 2, 1_500_000);
    let patient = client(Settings { threads: 1, ..settings() });
    patient.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    assert_eq!(relay.cuts_left(), 0);
    // This registry forgets an upload that was cut, so each one started again.
    assert_eq!(relay.asked("post /v2/").len(), 4);
    let folder = Folder::new();
    patient.pull(&image, &here(), &folder, watch()).unwrap();
    there(&folder, &sample);
}

#[test]
fn a_blob_that_was_changed_in_the_registry_is_refused() {
    let registry = Registry::start();
    let sample = Sample::new(&[100_000, 5000], "amd64");
    let client = client(settings());
    let image = name(&format!("{}/x", registry.address()));
    client.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    let path = registry.blob(sample.layers[0]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[50_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let folder = Folder::new();
    let error = client.pull(&image, &here(), &folder, watch()).unwrap_err();
    assert!(matches!(error, RegistryError::WrongDigest { .. }), "{error}");
    assert_eq!(folder.read(sample.layers[0]), None);
    assert_eq!(folder.read(sample.digest()), None, "a manifest is there only with everything it names");
}

#[test]
fn a_pull_that_is_stopped_ends() {
    let registry = Registry::start();
    let sample = Sample::new(&[8_000_000, 8_000_000], "amd64");
    let client = client(settings());
    let image = name(&format!("{}/x", registry.address()));
    client.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    let stop = AtomicBool::new(false);
    let at_once = |progress: Progress| {
        if matches!(progress, Progress::Blob { done, .. } if done > 100_000) {
            stop.store(true, Ordering::Release);
        }
    };
    let watch = Watch { cancel: &stop, progress: &at_once };
    let error = client.pull(&image, &here(), &Folder::new(), watch).unwrap_err();
    assert!(matches!(error, RegistryError::Cancelled), "{error}");
}

#[test]
fn a_layer_that_is_there_twice_comes_once() {
    let registry = Registry::start();
    let relay = Relay::start(registry.port);
    let sample = Sample::of(vec![b"one".to_vec(), b"two".to_vec(), b"one".to_vec()], "amd64");
    let (client, folder) = (client(settings()), Folder::new());
    let image = name(&format!("{}/x", relay.address()));
    client.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    relay.forget();
    client.pull(&image, &here(), &folder, watch()).unwrap();
    assert_eq!(relay.asked("get /v2/x/blobs/").len(), 3, "the configuration and two layers");
    assert_eq!(folder.layers.lock().unwrap().len(), 2);
}

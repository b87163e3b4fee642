//! Several processes with one store.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use belljar_image::import::{self, Wanted};
use belljar_image::store::{Depth, Mend, Notice, Store, StoreError};

use crate::made::{Place, child, owners, quiet, sizeable, small, variable, write_layout};

/// Imports when the gate opens, and tells what it did.
#[test]
#[ignore = "a part of another test, which starts it as a process of its own"]
fn import_when_the_gate_opens() {
    let store = Store::open(&variable("STORE"), owners()).unwrap();
    File::open(variable("GATE")).unwrap().lock_shared().unwrap();
    let told = |notice| println!("told {notice:?}");
    import::import(&store, &variable("LAYOUT"), &Wanted::default(), &told).unwrap();
}

#[test]
fn processes_that_want_the_same_image_do_the_work_once() {
    let place = Place::new();
    let image = sizeable();
    write_layout(&place.path("layout"), &image);
    let gate = File::create(place.path("gate")).unwrap();
    gate.lock().unwrap();
    let paths = ["images", "gate", "layout"].map(|name| place.path(name).display().to_string());
    let variables = [("STORE", paths[0].as_str()), ("GATE", &paths[1]), ("LAYOUT", &paths[2])];
    let start =
        || child("sharing::import_when_the_gate_opens", &variables).stdout(Stdio::piped()).spawn().unwrap();
    let children: Vec<_> = (0..4).map(|_| start()).collect();
    gate.unlock().unwrap();
    let told: String = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        })
        .collect();
    let count = |notice: Notice| told.matches(&format!("told {notice:?}")).count();
    for layer in 0..2 {
        assert_eq!(count(Notice::Unpacking(image.diff_id(layer))), 1, "{told}");
        assert_eq!(count(Notice::There(image.diff_id(layer))), 4, "{told}");
    }
    assert!(place.store.fsck(Depth::Deep, Mend::No).unwrap().is_clean());
    assert_eq!(place.store.list().unwrap().len(), 1);
}

#[test]
fn who_waits_for_another_is_told_so() {
    let place = Place::new();
    let image = small("slow");
    let (waits, proceed) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(proceed);
    let content = crate::made::described("", image.blob(0));
    // The first reads nothing until the second says that it waits.
    let slow = |_: u64| {
        gate.lock().unwrap().recv().map_err(std::io::Error::other)?;
        Ok(image.blob(0))
    };
    std::thread::scope(|scope| {
        let (started, is_started) = std::sync::mpsc::channel();
        let started = std::sync::Mutex::new(started);
        let first = scope.spawn({
            let (place, content, image) = (&place, &content, &image);
            move || {
                let told = |notice| {
                    if matches!(notice, Notice::Unpacking(_)) {
                        started.lock().unwrap().send(()).unwrap();
                    }
                };
                place.store.add_layer(content, image.diff_id(0), slow, &told).unwrap();
            }
        });
        is_started.recv().unwrap();
        let waits = std::sync::Mutex::new(waits);
        let told = |notice| {
            if notice == Notice::Waiting(image.diff_id(0)) {
                waits.lock().unwrap().send(()).unwrap();
            }
        };
        let unused = |_: u64| -> std::io::Result<&[u8]> { panic!("the work was done twice") };
        place.store.add_layer(&content, image.diff_id(0), unused, &told).unwrap();
        first.join().unwrap();
    });
}

#[test]
fn a_lease_that_another_process_has_keeps_the_image() {
    let place = Place::new();
    let image = small("held");
    write_layout(&place.path("layout"), &image);
    place.import(&place.path("layout"));
    let lease = place.store.hold(image.image(), &quiet).unwrap();
    // The lock goes with the open file, so it is this process's that has it as its input.
    let mut keeper = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(lease)))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(matches!(place.store.remove(image.image()), Err(StoreError::InUse { .. })));
    assert!(place.store.image(&image.image().to_string()).unwrap().is_some());
    keeper.kill().unwrap();
    let mut rest = Vec::new();
    keeper.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    keeper.wait().unwrap();
    place.store.remove(image.image()).unwrap();
    assert!(matches!(place.store.hold(image.image(), &quiet), Err(StoreError::NoImage(_))));
}

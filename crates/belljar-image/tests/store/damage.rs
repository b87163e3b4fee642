//! Damage is found, and mended where that is possible.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use belljar_image::digest::Digest;
use belljar_image::store::{Cure, Depth, Evict, Mend, Report};

use crate::made::{Made, Place, quiet, small, write_layout};

/// Changes a byte as a bad disk would: neither length nor time tell of it.
fn flip(path: &Path) {
    let time = fs::metadata(path).unwrap().modified().unwrap();
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 2).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 2).unwrap();
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn stored() -> (Place, Made) {
    let place = Place::new();
    let image = small("one");
    write_layout(&place.path("layout"), &image);
    place.import(&place.path("layout"));
    place.store.name(image.image(), "it:1").unwrap();
    (place, image)
}

fn check(place: &Place, depth: Depth, mend: Mend) -> Report {
    place.store.fsck(depth, mend).unwrap()
}

fn cures(report: &Report) -> Vec<Cure> {
    report.findings.iter().map(|finding| finding.cure).collect()
}

fn blob_path(place: &Place, bytes: &[u8]) -> std::path::PathBuf {
    place.path("images/blobs/sha256").join(Digest::of(bytes).hex())
}

#[test]
fn a_flipped_byte_in_a_tree_is_found_and_mended_from_the_blob() {
    let (place, image) = stored();
    let tree = place.path("images/layers/sha256").join(image.diff_id(0).hex()).join("tree");
    flip(&tree.join("etc/who"));
    assert!(check(&place, Depth::Quick, Mend::No).is_clean(), "a quick check reads no file");
    let found = check(&place, Depth::Deep, Mend::No);
    assert_eq!(cures(&found), [Cure::None]);
    assert!(found.findings[0].trouble.contains("etc/who"), "{found:?}");
    assert!(found.fetch_again.is_empty(), "{found:?}");
    assert_eq!(cures(&check(&place, Depth::Deep, Mend::Yes)), [Cure::Mended]);
    assert!(check(&place, Depth::Deep, Mend::No).is_clean());
    assert_eq!(fs::read(tree.join("etc/who")).unwrap(), b"one");
}

#[test]
fn what_is_gone_added_or_changed_is_found_quickly() {
    let (place, image) = stored();
    let tree = place.path("images/layers/sha256").join(image.diff_id(0).hex()).join("tree");
    let changes: [&dyn Fn(); 4] = [
        &|| fs::remove_file(tree.join("bin/sh")).unwrap(),
        &|| fs::write(tree.join("bin/added"), "x").unwrap(),
        &|| fs::write(tree.join("bin/sh"), "longer than it was").unwrap(),
        &|| fs::remove_dir_all(&tree).unwrap(),
    ];
    for change in changes {
        change();
        assert_eq!(cures(&check(&place, Depth::Quick, Mend::Yes)), [Cure::Mended]);
        assert!(check(&place, Depth::Deep, Mend::No).is_clean());
    }
}

#[test]
fn a_flipped_byte_in_a_blob_is_found_and_the_blob_dropped() {
    let (place, image) = stored();
    flip(&blob_path(&place, image.blob(0)));
    assert_eq!(cures(&check(&place, Depth::Deep, Mend::No)), [Cure::None]);
    assert_eq!(cures(&check(&place, Depth::Deep, Mend::Yes)), [Cure::Removed]);
    let after = check(&place, Depth::Deep, Mend::No);
    assert!(after.is_clean() && after.fetch_again.is_empty(), "{after:?}");
    assert!(place.store.image("it:1").unwrap().is_some(), "its files are all there");
}

#[test]
fn damage_that_cannot_be_mended_names_the_image_to_fetch_and_it_can_be_had_again() {
    let (place, image) = stored();
    let tree = place.path("images/layers/sha256").join(image.diff_id(0).hex()).join("tree");
    flip(&blob_path(&place, image.blob(0)));
    flip(&tree.join("etc/who"));
    let report = check(&place, Depth::Deep, Mend::Yes);
    assert_eq!(cures(&report), [Cure::Removed, Cure::Removed]);
    assert_eq!(report.fetch_again, ["it:1"]);
    assert!(place.store.image("it:1").unwrap().is_none());
    assert!(check(&place, Depth::Deep, Mend::No).is_clean());
    place.import(&place.path("layout"));
    assert_eq!(fs::read(tree.join("etc/who")).unwrap(), b"one");
    assert!(place.store.image("it:1").unwrap().is_some(), "its name is still known");
}

#[test]
fn damaged_documents_are_found_without_depth() {
    let (place, image) = stored();
    flip(&blob_path(&place, &image.config));
    let report = check(&place, Depth::Quick, Mend::Yes);
    assert_eq!(report.fetch_again, ["it:1"]);
    place.import(&place.path("layout"));
    assert!(check(&place, Depth::Deep, Mend::No).is_clean());
    fs::write(place.path("images/images").join(format!("{}.json", image.image().hex())), "{").unwrap();
    let report = check(&place, Depth::Quick, Mend::Yes);
    assert_eq!(cures(&report), [Cure::Removed]);
    assert_eq!(report.fetch_again, [image.image().to_string()]);
}

#[test]
fn what_is_in_use_is_not_mended_under_its_users() {
    let (place, image) = stored();
    let tree = place.path("images/layers/sha256").join(image.diff_id(0).hex()).join("tree");
    flip(&tree.join("etc/who"));
    let lease = place.store.hold(image.image(), &quiet).unwrap();
    assert_eq!(cures(&check(&place, Depth::Deep, Mend::Yes)), [Cure::InUse]);
    drop(lease);
    assert_eq!(cures(&check(&place, Depth::Deep, Mend::Yes)), [Cure::Mended]);
}

#[test]
fn a_layer_of_no_image_is_not_trusted_after_a_restart_of_the_machine() {
    let place = Place::new();
    let image = small("unsynced");
    let content = crate::made::described("", image.blob(0));
    let add = || place.store.add_layer(&content, image.diff_id(0), |_| Ok(image.blob(0)), &quiet).unwrap();
    let folder = place.path("images/layers/sha256").join(image.diff_id(0).hex());
    drop(add());
    let json = fs::read_to_string(folder.join("layer.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&json).unwrap();
    record["boot"] = "another".into();
    fs::write(folder.join("layer.json"), record.to_string()).unwrap();
    fs::write(folder.join("tree/etc/who"), "").unwrap();
    drop(add());
    assert_eq!(fs::read(folder.join("tree/etc/who")).unwrap(), b"unsynced");
    place.store.evict_to(0, Evict::Everything).unwrap();
    assert!(!folder.exists());
}

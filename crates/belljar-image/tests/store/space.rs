//! What goes, and what stays.

use std::time::{Duration, SystemTime};

use belljar_image::store::{Depth, Evict, Mend, Origin, StoreError};

use crate::made::{Made, Place, described, quiet, small, tar_of, write_layout};

fn stored(place: &Place, name: &str, image: &Made, age: u64) {
    write_layout(&place.path(name), image);
    place.import(&place.path(name));
    place.store.name(image.image(), name).unwrap();
    let record = place.path("images/images").join(format!("{}.json", image.image().hex()));
    let time = SystemTime::now() - Duration::from_secs(age);
    std::fs::File::open(record).unwrap().set_modified(time).unwrap();
}

fn can_be_fetched(place: &Place, image: &Made) {
    let origin =
        Origin { from: "a test".to_owned(), repo_digest: Some(format!("x@{}", image.entry().digest)) };
    place.store.add_image(&image.manifest, &image.config, &origin, &quiet).unwrap();
}

fn names(place: &Place) -> Vec<String> {
    let mut names: Vec<String> =
        place.store.list().unwrap().into_iter().flat_map(|image| image.names).collect();
    names.sort();
    names
}

#[test]
fn layers_that_images_share_are_stored_once_and_go_with_the_last() {
    let place = Place::new();
    let base = tar_of(&[("bin/", b""), ("bin/sh", b"shell")]);
    let one = Made::new(vec![base.clone(), tar_of(&[("one", b"1")])], "one");
    let two = Made::new(vec![base.clone(), tar_of(&[("two", b"2")])], "two");
    stored(&place, "one", &one, 0);
    stored(&place, "two", &two, 0);
    assert_eq!(place.store.disk_usage().unwrap().layers, 3);
    let removed = place.store.remove(one.image()).unwrap();
    assert_eq!((removed.names, removed.freed.layers), (vec!["one".to_owned()], vec![one.diff_id(1)]));
    assert!(place.store.image("two").unwrap().unwrap().layers.iter().all(|layer| layer.is_dir()));
    assert!(place.store.fsck(Depth::Deep, Mend::No).unwrap().is_clean());
    place.store.remove(two.image()).unwrap();
    let usage = place.store.disk_usage().unwrap();
    assert_eq!((usage.layers, usage.bytes()), (0, 0));
    assert!(matches!(place.store.remove(two.image()), Err(StoreError::NoImage(_))));
}

#[test]
fn space_is_made_of_what_was_not_used_for_longest_and_never_of_what_is_held() {
    let place = Place::new();
    for (name, age) in [("old", 3000), ("middle", 2000), ("new", 1000)] {
        stored(&place, name, &small(name), age);
    }
    let lease = place.store.hold(small("old").image(), &quiet).unwrap();
    let before = place.store.disk_usage().unwrap();
    let freed = place.store.evict_to(before.bytes() - 1, Evict::Everything).unwrap();
    assert_eq!((freed.images.len(), freed.blobs.len()), (0, 1), "compressed bytes go first: {freed:?}");
    let freed = place.store.evict_to(before.trees - 1, Evict::Everything).unwrap();
    assert_eq!(freed.images, [small("middle").image()]);
    place.store.touch(small("new").image()).unwrap();
    place.store.evict_to(0, Evict::Everything).unwrap();
    assert_eq!(names(&place), ["old"]);
    assert!(place.store.fsck(Depth::Deep, Mend::No).unwrap().is_clean());
    drop(lease);
    place.store.evict_to(0, Evict::Everything).unwrap();
    assert!(names(&place).is_empty());
}

#[test]
fn what_cannot_be_fetched_again_is_only_taken_when_that_is_said() {
    let place = Place::new();
    stored(&place, "imported", &small("imported"), 5000);
    stored(&place, "fetched", &small("fetched"), 10);
    can_be_fetched(&place, &small("fetched"));
    let freed = place.store.evict_to(0, Evict::Fetchable).unwrap();
    assert_eq!(freed.images, [small("fetched").image()]);
    assert_eq!(names(&place), ["imported"]);
    let blob = described("", small("imported").blob(0)).digest;
    assert!(place.store.blob(blob).unwrap().is_some());
}

#[test]
fn a_layer_that_is_being_added_to_an_image_is_not_pruned() {
    let place = Place::new();
    let image = small("adding");
    let content = described("", image.blob(0));
    let layer = place.store.add_layer(&content, image.diff_id(0), |_| Ok(image.blob(0)), &quiet).unwrap();
    assert_eq!(place.store.prune().unwrap().layers, []);
    assert!(place.store.blob(content.digest).unwrap().is_some());
    drop(layer);
    let freed = place.store.prune().unwrap();
    assert_eq!((freed.layers, freed.blobs), (vec![image.diff_id(0)], vec![content.digest]));
    let origin = Origin { from: "a test".to_owned(), repo_digest: None };
    let error = place.store.add_image(&image.manifest, &image.config, &origin, &quiet).unwrap_err();
    assert!(matches!(error, StoreError::NoLayer(_)), "{error}");
}

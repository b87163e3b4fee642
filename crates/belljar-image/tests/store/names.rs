//! Names, digests and their beginnings.

use std::collections::HashMap;
use std::fs;

use belljar_image::store::{Origin, StoreError};

use crate::made::{Made, Place, quiet, small, write_layout};

fn add(place: &Place, image: &Made) {
    let origin = Origin { from: "a test".to_owned(), repo_digest: None };
    place.store.add_image(&image.manifest, &image.config, &origin, &quiet).unwrap();
}

#[test]
fn hostile_names_are_names_or_refused_but_never_paths() {
    let place = Place::new();
    let image = Made::new(Vec::new(), "empty");
    add(&place, &image);
    let before = fs::read_dir(place.folder.path()).unwrap().count();
    for name in [
        "../../x",
        "/etc/passwd",
        "a/../b",
        ".",
        "..",
        "names/x.json",
        &"long".repeat(256),
        "%00",
        "ümlaut:1",
    ] {
        place.store.name(image.image(), name).unwrap();
        assert_eq!(place.store.image(name).unwrap().unwrap().config_digest, image.image(), "{name}");
    }
    for name in [
        "",
        "a\nb",
        "a\0b",
        "a b",
        "\u{1b}[2J",
        &"x".repeat(1025),
        &image.image().to_string(),
        &image.image().hex(),
    ] {
        assert!(matches!(place.store.name(image.image(), name), Err(StoreError::BadName { .. })), "{name:?}");
    }
    assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), before);
    assert_eq!(place.store.image("../../x").unwrap().unwrap().names.len(), 9);
    assert!(place.store.untag("../../x").unwrap());
    assert!(!place.store.untag("../../x").unwrap());
    assert!(place.store.image("../../x").unwrap().is_none());
}

#[test]
fn a_name_moves_and_the_image_that_had_it_stays() {
    let place = Place::new();
    let (one, two) = (Made::new(Vec::new(), "one"), Made::new(Vec::new(), "two"));
    add(&place, &one);
    add(&place, &two);
    place.store.name(one.image(), "it:1").unwrap();
    place.store.name(two.image(), "it:1").unwrap();
    assert_eq!(place.store.image("it:1").unwrap().unwrap().config_digest, two.image());
    assert_eq!(place.store.list().unwrap().len(), 2);
    assert!(matches!(place.store.name(small("x").image(), "it:1"), Err(StoreError::NoImage(_))));
}

#[test]
fn a_beginning_names_one_image_or_is_refused_with_all_it_could_be() {
    let place = Place::new();
    let mut seen: HashMap<String, u32> = HashMap::new();
    let (first, second) = (0..)
        .find_map(|number: u32| {
            let image = Made::new(Vec::new(), &number.to_string());
            seen.insert(image.image().hex()[..4].to_owned(), number).map(|earlier| (earlier, number))
        })
        .unwrap();
    let [first, second] = [first, second].map(|number| Made::new(Vec::new(), &number.to_string()));
    add(&place, &first);
    add(&place, &second);
    let hex = first.image().hex();
    let error = place.store.image(&hex[..4]).unwrap_err();
    assert!(matches!(&error, StoreError::Ambiguous { candidates, .. } if candidates.len() == 2), "{error}");
    for reference in
        [hex.clone(), first.image().to_string(), hex[..20].to_owned(), format!("sha256:{}", &hex[..20])]
    {
        assert_eq!(
            place.store.image(&reference).unwrap().unwrap().config_digest,
            first.image(),
            "{reference}"
        );
    }
    assert!(place.store.image(&hex[..3]).unwrap().is_none(), "too short to mean anything");
    assert!(place.store.image("0123456789abcdef").unwrap().is_none());
}

#[test]
fn an_image_is_found_by_where_it_was_fetched_from() {
    let place = Place::new();
    let image = small("fetched");
    write_layout(&place.path("layout"), &image);
    place.import(&place.path("layout"));
    let known = format!("example/it@{}", image.entry().digest);
    let origin = Origin { from: "a registry".to_owned(), repo_digest: Some(known.clone()) };
    place.store.add_image(&image.manifest, &image.config, &origin, &quiet).unwrap();
    let found = place.store.image(&known).unwrap().unwrap();
    assert_eq!((found.config_digest, found.repo_digests), (image.image(), vec![known]));
    assert_eq!(place.store.list().unwrap().len(), 1);
}

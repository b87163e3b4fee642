//! Archives that were made to do harm.

use std::fs;
use std::os::unix::fs::symlink;

use belljar_image::digest::Digest;
use belljar_image::import::{self, ImportError, Wanted};
use belljar_image::store::{Depth, Mend};

use crate::made::{Place, layout_files, quiet, small, tar_of, write_files};

fn import(place: &Place, name: &str) -> Result<import::Imported, ImportError> {
    import::import(&place.store, &place.path(name), &Wanted::default(), &quiet)
}

#[test]
fn names_in_an_archive_lead_to_nothing_outside_of_it() {
    let place = Place::new();
    for outside in ["/etc/hostname", "../../../../../../etc/hostname", "x/../../etc/hostname", "link"] {
        let table = serde_json::json!([{"Config": outside, "Layers": []}]).to_string();
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(table.len() as u64);
        archive.append_data(&mut header, "manifest.json", table.as_bytes()).unwrap();
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_size(0);
        archive.append_link(&mut link, "link", "/etc/hostname").unwrap();
        fs::write(place.path("it.tar"), archive.into_inner().unwrap()).unwrap();
        let result = import(&place, "it.tar");
        assert!(matches!(result, Err(ImportError::Missing(_))), "{outside}: {result:?}");
    }
}

#[test]
fn links_in_an_archive_that_go_in_circles_end() {
    let place = Place::new();
    let table = serde_json::json!([{"Config": "a", "Layers": []}]).to_string();
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(table.len() as u64);
    archive.append_data(&mut header, "manifest.json", table.as_bytes()).unwrap();
    for (from, to) in [("a", "b"), ("b", "a")] {
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_size(0);
        archive.append_link(&mut link, from, to).unwrap();
    }
    fs::write(place.path("it.tar"), archive.into_inner().unwrap()).unwrap();
    assert!(matches!(import(&place, "it.tar"), Err(ImportError::Missing(_))));
}

#[test]
fn links_in_a_layout_are_not_followed() {
    let place = Place::new();
    let image = small("linked");
    write_files(&place.path("layout"), &layout_files(&[&image], vec![image.entry()]));
    let blob = place.path("layout/blobs/sha256").join(Digest::of(&image.manifest).hex());
    fs::rename(&blob, place.path("elsewhere")).unwrap();
    symlink(place.path("elsewhere"), &blob).unwrap();
    assert!(import(&place, "layout").is_err());
}

#[test]
fn documents_that_are_too_large_or_no_documents_are_refused() {
    let place = Place::new();
    let large = vec![b' '; 9 << 20];
    for (name, bytes) in [("large", large.as_slice()), ("broken", b"{\"manifests\":[{}]}"), ("empty", b"")] {
        fs::write(place.path(name), tar_of(&[("index.json", bytes), ("oci-layout", b"{}")])).unwrap();
        let error = import(&place, name).unwrap_err();
        assert!(matches!(error, ImportError::Read { .. } | ImportError::Document { .. }), "{name}: {error}");
    }
}

#[test]
fn content_that_is_not_what_its_name_says_is_refused_and_nothing_stays() {
    let place = Place::new();
    let image = small("swapped");
    let mut files = layout_files(&[&image], vec![image.entry()]);
    let layer = format!("blobs/sha256/{}", Digest::of(image.blob(0)).hex());
    files.insert(layer, small("another").blob(0).to_vec());
    write_files(&place.path("layout"), &files);
    assert!(import(&place, "layout").is_err());
    assert!(place.store.list().unwrap().is_empty());
    let report = place.store.fsck(Depth::Deep, Mend::No).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.layers, 0);
}

#[test]
fn what_is_no_archive_is_told_so() {
    let place = Place::new();
    fs::write(place.path("text"), "this is no archive, and long enough to be sure of that".repeat(100))
        .unwrap();
    let error = import(&place, "text").unwrap_err().to_string();
    assert!(error.contains("tar"), "{error}");
    assert_eq!(fs::read_dir(place.path("images/scratch")).unwrap().count(), 0);
}

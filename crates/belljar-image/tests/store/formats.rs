//! Every format that images come in, and go out in.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use belljar_image::digest::Digest;
use belljar_image::export::{self, ExportError};
use belljar_image::import::{self, ImportError, Wanted};
use belljar_image::oci::{Descriptor, Platform};
use belljar_image::store::{Evict, StoredImage};

use crate::made::{
    Made, Place, gzip, layout_files, quiet, small, tar_files, tar_of, write_files, write_layout,
};

fn named(image: &Made, name: &str) -> Descriptor {
    let key = "org.opencontainers.image.ref.name".to_owned();
    Descriptor { annotations: BTreeMap::from([(key, name.to_owned())]), ..image.entry() }
}

fn for_platform(image: &Made, os: &str, architecture: &str) -> Descriptor {
    let platform = Platform { architecture: architecture.to_owned(), os: os.to_owned(), variant: None };
    Descriptor { platform: Some(platform), ..image.entry() }
}

fn is_same(found: &StoredImage, image: &Made) {
    assert_eq!(found.config_digest, image.image());
    let diff_ids: Vec<Digest> = image.tars.iter().map(|tar| Digest::of(tar)).collect();
    assert_eq!(found.diff_ids, diff_ids);
}

fn old_docker_archive(image: &Made, links: bool) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |path: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, bytes).unwrap();
    };
    let mut layers = Vec::new();
    for (number, tar) in image.tars.iter().enumerate() {
        add(&format!("{number:064}/layer.tar"), tar);
        layers.push(format!("{number:064}/layer.tar"));
    }
    add(&format!("{}.json", image.image().hex()), &image.config);
    if links {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "again/layer.tar", format!("../{:064}/layer.tar", 0)).unwrap();
        layers[0] = "again/layer.tar".to_owned();
    }
    let config = format!("{}.json", image.image().hex());
    let table =
        serde_json::json!([{"Config": config, "RepoTags": ["old/it:1"], "Layers": layers}]).to_string();
    let mut header = tar::Header::new_gnu();
    header.set_size(table.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, "manifest.json", table.as_bytes()).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn one_image_is_the_same_in_every_format() {
    let image = Made::new(vec![tar_of(&[("bin/", b""), ("bin/sh", b"x")]), tar_of(&[("etc/", b"")])], "same");
    let files = layout_files(&[&image], vec![named(&image, "it:1")]);
    let archive = tar_files(&files);
    let zstd = zstd::encode_all(archive.as_slice(), 1).unwrap();
    let old = old_docker_archive(&image, false);
    let forms: [(&str, Vec<u8>, &str); 6] = [
        ("layout.tar", archive.clone(), "it:1"),
        ("layout.tar.gz", gzip(&archive), "it:1"),
        ("layout.tar.zst", zstd, "it:1"),
        ("docker.tar.gz", gzip(&old), "old/it:1"),
        ("docker.tar", old, "old/it:1"),
        ("docker-links.tar", old_docker_archive(&image, true), "old/it:1"),
    ];
    for (name, bytes, called) in forms {
        let place = Place::new();
        fs::write(place.path(name), bytes).unwrap();
        let imported = place.import(&place.path(name));
        is_same(&imported.image, &image);
        assert_eq!(imported.names, [called], "{name}");
        assert_eq!(fs::read(imported.image.layers[0].join("bin/sh")).unwrap(), b"x", "{name}");
    }
    let place = Place::new();
    write_files(&place.path("layout"), &files);
    is_same(&place.import(&place.path("layout")).image, &image);
}

#[test]
fn a_root_is_the_same_image_however_it_is_compressed() {
    let tar =
        tar_of(&[("./bin/", b""), ("./bin/sh", b"shell"), ("./etc/", b""), ("./etc/os-release", b"NAME=x")]);
    let mut images = Vec::new();
    for (name, bytes) in [
        ("root.tar", tar.clone()),
        ("root.tar.gz", gzip(&tar)),
        ("root.tar.zst", zstd::encode_all(tar.as_slice(), 3).unwrap()),
        ("root.tar.bz2", bzip2(&tar)),
    ] {
        let place = Place::new();
        fs::write(place.path(name), bytes).unwrap();
        let image = place.import(&place.path(name)).image;
        assert_eq!(image.diff_ids, [Digest::of(&tar)], "{name}");
        assert_eq!(fs::read(image.layers[0].join("bin/sh")).unwrap(), b"shell", "{name}");
        images.push(image.config_digest);
    }
    images.dedup();
    assert_eq!(images.len(), 1);
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn an_archive_comes_through_a_pipe_too() {
    let place = Place::new();
    let image = small("piped");
    fs::write(place.path("it.tar"), tar_files(&layout_files(&[&image], vec![image.entry()]))).unwrap();
    let mut cat = std::process::Command::new("cat")
        .arg(place.path("it.tar"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(cat.stdout.take().unwrap()));
    is_same(&import::import_archive(&place.store, pipe, &Wanted::default(), &quiet).unwrap().image, &image);
    cat.wait().unwrap();
}

#[test]
fn a_root_folder_is_packed_and_makes_the_same_bytes_again_when_they_are_gone() {
    let place = Place::new();
    let root = place.path("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::write(root.join("bin/sh"), "shell").unwrap();
    std::os::unix::fs::symlink("bin", root.join("sbin")).unwrap();
    let image = place.import(&root).image;
    assert_eq!(place.import(&root).image.config_digest, image.config_digest);
    let before = export(&place, &image);
    place.store.evict_to(place.store.disk_usage().unwrap().bytes() - 1, Evict::Everything).unwrap();
    assert!(place.store.blob(image.diff_ids[0]).unwrap().is_none(), "the packed bytes are gone");
    assert_eq!(export(&place, &image), before);
}

fn export(place: &Place, image: &StoredImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    export::export_archive(&place.store, std::slice::from_ref(image), &mut bytes).unwrap();
    bytes
}

#[test]
fn an_export_is_the_same_bytes_each_time_and_the_same_image_elsewhere() {
    let place = Place::new();
    let image = small("exported");
    write_layout(&place.path("layout"), &image);
    place.import(&place.path("layout"));
    place.store.name(image.image(), "it:1").unwrap();
    let stored = place.store.image("it:1").unwrap().unwrap();
    let bytes = export(&place, &stored);
    assert_eq!(bytes, export(&place, &stored));
    export::export_layout(&place.store, std::slice::from_ref(&stored), &place.path("out")).unwrap();
    let again = export::export_layout(&place.store, &[stored], &place.path("out"));
    assert!(matches!(again, Err(ExportError::NotEmpty(_))));

    let other = Place::new();
    fs::write(other.path("it.tar"), &bytes).unwrap();
    let imported = other.import(&other.path("it.tar"));
    is_same(&imported.image, &image);
    assert_eq!(imported.image.manifest.digest, image.entry().digest, "its bytes are those it came in");
    assert_eq!(imported.names, ["docker.io/library/it:1"]);
    is_same(&other.import(&place.path("out")).image, &image);
    assert_eq!(other.store.list().unwrap().len(), 1);
}

#[test]
fn a_layer_that_cannot_be_made_again_is_not_exported_as_another() {
    let place = Place::new();
    // No folder is ever packed in this order.
    let image = Made::new(vec![tar_of(&[("z", b"1"), ("a", b"2")])], "odd");
    write_layout(&place.path("layout"), &image);
    let stored = place.import(&place.path("layout")).image;
    place.store.evict_to(place.store.disk_usage().unwrap().bytes() - 1, Evict::Everything).unwrap();
    let result = export::export_archive(&place.store, &[stored], &mut Vec::new());
    assert!(matches!(result, Err(ExportError::NotTheSame { .. })), "{result:?}");
}

fn refusal(path: &Path, wanted: &Wanted) -> String {
    let place = Place::new();
    import::import(&place.store, path, wanted, &quiet).unwrap_err().to_string()
}

#[test]
fn of_several_images_one_is_chosen_by_name_and_platform() {
    let place = Place::new();
    let (one, two) = (small("one"), small("two"));
    let other_machine = Platform { architecture: "s390x".to_owned(), os: "linux".to_owned(), variant: None };
    let foreign = Made::on(&other_machine, vec![tar_of(&[("z", b"")])], "foreign");
    let attestation = small("attestation");
    let entries = vec![
        named(&one, "one:1"),
        named(&two, "two:1"),
        named(&one, "uno:1"),
        for_platform(&foreign, "linux", "s390x"),
        for_platform(&attestation, "unknown", "unknown"),
    ];
    let files = layout_files(&[&one, &two, &foreign, &attestation], entries);
    fs::write(place.path("many.tar"), tar_files(&files)).unwrap();
    let wanted = |name: &str| Wanted { name: Some(name.to_owned()), ..Wanted::default() };
    let import =
        |wanted: &Wanted| import::import(&place.store, &place.path("many.tar"), wanted, &quiet).unwrap();
    is_same(&import(&wanted("two:1")).image, &two);
    is_same(&import(&wanted("uno:1")).image, &one);
    is_same(&import(&Wanted { name: None, platform: other_machine }).image, &foreign);
    let several = refusal(&place.path("many.tar"), &Wanted::default());
    assert!(several.contains("one:1") && several.contains("two:1") && several.contains("s390x"), "{several}");
    assert!(!several.contains("unknown"), "{several}");
    let none = refusal(&place.path("many.tar"), &wanted("three:1"));
    assert!(none.contains("three:1") && none.contains("one:1"), "{none}");
}

#[test]
fn an_index_in_the_index_is_gone_into_and_what_was_left_out_is_passed_over() {
    let place = Place::new();
    let (image, absent) = (small("here"), small("absent"));
    let inner = serde_json::json!({"schemaVersion": 2, "manifests": [
        for_platform(&absent, "linux", "s390x"),
        for_platform(&image, "linux", &Platform::here().architecture),
    ]});
    let inner = serde_json::to_vec(&inner).unwrap();
    let entry = crate::made::described(belljar_image::oci::media::INDEX, &inner);
    let mut files = layout_files(&[&image], vec![entry.clone()]);
    files.insert(format!("blobs/sha256/{}", entry.digest.hex()), inner);
    write_files(&place.path("layout"), &files);
    is_same(&place.import(&place.path("layout")).image, &image);
    let wanted =
        Wanted { name: None, platform: Platform { architecture: "s390x".to_owned(), ..Platform::here() } };
    let result = import::import(&place.store, &place.path("layout"), &wanted, &quiet);
    assert!(matches!(result, Err(ImportError::NoSuch { .. })), "{result:?}");
}

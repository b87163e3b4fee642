//! Blobs and layers on their way in.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read, Write};

use belljar_image::store::{Begun, BlobWriter, StoreError};

use crate::made::{Place, described, gzip, quiet, tar_of};

fn writing<'a>(place: &'a Place, bytes: &[u8]) -> BlobWriter<'a> {
    match place.store.begin_blob(&described("", bytes), &quiet).unwrap() {
        Begun::Writing(writer) => writer,
        Begun::There(blob) => panic!("{blob:?} is there already"),
    }
}

#[test]
fn what_was_written_before_a_crash_is_gone_on_with() {
    let place = Place::new();
    let bytes = b"some bytes that come in two parts";
    writing(&place, bytes).write_all(&bytes[..10]).unwrap();
    let mut writer = writing(&place, bytes);
    assert_eq!(writer.written(), 10);
    writer.write_all(&bytes[10..]).unwrap();
    let blob = writer.commit().unwrap();
    let mut found = Vec::new();
    place.store.blob(blob.digest).unwrap().unwrap().read_to_end(&mut found).unwrap();
    assert_eq!(found, bytes);
    assert!(matches!(place.store.begin_blob(&described("", bytes), &quiet).unwrap(), Begun::There(_)));
}

#[test]
fn wrong_content_is_refused_and_not_kept() {
    let place = Place::new();
    let bytes = b"what was asked for";
    let mut writer = writing(&place, bytes);
    writer.write_all(b"what was sent insa").unwrap();
    assert!(matches!(writer.commit(), Err(StoreError::WrongContent { .. })));
    let mut writer = writing(&place, bytes);
    assert_eq!(writer.written(), 0);
    assert!(writer.write_all(b"what was asked for, and more").is_err());
    drop(writer);
    let mut writer = writing(&place, bytes);
    writer.write_all(&bytes[..4]).unwrap();
    assert!(matches!(writer.commit(), Err(StoreError::WrongContent { .. })));
    assert!(place.store.blob(described("", bytes).digest).unwrap().is_none());
    // What was only too short is still there.
    assert_eq!(writing(&place, bytes).written(), 4);
}

#[test]
fn a_layer_that_broke_off_is_gone_on_with() {
    let place = Place::new();
    let noise: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let tar = tar_of(&[("file", &noise)]);
    let blob = gzip(&tar);
    let diff_id = described("", &tar).digest;
    let half = blob.len() / 2;
    struct Breaks<'a>(&'a [u8]);
    impl Read for Breaks<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { Err(io::ErrorKind::ConnectionReset.into()) } else { self.0.read(buffer) }
        }
    }
    let error = place
        .store
        .add_layer(&described("", &blob), diff_id, |_| Ok(Breaks(&blob[..half])), &quiet)
        .unwrap_err();
    assert!(matches!(error, StoreError::System { .. }), "{error}");
    let from = Cell::new(0);
    let open = |offset| {
        from.set(offset);
        Ok(&blob[usize::try_from(offset).unwrap()..])
    };
    let layer = place.store.add_layer(&described("", &blob), diff_id, open, &quiet).unwrap();
    assert_eq!(from.get(), half as u64);
    assert_eq!(fs::read(layer.tree.join("file")).unwrap(), noise);
}

#[test]
fn a_layer_is_held_to_both_of_its_names() {
    let place = Place::new();
    let (tar, other) = (tar_of(&[("file", b"one")]), tar_of(&[("file", b"two")]));
    let blob = gzip(&tar);
    let add = |content: &[u8], diff_id: &[u8], sent: &[u8]| {
        place.store.add_layer(&described("", content), described("", diff_id).digest, |_| Ok(sent), &quiet)
    };
    assert!(matches!(add(&blob, &other, &blob), Err(StoreError::WrongLayer { .. })));
    let short = &blob[..blob.len() - 1];
    assert!(matches!(
        add(&gzip(&other), &other, &blob),
        Err(StoreError::WrongContent { .. } | StoreError::System { .. })
    ));
    assert!(add(&blob, &tar, short).is_ok(), "the blob is there from the first try, and right");
    let report = place.store.fsck(belljar_image::store::Depth::Deep, belljar_image::store::Mend::No).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.layers, 1);
}

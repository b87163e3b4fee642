//! Each limit has its own word.

use belljar_image::unpack::{Limits, Options, UnpackError};

use super::item::{file, folder, layer};
use super::tree::{ownership, unpack_at};

fn refused(items: &[super::item::Item], limits: Limits) -> UnpackError {
    let place = tempfile::tempdir().unwrap();
    unpack_at(&layer(items), place.path(), &Options { ownership: ownership(), limits }).unwrap_err()
}

#[test]
fn every_limit_is_kept() {
    let limits = Limits::default();
    let error = refused(&[file("a", "x".repeat(5000))], Limits { bytes: 4000, ..limits });
    assert!(matches!(error, UnpackError::TooManyBytes { limit: 4000 }), "{error:?}");
    let error = refused(&[folder("a"), folder("b"), folder("a")], Limits { entries: 2, ..limits });
    assert!(matches!(error, UnpackError::TooManyEntries { limit: 2 }), "{error:?}");
    let error = refused(&[file("abc/def", "")], Limits { path: 6, ..limits });
    assert!(matches!(error, UnpackError::PathTooLong { limit: 6, .. }), "{error:?}");
}

#[test]
fn a_folder_in_use_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("mine"), "x").unwrap();
    let error = unpack_at(&layer(&[file("mine", "y")]), place.path(), &super::tree::options()).unwrap_err();
    assert!(matches!(error, UnpackError::NotEmpty));
    assert_eq!(std::fs::read_to_string(place.path().join("mine")).unwrap(), "x");
}

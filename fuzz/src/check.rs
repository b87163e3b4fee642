//! What must hold whatever a layer says.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use belljar_image::pack::{self, Owners, PackError, Times, pack};
use belljar_image::unpack::{self, Limits, Ownership, Unpacked, unpack};

/// Small, so that no input takes long.
const LIMITS: Limits = Limits { bytes: 8 << 20, entries: 2000, path: 4095, swelling: 500 };

/// Unpacks bytes into a folder beside a witness, and looks whether all is as it must be.
pub fn check(archive: &[u8]) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let (into, witness) = (place.path().join("into"), place.path().join("witness"));
    fs::create_dir(&into).unwrap();
    fs::write(&witness, "untouched").unwrap();
    let unpacked = place_layer(archive, &into);
    look_for_strangers(&into);
    assert_eq!(fs::read_to_string(&witness).unwrap(), "untouched");
    assert_eq!(fs::metadata(&witness).unwrap().nlink(), 1);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    if unpacked.is_ok() {
        check_return(&into, &place.path().join("again"));
    }
}

fn place_layer(archive: &[u8], into: &Path) -> Result<Unpacked, unpack::UnpackError> {
    let options = unpack::Options { ownership: Ownership::Exact, limits: LIMITS };
    unpack(archive, File::open(into).unwrap().as_fd(), &options)
}

/// No device but whiteouts may be there.
fn look_for_strangers(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let found = entry.metadata().unwrap();
        assert!(!found.file_type().is_block_device() && !found.file_type().is_socket());
        assert!(!found.file_type().is_char_device() || found.rdev() == 0);
        if found.is_dir() {
            look_for_strangers(&entry.path());
        }
    }
}

/// What was unpacked can be packed, and comes back as it was.
fn check_return(tree: &Path, again: &Path) {
    let Some((first, name)) = packed(tree) else { return };
    fs::create_dir(again).unwrap();
    let unpacked = place_layer(&first, again).unwrap();
    assert_eq!(unpacked.diff_id, name);
    let (second, _) = packed(again).unwrap();
    assert!(first == second, "a layer came back as another one");
}

fn packed(tree: &Path) -> Option<(Vec<u8>, belljar_image::digest::Digest)> {
    let options = pack::Options { times: Times::Keep, owners: Owners::Keep, bytes: 64 << 20 };
    let mut out = Vec::new();
    match pack(File::open(tree).unwrap().as_fd(), &options, &mut out) {
        Ok(packed) => Some((out, packed.diff_id)),
        Err(PackError::TooLarge { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

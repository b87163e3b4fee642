//! Layers that mean well: what is in them is on disk, exactly.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use belljar_image::compression::GzipWriter;
use belljar_image::digest::Digest;
use belljar_image::unpack::{Foreign, Limits, Options, Ownership, Unpacked};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::io::Write;

use super::item::{file, folder, hard, item, layer, link, long_name};
use super::tree::{told, unpack_at, unpacked};

#[test]
fn permissions_owners_and_times_are_as_the_layer_has_them() {
    let items = [
        folder("./").mode(0o711).mtime(5),
        folder("shut").mode(0o000).mtime(1).owner(7, 8),
        file("shut/in", "x").mode(0o4711).owner(1000, 1001),
        file("group", "x").mode(0o2755).record("mtime", "1234567890.123456789"),
        folder("tmp").mode(0o1777).mtime(-2),
        folder("shared").mode(0o2775).owner(0, 50),
        file("shared/in", "x").mode(0o640),
        link("link", "/no/where").owner(3, 4).mtime(6),
        item(b'6', "pipe").mode(0o602).owner(5, 6).mtime(7),
        file("open", "x").mode(0o777).record("uid", "3000000000").record("mtime", "-1.5"),
    ];
    let (place, unpacked) = unpacked(&layer(&items)).unwrap();
    let expected = [
        ": folder 711 0:0 5.000000000",
        "group: file x 2755 0:0 1234567890.123456789",
        "link: -> /no/where 777 3:4 6.000000000",
        "open: file x 777 3000000000:0 -2.500000000",
        "pipe: pipe 602 5:6 7.000000000",
        "shared/in: file x 640 0:0 1600000000.000000000",
        "shared: folder 2775 0:50 1600000000.000000000",
        "shut/in: file x 4711 1000:1001 1600000000.000000000",
        "shut: folder 0 7:8 1.000000000",
        "tmp: folder 1777 0:0 -2.000000000",
    ];
    assert_eq!(told(place.path()), expected);
    let owners = Foreign { entries: 6, highest_uid: 3_000_000_000, highest_gid: 1001 };
    assert_eq!((unpacked.owners, unpacked.entries), (owners, 10));
}

#[test]
fn a_folder_nobody_speaks_of_is_roots_and_without_time() {
    let (place, unpacked) = unpacked(&layer(&[file("a/b/c", "x")])).unwrap();
    assert_eq!(
        told(place.path())[..3],
        [
            ": folder 755 0:0 0.000000000",
            "a/b/c: file x 644 0:0 1600000000.000000000",
            "a/b: folder 755 0:0 0.000000000",
        ]
    );
    assert_eq!(unpacked.implied_folders, 2);
}

#[test]
fn capabilities_survive_their_owner() {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let ping =
        file("ping", "x").mode(0o755).owner(9, 9).record("SCHILY.xattr.security.capability", capability);
    let (place, _) = unpacked(&layer(&[ping])).unwrap();
    let attributes = super::tree::attributes(&place.path().join("ping"));
    assert_eq!(attributes, [format!(" security.capability={}", capability.escape_ascii())]);
}

#[test]
fn the_name_covers_everything_to_the_very_end() {
    for tail in [&b""[..], &[0; 9000], b"something else"] {
        let tar = [&layer(&[file("a", "x")])[..], tail].concat();
        let (_place, from_plain) = unpacked(&tar).unwrap();
        assert_eq!((from_plain.diff_id, from_plain.bytes), (Digest::of(&tar), tar.len() as u64));
        let mut gzip = GzipWriter::new(Vec::new());
        gzip.write_all(&tar).unwrap();
        let (_place, from_gzip) = unpacked(&gzip.finish().unwrap()).unwrap();
        let name = |unpacked: &Unpacked| (unpacked.diff_id, unpacked.bytes, unpacked.entries);
        assert_eq!(name(&from_gzip), name(&from_plain));
        let (_place, from_zstd) = unpacked(&zstd::encode_all(&tar[..], 3).unwrap()).unwrap();
        assert_eq!(name(&from_zstd), name(&from_plain));
    }
}

#[test]
fn owners_are_refused_or_squashed_when_asked_for() {
    let layer = layer(&[folder("a"), file("a/b", "x").owner(0, 42)]);
    let with = |ownership| {
        let place = tempfile::tempdir().unwrap();
        let unpacked = unpack_at(&layer, place.path(), &Options { ownership, limits: Limits::default() });
        (unpacked, place)
    };
    let refused = with(Ownership::Refuse).0.unwrap_err();
    assert!(refused.to_string().contains("belongs to 0:42"), "{refused}");
    let (squashed, place) = with(Ownership::Squash);
    assert_eq!(squashed.unwrap().owners.entries, 1);
    assert_eq!(fs::metadata(place.path().join("a/b")).unwrap().gid(), rustix::process::getegid().as_raw());
}

#[test]
fn a_group_that_is_passed_on_does_not_leak_into_the_layer() {
    let place = tempfile::tempdir().unwrap();
    let into = place.path().join("into");
    fs::create_dir(&into).unwrap();
    std::os::unix::fs::chown(&into, None, Some(42)).unwrap();
    rustix::fs::chmod(&into, Mode::from_raw_mode(0o2755)).unwrap();
    unpack_at(&layer(&[folder("a"), file("a/b", "x")]), &into, &super::tree::options()).unwrap();
    assert_eq!(
        told(&into),
        [
            ": folder 755 0:0 0.000000000",
            "a/b: file x 644 0:0 1600000000.000000000",
            "a: folder 755 0:0 1600000000.000000000",
        ]
    );
}

#[test]
fn long_names_come_in_every_way() {
    let (a, b) = ("a".repeat(150), "b".repeat(150));
    let split = file("n".repeat(90), "4").scratch(345, "p".repeat(60));
    let items = [
        long_name(&a),
        file("cut", "1"),
        file("cut", "2").record("path", &b),
        hard("hard", "cut").record("linkpath", &b),
        split,
    ];
    let (place, _) = unpacked(&layer(&items)).unwrap();
    let read = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
    assert_eq!([read(&a), read(&b), read("hard")], ["1", "2", "2"]);
    assert_eq!(read(&format!("{}/{}", "p".repeat(60), "n".repeat(90))), "4");
}

/// A tree with a bit of everything that ordinary tars hold.
pub(crate) fn furnish(root: &Path) {
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::write(root.join("d/f"), "content").unwrap();
    fs::hard_link(root.join("d/f"), root.join("d/e/h")).unwrap();
    symlink("../d/f", root.join("d/s")).unwrap();
    fs::write(root.join(format!("d/{}", "long".repeat(40))), "long").unwrap();
    mknodat(CWD, root.join("d/p"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    rustix::fs::setxattr(root.join("d/f"), "user.note", b"kept", rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::chmod(root.join("d/e"), Mode::from_raw_mode(0o2570)).unwrap();
    let sparse = fs::File::create(root.join("d/holes")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    for piece in 0..40 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"piece", piece * (128 << 10)).unwrap();
    }
}

/// The same tars, read by GNU tar and by us.
#[test]
fn trees_are_as_gnu_tar_makes_them() {
    let source = tempfile::tempdir().unwrap();
    furnish(source.path());
    let formats = [
        &["--format=gnu"][..],
        &["--format=gnu", "-S"],
        &["--format=posix", "--xattrs"],
        &["--format=posix", "--xattrs", "-S", "--sparse-version=0.0"],
        &["--format=posix", "--xattrs", "-S", "--sparse-version=0.1"],
        &["--format=posix", "--xattrs", "-S", "--sparse-version=1.0"],
    ];
    for format in formats {
        let tar = Command::new("tar")
            .args(format)
            .args(["-C"])
            .arg(source.path())
            .args(["-cf", "-", "."])
            .output()
            .unwrap();
        assert!(tar.status.success(), "{format:?}: {}", String::from_utf8_lossy(&tar.stderr));
        let theirs = tempfile::tempdir().unwrap();
        let archive = theirs.path().join("layer.tar");
        fs::write(&archive, &tar.stdout).unwrap();
        let tree = theirs.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let extract = Command::new("tar")
            .args(["--xattrs", "-pxf"])
            .arg(&archive)
            .arg("-C")
            .arg(&tree)
            .status()
            .unwrap();
        assert!(extract.success());
        let (ours, _) = unpacked(&tar.stdout).unwrap();
        assert_eq!(told(ours.path()), told(&tree), "{format:?}");
        let holes = |root: &Path| fs::read(root.join("d/holes")).unwrap();
        assert!(holes(ours.path()) == holes(&tree), "{format:?}");
        if format.contains(&"-S") {
            let blocks = fs::metadata(ours.path().join("d/holes")).unwrap().blocks();
            assert!(blocks * 512 < 1 << 20, "holes were filled: {blocks}");
        }
    }
}

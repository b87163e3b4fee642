//! Trees become tars, the same ones everywhere, and come back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use belljar_image::digest::Digest;
use belljar_image::pack::{IdRange, Options, Owners, PackError, Packed, Times, pack};
use proptest::prelude::*;

use super::item::{Item, file, folder, hard, item, layer, link};
use super::tree::{told, unpacked};

fn options() -> Options {
    Options { times: Times::Keep, owners: Owners::Keep, bytes: 1 << 30 }
}

fn packed_with(tree: &Path, options: &Options) -> Result<(Vec<u8>, Packed), PackError> {
    let mut tar = Vec::new();
    let packed = pack(File::open(tree).unwrap().as_fd(), options, &mut tar)?;
    assert_eq!((packed.diff_id, packed.bytes), (Digest::of(&tar), tar.len() as u64));
    Ok((tar, packed))
}

fn packed(tree: &Path) -> Vec<u8> {
    packed_with(tree, &options()).unwrap().0
}

/// Packs a tree, unpacks that, and finds the same tree and the same tar again.
fn assert_returns(tree: &Path) {
    let tar = packed(tree);
    let (again, _) = unpacked(&tar).unwrap();
    assert_eq!(told(again.path()), told(tree));
    assert!(packed(again.path()) == tar);
}

fn everything() -> Vec<Item> {
    vec![
        folder("./").mode(0o711).mtime(-5),
        file("a", "x").mode(0o4755).owner(70_000, 2_097_151),
        file("big-owner", "").record("uid", "3000000000").record("gid", "4294967294"),
        file("early", "").record("mtime", "-1.25"),
        file("late", "").record("mtime", "9999999999.000000001"),
        file(b"\xff\xfe", "x"),
        folder("d").mode(0o1777),
        hard("d/b", "a"),
        link("d/l", "t".repeat(100)),
        link("d/ll", "").record("linkpath", "t".repeat(3000)),
        hard("d/hl", "d/l"),
        item(b'6', "p").mode(0o622),
        hard("q", "p"),
        file("d/.wh.w", ""),
        folder("o"),
        file("o/.wh..wh..opq", ""),
        file("o/x", "").record("SCHILY.xattr.user.z", "1\n=\0").record("SCHILY.xattr.user.a", ""),
        folder("o/y").record("SCHILY.xattr.user.f", "v").mode(0o500),
        file("exactly", "x".repeat(512)),
        file("n", "").record("path", format!("o/{}", "n".repeat(255))),
        file("n", "y").record("path", "deep/".repeat(300) + "end"),
    ]
}

#[test]
fn what_is_unpacked_comes_back_as_it_was() {
    let (place, _) = unpacked(&layer(&everything())).unwrap();
    assert_returns(place.path());
    let source = tempfile::tempdir().unwrap();
    super::good::furnish(source.path());
    assert_returns(source.path());
}

#[test]
fn a_root_that_hides_comes_back_too() {
    let (place, _) = unpacked(&layer(&[file(".wh..wh..opq", ""), file("a", "")])).unwrap();
    let (_again, unpacked) = unpacked(&packed(place.path())).unwrap();
    assert!(unpacked.opaque);
}

/// The digest was taken once; any other machine must find it too.
#[test]
fn the_tar_is_the_same_everywhere() {
    let items = [
        folder("b"),
        file("b/two", "2").owner(1, 2),
        file("a.txt", "1").mode(0o755),
        folder("a").mode(0o700),
        file("a/one", "x".repeat(1000)).record("SCHILY.xattr.user.k", "v"),
        hard("c", "a/one"),
        link("l", "n".repeat(120)).record("linkpath", "n".repeat(120)),
        file(".wh.gone", ""),
    ];
    let (place, _) = unpacked(&layer(&items)).unwrap();
    let with = Options { times: Times::Fixed(1_700_000_000), ..options() };
    let (tar, packed) = packed_with(place.path(), &with).unwrap();
    let listed = std::process::Command::new("tar").arg("-tf").arg("-").stdin(file_of(&tar)).output().unwrap();
    let names = ["./", "a/", "a/one", "a.txt", "b/", "b/two", "c", ".wh.gone", "l", ""].join("\n");
    assert_eq!(String::from_utf8_lossy(&listed.stdout), names);
    assert_eq!(packed.diff_id.hex(), "b21d793db9f1b0df4be47c91d850df4c7420d0930197ec0fab626db17bb57ee6");
}

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    file
}

#[test]
fn gnu_tar_reads_what_is_written() {
    let (place, _) = unpacked(&layer(&everything())).unwrap();
    // GNU tar knows no whiteouts.
    fs::remove_file(place.path().join("d/w")).unwrap();
    rustix::fs::removexattr(place.path().join("o"), "user.overlay.opaque").unwrap();
    let tar = packed(place.path());
    let theirs = tempfile::tempdir().unwrap();
    let tar_command = std::process::Command::new("tar")
        .args(["--xattrs", "-pxf", "-", "-C"])
        .arg(theirs.path())
        .stdin(file_of(&tar))
        .status();
    assert!(tar_command.unwrap().success());
    assert_eq!(told(theirs.path()), told(place.path()));
}

#[test]
fn owners_and_times_are_changed_as_asked() {
    let (place, _) = unpacked(&layer(&[folder("./"), file("a", "x").owner(5, 6)])).unwrap();
    let range = |outside, inside| vec![IdRange { outside, inside, count: 1 }];
    let all = |second: IdRange| vec![IdRange { outside: 0, inside: 10, count: 1 }, second];
    let owners = Owners::Mapped { uids: all(range(5, 100)[0]), gids: all(range(6, 200)[0]) };
    let with = Options { times: Times::AtMost(1000), owners, ..options() };
    let (again, _) = unpacked(&packed_with(place.path(), &with).unwrap().0).unwrap();
    assert_eq!(
        told(again.path()),
        [": folder 755 10:10 1000.000000000", "a: file x 644 100:200 1000.000000000"]
    );
    let nobody = Owners::Mapped { uids: range(0, 0), gids: range(0, 0) };
    let error = packed_with(place.path(), &Options { owners: nobody, ..options() }).unwrap_err();
    assert!(matches!(error, PackError::Owner { uid: 5, gid: 6, .. }), "{error:?}");
}

#[test]
fn what_a_layer_cannot_say_is_refused_or_counted() {
    let place = tempfile::tempdir().unwrap();
    let _socket = UnixListener::bind(place.path().join("socket")).unwrap();
    assert_eq!(packed_with(place.path(), &options()).unwrap().1.left_out.sockets, 1);
    for (name, value) in
        [("user.overlay.redirect", "x"), ("user.overlay.metacopy", ""), ("user.overlay.opaque", "x")]
    {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("f");
        fs::create_dir(&folder).unwrap();
        rustix::fs::setxattr(&folder, name, value.as_bytes(), rustix::fs::XattrFlags::empty()).unwrap();
        let error = packed_with(place.path(), &options()).unwrap_err();
        assert!(matches!(error, PackError::Unfit { .. }), "{name}: {error:?}");
    }
    fs::write(place.path().join(".wh.a"), "").unwrap();
    assert!(matches!(packed_with(place.path(), &options()), Err(PackError::Unfit { .. })));
}

#[test]
fn a_hole_is_not_written_without_end() {
    let place = tempfile::tempdir().unwrap();
    File::create(place.path().join("hole")).unwrap().set_len(8 << 40).unwrap();
    let error = packed_with(place.path(), &options()).unwrap_err();
    assert!(matches!(error, PackError::TooLarge { .. }), "{error:?}");
}

/// Does something to the tree as soon as the first bytes come out.
struct Meddler<F: FnMut()>(F);

impl<F: FnMut()> Write for Meddler<F> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (self.0)();
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Meddling = fn(&Path);

#[test]
fn a_tree_that_changes_is_told_and_leads_nowhere() {
    let meddlings: [(&str, Meddling); 4] = [
        ("shrinks", |tree| File::options().write(true).open(tree.join("a")).unwrap().set_len(5).unwrap()),
        ("grows", |tree| {
            let mut file = File::options().append(true).open(tree.join("a")).unwrap();
            file.write_all(b"more").unwrap();
        }),
        ("goes", |tree| drop(fs::remove_file(tree.join("b")))),
        ("becomes a link", |tree| {
            drop(fs::remove_dir(tree.join("c")));
            drop(std::os::unix::fs::symlink("/etc", tree.join("c")));
        }),
    ];
    for (name, meddle) in meddlings {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("a"), vec![b'x'; 3 << 20]).unwrap();
        fs::write(place.path().join("b"), "x").unwrap();
        fs::create_dir(place.path().join("c")).unwrap();
        let out = Meddler(|| meddle(place.path()));
        let result = pack(File::open(place.path()).unwrap().as_fd(), &options(), out);
        if name == "becomes a link" {
            // It is a link by the time it is looked at, and is written as one.
            assert_eq!(result.unwrap().entries, 4);
        } else {
            assert!(matches!(result, Err(PackError::Changed { .. })), "{name}: {result:?}");
        }
    }
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c", "d/a", "d/b", "d/e/a", "d", "d/e", "s/a", "s"])
        .prop_map(str::to_owned)
}

fn entry() -> impl Strategy<Value = Item> {
    let kinds = prop_oneof![
        (name(), prop::collection::vec(any::<u8>(), 0..1100)).prop_map(|(name, body)| file(name, body)),
        name().prop_map(folder),
        (name(), name()).prop_map(|(name, target)| link(name, target)),
        name().prop_map(|name| item(b'6', name)),
        name().prop_map(|name| item(b'3', name)),
    ];
    (kinds, 0..0o10000_u32, 0..3_000_000_u32, any::<i32>()).prop_map(|(item, mode, owner, time)| {
        item.mode(mode).record("uid", owner.to_string()).mtime(time.into()).record("SCHILY.xattr.user.o", "v")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_layer_that_is_taken_comes_back(items in prop::collection::vec(entry(), 0..24)) {
        if let Ok((place, _)) = unpacked(&layer(&items)) {
            assert_returns(place.path());
        }
    }
}

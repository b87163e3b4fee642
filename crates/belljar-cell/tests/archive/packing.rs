//! Trees that are hard to pack: endless, shrinking, waiting, deep.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use belljar_cell::archive::{ArchiveError, Limits, Refusal, Summary, pack};
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};

use crate::ground::{Ground, LIMITS, SECRET, look, open, pack_all, strict};

fn pack_named(folder: &Path, what: &str, called: &str) -> Result<(Vec<u8>, Summary), ArchiveError> {
    let mut bytes = Vec::new();
    let summary = pack(open(folder).as_fd(), Path::new(what), OsStr::new(called), &mut bytes, LIMITS)?;
    Ok((bytes, summary))
}

/// Does something when the first bytes have been written, and something else with every piece.
struct Meddler<F: FnMut(usize)> {
    bytes: Vec<u8>,
    meddle: F,
}

impl<F: FnMut(usize)> Write for Meddler<F> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(piece);
        (self.meddle)(self.bytes.len());
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pack_while(folder: &Path, meddle: impl FnMut(usize)) -> (Vec<u8>, Summary) {
    let mut meddler = Meddler { bytes: Vec::new(), meddle };
    let summary = pack(open(folder).as_fd(), Path::new("."), OsStr::new(""), &mut meddler, LIMITS).unwrap();
    (meddler.bytes, summary)
}

fn tree(ground: &Ground) -> PathBuf {
    let folder = ground.base.path().join("tree");
    fs::create_dir(&folder).unwrap();
    folder
}

#[test]
fn a_file_that_shrinks_is_filled_up_with_zeros() {
    let ground = Ground::new();
    let tree = tree(&ground);
    fs::write(tree.join("a"), vec![b'a'; 1 << 20]).unwrap();
    fs::write(tree.join("b"), "after").unwrap();
    let file = File::options().write(true).open(tree.join("a")).unwrap();
    let (bytes, summary) = pack_while(&tree, |_| file.set_len(100_000).unwrap());
    assert_eq!((summary.cut_short, summary.files), (1, 2));
    ground.unpack(&bytes, strict()).unwrap();
    let unpacked = fs::read(ground.inside().join("a")).unwrap();
    assert_eq!(unpacked.len(), 1 << 20);
    assert_eq!(unpacked[0], b'a');
    assert_eq!(unpacked[(1 << 20) - 1], 0);
    assert_eq!(fs::read(ground.inside().join("b")).unwrap(), b"after");
}

#[test]
fn a_file_that_grows_is_cut_at_the_size_announced() {
    let ground = Ground::new();
    let tree = tree(&ground);
    fs::write(tree.join("a"), vec![b'a'; 200_001]).unwrap();
    fs::write(tree.join("b"), "after").unwrap();
    let mut file = File::options().append(true).open(tree.join("a")).unwrap();
    let (bytes, _) = pack_while(&tree, |_| file.write_all(&[b'z'; 5000]).unwrap());
    ground.unpack(&bytes, strict()).unwrap();
    assert_eq!(fs::read(ground.inside().join("a")).unwrap(), vec![b'a'; 200_001]);
    assert_eq!(fs::read(ground.inside().join("b")).unwrap(), b"after");
}

#[test]
fn what_vanishes_or_turns_into_something_else_is_counted() {
    let ground = Ground::new();
    let tree = tree(&ground);
    fs::write(tree.join("a"), vec![b'a'; 1 << 20]).unwrap();
    for name in ["gone", "to-link", "to-pipe", "to-folder"] {
        fs::write(tree.join(name), "x").unwrap();
    }
    fs::create_dir(tree.join("was-folder")).unwrap();
    let mut done = false;
    let (bytes, summary) = pack_while(&tree, |_| {
        if std::mem::replace(&mut done, true) {
            return;
        }
        for name in ["gone", "to-link", "to-pipe", "to-folder"] {
            fs::remove_file(tree.join(name)).unwrap();
        }
        fs::remove_dir(tree.join("was-folder")).unwrap();
        symlink(ground.outside().join("secret"), tree.join("to-link")).unwrap();
        symlink(ground.outside(), tree.join("was-folder")).unwrap();
        mknodat(CWD, tree.join("to-pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::create_dir(tree.join("to-folder")).unwrap();
    });
    assert_eq!((summary.vanished, summary.files), (5, 1));
    assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()));
    ground.unpack(&bytes, strict()).unwrap();
    assert_eq!(fs::read_dir(ground.inside()).unwrap().count(), 1);
}

#[test]
fn pipes_sockets_and_devices_are_left_out_and_block_nobody() {
    let ground = Ground::new();
    let tree = tree(&ground);
    mknodat(CWD, tree.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = UnixListener::bind(tree.join("socket")).unwrap();
    // A device without a number is the one that an ordinary user may make.
    mknodat(CWD, tree.join("device"), FileType::CharacterDevice, Mode::RUSR, 0).unwrap();
    let (bytes, summary) = pack_all(&tree);
    assert_eq!((summary.left_out, summary.files, summary.folders), (3, 0, 1));
    ground.unpack(&bytes, strict()).unwrap();
    assert_eq!(fs::read_dir(ground.inside()).unwrap().count(), 0);
    for name in ["pipe", "socket", "device"] {
        assert!(matches!(pack_named(&tree, name, ""), Err(ArchiveError::Unfit { .. })));
    }
}

#[test]
fn one_file_one_link_and_a_folder_by_another_name() {
    let ground = Ground::new();
    let tree = tree(&ground);
    fs::create_dir(tree.join("inner")).unwrap();
    fs::write(tree.join("inner/file"), "x").unwrap();
    symlink("anywhere", tree.join("inner/link")).unwrap();
    for (what, called, expected) in [
        ("inner/file", "", vec!["file"]),
        ("inner/file", "renamed", vec!["renamed"]),
        ("inner/link", "", vec!["link"]),
        ("inner", "", vec!["file", "link"]),
        ("inner/", "other", vec!["other", "other/file", "other/link"]),
        (".", "top", vec!["top", "top/inner", "top/inner/file", "top/inner/link"]),
    ] {
        let ground = Ground::new();
        ground.unpack(&pack_named(&tree, what, called).unwrap().0, strict()).unwrap();
        let names: Vec<String> =
            look(&ground.inside()).keys().skip(1).map(|path| path.to_str().unwrap().to_owned()).collect();
        assert_eq!(names, expected, "{what} as {called}");
    }
}

#[test]
fn what_is_asked_for_cannot_lie_outside() {
    let ground = Ground::new();
    let tree = tree(&ground);
    symlink(ground.outside(), tree.join("link")).unwrap();
    let refused = |what: &str, called: &str| match pack_named(&tree, what, called) {
        Err(ArchiveError::Refused { reason, .. }) => Some(reason),
        _ => None,
    };
    assert_eq!(refused("../outside/secret", ""), Some(Refusal::Upwards));
    assert_eq!(refused("/etc/passwd", ""), Some(Refusal::Absolute));
    assert_eq!(refused(".", ".."), Some(Refusal::Upwards));
    assert_eq!(refused(".", "a/b"), Some(Refusal::NotAFolder));
    assert!(matches!(pack_named(&tree, "link/secret", ""), Err(ArchiveError::ReadTree { .. })));
    assert!(matches!(pack_named(&tree, "missing", ""), Err(ArchiveError::ReadTree { .. })));
    let (bytes, summary) = pack_named(&tree, "link", "").unwrap();
    assert_eq!((summary.links, summary.files), (1, 0));
    assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()));
}

#[test]
fn limits_hold_on_the_way_out() {
    let ground = Ground::new();
    let tree = tree(&ground);
    for index in 0..10 {
        fs::write(tree.join(index.to_string()), "x").unwrap();
    }
    let pack = |bytes: u64, entries: u64| {
        let limits = Limits { bytes, entries };
        let mut out = Vec::new();
        let result = pack(open(&tree).as_fd(), Path::new("."), OsStr::new(""), &mut out, limits);
        (result, out.len() as u64)
    };
    assert!(matches!(pack(1 << 20, 9).0, Err(ArchiveError::Limit { most: 9, .. })));
    let (result, length) = pack(1 << 20, 10);
    result.unwrap();
    pack(length, 10).0.unwrap();
    let (result, written) = pack(length - 1, 10);
    assert!(matches!(result, Err(ArchiveError::Limit { .. })));
    assert!(written < length);
    File::create(tree.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(pack(1 << 30, 100), (Err(ArchiveError::Limit { .. }), 0..100_000)));
}

#[test]
fn a_writer_that_fails_is_an_error() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let ground = Ground::new();
    let result =
        pack(open(&ground.outside()).as_fd(), Path::new("."), OsStr::new(""), Full, LIMITS).unwrap_err();
    assert!(matches!(result, ArchiveError::WriteArchive { .. }));
}

#[test]
fn ten_thousand_levels_go_out_and_in() {
    const LEVELS: usize = 10_000;
    let ground = Ground::new();
    let tree = tree(&ground);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, &tree, flags, Mode::empty()).unwrap();
    for _ in 0..LEVELS {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    File::from(openat(&at, "bottom", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap())
        .write_all(b"here")
        .unwrap();
    // Beside the first step down, so that the walk has to come all the way up again.
    fs::write(tree.join("e"), "x").unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let summary = std::thread::scope(|scope| {
        let packing = scope
            .spawn(|| pack(open(&tree).as_fd(), Path::new("."), OsStr::new(""), writer, LIMITS).unwrap());
        let reader = io::BufReader::with_capacity(1 << 20, reader);
        let unpacked = belljar_cell::archive::unpack(reader, open(&ground.inside()), strict()).unwrap();
        assert_eq!(packing.join().unwrap().folders, LEVELS as u64 + 1);
        unpacked
    });
    // The top is named and was there.
    assert_eq!((summary.folders, summary.files), (LEVELS as u64, 2));
    for folder in ["tree", "inside"] {
        belljar_cell::remove::remove_tree(&ground.base.path().join(folder)).unwrap();
    }
}

#[test]
fn the_same_tree_makes_the_same_archive() {
    let ground = Ground::new();
    let (first, second) = (tree(&ground), ground.inside());
    for (folder, order) in [(&first, [1, 2, 3]), (&second, [3, 1, 2])] {
        for index in order {
            let path = folder.join(format!("f{index}"));
            fs::write(&path, "x").unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_234_567);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH;
        File::open(folder).unwrap().set_modified(time).unwrap();
    }
    assert_eq!(pack_all(&first).0, pack_all(&second).0);
    assert_ne!(fs::metadata(&first).unwrap().ino(), fs::metadata(&second).unwrap().ino());
}

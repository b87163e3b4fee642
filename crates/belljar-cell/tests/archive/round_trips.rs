//! What goes in comes out: trees of every shape, and archives of and for GNU tar.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::ground::{Ground, Numbers, Seen, Tree, lenient, look, pack_all};

/// A tree of odd names, modes, times, links and sizes.
fn grow(top: &Path, numbers: &mut Numbers) {
    let mut folders = vec![top.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    for _ in 0..numbers.below(60) {
        let path = folders[numbers.below(folders.len())].join(odd_name(numbers));
        if path.symlink_metadata().is_ok() || path.as_os_str().len() > 3500 {
            continue;
        }
        match numbers.below(10) {
            0..3 => {
                fs::create_dir(&path).unwrap();
                folders.push(path);
            }
            3..5 => symlink(odd_target(numbers), &path).unwrap(),
            5 if !files.is_empty() => fs::hard_link(&files[numbers.below(files.len())], &path).unwrap(),
            _ => {
                fs::write(&path, odd_content(numbers)).unwrap();
                let mode = u32::try_from(numbers.below(0o1000)).unwrap() | 0o400;
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                files.push(path);
            }
        }
    }
    settle(top, numbers);
}

fn odd_name(numbers: &mut Numbers) -> OsString {
    let length = [1, 2, 3, 20, 99, 100, 101, 155, 200, 255][numbers.below(10)];
    let mut bytes: Vec<u8> = (0..length).map(|_| (numbers.next() % 256) as u8).collect();
    bytes.iter_mut().filter(|byte| matches!(**byte, 0 | b'/')).for_each(|byte| *byte = b'\n');
    if matches!(bytes.as_slice(), b"." | b"..") {
        bytes = b"...".to_vec();
    }
    OsString::from_vec(bytes)
}

fn odd_target(numbers: &mut Numbers) -> OsString {
    match numbers.below(4) {
        0 => "/etc/passwd".into(),
        1 => "../../..".into(),
        2 => ".".into(),
        _ => OsString::from_vec(vec![b't'; 1 + numbers.below(4000)]),
    }
}

fn odd_content(numbers: &mut Numbers) -> Vec<u8> {
    let length = [0, 1, 511, 512, 513, 10_000, 65_536, 200_000][numbers.below(8)];
    vec![(numbers.next() % 256) as u8; length]
}

/// Gives everything a time of its own, before 1970 and far in the future too, what is deepest first; and some folders
/// an odd mode.
fn settle(top: &Path, numbers: &mut Numbers) {
    for path in look(top).keys().rev() {
        let path = top.join(path);
        if path.symlink_metadata().unwrap().is_dir() {
            let mode = [0o755, 0o700, 0o1777, 0o555, 0o500][numbers.below(5)];
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        let seconds = [-1_000_000, -1, 0, 1_700_000_000, 8_589_934_592][numbers.below(5)];
        let nanoseconds = [0, 1, 123_456_789, 999_999_999][numbers.below(4)];
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// A tree without what no archive can keep: which file is which, but not which are the same.
fn portable(mut tree: Tree) -> Vec<(PathBuf, Seen, Option<PathBuf>)> {
    let top = tree.remove(Path::new(""));
    assert!(top.is_some());
    let first = |seen: &Seen| {
        let is_file = seen.mode & 0o170_000 == 0o100_000;
        let same = tree.iter().find(|(_, other)| other.identity == seen.identity);
        same.filter(|_| is_file && seen.links > 1).map(|(path, _)| path.clone())
    };
    tree.iter()
        .map(|(path, seen)| (path.clone(), Seen { identity: (0, 0), ..seen.clone() }, first(seen)))
        .collect()
}

#[test]
fn sixty_odd_trees_come_back_as_they_were() {
    for seed in 0..60 {
        let ground = Ground::new();
        let tree = ground.base.path().join("tree");
        fs::create_dir(&tree).unwrap();
        grow(&tree, &mut Numbers(seed));
        let (bytes, packed) = pack_all(&tree);
        let unpacked = ground.unpack(&bytes, lenient()).unwrap();
        // The top is named and was there.
        let expected = belljar_cell::archive::Summary { folders: unpacked.folders + 1, ..unpacked };
        assert_eq!(packed, expected, "seed {seed}");
        assert_eq!(portable(look(&tree)), portable(look(&ground.inside())), "seed {seed}");
        assert_eq!(pack_all(&tree).0, bytes, "seed {seed}");
    }
}

fn tar(folder: &Path, arguments: &[&str]) {
    let output = Command::new("tar").arg("-C").arg(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "tar {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn gnu_tar_unpacks_what_is_packed_here() {
    for seed in 100..115 {
        let ground = Ground::new();
        let tree = ground.base.path().join("tree");
        fs::create_dir(&tree).unwrap();
        grow(&tree, &mut Numbers(seed));
        let file = ground.base.path().join("archive.tar");
        fs::write(&file, pack_all(&tree).0).unwrap();
        tar(&ground.inside(), &["-xpf", file.to_str().unwrap()]);
        assert_eq!(portable(look(&tree)), portable(look(&ground.inside())), "seed {seed}");
    }
}

#[test]
fn what_gnu_tar_packs_in_any_format_is_unpacked_here() {
    for (seed, format) in (200..215).zip(["gnu", "posix", "oldgnu"].iter().cycle()) {
        let ground = Ground::new();
        let tree = ground.base.path().join("tree");
        fs::create_dir(&tree).unwrap();
        grow(&tree, &mut Numbers(seed));
        let file = ground.base.path().join("archive.tar");
        tar(&tree, &["-cf", file.to_str().unwrap(), "--format", format, "."]);
        ground.unpack(&fs::read(&file).unwrap(), lenient()).unwrap();
        let whole = |mut tree: Vec<(PathBuf, Seen, Option<PathBuf>)>| {
            // Only the format of POSIX keeps parts of seconds. Which of several names comes first is tar's affair.
            if *format != "posix" {
                tree.iter_mut().for_each(|(_, seen, _)| seen.mtime.1 = 0);
            }
            tree
        };
        assert_eq!(whole(portable(look(&tree))), whole(portable(look(&ground.inside()))), "{seed} {format}");
    }
}

#[test]
fn gnu_tars_plainer_formats_are_unpacked_too() {
    for format in ["v7", "ustar"] {
        let ground = Ground::new();
        let tree = ground.base.path().join("tree");
        let deep = tree.join("a".repeat(60)).join("b".repeat(if format == "v7" { 10 } else { 60 }));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "content").unwrap();
        symlink("target", tree.join("link")).unwrap();
        let file = ground.base.path().join("archive.tar");
        tar(&tree, &["-cf", file.to_str().unwrap(), "--format", format, "."]);
        let summary = ground.unpack(&fs::read(&file).unwrap(), lenient()).unwrap();
        assert_eq!((summary.files, summary.links, summary.folders), (1, 1, 2), "{format}");
        let unpacked = ground.inside().join(deep.strip_prefix(&tree).unwrap()).join("file");
        assert_eq!(fs::read(unpacked).unwrap(), b"content");
    }
}

#[test]
fn a_file_of_many_gigabytes_has_its_size_in_a_record() {
    let ground = Ground::new();
    let size = 9 << 30;
    File::create(ground.inside().join("huge")).unwrap().set_len(size).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let root = crate::ground::open(&ground.inside());
    let limits = belljar_cell::archive::Limits { bytes: 10 << 30, entries: 10 };
    let mut head = vec![0; 4096];
    std::thread::scope(|scope| {
        let packing = scope.spawn(move || {
            use std::os::fd::AsFd;
            let what = Path::new("huge");
            belljar_cell::archive::pack(root.as_fd(), what, std::ffi::OsStr::new(""), writer, limits)
        });
        std::io::Read::read_exact(&mut reader, &mut head).unwrap();
        drop(reader);
        // Nobody reads the rest.
        assert!(packing.join().unwrap().is_err());
    });
    let record = format!("size={size}\n");
    assert!(head.windows(record.len()).any(|window| window == record.as_bytes()));
}

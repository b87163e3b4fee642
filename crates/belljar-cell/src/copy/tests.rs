use super::*;
use std::fs::{self, File, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{RenameFlags, XattrFlags, lgetxattr, lsetxattr, renameat_with};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::remove::remove_tree;

const LIMITS: Limits = Limits { bytes: 1 << 30, entries: 100_000 };
const STRANGER: u32 = 54_321;

fn ground() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let base = tempfile::tempdir().unwrap();
    let (from, to) = (base.path().join("from"), base.path().join("to"));
    fs::create_dir(&from).unwrap();
    (base, from, to)
}

fn needs_root() {
    assert!(rustix::process::geteuid().is_root(), "this test is about the rights of root, so it needs them");
}

/// Runs something as an ordinary user, in a thread of its own; other threads stay what they are.
fn as_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (user, group) = (Uid::from_raw(STRANGER), Gid::from_raw(STRANGER));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(1024);
    lgetxattr(path, name, spare(&mut value)).ok()?;
    Some(value)
}

fn spare(value: &mut Vec<u8>) -> rustix::buffer::SpareCapacity<'_, u8> {
    rustix::buffer::spare_capacity(value)
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn whiteout(path: &Path) {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn old() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789)
}

/// One of everything that is kept, and of most that is not.
fn furnish(from: &Path) {
    fs::create_dir_all(from.join("folder/inner")).unwrap();
    fs::write(from.join("folder/file"), "content").unwrap();
    fs::write(from.join("big"), vec![b'b'; 300_000]).unwrap();
    fs::hard_link(from.join("folder/file"), from.join("again")).unwrap();
    symlink("/anywhere", from.join("link")).unwrap();
    mknodat(CWD, from.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    fs::set_permissions(from.join("pipe"), Permissions::from_mode(0o640)).unwrap();
    whiteout(&from.join("folder/deleted"));
    set_attribute(&from.join("folder"), "user.overlay.opaque", b"y");
    set_attribute(&from.join("folder/file"), "user.note", b"\0binary\xff");
    fs::set_permissions(from.join("big"), Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(from.join("folder/inner"), Permissions::from_mode(0o1555)).unwrap();
    File::options().write(true).open(from.join("big")).unwrap().set_modified(old()).unwrap();
    File::open(from.join("folder")).unwrap().set_modified(old()).unwrap();
    drop(UnixListener::bind(from.join("socket")).unwrap());
}

#[test]
fn what_matters_is_kept_and_what_is_dangerous_is_not() {
    let (_base, from, to) = ground();
    furnish(&from);
    let summary = copy_tree(&from, &to, None, LIMITS).unwrap();
    let Summary { files, folders, links, hard_links, pipes, whiteouts, left_out, vanished, .. } = summary;
    assert_eq!((files, folders, links, hard_links), (2, 3, 1, 1));
    assert_eq!((pipes, whiteouts, left_out, vanished), (1, 1, 1, 0));
    assert_eq!(fs::read(to.join("big")).unwrap(), vec![b'b'; 300_000]);
    assert_eq!(fs::read(to.join("again")).unwrap(), b"content");
    let inode = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(inode("again"), inode("folder/file"));
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/anywhere"));
    assert!(to.join("pipe").symlink_metadata().unwrap().file_type().is_fifo());
    let deleted = to.join("folder/deleted").symlink_metadata().unwrap();
    assert!(deleted.file_type().is_char_device() && deleted.rdev() == 0);
    assert_eq!(attribute(&to.join("folder"), "user.overlay.opaque").unwrap(), b"y");
    assert_eq!(attribute(&to.join("folder/file"), "user.note").unwrap(), b"\0binary\xff");
    let modes = ["big", "folder/inner", "pipe", "folder/deleted"].map(|name| mode_of(&to.join(name)));
    assert_eq!(modes, [0o751, 0o1555, 0o640, 0]);
    for name in ["big", "folder"] {
        assert_eq!(fs::metadata(to.join(name)).unwrap().modified().unwrap(), old(), "{name}");
    }
    assert!(!to.join("socket").exists());
}

#[test]
fn devices_and_other_attributes_stay_behind() {
    needs_root();
    let (_base, from, to) = ground();
    let null = rustix::fs::makedev(1, 3);
    mknodat(CWD, from.join("null"), FileType::CharacterDevice, Mode::RUSR, null).unwrap();
    mknodat(CWD, from.join("block"), FileType::BlockDevice, Mode::RUSR, 0).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    set_attribute(&from.join("file"), "trusted.overlay.opaque", b"y");
    let summary = copy_tree(&from, &to, None, LIMITS).unwrap();
    assert_eq!((summary.left_out, summary.files, summary.whiteouts), (2, 1, 0));
    assert_eq!(attribute(&to.join("file"), "trusted.overlay.opaque"), None);
    assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
}

#[test]
fn owners_move_from_one_range_to_the_other() {
    needs_root();
    let (_base, from, to) = ground();
    let (old_base, new_base) = (0x4000_0000, 0x4001_0000);
    furnish(&from);
    own(&from, old_base + 1000, old_base + 65_535);
    let shift = Shift { from: old_base, to: new_base };
    copy_tree(&from, &to, Some(shift), LIMITS).unwrap();
    let mut count = 0;
    each(&to, &mut |path| {
        let meta = path.symlink_metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (new_base + 1000, new_base + 65_535), "{}", path.display());
        count += 1;
    });
    assert_eq!(count, 9);
    assert_eq!(mode_of(&to.join("big")), 0o751, "a new owner does not bring set-id bits back");
}

fn own(path: &Path, user: u32, group: u32) {
    each(path, &mut |path| std::os::unix::fs::lchown(path, Some(user), Some(group)).unwrap());
    // A new owner costs these bits.
    if path.join("big").exists() {
        fs::set_permissions(path.join("big"), Permissions::from_mode(0o6751)).unwrap();
    }
}

fn each(path: &Path, visit: &mut dyn FnMut(&Path)) {
    visit(path);
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| each(&entry.unwrap().path(), visit));
    }
}

#[test]
fn an_owner_outside_of_the_range_is_refused() {
    needs_root();
    let shift = Shift { from: 0x4000_0000, to: 0x4001_0000 };
    for (user, group) in
        [(0, 0x4000_0000), (0x4000_0000, 0), (0x4001_0000, 0x4000_0000), (0x3fff_ffff, 0x4000_0000)]
    {
        for name in ["", "file", "folder", "link", "pipe", "deleted"] {
            let (_base, from, to) = ground();
            fs::write(from.join("file"), "x").unwrap();
            fs::create_dir(from.join("folder")).unwrap();
            symlink("x", from.join("link")).unwrap();
            mknodat(CWD, from.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
            whiteout(&from.join("deleted"));
            own(&from, 0x4000_0000, 0x4000_0000);
            std::os::unix::fs::lchown(from.join(name), Some(user), Some(group)).unwrap();
            let failure = copy_tree(&from, &to, Some(shift), LIMITS).unwrap_err();
            assert!(failure.to_string().contains("is not of the sandbox"), "{failure}");
        }
    }
    assert_eq!(Shift { from: 0, to: u32::MAX }.apply(1), None);
}

#[test]
fn holes_stay_holes_and_cost_nothing() {
    let (_base, from, to) = ground();
    let file = File::create(from.join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"one", 5 << 20).unwrap();
    file.write_all_at(b"two", 1 << 39).unwrap();
    File::create(from.join("empty")).unwrap().set_len(1 << 40).unwrap();
    File::create(from.join("small")).unwrap().set_len(4096).unwrap();
    let limits = Limits { bytes: 1 << 20, entries: 10 };
    let summary = copy_tree(&from, &to, None, limits).unwrap();
    assert!(summary.bytes < 1 << 20, "{summary:?}");
    for name in ["sparse", "empty", "small"] {
        let (original, copy) = (fs::metadata(from.join(name)).unwrap(), fs::metadata(to.join(name)).unwrap());
        assert_eq!(original.len(), copy.len(), "{name}");
        assert!(copy.blocks() <= original.blocks() + 64, "{name}: {} {}", copy.blocks(), original.blocks());
    }
    let copy = File::open(to.join("sparse")).unwrap();
    let mut three = [0; 3];
    for (at, expected) in [(5 << 20, b"one"), (1 << 39, b"two"), (1 << 38, b"\0\0\0")] {
        copy.read_exact_at(&mut three, at).unwrap();
        assert_eq!(&three, expected);
    }
}

#[test]
fn large_files_arrive_whole_by_every_way_there_is() {
    let (_base, from, _) = ground();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(from.join("file"), &content).unwrap();
    let original = File::open(from.join("file")).unwrap();
    let stat = fstat(&original).unwrap();
    for mut ways in [Content::default(), Content::without_sharing(), Content::without_the_kernel()] {
        let mut copy = tempfile::tempfile().unwrap();
        let mut budget = Budget::new(1 << 30);
        assert!(ways.copy(original.as_fd(), copy.as_fd(), &stat, &mut budget).is_ok());
        copy.rewind().unwrap();
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut copy, &mut read).unwrap();
        assert!(read == content, "{ways:?}");
        assert_eq!(budget.spent(), content.len() as u64);
    }
}

#[test]
fn limits_hold() {
    let (base, from, _) = ground();
    for index in 0..5 {
        fs::write(from.join(index.to_string()), [b'x'; 1000]).unwrap();
    }
    let copy = |number: u32, bytes: u64, entries: u64| {
        let to = base.path().join(number.to_string());
        copy_tree(&from, &to, None, Limits { bytes, entries }).map_err(|failure| failure.to_string())
    };
    assert_eq!(copy(0, 5000, 5).unwrap().files, 5);
    assert_eq!(copy(1, 4999, 5).unwrap_err(), "copy a tree of more than 4999 bytes");
    assert_eq!(copy(2, 5000, 4).unwrap_err(), "copy a tree of more than 4 entries");
    set_attribute(&from.join("0"), "user.note", &[b'x'; 1000]);
    assert_eq!(copy(3, 5500, 5).unwrap_err(), "copy a tree of more than 5500 bytes");
}

#[test]
fn a_link_in_place_of_the_tree_and_a_copy_that_exists_are_refused() {
    let (base, from, to) = ground();
    symlink(&from, base.path().join("link")).unwrap();
    let failure = copy_tree(&base.path().join("link"), &to, None, LIMITS).unwrap_err();
    assert_eq!(failure.errno, libc::ENOTDIR);
    fs::create_dir(&to).unwrap();
    assert_eq!(copy_tree(&from, &to, None, LIMITS).unwrap_err().errno, libc::EEXIST);
}

#[test]
fn an_ordinary_user_copies_what_its_guest_shut_and_leaves_it_shut() {
    needs_root();
    let (base, from, _) = ground();
    fs::set_permissions(base.path(), Permissions::from_mode(0o777)).unwrap();
    furnish(&from);
    fs::create_dir_all(from.join("shut/listed/inner")).unwrap();
    fs::write(from.join("shut/listed/inner/file"), "x").unwrap();
    fs::write(from.join("unreadable"), "y").unwrap();
    own(&from, STRANGER, STRANGER);
    let shut =
        [("shut/listed/inner", 0), ("shut/listed", 0o400), ("shut", 0o300), ("unreadable", 0o200), ("", 0)];
    for (name, mode) in shut {
        fs::set_permissions(from.join(name), Permissions::from_mode(mode)).unwrap();
    }
    let to = base.path().join("to");
    let summary = as_stranger(|| copy_tree(&from, &to, None, LIMITS)).unwrap();
    assert_eq!((summary.files, summary.whiteouts), (4, 1));
    assert_eq!(fs::read(to.join("shut/listed/inner/file")).unwrap(), b"x");
    assert_eq!(fs::read(to.join("unreadable")).unwrap(), b"y");
    for top in [&from, &to] {
        for (name, mode) in shut {
            assert_eq!(mode_of(&top.join(name)), mode, "{}/{name}", top.display());
        }
    }
    assert_eq!(fs::metadata(to.join("folder/file")).unwrap().uid(), STRANGER);
}

#[test]
fn an_ordinary_user_is_stopped_by_what_is_not_its_own() {
    needs_root();
    let (base, from, to) = ground();
    fs::set_permissions(base.path(), Permissions::from_mode(0o777)).unwrap();
    fs::write(from.join("private"), "x").unwrap();
    fs::set_permissions(from.join("private"), Permissions::from_mode(0o600)).unwrap();
    chown(&from, Some(STRANGER), Some(STRANGER)).unwrap();
    let failure = as_stranger(|| copy_tree(&from, &to, None, LIMITS)).unwrap_err();
    assert_eq!(failure.to_string(), "copy private: Permission denied (os error 13)");
    assert_eq!(mode_of(&from.join("private")), 0o600);
}

#[test]
fn ten_thousand_levels_are_no_obstacle() {
    let (_base, from, to) = ground();
    let mut at = openat(CWD, &from, Opened::Read.flags(), Mode::empty()).unwrap();
    for _ in 0..10_000 {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", Opened::Read.flags(), Mode::empty()).unwrap();
    }
    fs::write(from.join("e"), "x").unwrap();
    let flags = OFlags::CREATE | OFlags::WRONLY;
    File::from(openat(&at, "bottom", flags, Mode::RUSR).unwrap()).write_all(b"x").unwrap();
    let summary = copy_tree(&from, &to, None, LIMITS).unwrap();
    assert_eq!((summary.folders, summary.files), (10_001, 2));
    remove_tree(&from).unwrap();
    remove_tree(&to).unwrap();
}

/// Stops the swapping also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_guest_that_swaps_folders_and_files_for_links_gets_nothing_from_outside() {
    const SECRET: &str = "the secret that lies outside";
    let (base, from, _) = ground();
    let outside = base.path().join("outside");
    fs::create_dir(&outside).unwrap();
    for folder in [&outside, &from.join("d")] {
        fs::create_dir_all(folder.join("d")).unwrap();
    }
    for path in [outside.join("f"), outside.join("d/f")] {
        fs::write(path, SECRET).unwrap();
    }
    fs::write(from.join("d/f"), "public").unwrap();
    fs::write(from.join("d/d/f"), "public").unwrap();
    fs::write(from.join("f"), "public").unwrap();
    symlink(&outside, from.join("spare-d")).unwrap();
    symlink(outside.join("f"), from.join("spare-f")).unwrap();
    let stop = AtomicBool::new(false);
    let (swaps, rounds, vanished) = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let mut swaps = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                for name in ["d", "f"] {
                    let (a, b) = (from.join(name), from.join(format!("spare-{name}")));
                    swaps += u64::from(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok());
                }
            }
            swaps
        });
        let (guard, started) = (Stop(&stop), Instant::now());
        let (mut rounds, mut vanished) = (0_u64, 0);
        while started.elapsed() < Duration::from_millis(1500) {
            let to = base.path().join("to");
            vanished += copy_tree(&from, &to, None, LIMITS).unwrap().vanished;
            each(&to, &mut |path| {
                if path.symlink_metadata().unwrap().is_file() {
                    assert_eq!(fs::read_to_string(path).unwrap(), "public", "{}", path.display());
                }
            });
            remove_tree(&to).unwrap();
            rounds += 1;
        }
        drop(guard);
        (swapping.join().unwrap(), rounds, vanished)
    });
    assert!(swaps > 100 && rounds > 50 && vanished > 0, "no race: {swaps} {rounds} {vanished}");
}

/// Mounts an overlay as the engine does, in a mount namespace that this thread has for itself.
fn overlay(lower: &Path, layer: &Path, merged: &Path) {
    let work = layer.join("work");
    fs::create_dir_all(&work).unwrap();
    fs::create_dir_all(merged).unwrap();
    let options = format!(
        "lowerdir={},upperdir={},workdir={},userxattr\0",
        lower.display(),
        layer.join("upper").display(),
        work.display()
    );
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
    mount("overlay", merged, "overlay", MountFlags::NOSUID | MountFlags::NODEV, options).unwrap();
}

fn picture(merged: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut seen = Vec::new();
    each(merged, &mut |path| {
        let content = path.symlink_metadata().unwrap().is_file().then(|| fs::read(path).unwrap());
        seen.push((path.strip_prefix(merged).unwrap().to_owned(), content));
    });
    seen.sort();
    seen
}

#[test]
fn an_overlay_shows_the_same_over_a_copy_of_its_layer() {
    needs_root();
    std::thread::spawn(|| {
        // SAFETY: gives this thread a mount namespace of its own and touches no memory; other threads are not affected.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        for folder in ["lower/replaced", "lower/deleted", "lower/kept", "first/upper", "second"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        for file in [
            "lower/replaced/hidden",
            "lower/deleted/file",
            "lower/kept/gone",
            "lower/kept/stays",
            "lower/top",
        ] {
            fs::write(path(file), file).unwrap();
        }
        overlay(&path("lower"), &path("first"), &path("merged-first"));
        let merged = path("merged-first");
        fs::remove_dir_all(merged.join("replaced")).unwrap();
        fs::create_dir(merged.join("replaced")).unwrap();
        fs::write(merged.join("replaced/new"), "new").unwrap();
        fs::remove_dir_all(merged.join("deleted")).unwrap();
        fs::remove_file(merged.join("kept/gone")).unwrap();
        fs::write(merged.join("kept/changed"), "changed").unwrap();
        fs::write(merged.join("top"), "rewritten").unwrap();

        let summary = copy_tree(&path("first/upper"), &path("second/upper"), None, LIMITS).unwrap();
        assert_eq!(summary.whiteouts, 2, "{summary:?}");
        overlay(&path("lower"), &path("second"), &path("merged-second"));
        assert_eq!(picture(&path("merged-second")), picture(&merged));
        assert!(!path("merged-second/replaced/hidden").exists());

        fs::write(path("merged-second/kept/only-here"), "x").unwrap();
        assert!(!merged.join("kept/only-here").exists(), "the two are separate");
        for name in ["merged-first", "merged-second"] {
            rustix::mount::unmount(path(name), rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    })
    .join()
    .unwrap();
}

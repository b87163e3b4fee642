//! Somebody swaps folders for links while archives go in and out.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_cell::archive::{ArchiveError, pack};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::bricks::{Brick, archive, file, folder, hard_link, link};
use crate::ground::{Ground, LIMITS, SECRET, lenient, open};

const LONG: Duration = Duration::from_millis(1500);

/// Swaps two names for each other until told to stop; says how often.
fn swap(a: &Path, b: &Path, stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        if renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok() {
            count += 1;
        }
    }
    count
}

/// Stops the swapping also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` again and again beside a thread that swaps.
fn beside_swapping(a: &Path, b: &Path, mut work: impl FnMut()) -> u64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapping = scope.spawn(|| swap(a, b, &stop));
        let (guard, started) = (Stop(&stop), Instant::now());
        while started.elapsed() < LONG {
            work();
        }
        drop(guard);
        swapping.join().unwrap()
    })
}

fn bricks() -> Vec<Brick> {
    vec![
        file("d/secret", "overwritten"),
        folder("d/folder").mode(0o777),
        file("d/folder/secret", "overwritten").mode(0o777),
        link("d/link", "overwritten"),
        file("d/new", "new"),
        file("d/folder/new", "new"),
        hard_link("d/hard", "d/new"),
        hard_link("stolen", "d/secret"),
        hard_link("d/folder/stolen", "d/folder/secret"),
        folder("d/made").mode(0o700),
        file("d/made/f", "x"),
    ]
}

#[test]
fn unpacking_stays_inside_while_a_folder_is_swapped_for_a_link_to_the_outside() {
    let ground = Ground::new();
    let (folder, spare) = (ground.inside().join("d"), ground.inside().join("spare"));
    fs::create_dir(&folder).unwrap();
    symlink(ground.outside(), &spare).unwrap();
    let before = ground.rest();
    let bytes = archive(&bricks());
    let (refused, made) = (AtomicU64::new(0), AtomicU64::new(0));
    let swaps = beside_swapping(&folder, &spare, || {
        match ground.unpack(&bytes, lenient()) {
            Ok(summary) => {
                refused.fetch_add(summary.refused, Ordering::Relaxed);
                made.fetch_add(summary.files, Ordering::Relaxed);
            }
            Err(ArchiveError::WriteTree { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        let stolen = fs::read_to_string(ground.inside().join("stolen")).unwrap_or_default();
        assert!(!stolen.contains(SECRET));
    });
    assert_eq!(ground.rest(), before);
    let (refused, made) = (refused.into_inner(), made.into_inner());
    assert!(
        swaps > 100 && refused > 100 && made > 100,
        "no race: {swaps} swaps, {refused} refused, {made} made"
    );
}

#[test]
fn packing_stays_inside_while_a_folder_is_swapped_for_a_link_to_the_outside() {
    let ground = Ground::new();
    let (folder, spare) = (ground.inside().join("d"), ground.inside().join("spare"));
    fs::create_dir_all(folder.join("folder")).unwrap();
    fs::write(folder.join("secret"), "public").unwrap();
    fs::write(folder.join("folder/secret"), "public").unwrap();
    symlink(ground.outside(), &spare).unwrap();
    let root = open(&ground.inside());
    let (mut links, mut folders, mut bytes) = (0, 0, Vec::new());
    let swaps = beside_swapping(&folder, &spare, || {
        for what in [".", "d", "d/folder", "d/secret"] {
            bytes.clear();
            let Ok(summary) = pack(root.as_fd(), Path::new(what), OsStr::new("x"), &mut bytes, LIMITS) else {
                continue;
            };
            links += summary.links;
            folders += summary.folders;
            assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()));
        }
    });
    assert!(
        swaps > 100 && links > 100 && folders > 100,
        "no race: {swaps} swaps, {links} links, {folders} folders"
    );
}

#[test]
fn packing_reads_no_file_that_becomes_a_link_to_the_outside() {
    let ground = Ground::new();
    let (file, spare) = (ground.inside().join("f"), ground.inside().join("spare"));
    fs::write(&file, "public").unwrap();
    symlink(ground.outside().join("secret"), &spare).unwrap();
    let root = open(&ground.inside());
    let (mut vanished, mut bytes) = (0, Vec::new());
    let swaps = beside_swapping(&file, &spare, || {
        bytes.clear();
        let summary = pack(root.as_fd(), Path::new("."), OsStr::new(""), &mut bytes, LIMITS).unwrap();
        vanished += summary.vanished;
        assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()));
    });
    assert!(swaps > 100 && vanished > 0, "no race: {swaps} swaps, {vanished} vanished");
}

#[test]
fn a_hard_link_takes_no_file_from_outside_while_its_target_is_swapped_for_a_link() {
    let ground = Ground::new();
    let (target, spare) = (ground.inside().join("f"), ground.inside().join("spare"));
    fs::write(&target, "public").unwrap();
    symlink(ground.outside().join("secret"), &spare).unwrap();
    let before = ground.rest();
    let bytes = archive(&[hard_link("taken", "f")]);
    let mut linked = 0;
    let swaps = beside_swapping(&target, &spare, || {
        if let Ok(summary) = ground.unpack(&bytes, lenient()) {
            linked += summary.hard_links;
        }
        if ground.inside().join("taken").symlink_metadata().is_ok_and(|meta| meta.is_file()) {
            assert_eq!(fs::read(ground.inside().join("taken")).unwrap(), b"public");
        }
    });
    assert_eq!(ground.rest(), before);
    assert!(swaps > 100 && linked > 100, "no race: {swaps} swaps, {linked} linked");
}

//! What the unpacking writes down about files is what is found when they are looked at again.

use std::fs;

use belljar_image::store::{Depth, Mend, Notice, Owners, Store};

use super::item::{Item, file, folder, hard, item, layer, link};
use super::plain_user::run_as_nobody;

fn of_every_kind() -> Vec<Item> {
    vec![
        folder("./").mode(0o711).mtime(5),
        folder("a").mode(0o1777).record("SCHILY.xattr.user.note", "kept"),
        file("a/f", "some bytes").mode(0o4750).owner(3, 4).record("mtime", "77.5"),
        file("a/empty", "").mtime(-5),
        file("a/shut", "x").mode(0o000).record("SCHILY.xattr.user.note", "kept"),
        file("a/able", "x")
            .record("SCHILY.xattr.security.capability", b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        file("a/holes", "ab").record("GNU.sparse.map", "5,1,70000,1").record("GNU.sparse.size", "200000"),
        hard("a/twin", "a/f"),
        file("a/f", "replaced, and its twin stays"),
        link("a/link", "../a b\\c\u{e4}"),
        hard("a/link-twin", "a/link"),
        item(b'6', "a/pipe").mode(0o640),
        item(b'3', "a/device").device(1, 3),
        file("a/.wh.gone", ""),
        folder("b").mode(0o000).owner(9, 9).record("SCHILY.xattr.user.note", "kept"),
        file("b/.wh..wh..opq", ""),
        folder("b/c").mode(0o100),
        file("b/c/f", "x"),
        file("implied/folder/f", "x"),
        folder("removed"),
        file("removed/f", "x"),
        file("removed", "a file now"),
    ]
}

fn look_again(owners: Owners) {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(&place.path().join("images"), owners).unwrap();
    let quiet = |_: Notice| {};
    let (_blob, made) = store.add_unknown_layer(&layer(&of_every_kind())[..], &quiet).unwrap();
    let report = store.fsck(Depth::Deep, Mend::No).unwrap();
    assert!(report.is_clean() && report.layers == 1, "{report:?}");
    let sums = fs::read_to_string(made.tree.with_file_name("tree.sum")).unwrap();
    assert_eq!(sums.lines().count(), 20, "{sums}");
    fs::remove_file(made.tree.join("a/twin")).unwrap();
    assert_eq!(store.fsck(Depth::Quick, Mend::No).unwrap().findings.len(), 1);
}

#[test]
fn what_is_written_down_is_what_is_found() {
    if rustix::process::geteuid().is_root() {
        look_again(Owners::Exact);
    }
    look_again(Owners::Squash);
}

#[test]
fn it_is_so_for_an_ordinary_user() {
    run_as_nobody("sums::inner_look_again");
}

#[test]
#[ignore = "is run by the test above, as another user"]
fn inner_look_again() {
    look_again(Owners::Squash);
}

//! The same as an ordinary user: this binary is run again as one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::item::{file, folder, hard, item, layer, link};
use super::tree::{outline, unpacked};

/// Somebody whom no file belongs to.
const NOBODY: &str = "65534";

/// Runs one of the ignored tests as an ordinary user.
pub(crate) fn run_as_nobody(test: &str) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let copy = place.path().join("layers");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg(&copy)
        .args(["--exact", "--ignored", test])
        .current_dir(place.path())
        .env("TMPDIR", place.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn layers_that_try_something_get_no_further_with_an_ordinary_user() {
    run_as_nobody("plain_user::inner_table");
}

#[test]
#[ignore = "is run by the test above, as another user"]
fn inner_table() {
    assert!(!rustix::process::geteuid().is_root());
    super::nasty::run_table();
}

#[test]
fn an_ordinary_user_fills_folders_that_he_may_not_write_to() {
    run_as_nobody("plain_user::inner_shut_folders");
}

#[test]
#[ignore = "is run by the test above, as another user"]
fn inner_shut_folders() {
    let items = [
        folder("shut").mode(0o000),
        folder("shut/in").mode(0o555).record("SCHILY.xattr.user.note", "kept"),
        file("shut/in/f", "x").mode(0o000).owner(1, 2).record("SCHILY.xattr.user.note", "kept"),
        file("shut/in/.wh.gone", ""),
        file("shut/in/.wh..wh..opq", ""),
        hard("shut/h", "shut/in/f"),
        link("shut/l", "in"),
        item(b'6', "shut/p").mode(0o000),
        file("suid", "x").mode(0o6755).record("SCHILY.xattr.security.capability", "whatever"),
        folder("replaced").mode(0o000),
        file("replaced/x", ""),
        file("replaced", "now a file"),
    ];
    let (place, unpacked) = unpacked(&layer(&items)).unwrap();
    assert_eq!(unpacked.left_out.xattrs, 1);
    let mode = |path: &str| fs::metadata(place.path().join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("shut"), mode("suid")), (0, 0o6755));
    fs::set_permissions(place.path().join("shut"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!((mode("shut/in"), mode("shut/in/f"), mode("shut/p")), (0o555, 0, 0));
    assert_eq!(
        outline(place.path()),
        [
            "replaced file now a file",
            "shut folder",
            "shut/h file permission denied",
            "shut/in folder opaque",
            "shut/in/f file permission denied",
            "shut/in/gone whiteout",
            "shut/l -> in",
            "shut/p pipe",
            "suid file x",
        ]
    );
}

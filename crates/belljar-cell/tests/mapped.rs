//! What an ordinary user does with subordinate ids, tried as the user `belljar-mapped` that `scripts/test` makes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking; the exemption in clippy.toml covers test functions only"
)]

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_cell::cell::Guest;
use belljar_cell::failure::{Failure, Step};
use belljar_cell::lobby::Lobby;
use belljar_cell::remove::remove_tree;
use belljar_cell::subids::SubIds;

const USER: &str = "belljar-mapped";

/// Runs an ignored test of this file as the user, from a copy that the user can reach.
fn as_user(test: &str) {
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
    let program = base.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", USER, "--regid", USER, "--init-groups", "--"])
        .arg(program)
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && said[0].contains("1 passed"), "run scripts/test first: {said:?}");
}

fn guest() -> Guest {
    Guest { uid: 1000, gid: 1000, name: "runner".to_owned(), home: PathBuf::from("/home/runner") }
}

fn owner(path: &Path) -> (u32, u32) {
    let status = fs::symlink_metadata(path).unwrap();
    (status.uid(), status.gid())
}

/// What an image might hold: files of several owners, a folder that is shut, a whiteout.
fn unpack(folder: &Path) -> Result<u32, Failure> {
    let made = || -> io::Result<()> {
        for (name, uid, gid) in [("root", 0, 0), ("guest", 1000, 1000), ("other", 1234, 7)] {
            let path = folder.join(name);
            fs::create_dir(&path)?;
            fs::write(path.join("file"), name)?;
            chown(path.join("file"), Some(uid), Some(gid))?;
            chown(&path, Some(uid), Some(gid))?;
            fs::set_permissions(&path, Permissions::from_mode(0o000))?;
        }
        let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty());
        Ok(rustix::fs::mknodat(rustix::fs::CWD, folder.join("whiteout"), kind, mode, 0)?)
    };
    made().step(|| "unpack".to_owned())?;
    Ok(rustix::process::geteuid().as_raw())
}

#[test]
fn owners_inside_are_subordinate_ids_outside_and_go_with_a_removal() {
    as_user("owners_inside_are_subordinate_ids_outside");
}

#[test]
#[ignore = "run by another test, as another user"]
fn owners_inside_are_subordinate_ids_outside() {
    let lobby = Lobby::make().unwrap();
    let SubIds { uid, gid, users, groups } = lobby.ids();
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("layer");
    fs::create_dir(&folder).unwrap();
    assert_eq!(lobby.run_as_in_cell(&guest(), || unpack(&folder)), Ok(0), "root inside");
    assert_eq!(owner(&folder.join("root")), (users.nth(0).unwrap(), groups.nth(0).unwrap()));
    assert_eq!(owner(&folder.join("guest")), (uid, gid));
    assert_eq!(owner(&folder.join("other")), (users.nth(1234).unwrap(), groups.nth(7).unwrap()));
    // The lobby sees the same numbers as outside, and reads everything.
    let read = |name: &str| fs::read_to_string(folder.join(name).join("file"));
    assert!(read("other").is_err());
    assert_eq!(lobby.run(|| read("other").step(String::new)), Ok("other".to_owned()));
    assert_eq!(lobby.run(|| Ok(owner(&folder.join("other")))), Ok(owner(&folder.join("other"))));
    assert!(fs::remove_dir_all(folder.join("other")).is_err(), "the user alone cannot remove it");
    remove_tree(&folder).unwrap();
    assert!(!folder.exists());
}

#[test]
fn a_lobby_gives_no_power_over_anybody_else() {
    as_user("nobody_else_is_in_the_lobby");
}

#[test]
#[ignore = "run by another test, as another user"]
fn nobody_else_is_in_the_lobby() {
    let lobby = Lobby::make().unwrap();
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("file");
    fs::write(&file, "").unwrap();
    for stranger in [0, 1, lobby.ids().uid + 100_000_000] {
        let given = lobby.run(|| chown(&file, Some(stranger), None).step(|| "give".to_owned()));
        assert!(given.is_err(), "given to {stranger}");
    }
    let passwords = lobby.run(|| fs::read("/etc/shadow").map(|_| ()).step(|| "read".to_owned()));
    assert!(passwords.is_err());
    let failed: Result<(), Failure> = lobby.run(|| Err(Failure::new("told")));
    assert_eq!(failed, Err(Failure::new("told")));
    let died: Result<(), Failure> = lobby.run(|| panic!("in the child"));
    assert!(died.unwrap_err().to_string().contains("died"));
}

//! Whose the files of images are, for root and for an ordinary user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use belljar_cell::cell::Guest;
use belljar_cell::failure::Step;
use belljar_cell::lobby::Lobby;
use belljar_image::import::{self, Wanted};
use belljar_image::store::{Cure, Depth, Mend, Owners, Ownership, Store, StoreError};

use crate::made::{Made, Place, child, quiet, variable, write_layout};

/// Anybody who is not root.
const NOBODY: u32 = 65534;

fn foreign() -> Made {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, uid, mode) in [("shut", 0, 0o000), ("mail", 8, 0o4755), ("mine", 1000, 0o644)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(mode);
        header.set_uid(uid);
        header.set_gid(uid);
        header.set_mtime(1);
        builder.append_data(&mut header, path, &b"text"[..]).unwrap();
    }
    Made::new(vec![builder.into_inner().unwrap()], "foreign")
}

/// A name that leads out.
fn outside() -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.as_old_mut().name[..4].copy_from_slice(b"../x");
    header.set_cksum();
    header.as_bytes().to_vec()
}

#[test]
#[ignore = "a part of another test, which starts it as a process of its own"]
fn as_an_ordinary_user() {
    assert!(!rustix::process::geteuid().is_root());
    let open = |owners| Store::open(&variable("STORE"), owners).unwrap();
    let import = |store: &Store| import::import(store, &variable("LAYOUT"), &Wanted::default(), &quiet);
    let refused = import(&open(Owners::Refuse)).unwrap_err().to_string();
    assert!(refused.contains("mail") && refused.contains("8:8") && refused.contains("root"), "{refused}");
    let store = open(Owners::Squash);
    let image = import(&store).unwrap().image;
    assert_eq!(image.ownership, Ownership::Squashed);
    // The second file's mode lets not even its owner read it.
    let report = store.fsck(Depth::Deep, Mend::No).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let error = open(Owners::Refuse).layer(image.diff_ids[0], &quiet).unwrap_err();
    assert!(matches!(error, StoreError::OtherOwners(_)), "{error}");
    store.remove(image.config_digest).unwrap();
    assert_eq!(store.disk_usage().unwrap().layers, 0);
}

#[test]
fn an_ordinary_user_is_refused_or_gets_everything_as_its_own() {
    let place = Place::new();
    write_layout(&place.path("layout"), &foreign());
    let [store, layout] = ["mine", "layout"].map(|name| place.path(name));
    let program = place.path("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::create_dir(&store).unwrap();
    fs::set_permissions(&store, Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(place.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let variables = [("STORE", store.to_str().unwrap()), ("LAYOUT", layout.to_str().unwrap())];
    let again = child("owners::as_an_ordinary_user", &variables);
    let mut command = std::process::Command::new(program);
    command.args(again.get_args()).envs(variables).current_dir("/");
    if rustix::process::geteuid().is_root() {
        chown(&store, Some(NOBODY), Some(NOBODY)).unwrap();
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn root_keeps_owners_and_no_other_user_comes_near() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    write_layout(&place.path("layout"), &foreign());
    let image = place.import(&place.path("layout")).image;
    let mail = fs::metadata(image.layers[0].join("mail")).unwrap();
    assert_eq!((mail.uid(), mail.gid(), mail.mode() & 0o7777), (8, 8, 0o4755));
    assert_eq!(image.ownership, Ownership::Exact);
    for folder in ["images", "images/layers", "images/blobs"] {
        assert_eq!(fs::metadata(place.path(folder)).unwrap().mode() & 0o077, 0, "{folder}");
    }
    fs::set_permissions(place.path("images"), Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(Store::open(&place.path("images"), Owners::Exact), Err(StoreError::NotPrivate { .. })));
}

/// The user with subordinate ids that `scripts/test` makes.
const MAPPED: &str = "belljar-mapped";

fn guest(uid: u32) -> Guest {
    Guest { uid, gid: uid, name: "runner".to_owned(), home: "/home/runner".into() }
}

/// Whose a file is for a guest.
fn owner_inside(path: &Path) -> (u32, u32) {
    let look = || {
        let found = fs::metadata(path).step(|| "look".to_owned())?;
        Ok((found.uid(), found.gid()))
    };
    Lobby::make().unwrap().run_as_in_cell(&guest(1000), look).unwrap()
}

#[test]
#[ignore = "a part of another test, which starts it as a process of its own"]
fn with_subordinate_ids() {
    let open = |uid| {
        let store = Store::open(&variable("STORE"), Owners::Refuse).unwrap();
        store.for_guest(Lobby::make().unwrap(), guest(uid))
    };
    let import = |store: &Store| import::import(store, &variable("LAYOUT"), &Wanted::default(), &quiet);
    let store = open(1000);
    let image = import(&store).unwrap().image;
    assert_eq!(image.ownership, Ownership::Exact);
    let tree = &image.layers[0];
    let inside = ["", "shut", "mail", "mine"].map(|name| owner_inside(&tree.join(name)));
    assert_eq!(inside, [(0, 0), (0, 0), (8, 8), (1000, 1000)]);
    let (me, mine) = (rustix::process::geteuid().as_raw(), fs::metadata(tree.join("mine")).unwrap().uid());
    assert_eq!(mine, me, "the guest is the caller");
    assert_eq!(fs::metadata(tree.join("mail")).unwrap().mode() & 0o7777, 0o4755);
    let report = store.fsck(Depth::Deep, Mend::No).unwrap();
    assert!(report.is_clean() && report.layers == 1, "{report:?}");
    // Neither another guest nor somebody without the ids takes it for theirs.
    let plain = Store::open(&variable("STORE"), Owners::Refuse).unwrap();
    for other in [open(1234), plain] {
        let error = other.layer(image.diff_ids[0], &quiet).unwrap_err();
        assert!(matches!(error, StoreError::OtherOwners(_)), "{error}");
    }
    // Damage is found among files that are not the caller's, and mended.
    let damage = || fs::write(tree.join("shut"), "tex!").step(|| "damage".to_owned());
    Lobby::make().unwrap().run_as_in_cell(&guest(1000), damage).unwrap();
    let report = store.fsck(Depth::Deep, Mend::Yes).unwrap();
    assert_eq!(report.findings.iter().map(|finding| finding.cure).collect::<Vec<_>>(), [Cure::Mended]);
    assert!(store.fsck(Depth::Deep, Mend::No).unwrap().is_clean());
    store.remove(image.config_digest).unwrap();
    assert_eq!(store.disk_usage().unwrap().layers, 0);
    assert_eq!(fs::read_dir(variable("STORE").join("scratch")).unwrap().count(), 0);
    // What is wrong with a layer is told from inside.
    let cut = &fs::read(variable("CUT")).unwrap()[..];
    let error = store.add_unknown_layer(cut, &quiet).unwrap_err().to_string();
    assert!(error.contains("cut off"), "{error}");
    let long = store.add_unknown_layer(&fs::read(variable("BAD")).unwrap()[..], &quiet).unwrap_err();
    assert!(long.to_string().contains("../"), "{long}");
}

#[test]
fn with_subordinate_ids_owners_are_exact() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let image = foreign();
    write_layout(&place.path("layout"), &image);
    let [store, layout, cut, bad] = ["mine", "layout", "cut", "bad"].map(|name| place.path(name));
    fs::write(&cut, &image.tars[0][..700]).unwrap();
    // Large, so that it does not fit into what lies between two processes when it is refused.
    fs::write(&bad, [outside(), vec![0; 4 << 20]].concat()).unwrap();
    let program = place.path("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(place.folder.path(), Permissions::from_mode(0o777)).unwrap();
    let shown = [&store, &layout, &cut, &bad].map(|path| path.to_str().unwrap());
    let variables = [("STORE", shown[0]), ("LAYOUT", shown[1]), ("CUT", shown[2]), ("BAD", shown[3])];
    let again = child("owners::with_subordinate_ids", &variables);
    let output = std::process::Command::new("setpriv")
        .args(["--reuid", MAPPED, "--regid", MAPPED, "--init-groups", "--"])
        .arg(program)
        .args(again.get_args())
        .envs(variables)
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "run scripts/test first: {output:?}");
}

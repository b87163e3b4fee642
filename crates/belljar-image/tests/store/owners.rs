//! Whose the files of images are, for root and for an ordinary user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;

use belljar_image::import::{self, Wanted};
use belljar_image::store::{Depth, Mend, Owners, Ownership, Store, StoreError};

use crate::made::{Made, Place, child, quiet, variable, write_layout};

/// Anybody who is not root.
const NOBODY: u32 = 65534;

fn foreign() -> Made {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, uid, mode) in [("shut", 0, 0o000), ("mail", 8, 0o4755)] {
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
    assert!(matches!(error, StoreError::Squashed(_)), "{error}");
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

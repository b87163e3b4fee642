//! Files into a sandbox and out of it, with odd names and with a guest that plays tricks.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Told, Yard, eventually, finished};
use crate::caller::Caller;
use crate::ground::{entries, tool};

/// A tree with everything in it that a name or a file can be.
fn odd_tree(yard: &Yard, name: &str) {
    let top = yard.ground.path(name);
    fs::create_dir_all(top.join("inner/empty")).unwrap();
    fs::write(top.join("plain"), "content").unwrap();
    fs::write(top.join("new\nline and space"), "odd").unwrap();
    fs::write(top.join("-dash"), "dash").unwrap();
    fs::write(top.join("co:lon"), "colon").unwrap();
    fs::write(top.join(OsStr::from_bytes(b"\xff\xfe not text")), "bytes").unwrap();
    fs::write(top.join("n".repeat(255)), "long").unwrap();
    fs::write(top.join("inner/program"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(top.join("inner/program"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::write(top.join("inner/secret"), "x").unwrap();
    fs::set_permissions(top.join("inner/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("plain", top.join("link")).unwrap();
    symlink("/nowhere/at/all", top.join("dangling")).unwrap();
    fs::hard_link(top.join("plain"), top.join("again")).unwrap();
    yard.ground.give(name);
}

fn same(yard: &Yard, left: &str, right: &str) {
    tool("diff", &["-r", "--no-dereference", left, right], yard.ground.base());
}

fn there_and_back(caller: Caller) {
    let yard = Yard::of(caller);
    odd_tree(&yard, "tree");
    let id = yard.create("");
    yard.tell(["cp", "tree", &format!("{id}:")]).fine();
    let told = yard.sh(&id, "cd tree; cat 'new\nline and space'; ./inner/program; stat -c %a inner/program inner/secret; readlink link dangling; stat -c %u:%h plain");
    assert_eq!(told.fine(), "oddran\n755\n600\nplain\n/nowhere/at/all\n1000:2");
    yard.tell(["cp", &format!("{id}:tree"), "back"]).fine();
    same(&yard, "tree", "back");
    let program = yard.ground.path("back/inner/program").metadata().unwrap();
    assert_eq!((program.mode() & 0o7777, program.uid()), (0o755, yard.ground.account.uid));
    let odd = OsStr::from_bytes(b"tree/\xff\xfe not text");
    yard.tell([OsStr::new("cp"), odd, OsStr::new(&format!("{id}:/tmp/named"))]).fine();
    assert_eq!(yard.sh(&id, "cat /tmp/named").fine(), "bytes");
    yard.tell(["cp", "./tree/co:lon", &format!("{id}:/tmp")]).fine();
    yard.tell(["cp", &format!("{id}:/tmp/co:lon"), "./co:lon"]).fine();
    assert_eq!(fs::read_to_string(yard.ground.path("co:lon")).unwrap(), "colon");
    let left = entries(yard.ground.base());
    assert!(!left.iter().any(|path| path.to_string_lossy().contains(".belljar-cp")), "{left:?}");
}

#[test]
fn there_and_back_for_root() {
    there_and_back(Caller::Root);
}

#[test]
fn there_and_back_for_an_ordinary_user() {
    there_and_back(Caller::Delegated);
}

#[test]
fn there_and_back_for_a_user_with_subordinate_ids() {
    there_and_back(Caller::Mapped);
}

#[test]
fn destinations_are_understood_as_cp_does() {
    let yard = Yard::new();
    odd_tree(&yard, "tree");
    let id = yard.create("");
    let at = |path: &str| format!("{id}:{path}");
    let list = |path: &str| yard.sh(&id, &format!("ls -d {path}")).fine();
    yard.tell(["cp", "tree/plain", &at("new")]).fine();
    assert_eq!(list("new"), "new");
    yard.tell(["cp", "tree/plain", &at("/tmp")]).fine();
    assert_eq!(list("/tmp/plain"), "/tmp/plain");
    yard.tell(["cp", "tree", &at("other")]).fine();
    assert_eq!(list("other/plain"), "other/plain");
    yard.tell(["cp", "tree", &at("other")]).fine();
    assert_eq!(list("other/tree/plain"), "other/tree/plain");
    yard.tell(["cp", "tree/.", &at("content/deep")]).fine();
    assert_eq!(list("content/deep/plain"), "content/deep/plain");
    yard.sh(&id, "ln -s /tmp through").fine();
    yard.tell(["cp", "tree/-dash", &at("through")]).fine();
    assert_eq!(list("/tmp/-dash"), "/tmp/-dash");
    fs::create_dir(yard.ground.path("into")).unwrap();
    yard.tell(["cp", &at("other"), "into"]).fine();
    assert!(yard.ground.path("into/other/tree/plain").exists());
    yard.tell(["cp", &at("other/."), "into"]).fine();
    assert!(yard.ground.path("into/tree/plain").exists());
    fs::write(yard.ground.path("into/plain"), "old").unwrap();
    yard.tell(["cp", &at("other/plain"), "into/plain"]).fine();
    assert_eq!(fs::read_to_string(yard.ground.path("into/plain")).unwrap(), "content");
    for words in ["into/plain/", "nosuch/name", "nosuch/"] {
        let told = yard.tell(["cp", &at("other/plain"), words]);
        assert!(told.code == 2 || told.code == 4, "{words}: {told:?}");
    }
    for (source, destination) in [("a", "b"), ("-", "-"), ("-", "b"), (&*at("x"), &*at("y"))] {
        let told = yard.tell(["cp", source, destination]);
        assert!(told.code == 2 && told.err.contains("[usage]"), "{source} {destination}: {told:?}");
    }
    let told = yard.tell(["cp", &at("nosuch"), "."]);
    assert!(told.code == 4 && told.err.contains(&id), "{told:?}");
}

#[test]
fn archives_stream_in_both_directions() {
    let yard = Yard::new();
    odd_tree(&yard, "tree");
    let id = yard.create("");
    let mut tar = Command::new("tar")
        .args(["c", "-C"])
        .arg(yard.ground.path("tree"))
        .arg(".")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let into = yard
        .command(["cp", "-", &format!("{id}:unpacked")])
        .stdin(tar.stdout.take().unwrap())
        .output()
        .unwrap();
    assert_eq!(Told::of(&into).fine(), "");
    assert!(tar.wait().unwrap().success());
    let mut out =
        yard.command(["cp", &format!("{id}:unpacked"), "-"]).stdout(Stdio::piped()).spawn().unwrap();
    fs::create_dir(yard.ground.path("came")).unwrap();
    let unpacked = Command::new("tar")
        .arg("x")
        .current_dir(yard.ground.path("came"))
        .stdin(out.stdout.take().unwrap())
        .status()
        .unwrap();
    assert!(unpacked.success() && out.wait().unwrap().success());
    same(&yard, "tree", "came/unpacked");
}

#[test]
fn a_copy_has_limits() {
    let yard = Yard::new();
    let id = yard.create("");
    yard.sh(&id, "mkdir many; cd many; seq 100 | xargs touch; cd ..; truncate -s 1T huge").fine();
    let told = yard.tell(["cp", &format!("{id}:huge"), "."]);
    assert!(told.code == 4 && told.err.contains("bytes"), "{told:?}");
    let told = yard.tell(["cp", "--max-entries", "50", &format!("{id}:many"), "."]);
    assert!(told.code == 4 && told.err.contains("50 entries"), "{told:?}");
    assert!(!yard.ground.path("huge").exists() && !yard.ground.path("many").exists());
    let told = yard.tell(["cp", "--max-entries", "1", "repo", &format!("{id}:")]);
    assert_eq!(told.code, 4, "{told:?}");
    yard.sh(&id, "mkdir l; ln -s ../../outside l/bad").fine();
    let told = yard.tell(["cp", "--links", "inside", &format!("{id}:l"), "."]);
    assert!(told.code == 4 && told.err.contains("leads outside"), "{told:?}");
    yard.tell(["cp", &format!("{id}:l"), "."]).fine();
    assert_eq!(fs::read_link(yard.ground.path("l/bad")).unwrap(), Path::new("../../outside"));
}

/// The guest swaps a folder for a link to a place of the host while it is copied out, again and again.
#[test]
fn a_guest_that_swaps_folders_for_links_gains_nothing() {
    let yard = Yard::new();
    let precious = yard.ground.write("precious/file", "untouched");
    let id = yard.create("");
    let base = yard.ground.base().display().to_string();
    yard.sh(&id, "mkdir -p d/sub; for i in $(seq 50); do echo guest > d/sub/$i; done").fine();
    let swap = format!(
        "cd /workspace; while :; do mv d/sub d/other; ln -s {base}/precious d/sub; rm d/sub; ln -s /etc d/sub; rm d/sub; mv d/other d/sub; done"
    );
    let number = yard.background(&id, &swap);
    for round in 0..30 {
        let name = format!("out{round}");
        let told = yard.tell(["cp", &format!("{id}:d"), &name]);
        assert!(told.code == 0 || told.code == 4, "{told:?}");
        let sub = yard.ground.path(&name).join("sub");
        match sub.symlink_metadata() {
            Ok(meta) if meta.is_dir() => {
                for file in entries(&sub) {
                    assert_eq!(fs::read_to_string(&file).unwrap(), "guest\n", "{}", file.display());
                }
            }
            Ok(meta) => assert!(meta.is_symlink()),
            Err(_) => {}
        }
        // Copied once more over the first: a link that arrived there is never walked through.
        let told = yard.tell(["cp", &format!("{id}:d/."), &name]);
        assert!([0, 4].contains(&told.code), "{told:?}");
    }
    assert_eq!(entries(precious.parent().unwrap()), std::slice::from_ref(&precious));
    assert_eq!(fs::read_to_string(&precious).unwrap(), "untouched");
    yard.tell(["signal", &id, &number, "KILL"]).fine();
}

/// The same with a folder that guest and host share: the destination itself is the guest's to play with.
#[test]
fn a_guest_that_plays_with_the_destination_gains_nothing() {
    let yard = Yard::new();
    let precious = yard.ground.write("precious/file", "untouched");
    fs::create_dir(yard.ground.path("shared")).unwrap();
    let id = yard.tell(["create", "--workspace", "shared"]).fine();
    yard.sh(&id, "mkdir -p /tmp/d/sub; for i in $(seq 50); do echo guest > /tmp/d/sub/$i; done").fine();
    let base = yard.ground.base().display().to_string();
    let play = format!(
        "cd /workspace; while :; do rm -rf d; ln -s {base}/precious d; rm d; mkdir -p d; ln -s {base}/precious d/sub; rm -rf d .belljar-cp-*/d; done"
    );
    let number = yard.background(&id, &play);
    for _ in 0..30 {
        let told = yard.tell(["cp", &format!("{id}:/tmp/d"), "shared"]);
        assert!([0, 4].contains(&told.code), "{told:?}");
    }
    yard.tell(["signal", &id, &number, "KILL"]).fine();
    assert_eq!(entries(precious.parent().unwrap()), std::slice::from_ref(&precious));
    assert_eq!(fs::read_to_string(&precious).unwrap(), "untouched");
}

#[test]
fn an_interrupted_copy_leaves_nothing_behind() {
    let yard = Yard::new();
    let id = yard.create("");
    // Nothing on the disk inside, and more than could arrive before the signal does.
    yard.sh(&id, "mkdir d; truncate -s 200G d/slow").fine();
    let child = yard.start(["cp", "--max-size", "1TB", &format!("{id}:d"), "."]);
    eventually("the landing", || entries(yard.ground.base()).iter().any(|path| is_landing(path)));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let told = Told::of(&finished(child));
    assert!(told.code == 130 && told.err.contains("[interrupted]"), "{told:?}");
    let left = entries(yard.ground.base());
    assert!(!left.iter().any(|path| is_landing(path) || path.ends_with("d")), "{left:?}");
    assert_eq!(yard.inspect(&id)["running"], 0);
}

fn is_landing(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".belljar-cp"))
}

/// Archives that try to leave the folder they are unpacked into.
#[test]
fn an_archive_with_escapes_is_refused() {
    let yard = Yard::new();
    let id = yard.create("");
    let make = "import io,sys,tarfile\nt=tarfile.open(fileobj=sys.stdout.buffer,mode='w|')\ndef f(n):\n  i=tarfile.TarInfo(n); i.size=4; t.addfile(i,io.BytesIO(b'evil'))\ndef l(n,k,to):\n  i=tarfile.TarInfo(n); i.type=k; i.linkname=to; t.addfile(i)\n";
    for (case, script) in [
        ("upwards", "f('../evil')"),
        ("absolute", "f('/tmp/evil')"),
        ("through a link", "l('x',tarfile.SYMTYPE,'/tmp'); f('x/evil')"),
        ("hard link", "l('x',tarfile.LNKTYPE,'/etc/hostname')"),
        ("device", "l('x',tarfile.CHRTYPE,'')"),
        ("pipe", "l('x',tarfile.FIFOTYPE,'')"),
    ] {
        let made =
            Command::new("python3").args(["-c", &format!("{make}{script}\nt.close()")]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let archive = yard.ground.write("evil.tar", &made.stdout);
        let child = yard
            .command(["cp", "-", &format!("{id}:into")])
            .stdin(fs::File::open(archive).unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let told = Told::of(&finished(child));
        assert!(told.code == 4 && told.err.contains("[archive-refused]"), "{case}: {told:?}");
        let left = yard.sh(&id, "ls -d /workspace/evil /tmp/evil /evil 2>/dev/null; true").fine();
        assert_eq!(left, "", "{case}");
    }
    for (case, bytes) in [("rubbish", &b"this is no archive at all"[..]), ("nothing", b"")] {
        let archive = yard.ground.write("evil.tar", bytes);
        let output = yard
            .command(["cp", "-", &format!("{id}:into")])
            .stdin(fs::File::open(archive).unwrap())
            .output()
            .unwrap();
        let told = Told::of(&output);
        assert!(told.code == 4 && told.err.contains("archive"), "{case}: {told:?}");
    }
}

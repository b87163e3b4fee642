use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::oci::Platform;

fn digest(of: &str) -> Digest {
    Digest::of(of.as_bytes())
}

fn identity(of: &str, layers: &[&str]) -> Identity {
    Identity { config_digest: digest(of), diff_ids: layers.iter().map(|layer| digest(layer)).collect() }
}

fn intent(reference: &str) -> Intent {
    Intent { reference: reference.to_owned(), platform: "linux/amd64".to_owned() }
}

fn entry(pin: Pin) -> Entry {
    Entry { pin, locators: Locators::default() }
}

fn whole() -> Lock {
    let fetched = Entry {
        pin: Pin::Image(identity("a", &["base", "top"])),
        locators: Locators {
            repo_digests: [format!("team/app@{}", digest("m"))].into(),
            manifest_digest: Some(digest("m")),
            docker_image_id: Some(digest("id")),
        },
    };
    let built = Pin::Build { context_hash: digest("context"), image: identity("b", &["base"]) };
    let host = Pin::Host { system: "A \"quoted\" \\ system".to_owned(), fingerprint: digest("f") };
    let images = [
        (intent("team/app:1"), fetched),
        (intent("build:./image"), entry(built)),
        (intent("./root"), entry(Pin::Directory { content_digest: digest("c") })),
        (intent("host"), entry(host)),
    ];
    Lock { images: images.into() }
}

#[test]
fn a_lock_is_read_as_it_was_written() {
    let text = whole().to_string();
    assert_eq!(Lock::parse(&text).unwrap(), whole());
    assert_eq!(Lock::parse(&text).unwrap().to_string(), text);
    let facts = text.lines().skip(2);
    assert!(facts.clone().all(|line| line.starts_with("images.\"")), "{text}");
    assert_eq!(facts.count(), 7 + 5 + 2 + 3 - 1, "{text}");
}

#[test]
fn the_order_of_lines_and_the_ends_of_lines_do_not_matter() {
    let text = whole().to_string();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[2..].reverse();
    assert_eq!(Lock::parse(&lines.join("\r\n")).unwrap(), whole());
}

/// Lines that two branches added at one place, one after the other, as a merge by `union` leaves them.
#[test]
fn additions_of_two_branches_merge_line_by_line() {
    let (mut ours, mut theirs) = (Lock::default(), Lock::default());
    ours.images.insert(intent("a:1"), entry(Pin::Image(identity("a", &["x", "y"]))));
    theirs.images.insert(intent("b:1"), entry(Pin::Image(identity("b", &["x", "z"]))));
    let (ours_text, theirs_text) = (ours.to_string(), theirs.to_string());
    let mut mixed: Vec<&str> = ours_text.lines().chain(theirs_text.lines().skip(2)).collect();
    // However the lines come to lie among each other.
    mixed[2..].sort_by_key(|line| line.len());
    let merged = Lock::parse(&mixed.join("\n")).unwrap();
    ours.images.extend(theirs.images);
    assert_eq!(merged, ours);
}

#[test]
fn two_branches_that_pin_one_image_differently_are_told_where() {
    let ours = "version = 1\nimages.\"a\".\"l/x\".kind = \"image\"\n";
    let error = Lock::parse(&format!("{ours}images.\"a\".\"l/x\".kind = \"build\"\n")).unwrap_err();
    assert_eq!(error.to_string(), "line 3: this was said in line 2 already: keep one of the two");
    let marked = "version = 1\n<<<<<<< ours\n";
    assert_eq!(Lock::parse(marked).unwrap_err().wrong, Wrong::Merge);
}

#[test]
fn what_is_not_understood_is_refused_with_its_line() {
    let start = "# a comment\nversion = 1\n";
    let fact = |field: &str| format!("images.\"a\".\"l/x\".{field}\n");
    let image = fact("kind = \"image\"") + &fact(&format!("config_digest = \"{}\"", digest("a")));
    for (text, line, words) in [
        (String::new(), 1, "must begin with `version = 1`"),
        ("images.a.b.kind = \"image\"".to_owned(), 1, "must begin with"),
        ("version = 2\nwhatever this will be".to_owned(), 1, "version 2"),
        (format!("{start}version = 1"), 3, "line 2 already"),
        (format!("{start}something = 1"), 3, "`something` is not known"),
        (format!("{start}[images]"), 3, "part of the key is missing"),
        (format!("{start}images.\"a\" \"b\""), 3, "key = value"),
        (format!("{start}{}", fact("kind = 'image'")), 3, "double quotes"),
        (format!("{start}{}", fact("kind = \"image")), 3, "does not end"),
        (format!("{start}{}", fact("kind = \"image\" # why")), 3, "follows the value"),
        (format!("{start}{}", fact("kind = \"im\\u0061ge\"")), 3, "escapes"),
        (format!("{start}{}", fact("kind = \"snapshot\"")), 3, "none of image, build, directory, host"),
        (format!("{start}{}", fact("kind = \"image\"")), 3, "lacks `config_digest`"),
        (format!("{start}{image}{}", fact("colour = \"red\"")), 5, "`colour` is not known"),
        (format!("{start}{image}{}", fact("manifest_digest = \"sha256:12\"")), 5, "not a digest"),
        (format!("{start}{image}{}", fact("repo_digests.\"a:1\" = true")), 5, "name@sha256"),
        (format!("{start}{image}{}", fact(&format!("diff_ids.1 = \"{}\"", digest("x")))), 3, "diff_ids.0"),
        (format!("{start}{image}{}", fact(&format!("diff_ids.00 = \"{}\"", digest("x")))), 5, "not known"),
        (format!("{start}{image}{}", fact("diff_ids.900 = \"x\"")), 5, "not known"),
    ] {
        let error = Lock::parse(&text).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_answered_without_panic(text in "(?s).{0,200}", keys in "[a-z.\"= 1\\\\]{0,60}") {
        let _ = Lock::parse(&text);
        let _ = Lock::parse(&format!("version = 1\nimages.{keys}"));
    }

    #[test]
    fn any_reference_comes_back(reference in "[^\\p{Cc}]{1,40}", platform in "[a-z0-9/]{1,20}") {
        let mut lock = Lock::default();
        let pin = Pin::Image(identity("a", &["x"]));
        lock.images.insert(Intent { reference, platform }, entry(pin));
        prop_assert_eq!(Lock::parse(&lock.to_string()).unwrap(), lock);
    }
}

#[test]
fn drift_shows_both_sides_and_the_first_layer_that_differs() {
    let locked = Pin::Image(identity("a", &["base", "top"]));
    assert_eq!(locked.drift(&locked), None);
    let told = |now: &Pin| locked.drift(now).unwrap().to_string();
    let other = told(&Pin::Image(identity("b", &["base", "other"])));
    for words in [digest("a"), digest("b"), digest("top"), digest("other")] {
        assert!(other.contains(&words.to_string()), "{other}");
    }
    assert!(other.contains("layer 2 of 2"), "{other}");
    let shorter = told(&Pin::Image(identity("b", &["base"])));
    assert!(shorter.contains(&format!("{} was pinned, nothing is there", digest("top"))), "{shorter}");
    let settings = told(&Pin::Image(identity("b", &["base", "top"])));
    assert!(settings.contains("the configuration differs"), "{settings}");
    assert!(told(&Pin::Directory { content_digest: digest("c") }).contains("a root directory"));
}

#[test]
fn a_build_drifts_with_its_context_and_a_machine_never() {
    let built = |context: &str| Pin::Build { context_hash: digest(context), image: identity("a", &[]) };
    assert!(built("one").drift(&built("one")).is_none());
    assert!(built("one").drift(&built("two")).is_some());
    let host = |of: &str| Pin::Host { system: of.to_owned(), fingerprint: digest(of) };
    assert!(host("one").drift(&host("two")).is_none());
    assert!(host("one").drift(&built("one")).is_some(), "something else than the machine is no machine");
}

#[test]
fn paths_start_at_the_lock_and_name_no_machine() {
    let platform = Platform { architecture: "amd64".to_owned(), os: "linux".to_owned(), variant: None };
    let at = |written: &str, lock: &str| {
        Intent::new(written, &platform, Path::new("/w/suite/task"), Path::new(lock)).map(|it| it.reference)
    };
    for (written, beside, above) in [
        ("host", "host", "host"),
        ("team/app:1", "team/app:1", "team/app:1"),
        ("./root", "./root", "./task/root"),
        (".", "./", "./task"),
        ("../root", "../root", "./root"),
        ("../../root", "../../root", "../root"),
        ("root.tar", "./root.tar", "./task/root.tar"),
        ("oci:../l:t", "oci:../l:t", "oci:./l:t"),
        ("docker-archive:s.tar:a:1", "docker-archive:./s.tar:a:1", "docker-archive:./task/s.tar:a:1"),
        ("build:x/../image", "build:./image", "build:./task/image"),
        ("dockerfile:D", "dockerfile:./D", "dockerfile:./task/D"),
        ("/w/suite/task/root", "./root", "./task/root"),
    ] {
        assert_eq!(at(written, "/w/suite/task").as_deref(), Ok(beside), "{written}");
        assert_eq!(at(written, "/w/suite").as_deref(), Ok(above), "{written}");
    }
    assert!(at("/srv/root", "/w/suite").is_err() && at("oci:/srv/l", "/w/suite").is_err());
}

#[test]
fn the_nearest_lock_of_a_trusted_owner_within_the_repository_is_found() {
    let top = tempfile::tempdir().unwrap();
    let top = top.path().canonicalize().unwrap();
    let task = top.join("repository/suite/task");
    fs::create_dir_all(&task).unwrap();
    fs::create_dir(top.join("repository/.git")).unwrap();
    let found = || LockFile::find(&task).unwrap().folder().to_owned();
    assert_eq!(found(), task, "a new one is beside the task");
    fs::write(top.join(LOCK_FILE), "version = 1\n").unwrap();
    assert_eq!(found(), task, "the repository is as far as it goes");
    fs::write(top.join("repository").join(LOCK_FILE), "version = 1\n").unwrap();
    assert_eq!(found(), top.join("repository"));
    fs::write(top.join("repository/suite").join(LOCK_FILE), "version = 1\n").unwrap();
    assert_eq!(found(), top.join("repository/suite"));
    fs::write(task.join(LOCK_FILE), "version = 1\n").unwrap();
    assert_eq!(found(), task);
}

#[test]
fn a_change_is_written_whole_and_only_when_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = LockFile::find(folder.path()).unwrap();
    assert_eq!(file.read().unwrap(), None);
    assert_eq!(file.change(|_| ()).unwrap().digest, None);
    assert!(!file.path().exists(), "nothing to say, nothing written");
    let pin = Pin::Image(identity("a", &["x"]));
    let add = |lock: &mut Lock| lock.images.insert(intent("a:1"), entry(pin.clone())).is_none();
    let made = file.change(add).unwrap();
    assert!(made.value);
    let read = file.read().unwrap().unwrap();
    assert_eq!(Some(read.digest), made.digest);
    assert_eq!(read.digest, Digest::of(&fs::read(file.path()).unwrap()));
    let before = file.path().metadata().unwrap().modified().unwrap();
    assert_eq!(file.change(add).unwrap().digest, made.digest);
    assert_eq!(file.path().metadata().unwrap().modified().unwrap(), before);
}

#[test]
fn many_changes_at_once_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for number in 0..32 {
            let folder = folder.path();
            scope.spawn(move || {
                let pin = Pin::Image(identity(&number.to_string(), &["x"]));
                let file = LockFile::find(folder).unwrap();
                file.change(|lock| lock.images.insert(intent(&format!("a:{number}")), entry(pin))).unwrap();
            });
        }
    });
    let lock = LockFile::find(folder.path()).unwrap().read().unwrap().unwrap().lock;
    assert_eq!(lock.images.len(), 32);
}

#[test]
fn links_pipes_and_strange_bytes_are_no_locks() {
    let folder = tempfile::tempdir().unwrap();
    let file = LockFile::find(folder.path()).unwrap();
    let refused = || file.read().unwrap_err().to_string();
    let victim = folder.path().join("victim");
    fs::write(&victim, "version = 1\n").unwrap();
    symlink(&victim, file.path()).unwrap();
    assert!(refused().contains("is a link"));
    assert!(file.change(|lock| lock.images.clear()).is_err());
    fs::remove_file(file.path()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, file.path(), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert!(refused().contains("is not a file"));
    fs::remove_file(file.path()).unwrap();
    fs::write(file.path(), b"version = 1\n\xff").unwrap();
    assert!(refused().contains("UTF-8"));
    fs::write(file.path(), "version = 1\nnonsense\n").unwrap();
    assert!(refused().ends_with("belljar.lock: line 2: a line is written `key = value`"), "{}", refused());
}

#[test]
fn a_link_in_the_successors_place_is_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, folder.path().join(".belljar.lock.new")).unwrap();
    let file = LockFile::find(folder.path()).unwrap();
    let pin = entry(Pin::Image(identity("a", &[])));
    file.change(|lock| lock.images.insert(intent("a:1"), pin)).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(file.read().unwrap().unwrap().lock.images.len(), 1);
}

#[test]
fn a_context_is_what_a_build_can_see() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let hash = || context_hash(&path("Dockerfile"), folder.path()).unwrap();
    fs::write(path("Dockerfile"), "FROM scratch\n").unwrap();
    fs::write(path(".dockerignore"), "secret\nlogs\n!logs/kept\n").unwrap();
    fs::create_dir(path("logs")).unwrap();
    fs::write(path("program"), "one").unwrap();
    let first = hash();
    fs::write(path("secret"), "not seen").unwrap();
    fs::write(path("logs/other"), "not seen").unwrap();
    fs::File::options()
        .write(true)
        .open(path("program"))
        .unwrap()
        .set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(hash(), first, "what is left out, and times, do not count");
    let mut all = vec![first];
    let mut changed = |what: &str| {
        let now = hash();
        assert!(!all.contains(&now), "{what} counts");
        all.push(now);
    };
    fs::write(path("logs/kept"), "seen").unwrap();
    changed("an exception");
    fs::write(path("program"), "two").unwrap();
    changed("a byte");
    fs::set_permissions(path("program"), fs::Permissions::from_mode(0o755)).unwrap();
    changed("the right to execute");
    symlink("program", path("link")).unwrap();
    changed("a link");
    fs::create_dir(path("empty")).unwrap();
    changed("an empty folder");
    fs::write(path("Dockerfile"), "FROM scratch\nENV a=b\n").unwrap();
    changed("the Dockerfile");
}

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use belljar_image::oci::Settings;
use belljar_image::reference::{Reference, StoredRoot};
use belljar_image::store::Store;
use tempfile::TempDir;

use super::*;
use crate::images::{Context, ImageSettings, Watch};
use crate::spec::TaskSpec;

/// A folder with a task whose image is written like this.
struct Desk {
    folder: TempDir,
    task: LoadedTask,
}

impl Desk {
    fn new(image: &str) -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "id: t\nrepo: {{url: .}}\nenvironment: {{image: \"{image}\"}}\nrun: {{command: 'true'}}\n"
        );
        let path = folder.path().join("task.yaml");
        fs::write(&path, text).unwrap();
        // The folder is a repository, so that no lock of this machine is found above it.
        fs::create_dir(folder.path().join(".git")).unwrap();
        let task = TaskSpec::load(&path).unwrap();
        Desk { folder, task }
    }

    fn settle(&self, locking: Locking, image: &Image) -> Result<Pinned, Fault> {
        let pins = Pins::open(&self.task, &Platform::here(), locking)?;
        pins.settle(image, Locators::default(), &AtomicBool::new(false))
    }

    fn state(&self, locking: Locking, image: &Image) -> Result<LockState, (Code, u8)> {
        let settled = self.settle(locking, image);
        settled.map(|pinned| pinned.lock.state).map_err(|fault| (fault.code, fault.code.kind().exit_code()))
    }

    fn lock(&self) -> Option<String> {
        fs::read_to_string(self.folder.path().join("belljar.lock")).ok()
    }
}

fn stored(of: &str) -> Image {
    Image::Stored(Box::new(StoredRoot {
        reference: "team/app:1".to_owned(),
        config_digest: Digest::of(of.as_bytes()),
        diff_ids: vec![Digest::of(b"base"), Digest::of(format!("{of}-top").as_bytes())],
        layers: Vec::new(),
        lock: PathBuf::new(),
        settings: Settings::default(),
    }))
}

const DRIFT: Result<LockState, (Code, u8)> = Err((Code::ImageDrift, 5));
const UNPINNED: Result<LockState, (Code, u8)> = Err((Code::ImageUnpinned, 2));

/// What is pinned before, how the lock is used, what would be used now: what happens, and whether the lock changes.
#[test]
fn each_case_of_a_stored_image() {
    use LockState::{Pinned, Updated, Verified, WouldPin};
    use Locking::{Frozen, Look, Pin, Update};
    for (before, locking, now, expected, changes) in [
        (None, Pin, "a", Ok(Pinned), true),
        (None, Look, "a", Ok(WouldPin), false),
        (None, Frozen, "a", UNPINNED, false),
        (None, Update, "a", Ok(Pinned), true),
        (Some("a"), Pin, "a", Ok(Verified), false),
        (Some("a"), Look, "a", Ok(Verified), false),
        (Some("a"), Frozen, "a", Ok(Verified), false),
        (Some("a"), Update, "a", Ok(Verified), false),
        (Some("a"), Pin, "b", DRIFT, false),
        (Some("a"), Look, "b", DRIFT, false),
        (Some("a"), Frozen, "b", DRIFT, false),
        (Some("a"), Update, "b", Ok(Updated), true),
    ] {
        let case = format!("{before:?} {locking:?} {now}");
        let desk = Desk::new("team/app:1");
        if let Some(before) = before {
            assert_eq!(desk.state(Pin, &stored(before)), Ok(Pinned), "{case}");
        }
        let lock = desk.lock();
        assert_eq!(desk.state(locking, &stored(now)), expected, "{case}");
        assert_eq!(desk.lock() != lock, changes, "{case}");
    }
}

#[test]
fn drift_names_the_line_both_sides_and_the_way_out() {
    let desk = Desk::new("team/app:1");
    desk.settle(Locking::Pin, &stored("a")).unwrap();
    let fault = desk.settle(Locking::Pin, &stored("b")).unwrap_err();
    for words in ["task.yaml:3:", "belljar.lock", "a", "b", "a-top", "b-top"] {
        let words = if words.len() < 6 && !words.contains('.') {
            Digest::of(words.as_bytes()).to_string()
        } else {
            words.to_owned()
        };
        assert!(fault.message.contains(&words), "no {words} in {}", fault.message);
    }
    assert!(fault.code.remedy().contains("--update-lock") && fault.hints.is_empty(), "{:?}", fault.hints);
}

/// The library brings what is wanted, whatever a tag means by now, so a moved tag alone is no drift.
#[test]
fn what_is_pinned_is_wanted_unless_it_is_to_be_updated() {
    let desk = Desk::new("team/app:1");
    let wanted = |locking| {
        let pins = Pins::open(&desk.task, &Platform::here(), locking).unwrap();
        pins.wanted().map(|entry| (entry.pin.identity().unwrap().config_digest, entry.locators.clone()))
    };
    assert_eq!(wanted(Locking::Pin), None);
    let pins = Pins::open(&desk.task, &Platform::here(), Locking::Pin).unwrap();
    let place = format!("team/app@{}", Digest::of(b"m"));
    let locators = Locators { repo_digests: [place].into(), ..Locators::default() };
    pins.settle(&stored("a"), locators.clone(), &AtomicBool::new(false)).unwrap();
    for locking in [Locking::Pin, Locking::Look, Locking::Frozen] {
        assert_eq!(wanted(locking), Some((Digest::of(b"a"), locators.clone())));
    }
    assert_eq!(wanted(Locking::Update), None);
}

#[test]
fn an_update_leaves_other_entries_alone() {
    let desk = Desk::new("team/app:1");
    let other = "images.\"other:2\".\"linux/riscv64\".kind = \"directory\"\n\
                 images.\"other:2\".\"linux/riscv64\".content_digest = \"sha256:";
    let text = format!("version = 1\n{other}{}\"\n", Digest::of(b"x").hex());
    fs::write(desk.folder.path().join("belljar.lock"), text).unwrap();
    desk.settle(Locking::Update, &stored("a")).unwrap();
    desk.settle(Locking::Update, &stored("b")).unwrap();
    let lock = desk.lock().unwrap();
    assert!(lock.contains(other) && lock.contains(&Digest::of(b"b").to_string()), "{lock}");
    assert!(!lock.contains(&Digest::of(b"a").to_string()), "{lock}");
}

/// Two runs resolve one tag while it moves: the second to write sees what the first pinned.
#[test]
fn of_two_first_runs_with_different_images_one_drifts() {
    let desk = Desk::new("team/app:1");
    let (one, two) = (
        Pins::open(&desk.task, &Platform::here(), Locking::Pin).unwrap(),
        Pins::open(&desk.task, &Platform::here(), Locking::Pin).unwrap(),
    );
    let settle = |pins: &Pins<'_>, image| pins.settle(&image, Locators::default(), &AtomicBool::new(false));
    assert_eq!(settle(&one, stored("a")).unwrap().lock.state, LockState::Pinned);
    assert_eq!(settle(&two, stored("a")).unwrap().lock.state, LockState::Verified);
    assert_eq!(settle(&two, stored("b")).unwrap_err().code, Code::ImageDrift);
}

#[test]
fn a_build_is_pinned_with_its_context() {
    let desk = Desk::new("build:./image");
    let settle = |locking, context: &str| {
        let Image::Stored(root) = stored("a") else { panic!("stored") };
        let image = Identity { config_digest: root.config_digest, diff_ids: root.diff_ids };
        let pins = Pins::open(&desk.task, &Platform::here(), locking).unwrap();
        pins.settle_build(Digest::of(context.as_bytes()), image).map(|pinned| pinned.lock.state)
    };
    assert_eq!(settle(Locking::Pin, "one").unwrap(), LockState::Pinned);
    assert_eq!(settle(Locking::Frozen, "one").unwrap(), LockState::Verified);
    assert_eq!(settle(Locking::Pin, "two").unwrap_err().code, Code::ImageDrift);
    assert_eq!(settle(Locking::Update, "two").unwrap(), LockState::Updated);
}

#[test]
fn the_machine_is_noted_in_a_lock_that_there_is_and_never_pinned() {
    let desk = Desk::new("host");
    let unpinned = Ok(LockState::Unpinned);
    assert_eq!(desk.state(Locking::Frozen, &Image::Host), UNPINNED);
    assert_eq!(desk.state(Locking::Pin, &Image::Host), unpinned);
    assert_eq!(desk.lock(), None, "a lock is not made to say that nothing is locked");
    fs::write(desk.folder.path().join("belljar.lock"), "version = 1\n").unwrap();
    assert_eq!(desk.state(Locking::Look, &Image::Host), unpinned);
    assert_eq!(desk.lock().unwrap(), "version = 1\n");
    assert_eq!(desk.state(Locking::Pin, &Image::Host), unpinned);
    let noted = desk.lock().unwrap();
    assert!(noted.contains("kind = \"host\"") && !noted.contains("/usr"), "{noted}");
    let another = noted.replace(&noted[noted.len() - 8..noted.len() - 2], "000000");
    fs::write(desk.folder.path().join("belljar.lock"), &another).unwrap();
    let told = desk.settle(Locking::Pin, &Image::Host).unwrap().notice;
    assert!(told.is_some_and(|notice| notice.contains("another machine")));
    assert_eq!(desk.lock().unwrap(), another, "it is not written again by each machine in turn");
    assert_eq!(desk.state(Locking::Frozen, &Image::Host), UNPINNED);
    desk.settle(Locking::Update, &Image::Host).unwrap();
    assert_eq!(desk.lock().unwrap(), noted);
}

#[test]
fn what_was_pinned_as_an_image_does_not_become_the_machine() {
    let desk = Desk::new("host");
    let lock = format!(
        "version = 1\nimages.\"host\".\"{platform}\".kind = \"directory\"\nimages.\"host\".\"{platform}\".content_digest = \"{}\"\n",
        Digest::of(b"x"),
        platform = Platform::here()
    );
    fs::write(desk.folder.path().join("belljar.lock"), lock).unwrap();
    assert_eq!(desk.state(Locking::Pin, &Image::Host), DRIFT);
}

#[test]
fn an_absolute_path_is_not_put_into_a_lock() {
    let desk = Desk::new("docker-archive:/srv/app.tar");
    assert_eq!(desk.state(Locking::Pin, &stored("a")), Ok(LockState::Unpinned));
    assert_eq!(desk.state(Locking::Frozen, &stored("a")), UNPINNED);
    assert_eq!(desk.state(Locking::Update, &stored("a")), UNPINNED);
    assert_eq!(desk.lock(), None);
}

#[test]
fn a_lock_that_is_not_understood_stops_the_run() {
    let desk = Desk::new("team/app:1");
    for (text, code) in [
        ("version = 2\n", Code::LockVersion),
        ("version = 1\nwhat\n", Code::LockUnreadable),
        ("", Code::LockUnreadable),
    ] {
        fs::write(desk.folder.path().join("belljar.lock"), text).unwrap();
        for locking in [Locking::Pin, Locking::Look, Locking::Frozen, Locking::Update] {
            assert_eq!(desk.state(locking, &stored("a")), Err((code, 2)), "{text}");
        }
        assert_eq!(desk.lock().as_deref(), Some(text));
    }
}

/// A store with somebody who builds: the context's own folder becomes the image, and each build is counted.
fn builder(folder: &Path, builds: &Arc<AtomicUsize>) -> Images {
    let mut settings = ImageSettings::new(folder.join("images"));
    let counter = Arc::clone(builds);
    settings.build =
        Some(Arc::new(move |images: &Images, _: &Store, context: Context<'_>, watch: Watch<'_>| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(images.import(context.folder, None, watch)?.image.config_digest)
        }));
    Images::new(settings)
}

#[test]
fn an_image_is_built_once_for_its_context_and_again_on_request() {
    let desk = Desk::new("build:./image");
    let (image, builds) = (desk.folder.path().join("image"), Arc::new(AtomicUsize::new(0)));
    fs::create_dir(&image).unwrap();
    fs::write(image.join("Dockerfile"), "FROM scratch\nCOPY . /\n").unwrap();
    fs::write(image.join("data"), "one").unwrap();
    let mut images = builder(desk.folder.path(), &builds);
    let bring = |images: &Images, locking| {
        let reference: Reference = "build:./image".parse().unwrap();
        let found = reference.find(desk.folder.path()).unwrap();
        let sources = Sources { images, pull: Pull::Missing, locking };
        let watch = Watch { cancel: &AtomicBool::new(false), tell: &|_| {} };
        let pins = Pins::open(&desk.task, &Platform::here(), locking).unwrap();
        let state = pins.bring(&reference, &found, sources, watch).map(|root| root.pinned.lock.state);
        (state.map_err(|fault| fault.code), builds.load(Ordering::Relaxed))
    };
    assert_eq!(bring(&images, Locking::Frozen), (Err(Code::ImageUnpinned), 0));
    assert_eq!(bring(&images, Locking::Pin), (Ok(LockState::Pinned), 1));
    assert_eq!(bring(&images, Locking::Pin), (Ok(LockState::Verified), 1), "it is reused");
    assert_eq!(bring(&images, Locking::Frozen), (Ok(LockState::Verified), 1));
    fs::write(image.join("data"), "two").unwrap();
    for locking in [Locking::Pin, Locking::Look, Locking::Frozen] {
        assert_eq!(bring(&images, locking), (Err(Code::ImageDrift), 1), "nothing is built to be refused");
    }
    assert_eq!(bring(&images, Locking::Update), (Ok(LockState::Updated), 2));
    // A store that lost it: the same context must come to the same image.
    images = builder(&desk.folder.path().join("elsewhere"), &builds);
    assert_eq!(bring(&images, Locking::Frozen), (Ok(LockState::Verified), 3));
}

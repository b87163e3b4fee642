//! Processes that are killed at any point leave a store that is whole.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belljar_image::import::{self, Wanted};
use belljar_image::store::{Depth, Evict, Mend, Notice, Store};
use rustix::process::{Signal, getpid, kill_process};

use crate::made::{Place, child, owners, sizeable, variable, write_layout};

/// Imports, and at the notice that it is told to kills itself.
#[test]
#[ignore = "a part of another test, which starts it as a process of its own"]
fn import_and_remove() {
    let store = Store::open(&variable("STORE"), owners()).unwrap();
    let at: u32 = variable("KILL_AT").to_str().unwrap().parse().unwrap();
    let count = AtomicU32::new(0);
    let told = |_: Notice| {
        if count.fetch_add(1, Ordering::SeqCst) + 1 == at {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    };
    let imported = import::import(&store, &variable("LAYOUT"), &Wanted::default(), &told).unwrap();
    store.name(imported.image.config_digest, "it").unwrap();
    if std::env::var_os("REMOVE").is_some() {
        store.evict_to(0, Evict::Everything).unwrap();
    }
}

struct Killed {
    place: Place,
}

impl Killed {
    fn new() -> Killed {
        let place = Place::new();
        write_layout(&place.path("layout"), &sizeable());
        Killed { place }
    }

    fn command(&self, kill_at: u32, more: &[(&str, &str)]) -> std::process::Command {
        let paths = ["images", "layout"].map(|name| self.place.path(name).display().to_string());
        let kill_at = kill_at.to_string();
        let mut variables = vec![("STORE", paths[0].as_str()), ("LAYOUT", &paths[1]), ("KILL_AT", &kill_at)];
        variables.extend(more);
        let mut command = child("crash::import_and_remove", &variables);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        command
    }

    fn is_whole(&self, when: &str) {
        let store = &self.place.store;
        let report = store.fsck(Depth::Deep, Mend::No).unwrap();
        assert!(report.is_clean(), "{when}: {report:?}");
        for image in store.list().unwrap() {
            assert!(image.layers.iter().all(|layer| layer.is_dir()), "{when}: {image:?}");
        }
        let left = fs::read_dir(self.place.path("images/scratch")).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        // Only the beginnings of blobs stay, for the next try.
        assert!(
            left.iter().all(|name| name.starts_with("blob-") && name.ends_with(".part")),
            "{when}: {left:?}"
        );
    }

    fn works(&self) {
        let imported = self.place.import(&self.place.path("layout"));
        assert_eq!(imported.image.config_digest, sizeable().image());
        self.is_whole("after another import");
        self.place.store.prune().unwrap();
        assert_eq!(fs::read_dir(self.place.path("images/scratch")).unwrap().count(), 0);
        assert_eq!(self.place.store.list().unwrap().len(), 1);
    }
}

#[test]
fn killed_at_each_step_of_an_import() {
    let killed = Killed::new();
    // Two layers tell of two things each.
    for at in 1..=4 {
        let status = killed.command(at, &[]).status().unwrap();
        assert!(!status.success(), "killed at {at}, and yet: {status}");
        killed.is_whole(&format!("killed at notice {at}"));
        // So that the next one has everything to do again.
        killed.place.store.prune().unwrap();
    }
    killed.works();
}

fn killed_at_any_time(more: &[(&str, &str)]) {
    let killed = Killed::new();
    let start = Instant::now();
    assert!(killed.command(0, more).status().unwrap().success());
    let whole = start.elapsed();
    killed.place.store.evict_to(0, Evict::Everything).unwrap();
    const TIMES: u32 = 50;
    let mut cut_short = 0;
    for number in 0..TIMES {
        let mut child = killed.command(0, more).spawn().unwrap();
        let spread = whole.mul_f64(f64::from(number) / f64::from(TIMES));
        std::thread::sleep(spread + Duration::from_micros(u64::from(number * 37)));
        let _ = child.kill();
        cut_short += u32::from(!child.wait().unwrap().success());
        killed.is_whole(&format!("killed after {spread:?}"));
        if number % 3 == 2 {
            killed.place.store.evict_to(0, Evict::Everything).unwrap();
        }
    }
    // How many depends on the machine; at least the one that had no time at all was.
    assert!(cut_short > 0, "none of {TIMES} was killed before it was done");
    killed.works();
}

#[test]
fn killed_at_any_time_of_an_import() {
    killed_at_any_time(&[]);
}

#[test]
fn killed_at_any_time_of_an_import_and_its_removal() {
    killed_at_any_time(&[("REMOVE", "1")]);
}

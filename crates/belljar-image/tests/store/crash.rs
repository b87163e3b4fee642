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

/// A store that a part of these tests fills, in a process of its own that is killed.
pub(crate) struct Killed {
    pub(crate) place: Place,
    part: &'static str,
    variables: Vec<(&'static str, String)>,
}

impl Killed {
    /// With what the part reads from its environment, beside where the store is.
    pub(crate) fn new(place: Place, part: &'static str, more: &[(&'static str, String)]) -> Killed {
        let mut variables = more.to_vec();
        variables.push(("STORE", place.path("images").display().to_string()));
        Killed { place, part, variables }
    }

    fn at_an_import(more: &[(&'static str, String)]) -> Killed {
        let place = Place::new();
        write_layout(&place.path("layout"), &sizeable());
        let mut variables = vec![("LAYOUT", place.path("layout").display().to_string())];
        variables.extend_from_slice(more);
        Killed::new(place, "crash::import_and_remove", &variables)
    }

    fn command(&self, kill_at: u32) -> std::process::Command {
        let kill_at = kill_at.to_string();
        let mut variables = vec![("KILL_AT", kill_at.as_str())];
        variables.extend(self.variables.iter().map(|(name, value)| (*name, value.as_str())));
        let mut command = child(self.part, &variables);
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
        assert!(self.command(0).env_remove("REMOVE").status().unwrap().success());
        self.is_whole("after one that was not killed");
        self.place.store.prune().unwrap();
        assert_eq!(fs::read_dir(self.place.path("images/scratch")).unwrap().count(), 0);
        let images = self.place.store.list().unwrap();
        assert_eq!(images.iter().map(|image| image.config_digest).collect::<Vec<_>>(), [sizeable().image()]);
    }

    /// Kills it fifty times, after longer and longer.
    pub(crate) fn at_any_time(&self) {
        const TIMES: u32 = 50;
        let start = Instant::now();
        assert!(self.command(0).status().unwrap().success());
        let whole = start.elapsed();
        self.place.store.evict_to(0, Evict::Everything).unwrap();
        let mut cut_short = 0;
        for number in 0..TIMES {
            let mut child = self.command(0).spawn().unwrap();
            let spread = whole.mul_f64(f64::from(number) / f64::from(TIMES));
            std::thread::sleep(spread + Duration::from_micros(u64::from(number * 37)));
            let _ = child.kill();
            cut_short += u32::from(!child.wait().unwrap().success());
            self.is_whole(&format!("killed after {spread:?}"));
            if number % 3 == 2 {
                self.place.store.evict_to(0, Evict::Everything).unwrap();
            }
        }
        // How many depends on the machine; at least the one that had no time at all was.
        assert!(cut_short > 0, "none of {TIMES} was killed before it was done");
        self.works();
    }
}

#[test]
fn killed_at_each_step_of_an_import() {
    let killed = Killed::at_an_import(&[]);
    // Two layers tell of two things each.
    for at in 1..=4 {
        let status = killed.command(at).status().unwrap();
        assert!(!status.success(), "killed at {at}, and yet: {status}");
        killed.is_whole(&format!("killed at notice {at}"));
        // So that the next one has everything to do again.
        killed.place.store.prune().unwrap();
    }
    killed.works();
}

#[test]
fn killed_at_any_time_of_an_import() {
    Killed::at_an_import(&[]).at_any_time();
}

#[test]
fn killed_at_any_time_of_an_import_and_its_removal() {
    Killed::at_an_import(&[("REMOVE", "1".to_owned())]).at_any_time();
}

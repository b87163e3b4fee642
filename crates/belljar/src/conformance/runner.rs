//! Runs rows on an engine, a few at a time, and says what came of each.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use belljar_image::reference::Image;

use crate::collect::match_name;
use crate::conformance::bench::Bench;
use crate::conformance::ground::Ground;
use crate::conformance::need::{Standing, Survey};
use crate::conformance::report::{Counts, Report, RowOutcome, RowResult};
use crate::conformance::row::{self, Company, Promise, Row, Table};
use crate::conformance::trial::Trial;
use crate::engine::Engine;
use crate::fault::{Code, Fault};
use crate::interrupt::Interrupt;
use crate::rundir::unwritable;

/// Places of an image that a guest would change if it could.
const IMAGE_PLACES: [&str; 10] =
    ["", "bin/sh", "etc", "etc/passwd", "home", "opt", "root", "tmp", "usr/bin", "var/tmp"];

/// Which rows are wanted.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Of this table only.
    pub table: Option<Table>,
    /// With a name like one of these only: `*` stands for anything, and `hostile/…` names the table as well.
    pub names: Vec<String>,
}

impl Selection {
    /// The rows that are wanted, in order.
    pub fn rows(&self) -> Vec<Row> {
        super::rows().into_iter().filter(|row| self.wants(row)).collect()
    }

    fn wants(&self, row: &Row) -> bool {
        let like = |pattern: &String| {
            let name = if pattern.contains('/') { row.path() } else { row.name.to_owned() };
            match_name(pattern.as_bytes(), name.as_bytes())
        };
        self.table.is_none_or(|table| table == row.table)
            && (self.names.is_empty() || self.names.iter().any(like))
    }
}

/// Runs rows on an engine.
pub struct Runner<'a> {
    /// The engine to be held to the tables.
    pub engine: &'a dyn Engine,
    /// What its sandboxes are made of.
    pub image: &'a Image,
    /// A folder for the workspaces, which is made and removed.
    pub scratch: &'a Path,
    /// Files of the host that no row may change, such as this very program.
    pub guarded: &'a [PathBuf],
    /// How many rows run at the same time.
    pub jobs: usize,
    /// Asked, it begins no further row.
    pub interrupt: &'a Interrupt,
}

/// What a runner tells while it works.
#[derive(Debug)]
pub enum Progress<'a> {
    /// It knows what it will run: so many rows.
    Begun(usize),
    /// A row has come to its end.
    Finished(&'a RowResult),
}

impl Runner<'_> {
    /// Runs the rows; a row that fails is a result, and only an engine that makes no sandbox at all is a fault.
    pub fn run(&self, rows: &[Row], tell: &mut dyn FnMut(Progress<'_>)) -> Result<Report, Fault> {
        std::fs::create_dir_all(self.scratch).map_err(|error| unwritable(self.scratch, error))?;
        let report = self.report(rows, tell);
        let removed = belljar_cell::remove::remove_tree(self.scratch);
        let report = report?;
        removed.map_err(|error| unwritable(self.scratch, error))?;
        Ok(report)
    }

    fn report(&self, rows: &[Row], tell: &mut dyn FnMut(Progress<'_>)) -> Result<Report, Fault> {
        let started = Instant::now();
        let bench = Bench { engine: self.engine, image: self.image };
        let ground = self.ground(&row::engine("survey", Promise::PlainProgramsRun, ""))?;
        let survey = Survey::take(&bench, &ground, rows);
        ground.clear();
        let guarded = self.guarded_files();
        let before = stamps(&guarded);
        let work = Work { runner: self, bench, survey: survey?, guarded, before };
        tell(Progress::Begun(rows.len()));
        let mut results = work.all(rows, tell);
        if self.interrupt.is_asked() {
            return Err(Fault::new(Code::Interrupted, "the suite was interrupted"));
        }
        results.sort_by_key(|result| rows.iter().position(|row| row.name == result.name));
        Ok(Report {
            engine: work.survey.engine,
            image: self.image.to_string(),
            isolation: work.survey.isolation,
            counts: Counts::of(&results),
            duration_ms: started.elapsed().into(),
            rows: results,
        })
    }

    /// Files of the host that no row may change: those that were named, and some of the image.
    fn guarded_files(&self) -> Vec<PathBuf> {
        let inside = match self.image {
            Image::Host => Vec::new(),
            Image::Directory(root) => places_in(root),
            Image::Stored(stored) => stored.layers.iter().flat_map(|root| places_in(root)).collect(),
        };
        self.guarded.iter().cloned().chain(inside).collect()
    }

    /// A ground with a mark that no other has.
    fn ground(&self, row: &Row) -> Result<Ground, Fault> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        Ground::lay(self.scratch, format!("row-{}-{number}-{}", std::process::id(), row.name), row)
    }
}

fn places_in(root: &Path) -> Vec<PathBuf> {
    IMAGE_PLACES.iter().map(|place| root.join(place)).filter(|path| path.exists()).collect()
}

/// A runner at work.
struct Work<'a> {
    runner: &'a Runner<'a>,
    bench: Bench<'a>,
    survey: Survey,
    guarded: Vec<PathBuf>,
    before: Vec<Option<Stamp>>,
}

impl Work<'_> {
    fn all(&self, rows: &[Row], tell: &mut dyn FnMut(Progress<'_>)) -> Vec<RowResult> {
        let (sociable, lonely): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| row.company == Company::Welcome);
        let mut results = self.several(sociable, self.runner.jobs, tell);
        results.extend(self.several(lonely, 1, tell));
        results
    }

    fn several(&self, rows: Vec<&Row>, jobs: usize, tell: &mut dyn FnMut(Progress<'_>)) -> Vec<RowResult> {
        let queue = Mutex::new(VecDeque::from(rows));
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            for _ in 0..jobs.max(1) {
                let (queue, sender) = (&queue, sender.clone());
                scope.spawn(move || self.some(queue, &sender));
            }
            drop(sender);
            let mut results = Vec::new();
            for result in receiver {
                tell(Progress::Finished(&result));
                results.push(result);
            }
            results
        })
    }

    fn some(&self, queue: &Mutex<VecDeque<&Row>>, results: &Sender<RowResult>) {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(row) = next() {
            if self.runner.interrupt.is_asked() || results.send(self.one(row)).is_err() {
                return;
            }
        }
    }

    fn one(&self, row: &Row) -> RowResult {
        let started = Instant::now();
        let outcome = self.outcome(row);
        RowResult::new(row, outcome, started.elapsed().into())
    }

    fn outcome(&self, row: &Row) -> RowOutcome {
        let ground = match self.runner.ground(row) {
            Ok(ground) => ground,
            Err(fault) => return failed(super::Difference::new("the row's folders", "made", fault.message)),
        };
        let trial = Trial { bench: &self.bench, row, isolation: self.survey.isolation };
        match self.survey.standing(row) {
            Standing::Unmet(reason) => {
                ground.clear();
                RowOutcome::Unmet { reason }
            }
            Standing::MustRefuse(code) => match trial.refusal(ground, code) {
                Ok(reason) => RowOutcome::Refused { code: code.name().to_owned(), reason },
                Err(differences) => RowOutcome::Failed { differences },
            },
            Standing::MustRefuseCommand(code) => match trial.refused_command(ground, code) {
                Ok(reason) => RowOutcome::Refused { code: code.name().to_owned(), reason },
                Err(differences) => RowOutcome::Failed { differences },
            },
            Standing::Met => {
                let mut differences = trial.differences(ground);
                differences.extend(self.changed());
                match differences.is_empty() {
                    true => RowOutcome::Passed,
                    false => RowOutcome::Failed { differences },
                }
            }
        }
    }

    /// A guarded file that is not what it was.
    fn changed(&self) -> Option<super::Difference> {
        let now = stamps(&self.guarded);
        let at = now.iter().zip(&self.before).position(|(now, before)| now != before)?;
        let path = self.guarded[at].display().to_string();
        Some(super::Difference::new("a file of the host", format!("{path} unchanged"), "changed"))
    }
}

fn failed(difference: super::Difference) -> RowOutcome {
    RowOutcome::Failed { differences: vec![difference] }
}

/// What tells one state of a file from another.
type Stamp = (u64, u64, i64, i64);

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    use std::os::unix::fs::MetadataExt;
    let stamp = |path: &PathBuf| {
        let meta = path.metadata().ok()?;
        Some((meta.ino(), meta.len(), meta.mtime_nsec(), meta.ctime_nsec()))
    };
    paths.iter().map(stamp).collect()
}

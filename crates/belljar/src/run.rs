//! One task from its file to its record: load, plan, run.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use belljar_image::reference::{Found, Image, Reference, SyntaxError};

use crate::digest::sha256;
use crate::engine::Engine;
use crate::event::EventKind;
use crate::fault::{Code, Fault, Kind};
use crate::images::{self, Told};
use crate::interrupt::Interrupt;
use crate::outcome::StageOutcome;
use crate::pin::{Pinned, Pins, Root, Sources};
use crate::plan::{ImageKind, PinnedBy, Plan, PlannedImage, PlannedPatch};
use crate::record::{RunRecord, redacted_url};
use crate::recorder::{Observer, Recorder};
use crate::repo::{Repositories, ResolvedCommit, Source, SourceKind};
use crate::rundir::{Durability, PLAN, RunDir};
use crate::spec::{LoadedTask, TaskSpec};
use crate::stage::{Stage, Stream};
use crate::stages::Stages;

/// A task that was read and whose sources exist.
#[derive(Debug, Clone)]
pub struct Task {
    /// The file and what it says.
    pub loaded: LoadedTask,
    /// Where the code comes from.
    pub source: Source,
    /// The root file system, as it was written.
    pub reference: Reference,
    /// What that is, by a look at its path if it has one.
    pub found: Found,
}

impl Task {
    /// Reads a task file, or the one in a folder, and finds what it refers to.
    pub fn load(path: &Path) -> Result<Task, Fault> {
        let loaded = TaskSpec::load(path)?;
        let source = Source::parse(&loaded.spec.repo.url, &loaded.folder).map_err(|error| {
            let fault = Fault::from(error);
            with_hints(loaded.fault_at("repo.url", fault.code, fault.message.clone()), fault)
        })?;
        let unknown = |words: String| {
            loaded.fault_at("environment.image", Code::ImageUnknown, words).hint(Code::ImageUnknown.remedy())
        };
        let reference: Reference =
            loaded.spec.environment.image.parse().map_err(|error: SyntaxError| unknown(error.to_string()))?;
        let found = reference.find(&loaded.folder).map_err(|error| unknown(error.to_string()))?;
        Ok(Task { loaded, source, reference, found })
    }

    /// Brings the root file system from wherever it is, as the task's lock pins it, and holds it against the lock.
    pub fn image(&self, sources: Sources<'_>, watch: images::Watch<'_>) -> Result<Root, Fault> {
        let pins = Pins::open(&self.loaded, &sources.images.settings.platform, sources.locking)?;
        pins.bring(&self.reference, &self.found, sources, watch).map_err(|fault| match fault.code {
            // These have their place already.
            Code::ImageUnpinned | Code::LockUnreadable | Code::LockVersion => fault,
            code if code.kind() == Kind::Usage => {
                let located = self.loaded.fault_at("environment.image", fault.code, fault.message.clone());
                with_hints(located, fault)
            }
            _ => fault,
        })
    }
}

fn planned_image(image: &Image, pinned: &Pinned) -> PlannedImage {
    let (kind, config_digest) = match image {
        Image::Host => (ImageKind::Host, None),
        Image::Directory(_) => (ImageKind::Directory, None),
        Image::Stored(stored) => (ImageKind::Stored, Some(stored.config_digest.to_string())),
    };
    let content_digest = pinned.content_digest.map(|digest| digest.to_string());
    PlannedImage { reference: image.to_string(), kind, config_digest, content_digest }
}

/// The variables that an image sets.
fn given(image: &Image) -> BTreeMap<String, String> {
    match image {
        Image::Host | Image::Directory(_) => BTreeMap::new(),
        Image::Stored(stored) => images::environment(&stored.settings).collect(),
    }
}

fn with_hints(mut located: Fault, original: Fault) -> Fault {
    located.hints.extend(original.hints);
    located
}

/// A plan with the commit that it was made from.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Everything decided.
    pub plan: Plan,
    /// The commit as the repositories know it.
    pub resolved: ResolvedCommit,
    /// The root file system.
    pub image: Image,
    /// What the lock says of it.
    pub pinned: Pinned,
}

/// Decides everything: asks the repository for the commit, and fills in the rest.
pub fn plan(task: &Task, root: Root, repositories: &Repositories) -> Result<Planned, Fault> {
    let spec = &task.loaded.spec;
    let resolved = repositories.resolve(&task.source, spec.repo.commit.as_deref()).map_err(|error| {
        let fault = Fault::from(error);
        match fault.code.kind() {
            Kind::Usage => {
                with_hints(task.loaded.fault_at("repo.commit", fault.code, fault.message.clone()), fault)
            }
            Kind::Environment
            | Kind::Infrastructure
            | Kind::Drift
            | Kind::Failed
            | Kind::Unstable
            | Kind::Interrupted => fault,
        }
    })?;
    let kind = match resolved.kind {
        SourceKind::Directory => PinnedBy::Tree,
        SourceKind::Repository | SourceKind::Bundle | SourceKind::Remote => PinnedBy::Commit,
    };
    let commit =
        crate::plan::ResolvedCommit { sha: resolved.sha.clone(), commit_time: resolved.commit_time, kind };
    let Root { image, pinned } = root;
    let plan = Plan::resolve(&task.loaded, commit, planned_image(&image, &pinned), given(&image))?;
    Ok(Planned { plan, resolved, image, pinned })
}

/// Who watches a run.
pub struct Watch {
    /// Told of each event, after the journal has it.
    pub observer: Observer,
    /// Told of output as it comes.
    pub live: Live,
    /// Told of the image as it comes.
    pub image: ImageTeller,
    /// A request to stop.
    pub interrupt: Arc<Interrupt>,
}

/// Who is told how an image comes.
pub type ImageTeller = Arc<dyn Fn(Told) + Send + Sync>;

/// Who is shown output as it comes.
pub type Live = Arc<dyn Fn(Stage, Stream, &[u8]) + Send + Sync>;

/// What a run needs beside its task.
#[derive(Clone, Copy)]
pub struct Runner<'a> {
    /// Where sandboxes come from.
    pub engine: &'a dyn Engine,
    /// Where code comes from.
    pub repositories: &'a Repositories,
    /// Where root file systems come from.
    pub sources: Sources<'a>,
    /// The folder that holds `runs/`.
    pub out: &'a Path,
}

/// A run that ended.
#[derive(Debug)]
pub struct Finished {
    /// Its directory.
    pub path: PathBuf,
    /// Its record.
    pub record: RunRecord,
}

impl Runner<'_> {
    /// Runs a task and leaves a record, whatever happens to the task.
    ///
    /// `Err` means that there is no record: the input was wrong, or the output folder cannot be written.
    pub fn run(&self, task: &Task, watch: Watch) -> Result<Finished, Fault> {
        let began = Instant::now();
        let repositories = self.repositories.interruptible(Arc::clone(&watch.interrupt));
        let coming = images::Watch { cancel: watch.interrupt.flag(), tell: &*watch.image };
        let root = match task.image(self.sources, coming) {
            Ok(root) => root,
            Err(fault) => return self.unplanned(task, Stage::PrepareImage, fault, began, watch),
        };
        match plan(task, root, &repositories) {
            Ok(planned) => self.run_planned(task, &planned, &repositories, began, watch),
            Err(fault) => {
                let checkout = fault.code == Code::RepoCommitUnknown;
                let stage = if checkout { Stage::Checkout } else { Stage::Clone };
                self.unplanned(task, stage, fault, began, watch)
            }
        }
    }

    /// What the task itself is to blame for is told at once; anything else leaves a record.
    fn unplanned(
        &self,
        task: &Task,
        stage: Stage,
        fault: Fault,
        began: Instant,
        watch: Watch,
    ) -> Result<Finished, Fault> {
        match fault.code.kind() {
            // An image that could not be built is no task that failed.
            Kind::Infrastructure | Kind::Interrupted | Kind::Failed | Kind::Unstable => {
                self.record_unplanned(task, stage, &fault, began, watch)
            }
            Kind::Usage | Kind::Environment | Kind::Drift => Err(fault),
        }
    }

    fn run_planned(
        &self,
        task: &Task,
        planned: &Planned,
        repositories: &Repositories,
        began: Instant,
        watch: Watch,
    ) -> Result<Finished, Fault> {
        let Watch { observer, live, interrupt, image: _ } = watch;
        let plan = &planned.plan;
        let digest = plan.digest()?;
        let json = plan.to_json()?;
        let dir = self.run_dir(task, &plan.patches)?;
        let path = dir.path().to_owned();
        dir.replace(PLAN, json.as_bytes(), Durability::Process).map_err(|fault| discarded(&path, fault))?;
        let recorder =
            Recorder::start(dir, &plan.task_id, began, observer, |record| describe(record, plan, &digest))
                .map_err(|fault| discarded(&path, fault))?;
        let recorder = Arc::new(Mutex::new(recorder));
        Stages {
            task,
            planned,
            engine: self.engine,
            repositories,
            recorder: Arc::clone(&recorder),
            dir: path.clone(),
            live,
            interrupt: &interrupt,
        }
        .perform();
        let recorder = Arc::into_inner(recorder)
            .ok_or_else(|| Fault::new(Code::Internal, "somebody still writes to a finished run"))?;
        let record = recorder.into_inner().unwrap_or_else(PoisonError::into_inner).finish()?;
        Ok(Finished { path, record })
    }

    /// Makes the run's directory with the task frozen in it; what can be wrong with the task is looked at before.
    fn run_dir(&self, task: &Task, patches: &[PlannedPatch]) -> Result<RunDir, Fault> {
        let files = frozen(task, patches)?;
        let dir = RunDir::create(self.out, &task.loaded.spec.id)?;
        let frozen = dir.freeze_task(files.iter().map(|(name, bytes)| (name.as_path(), bytes.as_slice())));
        match frozen {
            Ok(()) => Ok(dir),
            Err(fault) => Err(discarded(dir.path(), fault)),
        }
    }

    /// The record of a run whose image or code could not be had: there is no plan, but there is a reason.
    fn record_unplanned(
        &self,
        task: &Task,
        stage: Stage,
        fault: &Fault,
        began: Instant,
        watch: Watch,
    ) -> Result<Finished, Fault> {
        let dir = self.run_dir(task, &[])?;
        let path = dir.path().to_owned();
        let log = dir.log(stage, Stream::Stderr);
        let mut recorder = Recorder::start(dir, &task.loaded.spec.id, began, watch.observer, |record| {
            record.suite.clone_from(&task.loaded.spec.suite);
            record.repo_url = Some(task.source.to_string());
            record.expectation = task.loaded.spec.expect.clone();
        })?;
        recorder.event(EventKind::StageStarted { stage })?;
        std::fs::write(&log, format!("belljar: {fault}\n"))
            .map_err(|error| crate::rundir::unwritable(&log, error))?;
        recorder.failed(Some(stage), fault)?;
        let outcome = match fault.code {
            Code::Interrupted => StageOutcome::Interrupted,
            _ => StageOutcome::Failed,
        };
        let duration_ms = recorder.elapsed();
        recorder.event(EventKind::StageFinished { stage, outcome, duration_ms })?;
        Ok(Finished { path, record: recorder.finish()? })
    }
}

/// The task file and the patches it names, each once, with the bytes that were planned.
fn frozen(task: &Task, patches: &[PlannedPatch]) -> Result<BTreeMap<PathBuf, Vec<u8>>, Fault> {
    let name = task.loaded.path.file_name().unwrap_or("task.yaml".as_ref());
    let mut files = BTreeMap::from([(PathBuf::from(name), task.loaded.bytes.clone())]);
    for patch in patches {
        let changed =
            |words: String| Fault::new(Code::SpecValue, format!("the patch {} {words}", patch.path));
        let bytes = std::fs::read(task.loaded.folder.join(&patch.path))
            .map_err(|error| changed(format!("cannot be read: {error}")))?;
        if sha256(&bytes) != patch.sha256 {
            return Err(changed("changed while the run was planned".to_owned()));
        }
        let plain = Path::new(&patch.path).components().filter(|part| *part != Component::CurDir);
        files.insert(plain.collect(), bytes);
    }
    Ok(files)
}

/// The fault, after nothing half-made is left of the directory.
fn discarded(path: &Path, fault: Fault) -> Fault {
    // What cannot be removed either is found by `runs prune`.
    let _ = belljar_cell::remove::remove_tree(path);
    fault
}

/// What the plan says, in the record's words.
fn describe(record: &mut RunRecord, plan: &Plan, digest: &str) {
    record.plan_digest = digest.to_owned();
    record.suite.clone_from(&plan.suite);
    record.labels.clone_from(&plan.labels);
    record.expectation = plan.expectation.clone();
    record.repo_url = Some(redacted_url(&plan.repo.url));
    record.repo_commit = Some(plan.repo.commit.clone());
    record.isolation.level = word(&plan.isolation);
    record.network = plan.phases.iter().map(|phase| (phase.stage.into(), value(&phase.network))).collect();
    record.limits = [
        ("memory", value(&plan.limits.memory.0)),
        ("cpu_millis", value(&plan.limits.cpus.millis())),
        ("pids", value(&plan.limits.pids)),
        ("output", value(&plan.limits.output.0)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    record.environment.clone_from(&plan.env);
    record.user = Some(format!("{} ({}:{})", plan.user.name, plan.user.uid, plan.user.gid));
    record.umask = Some(plan.umask.clone());
}

fn value(of: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(of).unwrap_or_default()
}

fn word(of: &impl serde::Serialize) -> String {
    value(of).as_str().unwrap_or_default().to_owned()
}

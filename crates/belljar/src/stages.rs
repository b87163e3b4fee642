//! The stages of a run, in order, on one page.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_image::fingerprint::Fingerprint;
use belljar_image::reference::Image;
use serde_json::json;

use crate::advice::advice;
use crate::capture::{Capture, append_marker};
use crate::collect::collect;
use crate::engine::{self, Command, CommandLimits, Engine, Exit, NetworkSink, Order, Sandbox};
use crate::event::EventKind;
use crate::fault::{Code, Fault};
use crate::interrupt::Interrupt;
use crate::moment::{Millis, Moment};
use crate::outcome::{Ending, StageOutcome};
use crate::plan::{PhaseStage, Plan, PlannedCommand, PlannedPhase};
use crate::record::{CleanupRecord, CommandRecord, ImageRecord, TreeRecord};
use crate::recorder::Recorder;
use crate::repo::{GitLogs, Repositories, tree_digest};
use crate::run::{Live, Planned, Task};
use crate::shell;
use crate::spec::Network;
use crate::stage::{Stage, Stream};
use crate::stream::StreamRecord;

/// Why the remaining stages are not run.
enum Stop {
    /// Belljar or the machine failed.
    Fault(Fault),
    /// A command failed; the record says which.
    Failed,
    /// Somebody asked for the end.
    Interrupted,
}

impl<F: Into<Fault>> From<F> for Stop {
    fn from(fault: F) -> Stop {
        let fault = fault.into();
        if fault.code == Code::Interrupted { Stop::Interrupted } else { Stop::Fault(fault) }
    }
}

/// Everything the stages share.
pub(crate) struct Stages<'a> {
    pub(crate) task: &'a Task,
    pub(crate) planned: &'a Planned,
    pub(crate) engine: &'a dyn Engine,
    pub(crate) repositories: &'a Repositories,
    pub(crate) recorder: Arc<Mutex<Recorder>>,
    pub(crate) dir: PathBuf,
    pub(crate) live: Live,
    pub(crate) interrupt: &'a Interrupt,
}

impl Stages<'_> {
    /// Runs all stages; whatever happens is in the record afterwards.
    pub(crate) fn perform(&self) {
        if let Err(Stop::Interrupted) = self.all() {
            self.record().interrupted();
        }
    }

    fn all(&self) -> Result<(), Stop> {
        self.stage(Stage::PrepareImage, || self.prepare_image())?;
        let mut sandbox = self.stage(Stage::Create, || self.create())?;
        let stop = sandbox.stopper();
        self.interrupt.arm(Arc::new(move || stop(engine::Stop::Interrupted)));
        let result = self.inside(sandbox.as_mut());
        self.interrupt.disarm();
        self.destroy(sandbox);
        result
    }

    fn inside(&self, sandbox: &mut dyn Sandbox) -> Result<(), Stop> {
        self.stage(Stage::Clone, || self.clone_history())?;
        self.stage(Stage::Checkout, || self.checkout())?;
        if !self.plan().patches.is_empty() {
            self.stage(Stage::Patch, || self.patch())?;
        }
        for phase in [PhaseStage::Compat, PhaseStage::Setup] {
            if let Some(phase) = self.plan().phase(phase) {
                let done = self.stage(phase.stage.into(), || self.phase(sandbox, phase));
                if matches!(done, Err(Stop::Failed)) {
                    // A gateway that died is the reason, if it did.
                    self.disconnect(sandbox)?;
                }
                done?;
            }
        }
        self.disconnect(sandbox)?;
        let ran = match self.plan().phase(PhaseStage::Run) {
            Some(phase) => self.stage(Stage::Run, || self.phase(sandbox, phase)),
            None => Ok(()),
        };
        match ran {
            Ok(()) | Err(Stop::Failed) => self.stage(Stage::Collect, || self.collect()).and(ran),
            Err(stop) => Err(stop),
        }
    }

    /// The boundary: from here on there is no network. A sandbox that keeps one is not used any further.
    fn disconnect(&self, sandbox: &mut dyn Sandbox) -> Result<(), Stop> {
        sandbox.disconnect().map_err(|fault| {
            // The fault itself matters more than the failure to write it down.
            let _ = self.record().failed(Some(Stage::Setup), &fault);
            Stop::Fault(fault)
        })
    }

    fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    fn record(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn event(&self, kind: EventKind) -> Result<(), Stop> {
        Ok(self.record().event(kind)?)
    }

    /// One stage with its beginning, its end and its failure in the record.
    fn stage<T>(&self, stage: Stage, work: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
        if self.interrupt.is_asked() {
            return Err(Stop::Interrupted);
        }
        let started = Instant::now();
        self.event(EventKind::StageStarted { stage })?;
        let result = work();
        let outcome = match &result {
            Ok(_) => StageOutcome::Ok,
            Err(Stop::Interrupted) => StageOutcome::Interrupted,
            Err(Stop::Failed) => StageOutcome::Failed,
            Err(Stop::Fault(fault)) => {
                // The fault itself matters more than the failure to write it down.
                let _ = self.record().failed(Some(stage), fault);
                StageOutcome::Failed
            }
        };
        self.event(EventKind::StageFinished { stage, outcome, duration_ms: started.elapsed().into() })?;
        result
    }

    fn prepare_image(&self) -> Result<(), Stop> {
        let reference = self.task.loaded.spec.environment.image.clone();
        let pinned = &self.planned.pinned;
        let lock = Some(pinned.lock.clone());
        let content = pinned.content_digest.map(|digest| ("content_digest".to_owned(), json!(digest)));
        let image = match &self.planned.image {
            Image::Host => ImageRecord {
                reference,
                kind: "host".to_owned(),
                identity: BTreeMap::from([("fingerprint".to_owned(), json!(Fingerprint::take()))]),
                locators: BTreeMap::new(),
                pinned: false,
                lock,
            },
            Image::Directory(path) => ImageRecord {
                reference,
                kind: "directory".to_owned(),
                identity: content.into_iter().collect(),
                locators: BTreeMap::from([("path".to_owned(), json!(path.display().to_string()))]),
                pinned: pinned.content_digest.is_some(),
                lock,
            },
            Image::Stored(stored) => ImageRecord {
                reference,
                kind: "oci".to_owned(),
                identity: BTreeMap::from([
                    ("config_digest".to_owned(), json!(stored.config_digest)),
                    ("diff_ids".to_owned(), json!(stored.diff_ids)),
                ]),
                locators: BTreeMap::new(),
                pinned: true,
                lock,
            },
        };
        self.event(EventKind::ImageResolved { image })?;
        if let Some(message) = &pinned.notice {
            self.event(EventKind::Notice { message: message.clone() })?;
        }
        match &pinned.warning {
            Some(message) => {
                let message = message.clone();
                self.event(EventKind::Warning { code: "not-pinned".to_owned(), message })
            }
            None => Ok(()),
        }
    }

    fn create(&self) -> Result<Box<dyn Sandbox>, Stop> {
        let workspace = self.dir.join("workspace").join("repo");
        std::fs::create_dir(&workspace).map_err(|error| crate::rundir::unwritable(&workspace, error))?;
        let made = self.engine.create(&self.order(workspace), self.network_sink())?;
        self.event(EventKind::EngineReady { engine: made.engine })?;
        for control in made.controls.iter().filter(|control| control.enforced.is_none()) {
            let message = format!("{} is not enforced here: {}", control.control, control.proof);
            self.event(EventKind::Warning { code: "not-enforced".to_owned(), message })?;
        }
        self.event(EventKind::Enforced { controls: made.controls })?;
        Ok(made.sandbox)
    }

    fn order(&self, workspace: PathBuf) -> Order {
        let plan = self.plan();
        let before_run = plan.phases.iter().filter(|phase| phase.stage != PhaseStage::Run);
        let networked = before_run.map(|phase| phase.network).any(|network| network == Network::Outbound);
        Order {
            id: self.record().record().run_id.to_lowercase(),
            image: self.planned.image.clone(),
            workspace,
            workdir: plan.workdir.clone(),
            user: plan.user.clone(),
            hostname: plan.hostname.clone(),
            limits: plan.limits,
            isolation: plan.isolation,
            network: if networked { Network::Outbound } else { Network::None },
            disk: None,
        }
    }

    /// The gateway's thread writes into the journal, too.
    fn network_sink(&self) -> NetworkSink {
        let recorder = Arc::clone(&self.recorder);
        Box::new(move |detail| {
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            // A full disk is noticed by the stage's own next event.
            let stage = recorder.record().stages.last().map_or(Stage::Setup, |record| record.stage);
            let _ = recorder.event(EventKind::Network { stage, detail });
        })
    }

    fn repo(&self) -> PathBuf {
        self.dir.join("workspace").join("repo")
    }

    fn git_logs(&self, stage: Stage) -> GitLogs {
        GitLogs::in_folder(&self.dir.join("logs"), stage.log_name())
    }

    fn clone_history(&self) -> Result<(), Stop> {
        let logs = self.git_logs(Stage::Clone);
        self.repositories.clone_history(&self.task.source, &self.planned.resolved, &self.repo(), &logs)?;
        Ok(())
    }

    fn checkout(&self) -> Result<(), Stop> {
        let logs = self.git_logs(Stage::Checkout);
        self.repositories.checkout(&self.task.source, &self.planned.resolved, &self.repo(), &logs)?;
        Ok(())
    }

    fn patch(&self) -> Result<(), Stop> {
        let logs = self.git_logs(Stage::Patch);
        for patch in &self.plan().patches {
            let file = self.dir.join("task").join(&patch.path);
            if let Err(error) = self.repositories.apply_patch(&self.repo(), &file, &logs) {
                return self.patch_failed(error.into());
            }
        }
        Ok(())
    }

    /// A patch that does not apply is the task's fault, not the machine's.
    fn patch_failed(&self, fault: Fault) -> Result<(), Stop> {
        if fault.code != Code::RepoPatch {
            return Err(Stop::Fault(fault));
        }
        self.event(EventKind::Warning { code: fault.code.name().to_owned(), message: fault.message })?;
        Err(Stop::Failed)
    }

    /// Commands in order, each an exec of its own (or all in one shell), until the first that fails.
    fn phase(&self, sandbox: &mut dyn Sandbox, phase: &PlannedPhase) -> Result<(), Stop> {
        let deadline = Instant::now() + Duration::from_millis(phase.timeout_ms);
        if phase.joined {
            let script = shell::joined(&phase.commands);
            return self.command(sandbox, phase, 0, &script, deadline);
        }
        let numbered = (0_u32..).zip(&phase.commands);
        numbered.into_iter().try_for_each(|(index, PlannedCommand { script, .. })| {
            self.command(sandbox, phase, index, script, deadline)
        })
    }

    fn command(
        &self,
        sandbox: &mut dyn Sandbox,
        phase: &PlannedPhase,
        index: u32,
        script: &str,
        deadline: Instant,
    ) -> Result<(), Stop> {
        if self.interrupt.is_asked() {
            return Err(Stop::Interrupted);
        }
        let stage = Stage::from(phase.stage);
        self.event(EventKind::CommandStarted { stage, index, script: script.to_owned() })?;
        let started = Moment::now();
        let (exit, argv, [stdout, stderr]) = self.exec(sandbox, stage, script, deadline)?;
        if let Some(marker) = marker(&exit, phase) {
            append_marker(&self.dir, &stderr, &marker)?;
        }
        let command = self.command_record(script, argv, started, &exit, [stdout, stderr]);
        self.advise(&command)?;
        self.event(EventKind::CommandFinished { stage, index, command: Box::new(command) })?;
        match exit.ending {
            Ending::Exited if exit.exit_code == 0 => Ok(()),
            Ending::Interrupted => Err(Stop::Interrupted),
            Ending::Exited
            | Ending::Signalled
            | Ending::TimedOut
            | Ending::OutOfMemory
            | Ending::OutputLimit
            | Ending::DiskLimit
            | Ending::CpuTimeLimit
            | Ending::NotStarted => Err(Stop::Failed),
        }
    }

    /// Runs one script; both streams are copied to their logs meanwhile.
    fn exec(
        &self,
        sandbox: &mut dyn Sandbox,
        stage: Stage,
        script: &str,
        deadline: Instant,
    ) -> Result<(Exit, Vec<String>, [StreamRecord; 2]), Stop> {
        let plan = self.plan();
        let arguments = shell::arguments(&plan.shell, script, &plan.env);
        let programs = shell::programs(&plan.shell);
        let argv = programs.iter().take(1).chain(&arguments).cloned().collect();
        let (stdout, out) = self.capture(stage, Stream::Stdout)?;
        let (stderr, err) = self.capture(stage, Stream::Stderr)?;
        let command = Command {
            programs,
            arguments,
            environment: plan.env.clone(),
            directory: plan.workdir.clone(),
            user: None,
            timeout: deadline.saturating_duration_since(Instant::now()),
            limits: CommandLimits::default(),
            stdin: None,
            stdout,
            stderr,
            terminal: None,
        };
        let exit = sandbox.exec(&command);
        drop(command);
        let streams = [join(out)?, join(err)?];
        Ok((exit?, argv, streams))
    }

    fn capture(&self, stage: Stage, stream: Stream) -> Result<(std::os::fd::OwnedFd, Copying), Stop> {
        let failed = |error| Fault::new(Code::SandboxFailed, "could not open a pipe").caused_by(error);
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let live = Arc::clone(&self.live);
        let capture = Capture::new(&self.dir, stage, stream, self.plan().limits.output.0);
        let copying =
            capture.spawn(reader.into(), move |piece| live(stage, stream, piece)).map_err(failed)?;
        Ok((writer.into(), copying))
    }

    fn command_record(
        &self,
        script: &str,
        argv: Vec<String>,
        started: Moment,
        exit: &Exit,
        [stdout, stderr]: [StreamRecord; 2],
    ) -> CommandRecord {
        CommandRecord {
            script: script.to_owned(),
            argv,
            cwd: self.plan().workdir.clone(),
            started,
            duration_ms: Millis::from(exit.wall),
            ending: exit.ending,
            exit_code: exit.exit_code,
            signal: exit.signal,
            not_started: exit.not_started.clone(),
            survivors: Some(exit.survivors),
            usage: exit.usage,
            stdout,
            stderr,
        }
    }

    fn advise(&self, command: &CommandRecord) -> Result<(), Stop> {
        if command.ending == Ending::Exited && command.exit_code == 0 {
            return match command.usage.memory_kills {
                Some(kills @ 1..) => {
                    let message = format!(
                        "the kernel killed {kills} of its processes for lack of memory, and it ended with 0 all the same"
                    );
                    self.event(EventKind::Warning { code: "memory-kills".to_owned(), message })
                }
                Some(0) | None => Ok(()),
            };
        }
        match advice([&command.stdout, &command.stderr]) {
            Some(words) => {
                self.event(EventKind::Warning { code: "advice".to_owned(), message: words.to_owned() })
            }
            None => Ok(()),
        }
    }

    fn collect(&self) -> Result<(), Stop> {
        let repo = self.repo();
        let plan = self.plan();
        // The guest may have shut its own folder; it belongs to us again.
        std::fs::set_permissions(&repo, Permissions::from_mode(0o755))
            .map_err(|error| crate::rundir::unwritable(&repo, error))?;
        if !plan.collect.is_empty() {
            let kept = collect(&repo, &self.dir.join("collected"), &plan.collect)?;
            for file in kept.files {
                self.event(EventKind::Collected { file })?;
            }
            for message in kept.refused {
                self.event(EventKind::Warning { code: "not-collected".to_owned(), message })?;
            }
        }
        let tree = hash(&repo)?;
        self.event(EventKind::TreeHashed { tree })
    }

    /// Always runs; its failure is kept beside the run's own.
    fn destroy(&self, sandbox: Box<dyn Sandbox>) {
        let started = Instant::now();
        let stage = Stage::Destroy;
        let _ = self.event(EventKind::StageStarted { stage });
        let errors = sandbox.destroy().unwrap_or_else(|fault| vec![fault.to_string()]);
        let outcome = if errors.is_empty() { StageOutcome::Ok } else { StageOutcome::Failed };
        let cleanup = CleanupRecord { ok: errors.is_empty(), errors };
        let _ = self.event(EventKind::CleanedUp { cleanup });
        let _ =
            self.event(EventKind::StageFinished { stage, outcome, duration_ms: started.elapsed().into() });
    }
}

/// What Belljar says after the guest's last byte.
fn marker(exit: &Exit, phase: &PlannedPhase) -> Option<String> {
    let seconds = phase.timeout_ms as f64 / 1000.0;
    match (exit.ending, &exit.not_started) {
        (_, Some(reason)) => Some(format!("[belljar: the command could not be started: {reason}]\n")),
        (Ending::TimedOut, None) => Some(format!(
            "\n[belljar: {} timed out after {seconds} s and was killed; its output up to here is kept]\n",
            Stage::from(phase.stage)
        )),
        (_, None) => None,
    }
}

type Copying = std::thread::JoinHandle<StreamRecord>;

fn join(copying: Copying) -> Result<StreamRecord, Stop> {
    copying.join().map_err(|_| Fault::new(Code::Internal, "the copying of output panicked").into())
}

fn hash(repo: &Path) -> Result<TreeRecord, Stop> {
    let tree = tree_digest(repo).map_err(|error| {
        Fault::new(Code::SandboxFailed, format!("the written tree could not be hashed: {error}"))
    })?;
    Ok(TreeRecord { digest: tree.digest, files: tree.files, bytes: tree.bytes, unread: tree.unread })
}

impl From<PhaseStage> for Stage {
    fn from(phase: PhaseStage) -> Stage {
        match phase {
            PhaseStage::Compat => Stage::Compat,
            PhaseStage::Setup => Stage::Setup,
            PhaseStage::Run => Stage::Run,
        }
    }
}

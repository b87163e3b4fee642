//! The one writer of a run: takes in what happens, journals it, tells it, and keeps the record.

use std::time::{Duration, Instant};

use crate::classify::{Facts, FaultFact, classify};
use crate::event::{Event, EventKind, JOURNAL_FORMAT};
use crate::evidence::TestEvidence;
use crate::expectation::search;
use crate::fault::{Code, Fault};
use crate::journal::Journal;
use crate::moment::{Millis, Moment};
use crate::normalise;
use crate::outcome::Verdict;
use crate::record::{CommandRecord, ErrorRecord, RunRecord};
use crate::rundir::{Durability, JOURNAL, RECORD, RunDir};
use crate::stage::{Actor, Stage};

/// Who is told of each event after the journal has it.
pub type Observer = Box<dyn FnMut(&Event) + Send>;

/// The writer of one run's journal and record.
pub struct Recorder {
    dir: RunDir,
    journal: Journal,
    record: RunRecord,
    clock: Instant,
    saved: Instant,
    next: u64,
    fault: Option<FaultFact>,
    interrupted: bool,
    observer: Observer,
}

impl Recorder {
    /// Starts the journal and writes the record, with what the plan says filled in by `describe`.
    ///
    /// The run's clock counts from `began`, which may lie before: planning can take a while.
    pub fn start(
        dir: RunDir,
        task_id: &str,
        began: Instant,
        observer: Observer,
        describe: impl FnOnce(&mut RunRecord),
    ) -> Result<Recorder, Fault> {
        let journal = Journal::create(&dir.path().join(JOURNAL))?;
        let mut record = RunRecord::starting(dir.run_id(), task_id, dir.started());
        describe(&mut record);
        let mut recorder = Recorder {
            dir,
            journal,
            record,
            clock: began,
            saved: Instant::now(),
            next: 0,
            fault: None,
            interrupted: false,
            observer,
        };
        recorder.save(Durability::Process)?;
        recorder.announce()?;
        Ok(recorder)
    }

    fn announce(&mut self) -> Result<(), Fault> {
        let record = &self.record;
        self.event(EventKind::RunStarted {
            format: JOURNAL_FORMAT,
            run_id: record.run_id.clone(),
            task_id: record.task_id.clone(),
            plan_digest: record.plan_digest.clone(),
            belljar: record.belljar.clone(),
        })
    }

    /// The run's directory.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// The record as it stands.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Journals an event, takes it into the record, then tells the observer.
    ///
    /// The record on disk follows when a guest's stage ends and it is more than a second old; until
    /// then the journal has what it lacks, and [`crate::runs::load`] puts both together.
    pub fn event(&mut self, kind: EventKind) -> Result<(), Fault> {
        let kind = self.completed(kind)?;
        let mut event = Event { seq: self.next, at: Moment::now(), elapsed_ms: self.elapsed(), kind };
        if let Err(fault) = self.journal.append(&event) {
            self.make_room(fault)?;
            // A full disk is part of what is judged.
            if let EventKind::RunFinished { verdict } = &mut event.kind {
                *verdict = self.judge();
            }
            self.journal.append(&event)?;
        }
        self.next += 1;
        self.record.apply(&event);
        (self.observer)(&event);
        if let EventKind::StageFinished { stage, .. } = event.kind
            && self.is_due(stage)
        {
            self.save(Durability::Process)?;
        }
        Ok(())
    }

    /// How long the run has been going on.
    pub fn elapsed(&self) -> Millis {
        self.clock.elapsed().into()
    }

    /// Takes in a failure of Belljar or the machine; the first one decides the verdict.
    pub fn failed(&mut self, stage: Option<Stage>, fault: &Fault) -> Result<(), Fault> {
        self.fault.get_or_insert(FaultFact { stage, code: fault.code });
        let error = ErrorRecord::from(fault);
        self.event(EventKind::Failed { stage, error })
    }

    /// Takes in that a person or a signal stopped the run.
    pub fn interrupted(&mut self) {
        self.interrupted = true;
    }

    /// Judges the run, journals the verdict and writes the final record to the disk.
    pub fn finish(mut self) -> Result<RunRecord, Fault> {
        let verdict = self.judge();
        let journalled = self.event(EventKind::RunFinished { verdict }).and_then(|()| self.journal.sync());
        if let Err(fault) = journalled {
            self.finish_unjournalled(&fault);
        }
        self.save(Durability::Power)?;
        self.dir.sync_name()?;
        self.dir.release_reserve();
        Ok(self.record)
    }

    /// Ends the record although the journal could not be: the record then says why.
    fn finish_unjournalled(&mut self, fault: &Fault) {
        self.fault.get_or_insert(FaultFact { stage: None, code: fault.code });
        self.record.error.get_or_insert_with(|| ErrorRecord::from(fault));
        let kind = EventKind::RunFinished { verdict: self.judge() };
        self.record.apply(&Event { seq: self.next, at: Moment::now(), elapsed_ms: self.elapsed(), kind });
    }

    fn judge(&self) -> Verdict {
        let mut facts = Facts::of(&self.record);
        facts.fault = self.fault;
        facts.interrupted = self.interrupted;
        if let Err(fault) = self.add_output(&mut facts) {
            facts.fault.get_or_insert(FaultFact { stage: Some(Stage::Run), code: fault.code });
        }
        classify(&facts)
    }

    fn add_output(&self, facts: &mut Facts) -> Result<(), Fault> {
        let Some(command) = deciding(&self.record) else { return Ok(()) };
        let (dir, expectation) = (self.dir.path(), &self.record.expectation);
        facts.tests = TestEvidence::of(dir, command);
        facts.stdout = search(dir, &command.stdout, expectation.stdout.as_deref())?;
        facts.stderr = search(dir, &command.stderr, expectation.stderr.as_deref())?;
        Ok(())
    }

    /// Adds to a finished command the digests that its stage's comparison needs.
    fn completed(&self, kind: EventKind) -> Result<EventKind, Fault> {
        match kind {
            EventKind::CommandFinished { stage, index, mut command }
                if self.record.compares_output(stage) =>
            {
                let dir = self.dir.path();
                command.stdout.normalised = Some(normalise::stream(dir, &command.stdout)?);
                command.stderr.normalised = Some(normalise::stream(dir, &command.stderr)?);
                Ok(EventKind::CommandFinished { stage, index, command })
            }
            other => Ok(other),
        }
    }

    fn is_due(&self, stage: Stage) -> bool {
        stage.actor() == Actor::Guest && self.saved.elapsed() > Duration::from_secs(1)
    }

    fn save(&mut self, durability: Durability) -> Result<(), Fault> {
        self.saved = Instant::now();
        if let Err(fault) = self.dir.replace(RECORD, &self.record.to_vec()?, durability) {
            self.make_room(fault)?;
            // The record itself now says that the disk was full.
            self.dir.replace(RECORD, &self.record.to_vec()?, durability)?;
        }
        Ok(())
    }

    /// Meets a full disk with the room that was kept for the end: what follows can be written, and tells of it.
    fn make_room(&mut self, fault: Fault) -> Result<(), Fault> {
        if fault.code != Code::DiskFull || !self.dir.release_reserve() {
            return Err(fault);
        }
        self.fault.get_or_insert(FaultFact { stage: None, code: fault.code });
        self.record.error.get_or_insert_with(|| ErrorRecord::from(&fault));
        Ok(())
    }
}

fn deciding(record: &RunRecord) -> Option<&CommandRecord> {
    let commands = &record.stage(Stage::Run)?.commands;
    commands.iter().find(|command| command.exit_code != 0).or(commands.last())
}

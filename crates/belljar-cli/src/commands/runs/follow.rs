//! `belljar runs show --follow`: a run that is still going, until its end.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use belljar::Fault;
use belljar::event::EventKind;
use belljar::journal::Follower;
use belljar::rundir::JOURNAL;
use belljar::runs::{RunState, load};
use belljar::stage::{Actor, Stage, Stream};

use super::log::Log;
use crate::screen::{Screen, View};
use crate::voice::Voice;

/// How often is looked for news.
const PAUSE: Duration = Duration::from_millis(150);
/// How much of a log is read at once.
const PIECE: u64 = 64 * 1024;

/// Shows a run as it goes on, and returns when it has ended or its process is gone.
pub(crate) fn follow(run: &Path, voice: Voice) -> Result<(), Fault> {
    let screen = Screen::open(voice);
    let mut following = Following {
        run,
        view: screen.view(),
        journal: Follower::new(&run.join(JOURNAL)),
        stage: None,
        read: BTreeMap::new(),
    };
    while following.step()? == News::MoreToCome {
        std::thread::sleep(PAUSE);
    }
    screen.close();
    Ok(())
}

/// Whether there will be news.
#[derive(PartialEq, Eq)]
enum News {
    MoreToCome,
    Ended,
}

struct Following<'a> {
    run: &'a Path,
    view: View,
    journal: Follower,
    stage: Option<Stage>,
    read: BTreeMap<(Stage, Stream), u64>,
}

impl Following<'_> {
    fn step(&mut self) -> Result<News, Fault> {
        // Asked before reading: what was written up to a death is read after it.
        let going = load(self.run)?.state == RunState::Running;
        let batch = self.journal.read()?;
        let (mut ended, silent) = (false, batch.events.is_empty());
        for event in &batch.events {
            self.view.event(event);
            match &event.kind {
                EventKind::StageStarted { stage } => self.stage = Some(*stage),
                EventKind::RunFinished { .. } => ended = true,
                _ => {}
            }
        }
        self.output();
        Ok(if ended || (silent && !going) { News::Ended } else { News::MoreToCome })
    }

    /// The guest's output since the last look, as far as its logs have it.
    fn output(&mut self) {
        let Some(stage) = self.stage.filter(|stage| stage.actor() == Actor::Guest) else { return };
        for stream in [Stream::Stdout, Stream::Stderr] {
            let offset = self.read.entry((stage, stream)).or_default();
            let mut piece = Vec::new();
            let log = Log::of(stage, stream).bytes(self.run, *offset, PIECE);
            // A log that is not there yet has nothing to show.
            let Ok(count) = log.and_then(|mut log| log.read_to_end(&mut piece)) else { continue };
            *offset += count as u64;
            self.view.output(&piece);
        }
    }
}

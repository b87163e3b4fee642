//! `belljar run`: a task, its stages as they go, its verdict.

use std::path::Path;
use std::sync::Arc;

use belljar::interrupt::Interrupt;
use belljar::outcome::Verdict;
use belljar::pin::{Locking, Sources};
use belljar::record::RunRecord;
use belljar::run::{Finished, Runner, Task, Watch};
use belljar::{Code, Fault};
use serde::Serialize;

use crate::args::RunArguments;
use crate::place::Place;
use crate::screen::{Screen, View};
use crate::signals::Ears;
use crate::voice::Voice;
use crate::{leftovers, verdict};

/// What a person is told after the first Ctrl-C.
const STOPPING: &str =
    "  ! interrupted: ending the run and taking down its sandbox (once more kills it at once)";

/// A run as `--json` answers it: its record, and where it is.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    record: &'a RunRecord,
    path: &'a Path,
}

/// Runs a task.
pub(crate) fn perform(arguments: &RunArguments, voice: Voice) -> Result<u8, Fault> {
    let place = Place::find()?;
    let task = Task::load(&arguments.task)?;
    leftovers::reap(&place);
    let Finished { path, record } = watched(&place, &task, arguments, voice)?;
    let text = verdict::text(&record, &path)?;
    voice.answer(&Answer { record: &record, path: &path }, || text)?;
    Ok(record.verdict.as_ref().map_or(Code::Internal.kind().exit_code(), Verdict::exit_code))
}

/// The run itself, with its display around it.
fn watched(place: &Place, task: &Task, arguments: &RunArguments, voice: Voice) -> Result<Finished, Fault> {
    let (engine, repositories) = (place.embedded(), place.repositories()?);
    let images = place.images(arguments.fetch.owners)?;
    let sources = Sources {
        images: &images,
        pull: arguments.fetch.pull.into(),
        locking: arguments.lock.locking(Locking::Pin),
    };
    let runner = Runner { engine: &engine, repositories: &repositories, sources, out: &arguments.out.out };
    let screen = Screen::open(voice);
    let interrupt = Arc::new(Interrupt::default());
    let teller = screen.view();
    let ears = Ears::open(&interrupt, move || teller.say(STOPPING))?;
    let finished = runner.run(task, watch(&screen.view(), &interrupt));
    drop(ears);
    screen.close();
    finished
}

fn watch(view: &View, interrupt: &Arc<Interrupt>) -> Watch {
    let (events, output) = (view.clone(), view.clone());
    Watch {
        observer: Box::new(move |event| events.event(event)),
        live: Arc::new(move |_, _, piece| output.output(piece)),
        image: view.image_teller(),
        interrupt: Arc::clone(interrupt),
    }
}

//! `belljar plan`: everything a run would do.

use std::sync::Arc;

use belljar::images::Watch;
use belljar::interrupt::Interrupt;
use belljar::pin::{Locking, Sources};
use belljar::repo::Repositories;
use belljar::run::{Planned, Task, plan};
use belljar::{Code, Fault};
use serde_json::{Value, json};

use crate::args::PlanArguments;
use crate::place::Place;
use crate::screen::Screen;
use crate::signals::Ears;
use crate::voice::Voice;
use crate::words;

/// Prints the plan and its digest.
pub(crate) fn perform(arguments: &PlanArguments, voice: Voice) -> Result<u8, Fault> {
    let place = Place::find()?;
    let task = Task::load(&arguments.task)?;
    let repositories = place.repositories()?;
    let images = place.images(arguments.fetch.owners)?;
    let sources = Sources {
        images: &images,
        pull: arguments.fetch.pull.into(),
        locking: arguments.lock.locking(Locking::Look),
    };
    let Planned { plan, pinned, .. } = planned(&task, &repositories, sources, voice)?;
    let digest = plan.digest()?;
    let object = json!({ "plan": parsed(&plan.to_json()?)?, "plan_digest": digest, "lock": pinned.lock });
    let lock = words::lock(&pinned.lock);
    let lock = lock.map(|words| format!("{words}\n")).unwrap_or_default();
    voice.answer(&object, || format!("{}\n{lock}plan digest {digest}\n", plan.to_text()))?;
    Ok(0)
}

/// The plan, with a display while it is made; Ctrl-C ends git as well.
fn planned(
    task: &Task,
    repositories: &Repositories,
    sources: Sources<'_>,
    voice: Voice,
) -> Result<Planned, Fault> {
    let screen = Screen::open(voice);
    let interrupt = Arc::new(Interrupt::default());
    let ears = Ears::open(&interrupt, || {})?;
    let tell = screen.view().image_teller();
    let coming = Watch { cancel: interrupt.flag(), tell: &*tell };
    let root = task.image(sources, coming);
    let planned = root.and_then(|root| plan(task, root, &repositories.interruptible(Arc::clone(&interrupt))));
    drop(ears);
    screen.close();
    planned
}

fn parsed(canonical: &str) -> Result<Value, Fault> {
    serde_json::from_str(canonical)
        .map_err(|error| Fault::new(Code::Internal, "could not read the plan back").caused_by(error))
}

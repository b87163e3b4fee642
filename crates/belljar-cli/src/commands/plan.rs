//! `belljar plan`: everything a run would do.

use std::sync::Arc;

use belljar::images::{Images, Pull, Watch};
use belljar::interrupt::Interrupt;
use belljar::repo::Repositories;
use belljar::run::{Planned, Task, plan};
use belljar::{Code, Fault};
use serde_json::{Value, json};

use crate::args::PlanArguments;
use crate::place::Place;
use crate::screen::Screen;
use crate::signals::Ears;
use crate::voice::Voice;

/// Prints the plan and its digest.
pub(crate) fn perform(arguments: &PlanArguments, voice: Voice) -> Result<u8, Fault> {
    let place = Place::find()?;
    let task = Task::load(&arguments.task)?;
    let repositories = place.repositories()?;
    let images = place.images(arguments.fetch.owners)?;
    let plan = planned(&task, &repositories, (&images, arguments.fetch.pull.into()), voice)?.plan;
    let digest = plan.digest()?;
    let object = json!({ "plan": parsed(&plan.to_json()?)?, "plan_digest": digest });
    voice.answer(&object, || format!("{}\nplan digest {digest}\n", plan.to_text()))?;
    Ok(0)
}

/// The plan, with a display while it is made; Ctrl-C ends git as well.
fn planned(
    task: &Task,
    repositories: &Repositories,
    (images, pull): (&Images, Pull),
    voice: Voice,
) -> Result<Planned, Fault> {
    let screen = Screen::open(voice);
    let interrupt = Arc::new(Interrupt::default());
    let ears = Ears::open(&interrupt, || {})?;
    let tell = screen.view().image_teller();
    let coming = Watch { cancel: interrupt.flag(), tell: &*tell };
    let image = task.image(images, pull, coming);
    let planned =
        image.and_then(|image| plan(task, image, &repositories.interruptible(Arc::clone(&interrupt))));
    drop(ears);
    screen.close();
    planned
}

fn parsed(canonical: &str) -> Result<Value, Fault> {
    serde_json::from_str(canonical)
        .map_err(|error| Fault::new(Code::Internal, "could not read the plan back").caused_by(error))
}

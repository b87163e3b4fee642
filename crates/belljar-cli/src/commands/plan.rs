//! `belljar plan`: everything a run would do.

use belljar::run::{Task, plan};
use belljar::{Code, Fault};
use serde_json::{Value, json};

use crate::args::PlanArguments;
use crate::place::Place;
use crate::screen::Screen;
use crate::voice::Voice;

/// Prints the plan and its digest.
pub(crate) fn perform(arguments: &PlanArguments, voice: Voice) -> Result<u8, Fault> {
    let place = Place::find()?;
    let task = Task::load(&arguments.task)?;
    let repositories = place.repositories()?;
    let screen = Screen::open(voice);
    let planned = plan(&task, &repositories);
    screen.close();
    let plan = planned?.plan;
    let digest = plan.digest()?;
    let object = json!({ "plan": parsed(&plan.to_json()?)?, "plan_digest": digest });
    voice.answer(&object, || format!("{}\nplan digest {digest}\n", plan.to_text()))?;
    Ok(0)
}

fn parsed(canonical: &str) -> Result<Value, Fault> {
    serde_json::from_str(canonical)
        .map_err(|error| Fault::new(Code::Internal, "could not read the plan back").caused_by(error))
}

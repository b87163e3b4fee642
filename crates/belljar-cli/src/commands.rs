//! One module per verb.

mod build;
mod compare;
mod completions;
mod conformance;
mod doctor;
mod gc;
mod image;
mod plan;
mod run;
mod runs;
mod sandbox;
mod schema;

use belljar::Fault;

use crate::args::{RunArguments, RunTaskArguments, Verb};
use crate::voice::Voice;

/// Does what the verb says; gives the exit code.
pub(crate) fn perform(verb: Verb, voice: Voice) -> Result<u8, Fault> {
    match verb {
        Verb::Run(run) => run::perform(&run, voice),
        Verb::RunTask(RunTaskArguments { task, fetch, out, lock }) => {
            run::perform(&RunArguments { task, fetch, out, lock }, voice)
        }
        Verb::Plan(plan) => plan::perform(&plan, voice),
        Verb::Compare(compare) => compare::perform(&compare, voice),
        Verb::Sandbox(sandbox) => sandbox::perform(sandbox.verb, voice),
        Verb::Image(image) => image::perform(image.verb, voice),
        Verb::Build(build) => build::perform(&build, voice),
        Verb::Runs(runs) => runs::perform(&runs.verb, voice),
        Verb::Doctor(doctor) => doctor::perform(&doctor, voice),
        Verb::Conformance(conformance) => conformance::perform(&conformance, voice),
        Verb::Gc(gc) => gc::perform(&gc, voice),
        Verb::Schema(schema) => schema::perform(&schema),
        Verb::Completions(completions) => completions::perform(&completions),
    }
}

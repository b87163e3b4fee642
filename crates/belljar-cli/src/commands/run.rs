//! `belljar run`: a task, its stages as they go, its verdict.

use std::sync::Arc;

use belljar::Fault;
use belljar::interrupt::Interrupt;
use belljar::run::{Runner, Task, Watch};

use crate::args::{Output, RunArguments};
use crate::place::Place;

/// Runs a task.
pub(crate) fn perform(arguments: &RunArguments, _output: Output) -> Result<u8, Fault> {
    let place = Place::find()?;
    let task = Task::load(&arguments.task)?;
    let (engine, repositories) = (place.embedded(), place.repositories()?);
    let runner = Runner { engine: &engine, repositories: &repositories, out: &arguments.out };
    let watch = Watch {
        observer: Box::new(|event| anstream::eprintln!("{:?}", event.kind)),
        live: Arc::new(|_, _, piece| anstream::eprint!("{}", String::from_utf8_lossy(piece))),
        interrupt: Arc::new(Interrupt::default()),
    };
    let finished = runner.run(&task, watch)?;
    let verdict = finished.record.verdict.as_ref();
    anstream::println!("{} {}", verdict.map_or("", |v| v.outcome.name()), finished.path.display());
    Ok(verdict.map_or(4, belljar::outcome::Verdict::exit_code))
}

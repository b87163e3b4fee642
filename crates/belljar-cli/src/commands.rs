//! One module per verb.

mod run;

use belljar::Fault;

use crate::args::{Arguments, Verb};

/// Does what the arguments say; gives the exit code.
pub(crate) fn perform(arguments: Arguments) -> Result<u8, Fault> {
    let output = arguments.output();
    match arguments.verb {
        Verb::Run(run) => run::perform(&run, output),
    }
}

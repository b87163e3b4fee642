//! `belljar sandbox exec` and `shell`: a command in a sandbox that is there.

use std::os::fd::AsFd;

use belljar::limits::{Bytes, Limits};
use belljar::sandbox::{Execution, Finish, Hand, Live};
use belljar::{Code, Fault};
use belljar_cell::cell::{ExecEnd, Full};
use serde_json::json;

use super::answer::Ended;
use super::foreground::{Attended, Foreground, null, unmade};
use super::order;
use super::relay::{Ending, Relayed};
use super::terminal::Raw;
use crate::args::{ExecArguments, Manner, ShellArguments};
use crate::voice::Voice;

/// Runs the command, in the foreground or not.
pub(crate) fn perform(arguments: ExecArguments, voice: Voice) -> Result<u8, Fault> {
    let execution = order::execution(arguments.command, &arguments.manner, Some(&arguments.share));
    if arguments.detach {
        return detach(&arguments.sandbox, &execution, &arguments.manner, voice);
    }
    attend(&arguments.sandbox, &execution, &arguments.manner, voice)
}

/// Opens a login shell.
pub(crate) fn shell(arguments: &ShellArguments, voice: Voice) -> Result<u8, Fault> {
    let manner = Manner {
        interactive: true,
        tty: true,
        environment: Vec::new(),
        cwd: None,
        user: arguments.user,
        timeout: None,
        cpu_time: None,
        open_files: None,
        output_limit: None,
        plain: false,
    };
    let foreground = Foreground::prepare(&manner, voice)?;
    let live = order::sandboxes()?.open(&arguments.sandbox)?;
    let [shell, otherwise] = ["bash", "sh"].map(str::to_owned);
    let command = [shell].into_iter().chain(live.login_arguments()).collect();
    let mut execution = order::execution(command, &manner, None);
    execution.otherwise = vec![otherwise];
    attended(live, foreground, &execution, voice)
}

fn attend(sandbox: &str, execution: &Execution, manner: &Manner, voice: Voice) -> Result<u8, Fault> {
    let foreground = Foreground::prepare(manner, voice)?;
    attended(order::sandboxes()?.open(sandbox)?, foreground, execution, voice)
}

fn attended(
    mut live: Live,
    foreground: Foreground,
    execution: &Execution,
    voice: Voice,
) -> Result<u8, Fault> {
    let attended = foreground.start(&mut live, execution)?;
    let number = attended.number;
    let (end, rest) = ended(&mut live, attended);
    conclude(&live.id, number, execution, end, rest, voice)
}

/// Waits for the end of a command.
pub(crate) fn ended(live: &mut Live, attended: Attended) -> (Result<ExecEnd, Fault>, (Ending, Option<Raw>)) {
    let end = live.end();
    (end, attended.over())
}

/// Waits until all is delivered, and tells the end.
pub(crate) fn conclude(
    sandbox: &str,
    number: u32,
    execution: &Execution,
    end: Result<ExecEnd, Fault>,
    (delivering, raw): (Ending, Option<Raw>),
    voice: Voice,
) -> Result<u8, Fault> {
    let relayed = delivering.wait()?;
    drop(raw);
    let end = end?;
    let Relayed { captured, asked, too_much, failure } = relayed;
    if let Some(error) = failure {
        let message = format!("could not write the command's output: {error}; the command was killed");
        return Err(Fault::new(Code::OutputUnwritable, message).hint("look at where the output goes"));
    }
    let mut finish = Finish::of(&end, if asked { Hand::Own } else { Hand::Other });
    if too_much {
        // Also when it was quicker to end than to be killed: what there is of its output is not all.
        finish = finish.over_output_limit();
    }
    Ended { sandbox, number, finish: &finish }.tell(Some(execution), &captured, voice)
}

/// Starts a command that outlives us, and prints its number.
fn detach(sandbox: &str, execution: &Execution, manner: &Manner, voice: Voice) -> Result<u8, Fault> {
    let mut live = order::sandboxes()?.open(sandbox)?;
    let (limit, full) = match manner.output_limit {
        Some(Bytes(limit)) => (limit, Full::Kill),
        None => (Limits::default().output.0, Full::Drop),
    };
    let number = live.start(execution, null().map_err(unmade)?.as_fd(), limit, full)?;
    voice.answer(&json!({ "sandbox": live.id, "number": number }), || format!("{number}\n"))?;
    Ok(0)
}

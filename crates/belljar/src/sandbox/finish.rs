//! How a command in a sandbox ended, as every door tells it.

use belljar_cell::cell::{Ended, ExecEnd, Pressure};
use serde::Serialize;

use crate::engine::embedded;
use crate::moment::Millis;
use crate::outcome;

/// The exit code of a command that somebody else had killed, as a shell tells SIGKILL.
const KILLED: i32 = 137;
/// The exit code for what is neither the command's doing nor the caller's.
const OURS: i32 = 125;

/// How a command ended, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It exited on its own; the exit code is its own.
    Exited,
    /// A signal ended it; the exit code is 128 and its number.
    Signalled,
    /// Its time was up; 124.
    TimedOut,
    /// The kernel killed in it for lack of memory, and it did not end well; the exit code is what came of that.
    OutOfMemory,
    /// It wrote more output than it may; 137.
    OutputLimit,
    /// Its disk was full, and it did not end well; the exit code is what came of that.
    DiskLimit,
    /// It used more processor time than it may; 137.
    CpuTimeLimit,
    /// The caller asked for its end; 130.
    Interrupted,
    /// Somebody else asked for its end, or the process that had started it went away; 137.
    Killed,
    /// The sandbox ended before the command did; 125.
    SandboxEnded,
    /// It could not be started, by its own doing: 127 for what is not there, 126 for what may not be used.
    NotStarted,
}

/// Who asked for the end of a command that was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hand {
    /// Whoever tells about it.
    Own,
    /// Anybody else.
    Other,
}

/// For how long some process had to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// For a processor.
    pub cpu_ms: Millis,
    /// For memory.
    pub memory_ms: Millis,
    /// For a device.
    pub io_ms: Millis,
}

/// How a command ended and what it used; what this machine cannot tell is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finish {
    /// How it ended.
    pub ending: Ending,
    /// The exit code that is passed on.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it was not started.
    pub cause: Option<String>,
    /// How long it took.
    pub wall_ms: Millis,
    /// Processor time in the program.
    pub user_ms: Millis,
    /// Processor time in the kernel.
    pub system_ms: Millis,
    /// The most memory it held at once.
    pub peak_memory_bytes: Option<u64>,
    /// How often the kernel killed in it for lack of memory.
    pub memory_kills: Option<u64>,
    /// Whether the sandbox's disk was full at its end, where it has a limit.
    pub disk_full: Option<bool>,
    /// Bytes read from devices.
    pub read_bytes: u64,
    /// Bytes written to devices.
    pub written_bytes: u64,
    /// How long the processor limit held it back.
    pub throttled_ms: Option<Millis>,
    /// How long it was held up for want of processor, memory and device time.
    pub waited: Option<Waits>,
    /// Processes of its tree that were still there at its end, and were killed.
    pub killed_processes: u32,
    /// Processes left after that; counted, not assumed.
    pub survivors: u32,
    /// Bytes of its output that were kept, where they are kept.
    pub kept_output_bytes: Option<u64>,
    /// Bytes of its output that were dropped, likewise.
    pub dropped_output_bytes: Option<u64>,
}

impl Finish {
    /// Reads what the keeper says; `hand` is whose it was if it was interrupted.
    pub fn of(end: &ExecEnd, hand: Hand) -> Finish {
        let exit = embedded::exit(end);
        let (ending, exit_code) = match (&end.ended, hand) {
            (Ended::NotStarted(_), _) => (Ending::NotStarted, exit.exit_code),
            (Ended::CellEnded, _) => (Ending::SandboxEnded, OURS),
            (Ended::Interrupted, Hand::Other) => (Ending::Killed, KILLED),
            _ => (word(exit.ending), exit.exit_code),
        };
        Finish {
            ending,
            exit_code,
            signal: exit.signal,
            cause: exit.not_started,
            wall_ms: Millis::from_micros(end.wall_us),
            user_ms: Millis::from_micros(end.user_us),
            system_ms: Millis::from_micros(end.system_us),
            peak_memory_bytes: end.peak_memory,
            memory_kills: end.oom_kills,
            disk_full: end.disk_full,
            read_bytes: end.io.0,
            written_bytes: end.io.1,
            throttled_ms: end.throttled_us.map(Millis::from_micros),
            waited: end.pressure.map(waits),
            killed_processes: end.killed,
            survivors: end.survivors,
            kept_output_bytes: end.output.map(|(kept, _)| kept),
            dropped_output_bytes: end.output.map(|(_, dropped)| dropped),
        }
    }

    /// The same for a command that wrote more output than it may, however it ended.
    #[must_use]
    pub fn over_output_limit(self) -> Finish {
        Finish { ending: Ending::OutputLimit, exit_code: KILLED, ..self }
    }

    /// The exit code as a process can have it.
    pub fn code(&self) -> u8 {
        u8::try_from(self.exit_code & 0xff).unwrap_or(u8::MAX)
    }
}

fn word(ending: outcome::Ending) -> Ending {
    match ending {
        outcome::Ending::Exited => Ending::Exited,
        outcome::Ending::Signalled => Ending::Signalled,
        outcome::Ending::TimedOut => Ending::TimedOut,
        outcome::Ending::OutOfMemory => Ending::OutOfMemory,
        outcome::Ending::OutputLimit => Ending::OutputLimit,
        outcome::Ending::DiskLimit => Ending::DiskLimit,
        outcome::Ending::CpuTimeLimit => Ending::CpuTimeLimit,
        outcome::Ending::Interrupted => Ending::Interrupted,
        outcome::Ending::NotStarted => Ending::NotStarted,
    }
}

fn waits(pressure: Pressure) -> Waits {
    Waits {
        cpu_ms: Millis::from_micros(pressure.cpu_us),
        memory_ms: Millis::from_micros(pressure.memory_us),
        io_ms: Millis::from_micros(pressure.io_us),
    }
}

#[cfg(test)]
mod tests {
    use belljar_cell::failure::Failure;

    use super::*;

    #[test]
    fn every_end_has_its_word_and_its_code() {
        let missing = Failure { step: "start /bin/no".to_owned(), errno: 2 };
        let forbidden = Failure { step: "start /etc/passwd".to_owned(), errno: 13 };
        for (ended, hand, ending, code) in [
            (Ended::Exited(7), Hand::Own, Ending::Exited, 7),
            (Ended::Signalled(9), Hand::Own, Ending::Signalled, 137),
            (Ended::TimedOut, Hand::Other, Ending::TimedOut, 124),
            (Ended::Interrupted, Hand::Own, Ending::Interrupted, 130),
            (Ended::Interrupted, Hand::Other, Ending::Killed, 137),
            (Ended::CellEnded, Hand::Own, Ending::SandboxEnded, 125),
            (Ended::OutputLimit, Hand::Own, Ending::OutputLimit, 137),
            (Ended::CpuTimeLimit, Hand::Other, Ending::CpuTimeLimit, 137),
            (Ended::NotStarted(missing), Hand::Own, Ending::NotStarted, 127),
            (Ended::NotStarted(forbidden), Hand::Own, Ending::NotStarted, 126),
        ] {
            let finish = Finish::of(&ExecEnd::bare(ended.clone()), hand);
            assert_eq!((finish.ending, finish.exit_code), (ending, code), "{ended:?}");
        }
    }

    #[test]
    fn want_of_memory_or_disk_is_the_kernels_word() {
        let starved = ExecEnd { oom_kills: Some(1), ..ExecEnd::bare(Ended::Signalled(9)) };
        assert_eq!(Finish::of(&starved, Hand::Own).ending, Ending::OutOfMemory);
        let full = ExecEnd { disk_full: Some(true), ..ExecEnd::bare(Ended::Exited(1)) };
        assert_eq!(Finish::of(&full, Hand::Own).ending, Ending::DiskLimit);
    }
}

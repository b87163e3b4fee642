//! Numbers, outcomes and owners in plain English.

use std::str::FromStr;
use std::time::Duration;

use belljar::moment::{Millis, Moment};
use belljar::outcome::{Ending, Outcome, Owner};
use belljar::record::{CommandRecord, LockRecord, LockState};
use belljar::stage::Stage;

/// An outcome in plain English: `failed as expected`.
pub(crate) fn outcome(outcome: Outcome) -> String {
    outcome.name().replace('_', " ")
}

/// A stage in plain English: `prepare image`.
pub(crate) fn stage(stage: Stage) -> String {
    stage.name().replace('_', " ")
}

/// Who has to act on a failure, and what that says about the program.
pub(crate) fn owner(owner: Owner) -> &'static str {
    match owner {
        Owner::Infrastructure => "infrastructure: this says nothing about the program",
        Owner::Task => "the task: the program was not judged",
        Owner::Program => "the program",
    }
}

/// How a command ended: `exit 1`, `timed out`.
pub(crate) fn ending(command: &CommandRecord) -> String {
    match command.ending {
        Ending::Exited => format!("exit {}", command.exit_code),
        Ending::Signalled => format!("signal {}", command.signal.unwrap_or_default()),
        Ending::TimedOut => "timed out".to_owned(),
        Ending::OutOfMemory => "out of memory".to_owned(),
        Ending::OutputLimit => "output limit".to_owned(),
        Ending::DiskLimit => "disk limit".to_owned(),
        Ending::CpuTimeLimit => "processor time limit".to_owned(),
        Ending::Interrupted => "interrupted".to_owned(),
        Ending::NotStarted => "not started".to_owned(),
    }
}

/// What was done with the lock; nothing where it has nothing to say.
pub(crate) fn lock(lock: &LockRecord) -> Option<String> {
    let LockRecord { path, platform, state, .. } = lock;
    let reference = lock.reference.as_ref()?;
    match state {
        LockState::Pinned => Some(format!("pinned {reference} for {platform} in {path}")),
        LockState::Updated => Some(format!("pinned {reference} for {platform} anew in {path}")),
        LockState::Verified => Some(format!("{reference} is what {path} pins for {platform}")),
        LockState::WouldPin => Some(format!("a run would pin {reference} for {platform} in {path}")),
        LockState::Unpinned | LockState::NotWritten => None,
    }
}

/// A span of time: `31 ms`, `4.4 s`, `2 min 05 s`, `3 h 12 min`.
pub(crate) fn span(span: Millis) -> String {
    match span.as_micros() / 1_000_000 {
        0..100 => span.to_string(),
        long => seconds(long),
    }
}

/// A span of time to a tenth of a second, or a millisecond where it is short.
pub(crate) fn seconds_exactly(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        1000..100_000 => format!("{:.1} s", time.as_secs_f64()),
        _ => seconds(time.as_secs()),
    }
}

/// A span of time in whole seconds.
pub(crate) fn seconds(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6000 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// A size: `512 B`, `2.0 MB`.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

/// A count with its noun: `1 run`, `3 runs`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = match (number, noun.ends_with('x')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {noun}{plural}")
}

/// A moment to the second: `2026-11-15 09:55:16 UTC`.
pub(crate) fn moment(moment: Moment) -> String {
    let text = moment.to_string();
    let second = text.split('.').next().unwrap_or(&text);
    format!("{} UTC", second.replace('T', " "))
}

/// An age as typed: `90s`, `30m`, `12h`, `7d`, `4w`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Age(pub(crate) Duration);

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Age, String> {
        let wrong = || format!("{text:?} is not an age; write a number with a unit: 90s, 30m, 12h, 7d, 4w");
        let unit = text.chars().last().ok_or_else(wrong)?;
        let seconds: u64 = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return Err(wrong()),
        };
        let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
        number.checked_mul(seconds).map(|seconds| Age(Duration::from_secs(seconds))).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes_read_well() {
        let spans = [900, 31_000, 4_400_000, 125_000_000, 11_520_000_000].map(Millis::from_micros).map(span);
        assert_eq!(spans, ["0.9 ms", "31 ms", "4.4 s", "2 min 05 s", "3 h 12 min"]);
        assert_eq!([0, 999, 2_049_000, 7_000_000_000].map(size), ["0 B", "999 B", "2.0 MB", "7.0 GB"]);
        assert_eq!((count(1, "run"), count(2, "run")), ("1 run".to_owned(), "2 runs".to_owned()));
    }

    #[test]
    fn ages_are_numbers_with_a_unit() {
        assert_eq!("7d".parse(), Ok(Age(Duration::from_secs(604_800))));
        for wrong in ["", "7", "d", "7 d", "-1d", "99999999999999999999w", "7µ"] {
            assert!(wrong.parse::<Age>().is_err(), "{wrong}");
        }
    }
}

//! One operation: it can be stopped, it pauses, and it tries again what may go away by itself.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::agents::Agents;
use super::error::Fault;
use super::{Client, Progress, RegistryError, Watch};

/// How often the flag of the caller is looked at.
const GLANCE: Duration = Duration::from_millis(50);
/// No pause of our own is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// One operation with its connections.
pub(super) struct Session<'a> {
    pub(super) client: &'a Client,
    pub(super) agents: Agents,
    pub(super) watch: Watch<'a>,
    /// A part of it failed, so the others need not go on.
    failed: AtomicBool,
    /// Mirrors that failed, which are not asked again.
    pub(super) down: Mutex<BTreeSet<String>>,
}

/// Ends the thread that looks at the flag, also when the work panics.
struct End<'a> {
    done: &'a AtomicBool,
    guard: &'a std::thread::Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        self.guard.unpark();
    }
}

impl<'a> Session<'a> {
    /// Runs an operation. While it runs, another thread looks at the caller's flag, and ends the connections when it
    /// is set: a read that waits is ended too.
    pub(super) fn run<T>(
        client: &'a Client,
        watch: Watch<'a>,
        work: impl FnOnce(&Session<'a>) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let (agents, failed) = (Agents::new(client)?, AtomicBool::new(false));
        let session = Session { client, agents, watch, failed, down: Mutex::default() };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let guard = scope.spawn(|| session.guard(&done));
            let _end = End { done: &done, guard: guard.thread() };
            work(&session)
        })
    }

    fn guard(&self, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            if self.check().is_err() {
                return self.agents.shut_down();
            }
            std::thread::park_timeout(GLANCE);
        }
    }

    /// Says to all parts of the operation that it has failed.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// An error when there is no reason to go on.
    pub(super) fn check(&self) -> Result<(), RegistryError> {
        let stop = self.watch.cancel.load(Ordering::Acquire) || self.failed.load(Ordering::Acquire);
        if stop { Err(RegistryError::Cancelled) } else { Ok(()) }
    }

    /// Tries as often as the settings say.
    pub(super) fn retrying<T>(&self, mut work: impl FnMut() -> Result<T, Fault>) -> Result<T, RegistryError> {
        let mut attempt = 1;
        loop {
            self.check()?;
            match work() {
                Ok(value) => return Ok(value),
                Err(fault) => self.pause_after(fault, attempt)?,
            }
            attempt += 1;
        }
    }

    /// Waits as long as it takes until it makes sense to try again; an error when it makes none.
    pub(super) fn pause_after(&self, fault: Fault, attempt: u32) -> Result<(), RegistryError> {
        // Once it is stopped, every connection fails; that is not what the caller wants to read.
        self.check()?;
        let (error, asked) = match fault {
            Fault::Final(error) => return Err(error),
            Fault::Passing(error, asked) => (error, asked),
        };
        let settings = &self.client.settings;
        let wait = asked.unwrap_or_else(|| backoff(settings.pause, attempt));
        if attempt >= settings.attempts.max(1) || wait > settings.patience {
            return Err(error);
        }
        let at = SystemTime::now() + wait;
        (self.watch.progress)(Progress::Retry { reason: error.to_string(), at, wait });
        self.sleep(wait)
    }

    fn sleep(&self, wait: Duration) -> Result<(), RegistryError> {
        let end = Instant::now() + wait;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.check()?;
            std::thread::sleep(left.min(GLANCE));
        }
        self.check()
    }
}

/// Doubles with each attempt; up to half of it is left to chance, so that many who failed together do not come back
/// together.
fn backoff(first: Duration, attempt: u32) -> Duration {
    let whole = first.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_PAUSE);
    let chance = RandomState::new().build_hasher().finish() % 1000;
    whole / 2 + (whole / 2).mul_f64(chance as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let first = Duration::from_millis(100);
        for (attempt, whole) in [(1, 100), (2, 200), (4, 800), (60, 30_000)] {
            let pause = backoff(first, attempt);
            let whole = Duration::from_millis(whole);
            assert!(pause >= whole / 2 && pause <= whole, "{attempt}: {pause:?}");
        }
    }
}

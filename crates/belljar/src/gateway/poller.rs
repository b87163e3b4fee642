//! Waiting: for any of many sockets, and for the earliest of many deadlines.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

const EVENTS_PER_TURN: usize = 256;

/// When a socket is worth a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trigger {
    /// As long as there is something to read.
    Readable,
    /// Each time that reading or writing becomes possible, or the far end leaves. Unlike the
    /// other it does not repeat itself, which a connection under backpressure would not survive.
    Changes,
}

/// Watches sockets, each under a token. A closed socket leaves by itself.
pub(super) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        Ok(Poller { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub(super) fn add(&self, socket: impl AsFd, token: u64, trigger: Trigger) -> io::Result<()> {
        use epoll::EventFlags;
        let flags = match trigger {
            Trigger::Readable => EventFlags::IN,
            Trigger::Changes => EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET,
        };
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags)?)
    }

    /// Waits until something happens or `until` has come, and returns the tokens with news.
    pub(super) fn wait(&self, until: Option<Instant>) -> io::Result<Vec<u64>> {
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) => Ok(events.iter().map(|event: &epoll::Event| event.data.u64()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    // Older kernels count in milliseconds: round up, or the last one is spent spinning.
    let millis = duration.as_millis().saturating_add(1).min(60_000) as i64;
    Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 }
}

/// At most one deadline for each token.
#[derive(Default)]
pub(super) struct Alarms {
    by_time: BTreeSet<(Instant, u64)>,
    by_token: HashMap<u64, Instant>,
}

impl Alarms {
    pub(super) fn set(&mut self, token: u64, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.by_token.insert(token, at),
            None => self.by_token.remove(&token),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.by_time.remove(&(before, token));
        }
        if let Some(at) = at {
            self.by_time.insert((at, token));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes one deadline that has come.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<u64> {
        let (at, token) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.set(token, None);
        Some(token)
    }
}

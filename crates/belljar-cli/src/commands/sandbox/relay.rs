//! Between a guest's command and the caller: output out, input in, signals and sizes of the terminal passed on.
//!
//! One thread waits for all of it, so a slow reader on one side holds up nothing else.

mod feed;
mod lane;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar::{Code, Fault};
use belljar_cell::cell::Stop;
use belljar_cell::client::Interrupter;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{Winsize, tcsetwinsize};

pub(crate) use self::feed::Feed;
pub(crate) use self::lane::{Captured, Lane, Sink};
use self::lane::{NOW, Standing};
use super::terminal::{self, Handle};
use crate::signals::{Bell, INTERRUPTED};

/// Everything between a command and the caller.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The command's output.
    pub(crate) lanes: Vec<Lane>,
    /// The command's input, if it has any.
    pub(crate) feed: Option<Feed>,
    /// The command's terminal, if it has one.
    pub(crate) screen: Option<Screen>,
    /// Rings when we are to end.
    pub(crate) bell: Bell,
    /// Ends the command.
    pub(crate) interrupter: Interrupter,
    /// How much output there may still be.
    pub(crate) left: u64,
}

/// A command's terminal and the caller's, which have the same size.
#[derive(Debug)]
pub(crate) struct Screen {
    /// The command's, from our side.
    pub(crate) terminal: OwnedFd,
    /// The caller's, if it is raw.
    pub(crate) raw: Option<Handle>,
    /// Rings when the caller's has another size.
    pub(crate) bell: Bell,
}

/// What was relayed.
#[derive(Debug, Default)]
pub(crate) struct Relayed {
    /// What was kept in memory: standard output, and error.
    pub(crate) captured: Vec<Captured>,
    /// Whether we were asked to end.
    pub(crate) asked: bool,
    /// Whether there was more output than there may be.
    pub(crate) too_much: bool,
    /// What became of our own output.
    pub(crate) failure: Option<Errno>,
}

/// A relay at work.
#[derive(Debug)]
pub(crate) struct Relaying {
    thread: JoinHandle<Relayed>,
    over: OwnedFd,
}

impl Relaying {
    /// Says that the command has ended: what it wrote is delivered, and nothing else is waited for.
    pub(crate) fn over(self) -> Ending {
        drop(self.over);
        Ending { thread: self.thread }
    }
}

/// A relay that delivers the last of it.
#[derive(Debug)]
pub(crate) struct Ending {
    thread: JoinHandle<Relayed>,
}

impl Ending {
    /// Waits until all is delivered.
    pub(crate) fn wait(self) -> Result<Relayed, Fault> {
        self.thread.join().map_err(|_| Fault::new(Code::Internal, "the relay of the command's output failed"))
    }
}

/// What the relay was woken by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Over,
    Asked,
    Resized,
    Input,
    Output(usize),
}

impl Relay {
    /// Begins, in a thread.
    pub(crate) fn start(self) -> Result<Relaying, Fault> {
        let failed =
            |error: std::io::Error| Fault::new(Code::Internal, "could not start the relay").caused_by(error);
        let (ended, over) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let thread = std::thread::Builder::new().name("relay".to_owned());
        let thread = thread.spawn(move || self.run(&ended)).map_err(failed)?;
        Ok(Relaying { thread, over })
    }

    fn run(mut self, ended: &OwnedFd) -> Relayed {
        let mut alarm = Alarm { interrupter: Some(self.interrupter.clone()) };
        let mut relayed = Relayed::default();
        let mut pace = Pace::default();
        let mut over = false;
        while !(over && self.is_empty()) {
            for event in self.wait(ended.as_fd(), over) {
                match event {
                    Event::Over => over = true,
                    Event::Asked => self.ask(&mut relayed),
                    Event::Resized => self.resize(),
                    Event::Input => self.feed.iter_mut().for_each(Feed::go),
                    Event::Output(lane) => self.deliver(lane, &mut relayed),
                }
            }
            if !over {
                pace.keep(self.left, &self.lanes);
            }
        }
        alarm.interrupter = None;
        relayed.captured = self.lanes.into_iter().filter_map(Lane::captured).collect();
        relayed
    }

    /// Whether everything that an ended command has written is delivered. Its pipes may still be open: it may have
    /// handed them to another command.
    fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| match lane.standing() {
            Standing::Over => true,
            Standing::Writing => false,
            Standing::Reading => !lane.has_more(),
        })
    }

    fn wait(&self, ended: BorrowedFd<'_>, over: bool) -> Vec<Event> {
        let (events, mut watched): (Vec<Event>, Vec<PollFd<'_>>) =
            self.sources(ended, over).into_iter().unzip();
        // Nobody can be waited for who will not come: what an ended command has written is there.
        let writing = self.lanes.iter().any(|lane| lane.standing() == Standing::Writing);
        let patience = if over && !writing { Some(&NOW) } else { None };
        if poll(&mut watched, patience).is_err() {
            return Vec::new();
        }
        let happened = events.into_iter().zip(&watched).filter(|(_, fd)| !fd.revents().is_empty());
        happened.map(|(event, _)| event).collect()
    }

    /// Everything that can happen, and where it shows. Once the command has ended, only its output is of interest.
    fn sources<'a>(&'a self, ended: BorrowedFd<'a>, over: bool) -> Vec<(Event, PollFd<'a>)> {
        let mut all = vec![(Event::Asked, PollFd::new(&self.bell, PollFlags::IN))];
        if !over {
            all.push((Event::Over, PollFd::from_borrowed_fd(ended, PollFlags::IN)));
            all.extend(self.feed.iter().filter_map(Feed::watched).map(|fd| (Event::Input, fd)));
        }
        all.extend(
            self.screen.iter().map(|screen| (Event::Resized, PollFd::new(&screen.bell, PollFlags::IN))),
        );
        let lanes = self.lanes.iter().enumerate();
        all.extend(lanes.filter_map(|(index, lane)| Some((Event::Output(index), lane.watched()?))));
        all
    }

    /// The first request ends the command; on a terminal, which is given back first, the second ends us at once.
    fn ask(&mut self, relayed: &mut Relayed) {
        if self.bell.rang() == 0 {
            return;
        }
        if relayed.asked {
            if let Some(raw) = self.screen.as_ref().and_then(|screen| screen.raw.as_ref()) {
                raw.give_back();
            }
            std::process::exit(i32::from(INTERRUPTED));
        }
        relayed.asked = true;
        self.stop(Stop::Interrupted);
    }

    fn stop(&self, stop: Stop) {
        // A keeper that is gone has nothing to stop.
        let _ = self.interrupter.interrupt(stop);
    }

    fn resize(&mut self) {
        let Some(screen) = &self.screen else { return };
        screen.bell.rang();
        if let Some(raw) = &screen.raw {
            raw.take_again();
        }
        let size = terminal::size();
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // A terminal whose command has ended needs no size.
        let _ = tcsetwinsize(&screen.terminal, size);
    }

    fn deliver(&mut self, lane: usize, relayed: &mut Relayed) {
        if let Err(error) = self.lanes[lane].go(&mut self.left) {
            relayed.failure = Some(error);
            self.stop(Stop::Interrupted);
        }
        if self.left > 0 {
            return;
        }
        if self.lanes.iter().any(Lane::has_more) {
            relayed.too_much = true;
            self.lanes.iter_mut().for_each(Lane::halt);
            self.stop(Stop::OutputLimit);
        } else if self.lanes[lane].standing() == Standing::Reading {
            // Woken by it, although there is nothing in it: it has ended.
            self.lanes[lane].halt();
        }
    }
}

/// The pace of a dense stream of small pieces: to be woken for each would cost more than to move it.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    left: u64,
}

impl Pace {
    /// How close pieces follow each other that are worth waiting for.
    const DENSE: Duration = Duration::from_micros(300);
    /// How long is waited for more of them.
    const PAUSE: Duration = Duration::from_micros(100);
    /// How much is worth to be moved at once.
    const ENOUGH: u64 = 32 << 10;

    /// Waits a moment after a small piece that came soon after another; a reader who is slow is wait enough.
    fn keep(&mut self, left: u64, lanes: &[Lane]) {
        let moved = self.left.saturating_sub(left);
        self.left = left;
        if moved == 0 {
            return;
        }
        let now = Instant::now();
        let dense = self.last.is_some_and(|last| now.duration_since(last) < Self::DENSE);
        self.last = Some(now);
        if dense && moved < Self::ENOUGH && lanes.iter().all(|lane| lane.standing() != Standing::Writing) {
            std::thread::sleep(Self::PAUSE);
        }
    }
}

/// Ends the command should the relay fail: nobody else would see to it.
struct Alarm {
    interrupter: Option<Interrupter>,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(interrupter) = &self.interrupter {
            let _ = interrupter.interrupt(Stop::Interrupted);
        }
    }
}

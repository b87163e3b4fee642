//! A command in the foreground: its streams are made here, relayed, and read to their end.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use belljar::limits::Bytes;
use belljar::sandbox::{Execution, Launched, Live};
use belljar::{Code, Fault};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio;

use super::relay::{Captured, Ending, Feed, Lane, Relay, Relaying, Screen, Sink};
use super::terminal::{self, Raw};
use crate::args::Manner;
use crate::environment::TERM;
use crate::guest::Plain;
use crate::signals::{Bell, twice_is_at_once};
use crate::voice::{Output, Voice};

/// How much of each stream an answer in JSON holds when nobody says otherwise.
const CAPTURED: u64 = 1 << 20;
/// How much of each stream it holds at most.
const MOST_CAPTURED: u64 = 64 << 20;

/// Everything that can be prepared before the sandbox is there.
#[derive(Debug)]
pub(crate) struct Foreground {
    face: Face,
    bell: Bell,
    /// How much output there may be.
    most: u64,
}

/// What the command sees of us.
#[derive(Debug)]
enum Face {
    /// Pipes: the command's ends, and what we do with ours.
    Pipes { theirs: [OwnedFd; 3], lanes: Vec<Lane>, feed: Option<Feed> },
    /// A terminal, and whether anybody types.
    Terminal { typing: bool },
}

/// A command that is attended to.
#[derive(Debug)]
pub(crate) struct Attended {
    /// Its number in the sandbox.
    pub(crate) number: u32,
    relaying: Relaying,
    raw: Option<Raw>,
}

impl Attended {
    /// Says that the command has ended, and gives the terminal back when all is delivered.
    pub(crate) fn over(self) -> (Ending, Option<Raw>) {
        (self.relaying.over(), self.raw)
    }
}

impl Foreground {
    /// Makes the streams and listens to signals.
    pub(crate) fn prepare(manner: &Manner, voice: Voice) -> Result<Foreground, Fault> {
        let bell = Bell::for_the_end()?;
        let most = manner.output_limit.map_or(u64::MAX, |Bytes(bytes)| bytes);
        if manner.tty {
            if voice.output == Output::Json {
                return Err(Fault::new(Code::Usage, "what appears on a terminal is not told as JSON")
                    .hint("leave out --tty or --json"));
            }
            return Ok(Foreground { face: Face::Terminal { typing: manner.interactive }, bell, most });
        }
        twice_is_at_once()?;
        let face = pipes(manner, voice).map_err(unmade)?;
        Ok(Foreground { face, bell, most })
    }

    /// Starts the command and begins to relay.
    pub(crate) fn start(self, live: &mut Live, execution: &Execution) -> Result<Attended, Fault> {
        if self.bell.rang() > 0 {
            return Err(interrupted());
        }
        match self.face {
            Face::Pipes { theirs, lanes, feed } => {
                let [stdin, stdout, stderr] = &theirs;
                let launched = live.launch(execution, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
                let Launched::Running(number) = launched else { return Err(interrupted()) };
                drop(theirs);
                let interrupter = live.interrupter();
                let relay =
                    Relay { lanes, feed, screen: None, bell: self.bell, interrupter, left: self.most };
                Ok(Attended { number, relaying: relay.start()?, raw: None })
            }
            Face::Terminal { typing } => on_terminal(live, execution, self.bell, typing),
        }
    }
}

fn on_terminal(live: &mut Live, execution: &Execution, bell: Bell, typing: bool) -> Result<Attended, Fault> {
    let mut execution = execution.clone();
    let term = TERM.value().and_then(|term| term.into_string().ok()).filter(|term| !term.is_empty());
    execution
        .environment
        .entry("TERM".to_owned())
        .or_insert_with(|| term.unwrap_or_else(|| "xterm".to_owned()));
    let resized = Bell::for_the_terminal()?;
    let (number, terminal) = live.terminal(&execution, terminal::size())?;
    rustix::fs::fcntl_setfl(&terminal, OFlags::RDWR | OFlags::NONBLOCK).map_err(unmade)?;
    let copy = || {
        terminal
            .try_clone()
            .map_err(|error| Fault::new(Code::Internal, "could not copy the terminal").caused_by(error))
    };
    let raw = if typing { Raw::take() } else { None };
    let relay = Relay {
        lanes: vec![Lane::from_terminal(copy()?, Sink::Exact(stdio::stdout()))],
        feed: if typing { Some(Feed::to_terminal(copy()?)) } else { None },
        screen: Some(Screen { terminal, raw: raw.as_ref().map(Raw::handle), bell: resized }),
        bell,
        interrupter: live.interrupter(),
        left: u64::MAX,
    };
    Ok(Attended { number, relaying: relay.start()?, raw })
}

fn pipes(manner: &Manner, voice: Voice) -> rustix::io::Result<Face> {
    let (stdin, feed) = match manner.interactive {
        true => {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            unblocked(&writer, OFlags::WRONLY)?;
            (reader, Some(Feed::to_pipe(writer)))
        }
        false => (null()?, None),
    };
    let ((out, out_end), (error, error_end)) =
        (pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?);
    unblocked(&out, OFlags::RDONLY)?;
    unblocked(&error, OFlags::RDONLY)?;
    let sinks = [stdio::stdout(), stdio::stderr()].map(|stream| match voice.output {
        Output::Json => Sink::Memory(Captured::with_room(room(manner))),
        Output::Text if manner.plain => Sink::Harmless(stream, Plain::default()),
        Output::Text => Sink::Exact(stream),
    });
    let lanes = [out, error].into_iter().zip(sinks).map(|(from, sink)| Lane::from_pipe(from, sink)).collect();
    Ok(Face::Pipes { theirs: [stdin, out_end, error_end], lanes, feed })
}

fn room(manner: &Manner) -> usize {
    let wanted = manner.output_limit.map_or(CAPTURED, |Bytes(bytes)| bytes.min(MOST_CAPTURED));
    usize::try_from(wanted).unwrap_or(usize::MAX)
}

fn unblocked(descriptor: &OwnedFd, access: OFlags) -> rustix::io::Result<()> {
    rustix::fs::fcntl_setfl(descriptor, access | OFlags::NONBLOCK)
}

/// An input with nothing in it, of our own.
pub(crate) fn null() -> rustix::io::Result<OwnedFd> {
    let opened = File::open("/dev/null").map(OwnedFd::from);
    opened.map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
}

/// The failure to make streams.
pub(crate) fn unmade(error: rustix::io::Errno) -> Fault {
    Fault::new(Code::Internal, "could not make the streams of the command")
        .caused_by(std::io::Error::from(error))
}

fn interrupted() -> Fault {
    Fault::new(Code::Interrupted, "interrupted before the command began")
}

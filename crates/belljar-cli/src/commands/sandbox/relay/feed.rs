//! Our standard input on its way to a guest.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::stdio;

/// How much is read at once.
const PIECE: usize = 64 << 10;
/// What ends the input of a terminal.
const END_OF_INPUT: u8 = 0x04;

/// Our standard input on its way.
#[derive(Debug)]
pub(crate) struct Feed {
    /// Where it goes, which must not block; nothing once it has ended.
    to: Option<OwnedFd>,
    kind: Kind,
    held: Vec<u8>,
    buffer: Vec<u8>,
    /// Our input has ended; only what is held is still to go.
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its end is the end of the guest's input.
    Pipe,
    /// It cannot be closed without closing the guest's output; a character says that the input has ended.
    Terminal,
}

impl Feed {
    /// To a pipe.
    pub(crate) fn to_pipe(to: OwnedFd) -> Feed {
        Feed { to: Some(to), kind: Kind::Pipe, held: Vec::new(), buffer: vec![0; PIECE], ended: false }
    }

    /// To a terminal.
    pub(crate) fn to_terminal(to: OwnedFd) -> Feed {
        Feed { kind: Kind::Terminal, ..Feed::to_pipe(to) }
    }

    /// The descriptor that shows when there is something to do.
    pub(crate) fn watched(&self) -> Option<PollFd<'_>> {
        let to = self.to.as_ref()?;
        match (self.held.is_empty(), self.ended) {
            (false, _) => Some(PollFd::new(to, PollFlags::OUT)),
            (true, false) => Some(PollFd::from_borrowed_fd(stdio::stdin(), PollFlags::IN)),
            (true, true) => None,
        }
    }

    /// Reads what is there, and passes on what can be passed on.
    pub(crate) fn go(&mut self) {
        if self.held.is_empty() && !self.ended {
            self.read();
        }
        self.write();
        if self.held.is_empty() && self.ended && self.kind == Kind::Pipe {
            self.to = None;
        }
    }

    fn read(&mut self) {
        match rustix::io::read(stdio::stdin(), &mut self.buffer[..]) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Input that cannot be read has ended, as far as the guest is concerned.
            Ok(0) | Err(_) => {
                self.ended = true;
                if self.kind == Kind::Terminal {
                    self.held = vec![END_OF_INPUT];
                }
            }
            Ok(count) => self.held = self.buffer[..count].to_vec(),
        }
    }

    fn write(&mut self) {
        let Some(to) = &self.to else { return };
        if self.held.is_empty() {
            return;
        }
        match rustix::io::write(to, &self.held) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(count) => drop(self.held.drain(..count)),
            // The guest reads no more.
            Err(_) => {
                self.to = None;
                self.held.clear();
            }
        }
    }
}

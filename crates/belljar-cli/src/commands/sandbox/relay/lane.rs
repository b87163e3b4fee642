//! One stream of a guest on its way out: from a pipe or a terminal to one of ours, or into memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, splice};

use crate::guest::Plain;

/// How much a pipe holds after it was full for the first time.
const WIDE: usize = 1 << 20;
/// How much is read at once.
const PIECE: usize = 64 << 10;
/// How much is written at once to something that could hold us up: room for so much is what it means to be writable.
const SMALL: usize = 4096;
/// How many moves are made before somebody else has a turn.
const MOVES: u32 = 32;

/// No time at all.
pub(crate) const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Where output goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// To one of our streams, as it is.
    Exact(BorrowedFd<'static>),
    /// To one of our streams, with nothing in it that a terminal would obey.
    Harmless(BorrowedFd<'static>, Plain),
    /// Into memory.
    Memory(Captured),
}

/// Output that was kept in memory, as much of it as there was room for.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    /// The beginning.
    pub(crate) bytes: Vec<u8>,
    /// How much there was.
    pub(crate) total: u64,
    /// How much is kept.
    pub(crate) room: usize,
    /// There was more, and nobody read it.
    pub(crate) unread: bool,
}

/// One stream on its way.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Where it comes from; nothing once it has ended.
    from: Option<OwnedFd>,
    sink: Sink,
    way: Way,
    /// What was read and not yet written.
    held: Vec<u8>,
    /// Nothing more can be written at the moment.
    blocked: bool,
    /// Nothing more is taken from the guest, whose end stays open.
    halted: bool,
    buffer: Vec<u8>,
}

/// How bytes are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the kernel, without a copy; begun with a pipe that is not yet wide.
    Splice(Width),
    /// Through our memory, so many bytes at a time.
    Copy(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Narrow,
    Wide,
}

/// What a lane waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// For the guest.
    Reading,
    /// For whoever reads from us.
    Writing,
    /// For nothing: it has ended, and everything is delivered.
    Over,
}

/// What came of a move.
enum Moved {
    /// There may be more.
    Much,
    /// There was no more.
    Little,
    Nothing,
}

impl Lane {
    /// A lane from a pipe. What it comes from must not block.
    pub(crate) fn from_pipe(from: OwnedFd, sink: Sink) -> Lane {
        let way = match &sink {
            Sink::Exact(to) if takes_pages(*to) => Way::Splice(Width::Narrow),
            _ => Way::Copy(step(&sink)),
        };
        Lane::new(from, sink, way)
    }

    /// A lane from a terminal.
    pub(crate) fn from_terminal(from: OwnedFd, sink: Sink) -> Lane {
        let way = Way::Copy(step(&sink));
        Lane::new(from, sink, way)
    }

    fn new(from: OwnedFd, sink: Sink, way: Way) -> Lane {
        Lane {
            from: Some(from),
            sink,
            way,
            held: Vec::new(),
            blocked: false,
            halted: false,
            buffer: Vec::new(),
        }
    }

    /// What it waits for.
    pub(crate) fn standing(&self) -> Standing {
        match (self.from.is_some() && !self.halted, self.blocked || !self.held.is_empty()) {
            (_, true) => Standing::Writing,
            (true, false) => Standing::Reading,
            (false, false) => Standing::Over,
        }
    }

    /// The descriptor that shows when the wait is over.
    pub(crate) fn watched(&self) -> Option<PollFd<'_>> {
        match (self.standing(), &self.from, &self.sink) {
            (Standing::Reading, Some(from), _) => Some(PollFd::new(from, PollFlags::IN)),
            (Standing::Writing, _, Sink::Exact(to) | Sink::Harmless(to, _)) => {
                Some(PollFd::from_borrowed_fd(*to, PollFlags::OUT))
            }
            _ => None,
        }
    }

    /// Moves what can be moved, at most `left` bytes, which is lowered; to be called when the wait is over. An error
    /// is about our own stream.
    pub(crate) fn go(&mut self, left: &mut u64) -> rustix::io::Result<()> {
        let mut first = true;
        for _ in 0..MOVES {
            match self.once(left, first) {
                Ok(Moved::Much) => {}
                Ok(Moved::Little | Moved::Nothing) => return Ok(()),
                Err(Errno::INTR) => {}
                // Whoever reads from us does not want more, and the guest learns that as any writer does.
                Err(Errno::PIPE) => {
                    self.close();
                    return Ok(());
                }
                Err(error) => {
                    self.close();
                    return Err(error);
                }
            }
            first = false;
        }
        Ok(())
    }

    fn once(&mut self, left: &mut u64, first: bool) -> rustix::io::Result<Moved> {
        self.blocked = false;
        if !self.held.is_empty() {
            return self.write();
        }
        let Some(from) = &self.from else { return Ok(Moved::Nothing) };
        if *left == 0 || self.halted {
            return Ok(Moved::Nothing);
        }
        match self.way {
            Way::Splice(width) => self.splice(width, left, first),
            Way::Copy(_) => {
                let room = usize::try_from(*left).unwrap_or(PIECE).min(PIECE);
                self.buffer.resize(PIECE, 0);
                let read = rustix::io::read(from, &mut self.buffer[..room]);
                self.take(read, left)
            }
        }
    }

    fn splice(&mut self, width: Width, left: &mut u64, first: bool) -> rustix::io::Result<Moved> {
        let (Some(from), Sink::Exact(to)) = (&self.from, &self.sink) else { return Ok(Moved::Nothing) };
        let room = usize::try_from(*left).unwrap_or(WIDE).min(WIDE);
        match splice(from, None, *to, None, room, SpliceFlags::NONBLOCK | SpliceFlags::MOVE) {
            Ok(0) => {
                self.from = None;
                Ok(Moved::Nothing)
            }
            Ok(count) => {
                *left -= count as u64;
                if count < PIECE {
                    return Ok(Moved::Little);
                }
                if width == Width::Narrow {
                    // On both sides, where ours is a pipe too. Refused, it stays narrow, and is only slower.
                    let _ = fcntl_setpipe_size(from, WIDE);
                    let _ = fcntl_setpipe_size(to, WIDE);
                    self.way = Way::Splice(Width::Wide);
                }
                Ok(Moved::Much)
            }
            Err(Errno::AGAIN) => {
                // Something is there to be moved when we are called, so it was the other side that had no room.
                self.blocked = first;
                Ok(Moved::Nothing)
            }
            // Not everything that looks fit for it is: a file that is only appended to is not.
            Err(Errno::INVAL) => {
                self.way = Way::Copy(step(&self.sink));
                Ok(Moved::Much)
            }
            Err(error) => Err(error),
        }
    }

    fn take(&mut self, read: rustix::io::Result<usize>, left: &mut u64) -> rustix::io::Result<Moved> {
        let count = match read {
            Err(Errno::AGAIN) => return Ok(Moved::Nothing),
            // A terminal whose other side is closed says so by an error.
            Ok(0) | Err(Errno::IO) => {
                self.from = None;
                if let Sink::Harmless(_, plain) = &mut self.sink {
                    self.held = plain.rest();
                }
                return Ok(Moved::Nothing);
            }
            other => other?,
        };
        *left -= count as u64;
        let bytes = &self.buffer[..count];
        match &mut self.sink {
            Sink::Memory(captured) => captured.push(bytes),
            Sink::Exact(_) => self.held = bytes.to_vec(),
            Sink::Harmless(_, plain) => self.held = plain.shown(bytes),
        }
        Ok(Moved::Much)
    }

    fn write(&mut self) -> rustix::io::Result<Moved> {
        let (Sink::Exact(to) | Sink::Harmless(to, _)) = &self.sink else { return Ok(Moved::Nothing) };
        let mut ready = [PollFd::from_borrowed_fd(*to, PollFlags::OUT)];
        if rustix::event::poll(&mut ready, Some(&NOW))? == 0 {
            return Ok(Moved::Nothing);
        }
        let most = match self.way {
            Way::Copy(step) => step,
            Way::Splice(_) => SMALL,
        };
        match rustix::io::write(to, &self.held[..self.held.len().min(most)]) {
            Err(Errno::AGAIN) => Ok(Moved::Nothing),
            Err(error) => Err(error),
            Ok(count) => {
                self.held.drain(..count);
                Ok(Moved::Much)
            }
        }
    }

    /// Whether the guest has written something that was not yet read.
    pub(crate) fn has_more(&self) -> bool {
        !self.halted && self.from.as_ref().is_some_and(|from| has_bytes(from.as_fd()))
    }

    /// Takes nothing more from the guest, and lets it wait rather than learn of it.
    pub(crate) fn halt(&mut self) {
        let unread = self.has_more();
        if let Sink::Memory(captured) = &mut self.sink {
            captured.unread = unread;
        }
        self.halted = true;
        self.blocked = false;
    }

    fn close(&mut self) {
        self.from = None;
        self.blocked = false;
        self.held.clear();
    }

    /// What was kept in memory.
    pub(crate) fn captured(self) -> Option<Captured> {
        match self.sink {
            Sink::Memory(captured) => Some(captured),
            Sink::Exact(_) | Sink::Harmless(..) => None,
        }
    }
}

impl Captured {
    /// Room for so many bytes.
    pub(crate) fn with_room(room: usize) -> Captured {
        Captured { room, ..Captured::default() }
    }

    fn push(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(self.room - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..kept]);
        self.total += bytes.len() as u64;
    }
}

fn has_bytes(descriptor: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&NOW)).is_ok() && watched[0].revents().contains(PollFlags::IN)
}

/// Whether the kernel can move pages there without ever holding us up.
fn takes_pages(to: BorrowedFd<'_>) -> bool {
    match rustix::fs::fstat(to).map(|stat| (FileType::from_raw_mode(stat.st_mode), stat.st_rdev)) {
        Ok((FileType::Fifo | FileType::RegularFile, _)) => true,
        // The kernel's own devices, such as /dev/null; never a terminal.
        Ok((FileType::CharacterDevice, device)) => rustix::fs::major(device) == 1,
        _ => false,
    }
}

/// How much is written at once.
fn step(sink: &Sink) -> usize {
    match sink {
        Sink::Exact(to) | Sink::Harmless(to, _) => {
            let kind = rustix::fs::fstat(to).map(|stat| FileType::from_raw_mode(stat.st_mode));
            if kind == Ok(FileType::RegularFile) { PIECE } else { SMALL }
        }
        Sink::Memory(_) => PIECE,
    }
}

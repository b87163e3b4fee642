//! The bytes of a layer: decompressed and hashed on a thread of its own, handed on in large pieces.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair};

use super::{Limits, UnpackError};
use crate::compression::{self, Compression};
use crate::digest::{Digest, Hashed};

/// The length of a piece: enough that handing it on costs nothing.
const PIECE: usize = 256 << 10;
/// How many pieces may wait.
const WAITING: usize = 16;
/// Up to here a stream may swell as it likes: small layers of zeros are common.
const SWELLING_ALLOWED: u64 = 256 << 20;

/// The end that fills pieces.
pub(super) enum Pump {
    /// For another thread, which gives back what is spent.
    Thread { pieces: SyncSender<Vec<u8>>, empty: Receiver<Vec<u8>> },
    /// For another process.
    Socket(OwnedFd),
}

/// Where pieces come from.
enum Pieces<'a> {
    Thread { pieces: Receiver<Vec<u8>>, empty: Sender<Vec<u8>> },
    Socket(&'a OwnedFd),
}

/// The end that takes from them.
pub(super) struct Feed<'a> {
    pieces: Pieces<'a>,
    piece: Vec<u8>,
    taken: usize,
    position: u64,
}

/// What passed.
pub(super) struct Stream {
    pub(super) digest: Digest,
    pub(super) bytes: u64,
    pub(super) compression: Compression,
}

/// Both ends.
pub(super) fn feed() -> (Pump, Feed<'static>) {
    let (full, pieces) = sync_channel(WAITING);
    let (spent, empty) = channel();
    let pump = Pump::Thread { pieces: full, empty };
    (pump, Feed::new(Pieces::Thread { pieces, empty: spent }))
}

/// Both ends for two processes; the second is read with [`Feed::from_socket`].
pub(super) fn between_processes() -> io::Result<(Pump, OwnedFd)> {
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok((Pump::Socket(near), far))
}

/// Counts what is read, for somebody who cannot ask the reader.
struct Counted<'a, R> {
    reader: R,
    bytes: &'a AtomicU64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Pump {
    /// Hands on everything, to the very end, and names it; nothing when nobody takes it any more.
    pub(super) fn run(
        self,
        archive: impl Read + Send,
        limits: &Limits,
    ) -> Result<Option<Stream>, UnpackError> {
        let passed = self.pass(archive, limits);
        if let Pump::Socket(socket) = &self {
            // Processes that have it by accident would keep it open.
            let _ = shutdown(socket, Shutdown::Both);
        }
        passed
    }

    fn pass(&self, archive: impl Read + Send, limits: &Limits) -> Result<Option<Stream>, UnpackError> {
        let compressed = AtomicU64::new(0);
        let source = Counted { reader: archive, bytes: &compressed };
        let (compression, content) = compression::tell(source)?;
        let mut content = Hashed::new(content);
        let mut spent = Vec::new();
        loop {
            let mut piece = self.empty(spent);
            fill(&mut content, &mut piece)?;
            if piece.is_empty() {
                let (digest, bytes, _) = content.finish();
                return Ok(Some(Stream { digest, bytes, compression }));
            }
            check(Hashed::bytes(&content), compressed.load(Ordering::Relaxed), limits)?;
            match self.hand_on(piece) {
                Some(rest) => spent = rest,
                None => return Ok(None),
            }
        }
    }

    /// A piece to fill: one that is spent, where there is one.
    fn empty(&self, spent: Vec<u8>) -> Vec<u8> {
        match self {
            Pump::Thread { empty, .. } => empty.try_recv().unwrap_or(spent),
            Pump::Socket(_) => spent,
        }
    }

    /// Gives a piece away, or back once it is sent; nothing when nobody takes it.
    fn hand_on(&self, piece: Vec<u8>) -> Option<Vec<u8>> {
        match self {
            Pump::Thread { pieces, .. } => pieces.send(piece).ok().map(|()| Vec::new()),
            Pump::Socket(socket) => {
                let mut sent = 0;
                while sent < piece.len() {
                    match send(socket, &piece[sent..], SendFlags::NOSIGNAL) {
                        Ok(count) => sent += count,
                        Err(Errno::INTR) => {}
                        Err(_) => return None,
                    }
                }
                Some(piece)
            }
        }
    }
}

/// Reads a whole piece, or up to the end.
fn fill(content: &mut impl Read, piece: &mut Vec<u8>) -> io::Result<()> {
    piece.resize(PIECE, 0);
    let mut filled = 0;
    while filled < PIECE {
        match content.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    piece.truncate(filled);
    Ok(())
}

fn check(bytes: u64, compressed: u64, limits: &Limits) -> Result<(), UnpackError> {
    if bytes > limits.bytes {
        return Err(UnpackError::TooManyBytes { limit: limits.bytes });
    }
    if bytes > SWELLING_ALLOWED && bytes / compressed.max(1) > limits.swelling {
        return Err(UnpackError::Swells { limit: limits.swelling });
    }
    Ok(())
}

impl<'a> Feed<'a> {
    fn new(pieces: Pieces<'a>) -> Feed<'a> {
        Feed { pieces, piece: Vec::new(), taken: 0, position: 0 }
    }

    /// What another process sends.
    pub(super) fn from_socket(socket: &'a OwnedFd) -> Feed<'a> {
        Feed::new(Pieces::Socket(socket))
    }

    /// The next piece; an empty one at the end.
    fn receive(&mut self) {
        self.taken = 0;
        match &self.pieces {
            Pieces::Thread { pieces, empty } => {
                let next = pieces.recv().unwrap_or_default();
                // The other end may be done already.
                let _ = empty.send(std::mem::replace(&mut self.piece, next));
            }
            Pieces::Socket(socket) => {
                self.piece.resize(PIECE, 0);
                let count = loop {
                    match rustix::io::read(socket, &mut self.piece) {
                        Err(Errno::INTR) => {}
                        read => break read.unwrap_or(0),
                    }
                };
                self.piece.truncate(count);
            }
        }
    }

    /// How many bytes were taken.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// What can be had without waiting, or the next piece; nothing at the end.
    pub(super) fn peek(&mut self) -> &[u8] {
        if self.taken == self.piece.len() {
            self.receive();
        }
        &self.piece[self.taken..]
    }

    /// Takes as many of the bytes that [`Feed::peek`] showed.
    pub(super) fn take(&mut self, count: usize) {
        let count = count.min(self.piece.len() - self.taken);
        self.taken += count;
        self.position += count as u64;
    }

    /// Fills the buffer as far as there is something.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < buffer.len() {
            let piece = self.peek();
            let count = piece.len().min(buffer.len() - filled);
            if count == 0 {
                break;
            }
            buffer[filled..filled + count].copy_from_slice(&piece[..count]);
            self.take(count);
            filled += count;
        }
        filled
    }

    /// Passes over so many bytes.
    pub(super) fn skip(&mut self, count: u64) -> Result<(), UnpackError> {
        let mut left = count;
        while left > 0 {
            let there = self.peek().len() as u64;
            if there == 0 {
                return Err(UnpackError::Truncated);
            }
            let step = there.min(left);
            self.take(usize::try_from(step).unwrap_or(usize::MAX));
            left -= step;
        }
        Ok(())
    }

    /// Takes everything that is left.
    pub(super) fn drain(&mut self) {
        while !self.peek().is_empty() {
            self.take(self.piece.len());
        }
    }
}

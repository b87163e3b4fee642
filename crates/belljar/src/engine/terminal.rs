//! Stands between a command's terminal and plain streams: types what comes in, copies out what is shown.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// How many bytes are copied at once.
const PIECE: usize = 16 << 10;

/// Serves a terminal until `wait` returns, and then until everything it shows was copied.
pub(super) fn serve<T>(
    terminal: &OwnedFd,
    input: Option<&OwnedFd>,
    output: &OwnedFd,
    wait: impl FnOnce() -> T,
) -> io::Result<T> {
    fcntl_setfl(terminal, fcntl_getfl(terminal)? | OFlags::NONBLOCK)?;
    let (ended, end) = io::pipe()?;
    Ok(std::thread::scope(|scope| {
        scope.spawn(|| show(terminal, output, ended.as_fd()));
        if let Some(input) = input {
            scope.spawn(|| type_in(input, terminal, ended.as_fd()));
        }
        let result = wait();
        drop(end);
        result
    }))
}

/// Copies what is shown, until the terminal has hung up, or has nothing more to show after the end.
fn show(terminal: &OwnedFd, output: &OwnedFd, ended: BorrowedFd<'_>) {
    let mut buffer = vec![0; PIECE];
    loop {
        match rustix::io::read(terminal, &mut buffer) {
            // A reader that has gone does not keep the command from going on.
            Ok(count @ 1..) => drop(write_all(output, &buffer[..count])),
            Err(Errno::AGAIN | Errno::INTR) => {
                if !ready(terminal.as_fd(), PollFlags::IN, ended) {
                    return;
                }
            }
            Ok(_) | Err(_) => return,
        }
    }
}

/// Types what comes in; the end of the input types nothing, as when a person stops typing.
fn type_in(input: &OwnedFd, terminal: &OwnedFd, ended: BorrowedFd<'_>) {
    let mut buffer = vec![0; PIECE];
    while ready(input.as_fd(), PollFlags::IN, ended) {
        let count = match rustix::io::read(input, &mut buffer) {
            Ok(count @ 1..) => count,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Ok(_) | Err(_) => return,
        };
        let mut left = &buffer[..count];
        while !left.is_empty() && ready(terminal.as_fd(), PollFlags::OUT, ended) {
            match rustix::io::write(terminal, left) {
                Ok(count) => left = &left[count..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Waits until a descriptor is ready; `false` when the end came first.
fn ready(descriptor: BorrowedFd<'_>, wanted: PollFlags, ended: BorrowedFd<'_>) -> bool {
    loop {
        let mut watched =
            [PollFd::from_borrowed_fd(descriptor, wanted), PollFd::from_borrowed_fd(ended, PollFlags::IN)];
        match poll(&mut watched, None) {
            Err(Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return !watched[0].revents().is_empty(),
        }
    }
}

fn write_all(output: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(output, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

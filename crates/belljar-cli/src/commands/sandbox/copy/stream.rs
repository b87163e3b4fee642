//! A tar archive on its way between a sandbox and something of ours, through a pipe that is nobody else's.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use belljar::sandbox::Live;
use belljar::{Code, Fault};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// How much a pipe holds.
const WIDE: usize = 1 << 20;
/// How much is copied at once.
const PIECE: usize = 256 << 10;

/// The most bytes and entries of an archive.
pub(crate) type Amount = (u64, u64);

/// What went wrong, and on which side.
#[derive(Debug)]
pub(crate) enum Broken<E> {
    /// Inside.
    Sandbox(Fault),
    /// Outside.
    Ours(E),
}

/// Takes an archive of `path` out of a sandbox; `take` reads it, at the same time.
pub(crate) fn out<T: Send, E: Send>(
    live: &mut Live,
    path: &str,
    amount: Amount,
    take: impl FnOnce(File) -> Result<T, E> + Send,
) -> Result<T, Broken<E>> {
    let (reader, writer) = pipe().map_err(Broken::Sandbox)?;
    thread::scope(|scope| {
        let taking = scope.spawn(move || take(File::from(reader)));
        let got = live.get(path, amount, writer.as_fd());
        drop(writer);
        let taken = taking.join();
        match (got, taken) {
            (_, Err(_)) => Err(Broken::Sandbox(Fault::new(Code::Internal, "the copy failed"))),
            (Ok(()), Ok(taken)) => taken.map_err(Broken::Ours),
            // Whoever stopped first made the other fail: an archive without an end is the sandbox's doing.
            (Err(fault), Ok(Ok(_))) => Err(Broken::Sandbox(fault)),
            (Err(fault), Ok(Err(ours))) => {
                Err(if is_ours(&fault) { Broken::Ours(ours) } else { Broken::Sandbox(fault) })
            }
        }
    })
}

/// Brings an archive into a folder of a sandbox; `give` writes it, at the same time.
pub(crate) fn into<E: Send>(
    live: &mut Live,
    path: &str,
    amount: Amount,
    give: impl FnOnce(File) -> Result<(), E> + Send,
) -> Result<(), Broken<E>> {
    let (reader, writer) = pipe().map_err(Broken::Sandbox)?;
    thread::scope(|scope| {
        let giving = scope.spawn(move || give(File::from(writer)));
        let put = live.put(path, amount, reader.as_fd());
        // Whoever still gives learns that nobody takes it.
        drop(reader);
        match (put, giving.join()) {
            (_, Err(_)) => Err(Broken::Sandbox(Fault::new(Code::Internal, "the copy failed"))),
            (Ok(()), Ok(given)) => given.map_err(Broken::Ours),
            (Err(fault), Ok(_)) if fault.code == Code::ArchiveRefused && !is_cut_short(&fault) => {
                Err(Broken::Sandbox(fault))
            }
            (Err(_), Ok(Err(ours))) => Err(Broken::Ours(ours)),
            (Err(fault), Ok(Ok(()))) => Err(Broken::Sandbox(fault)),
        }
    })
}

/// Whether the sandbox's side only failed because we took no more.
fn is_ours(fault: &Fault) -> bool {
    fault.code != Code::ArchiveRefused || fault.message.contains("Broken pipe")
}

/// Whether the sandbox's side only failed because we gave no more.
fn is_cut_short(fault: &Fault) -> bool {
    fault.message.contains("cut short")
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Fault> {
    let made = pipe_with(PipeFlags::CLOEXEC);
    let (reader, writer) = made.map_err(|error| {
        Fault::new(Code::Internal, "could not make a pipe").caused_by(io::Error::from(error))
    })?;
    // Refused, it is only slower.
    let _ = fcntl_setpipe_size(&writer, WIDE);
    Ok((reader, writer))
}

/// Copies until the end, or until nobody takes more.
pub(crate) fn pour(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return to.flush(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        to.write_all(&buffer[..count])?;
    }
}

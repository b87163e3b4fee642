//! The one place of the suite that speaks to an engine: makes sandboxes, runs guests in them, takes them down.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_image::reference::Image;

use crate::conformance::archive::{Entry, archive};
use crate::conformance::guest::{Guest, Input, Meanwhile, Reader};
use crate::engine::{ArchiveLimits, Command, DiskLimit, Engine, Exit, Order, Sandbox, Stop, Stopper};
use crate::fault::{Code, Fault};
use crate::limits::Limits;
use crate::plan::PlannedUser;
use crate::record::{ControlRecord, EngineRecord};
use crate::spec::{Isolation, Network};

/// Who every guest is.
pub(super) const USER: (&str, u32, &str) = ("runner", 1000, "/home/runner");
/// The name of the machine inside.
pub(super) const HOSTNAME: &str = "belljar";
/// Where the workspace is inside.
pub(super) const WORKDIR: &str = "/workspace";
/// How long a stream may stay open after its command has ended, before somebody is said to hold it.
const STREAM_PATIENCE: Duration = Duration::from_secs(3);
/// The most bytes of a stream that are kept.
const KEPT: usize = 12 << 20;

/// The most that is carried at once.
const ARCHIVE: ArchiveLimits = ArchiveLimits { bytes: 8 << 20, entries: 10_000 };

/// An engine and the image that its sandboxes are made of.
pub(super) struct Bench<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) image: &'a Image,
}

/// A sandbox that somebody wants.
pub(super) struct Wish<'a> {
    pub(super) id: &'a str,
    pub(super) workspace: &'a Path,
    pub(super) limits: Limits,
    pub(super) disk: Option<DiskLimit>,
    pub(super) isolation: Isolation,
    pub(super) network: Network,
}

impl Bench<'_> {
    /// Makes a sandbox.
    pub(super) fn place(&self, wish: &Wish<'_>) -> Result<Place, Fault> {
        let (name, id, home) = USER;
        let order = Order {
            id: wish.id.to_owned(),
            image: self.image.clone(),
            workspace: wish.workspace.to_owned(),
            workdir: WORKDIR.to_owned(),
            user: PlannedUser { name: name.to_owned(), uid: id, gid: id, home: home.to_owned() },
            hostname: HOSTNAME.to_owned(),
            limits: wish.limits,
            isolation: wish.isolation,
            network: wish.network,
            disk: wish.disk,
        };
        let made = self.engine.create(&order, Box::new(drop))?;
        Ok(Place { sandbox: made.sandbox, engine: made.engine, controls: made.controls })
    }
}

/// A sandbox that was made.
pub(super) struct Place {
    sandbox: Box<dyn Sandbox>,
    pub(super) engine: EngineRecord,
    pub(super) controls: Vec<ControlRecord>,
}

/// A command that ran, and what it wrote.
pub(super) struct Ran {
    pub(super) exit: Exit,
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
    /// Archives that were got from the sandbox meanwhile.
    pub(super) got: Vec<u8>,
}

/// What came of one stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Stream {
    /// The bytes, as far as they are kept.
    pub(super) bytes: Vec<u8>,
    /// Whether somebody still held it open long after its command had ended.
    pub(super) held_open: bool,
}

impl Place {
    /// Runs a guest to its end; `work` is what the host does meanwhile, again and again.
    pub(super) fn run(
        &mut self,
        guest: &Guest,
        environment: BTreeMap<String, String>,
        work: &(dyn Fn() + Sync),
    ) -> Result<Ran, Fault> {
        let (stdout, out) = Tap::open(guest.reader)?;
        let (stderr, err) = Tap::open(Reader::Eager)?;
        let (stdin, source) = match guest.input {
            Input::Nothing => (None, None),
            Input::Bytes(_) | Input::Held | Input::Answer(_) => {
                let (end, source) = std::io::pipe().map_err(unpiped)?;
                (Some(end.into()), Some(source))
            }
        };
        let (programs, arguments) = guest.program.words();
        let command = Command {
            programs,
            arguments,
            environment,
            directory: guest.directory.unwrap_or(WORKDIR).to_owned(),
            user: guest.user,
            timeout: guest.timeout,
            limits: guest.limits,
            stdin,
            stdout,
            stderr,
            terminal: guest.terminal,
        };
        let ended = self.exec(command, guest, source, &out, work);
        let (stdout, stderr) = (out.drain()?, err.drain()?);
        let (exit, got) = ended?;
        Ok(Ran { exit, stdout, stderr, got })
    }

    /// Runs a command, while the host feeds it and does what it is to do meanwhile.
    fn exec(
        &mut self,
        command: Command,
        guest: &Guest,
        source: Option<PipeWriter>,
        out: &Tap,
        work: &(dyn Fn() + Sync),
    ) -> Result<(Exit, Vec<u8>), Fault> {
        let done = AtomicBool::new(false);
        let stop = self.sandbox.stopper();
        let other = match guest.meanwhile {
            Meanwhile::Carry(_) => Some(self.another()?),
            _ => None,
        };
        let wait_for_output = |bytes: usize| {
            while !out.has_more_than(bytes) && !done.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        std::thread::scope(|scope| {
            if let Some(source) = source {
                scope.spawn(|| feed(source, &guest.input, &|| wait_for_output(0), &done));
            }
            match guest.meanwhile {
                Meanwhile::Wait | Meanwhile::Carry(_) => {}
                Meanwhile::Stop => {
                    scope.spawn(|| {
                        wait_for_output(0);
                        stop(Stop::Interrupted);
                    });
                }
                Meanwhile::LimitOutput(bytes) => {
                    let stop = &stop;
                    scope.spawn(move || {
                        wait_for_output(bytes);
                        stop(Stop::OutputLimit);
                    });
                }
                Meanwhile::Collect => {
                    scope.spawn(|| {
                        while !done.load(Ordering::SeqCst) {
                            work();
                        }
                    });
                }
            }
            let carrying = other.zip(guest.meanwhile.path()).map(|(mut other, path)| {
                let done = &done;
                scope.spawn(move || other.carry(path, done))
            });
            let exit = self.sandbox.exec(&command);
            done.store(true, Ordering::SeqCst);
            // Whoever still writes to it learns that nobody reads.
            drop(command);
            let got = carrying.map(|thread| thread.join().unwrap_or_default()).unwrap_or_default();
            exit.map(|exit| (exit, got))
        })
    }

    /// The same sandbox for another thread.
    pub(super) fn another(&self) -> Result<Place, Fault> {
        let (engine, controls) = (self.engine.clone(), self.controls.clone());
        Ok(Place { sandbox: self.sandbox.another()?, engine, controls })
    }

    /// Gets a folder and puts a file into it, again and again; gives what it got. It may fail under the hands of a
    /// guest; it must not be led astray.
    fn carry(&mut self, path: &str, done: &AtomicBool) -> Vec<u8> {
        let file = archive(&[Entry::File(b"d/file", "carried\n")], &str::to_owned);
        let mut got = Vec::new();
        while !done.load(Ordering::SeqCst) {
            let archive = self.get(path).unwrap_or_default();
            got.extend_from_slice(&archive[..archive.len().min(KEPT - got.len())]);
            let _ = self.put(path, &file);
        }
        got
    }

    /// Packs a file or folder inside.
    pub(super) fn get(&mut self, path: &str) -> Result<Vec<u8>, Fault> {
        let (source, sink) = std::io::pipe().map_err(unpiped)?;
        let read = move || {
            let mut bytes = Vec::new();
            // What cannot be read is missing, and will be missed.
            let _ = File::from(OwnedFd::from(source)).read_to_end(&mut bytes);
            bytes
        };
        std::thread::scope(|scope| {
            let reader = scope.spawn(read);
            let result = self.sandbox.get(path, ARCHIVE, sink.as_fd());
            drop(sink);
            let bytes = reader.join().unwrap_or_default();
            result.map(|()| bytes)
        })
    }

    /// Unpacks an archive into a folder inside.
    pub(super) fn put(&mut self, path: &str, archive: &[u8]) -> Result<(), Fault> {
        let (source, mut sink) = std::io::pipe().map_err(unpiped)?;
        std::thread::scope(|scope| {
            // Nobody reads on after a refusal.
            scope.spawn(move || drop(sink.write_all(archive)));
            let result = self.sandbox.put(path, ARCHIVE, source.as_fd());
            drop(source);
            result
        })
    }

    /// Ends the running command from another thread.
    pub(super) fn stopper(&self) -> Stopper {
        self.sandbox.stopper()
    }

    /// Takes the network away.
    pub(super) fn disconnect(&mut self) -> Result<(), Fault> {
        self.sandbox.disconnect()
    }

    /// Takes the sandbox down; gives what could not be removed.
    pub(super) fn destroy(self) -> Result<Vec<String>, Fault> {
        self.sandbox.destroy()
    }
}

/// Writes what a guest is to read; what it does not read is lost.
fn feed(mut source: PipeWriter, input: &Input, wait_for_output: &dyn Fn(), done: &AtomicBool) {
    match input {
        Input::Nothing | Input::Held => {}
        Input::Bytes(bytes) => return drop(source.write_all(bytes)),
        Input::Answer(bytes) => {
            wait_for_output();
            let _ = source.write_all(bytes);
        }
    }
    while !done.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The host's end of one stream.
enum Tap {
    /// A thread reads it; it says when the stream has ended.
    Flowing { bytes: Arc<Mutex<Vec<u8>>>, ended: Mutex<Receiver<()>> },
    /// Nobody reads it yet.
    Shut(PipeReader),
    /// It was closed.
    Gone,
}

impl Tap {
    fn open(reader: Reader) -> Result<(OwnedFd, Tap), Fault> {
        let (source, sink) = std::io::pipe().map_err(unpiped)?;
        let tap = match reader {
            Reader::Eager => Tap::flowing(source)?,
            Reader::Asleep => Tap::Shut(source),
            Reader::Gone => Tap::Gone,
        };
        Ok((sink.into(), tap))
    }

    fn flowing(source: PipeReader) -> Result<Tap, Fault> {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (teller, ended) = channel();
        let kept = Arc::clone(&bytes);
        let read = move || {
            read_all(File::from(OwnedFd::from(source)), &kept);
            // Nobody waits any more when the stream was held open for too long.
            let _ = teller.send(());
        };
        std::thread::Builder::new().name("stream".to_owned()).spawn(read).map_err(unpiped)?;
        Ok(Tap::Flowing { bytes, ended: Mutex::new(ended) })
    }

    /// Whether more than so many bytes came already.
    fn has_more_than(&self, count: usize) -> bool {
        match self {
            Tap::Flowing { bytes, .. } => bytes.lock().unwrap_or_else(PoisonError::into_inner).len() > count,
            Tap::Shut(_) | Tap::Gone => true,
        }
    }

    /// Everything that came, once the command has ended.
    fn drain(self) -> Result<Stream, Fault> {
        let (bytes, ended) = match self {
            Tap::Gone => return Ok(Stream::default()),
            Tap::Shut(source) => return Tap::flowing(source)?.drain(),
            Tap::Flowing { bytes, ended } => (bytes, ended),
        };
        let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        let held_open = ended.recv_timeout(STREAM_PATIENCE).is_err();
        let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Stream { bytes, held_open })
    }
}

fn read_all(mut source: File, kept: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = source.read(&mut buffer) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..count.min(room)]);
    }
}

fn unpiped(error: std::io::Error) -> Fault {
    Fault::new(Code::SandboxFailed, format!("could not open a pipe: {error}")).caused_by(error)
}

//! `belljar sandbox cp`: files into a sandbox and out of it.

mod end;
mod landing;
mod stream;

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar::interrupt::Interrupt;
use belljar::sandbox::Live;
use belljar::{Code, Fault};
use belljar_cell::archive::{self, ArchiveError, Limits, Rules};
use belljar_cell::cell::Stop;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::termios::isatty;
use serde_json::json;

use self::end::{End, absolute, means_content};
use self::landing::{Landing, Place};
use self::stream::{Broken, pour};
use super::order;
use crate::args::{CopyArguments, Links};
use crate::signals::Ears;
use crate::voice::Voice;

/// Copies.
pub(crate) fn perform(arguments: &CopyArguments, voice: Voice) -> Result<u8, Fault> {
    let copy = |id: &str| Copy::open(id, arguments);
    match (End::read(&arguments.source), End::read(&arguments.destination)) {
        (End::Sandbox { id, path }, End::Host(destination)) => copy(&id)?.out(&path, &destination)?,
        (End::Sandbox { id, path }, End::Stream) => return copy(&id)?.out_as_archive(&path),
        (End::Host(source), End::Sandbox { id, path }) => copy(&id)?.into(&source, &path)?,
        (End::Stream, End::Sandbox { id, path }) => copy(&id)?.into_from_archive(&path)?,
        _ => {
            return Err(Fault::new(
                Code::Usage,
                "one of SOURCE and DESTINATION must be in a sandbox, as ID:PATH",
            )
            .hint("from one sandbox to another: belljar sandbox cp A:PATH - | belljar sandbox cp - B:PATH"));
        }
    }
    let [source, destination] =
        [&arguments.source, &arguments.destination].map(|word| word.to_string_lossy());
    voice.answer(&json!({ "source": source, "destination": destination }), String::new)?;
    Ok(0)
}

struct Copy {
    live: Live,
    limits: Limits,
    links: archive::Links,
    interrupt: Arc<Interrupt>,
    /// Ctrl-C ends the part of it that works inside, and the rest ends for want of it.
    _ears: Ears,
}

impl Copy {
    fn open(id: &str, arguments: &CopyArguments) -> Result<Copy, Fault> {
        let live = order::sandboxes()?.open(id)?;
        let interrupt = Arc::new(Interrupt::default());
        let interrupter = live.interrupter();
        interrupt.arm(Arc::new(move || drop(interrupter.interrupt(Stop::Interrupted))));
        let ears = Ears::open(&interrupt, || {})?;
        let links = match arguments.links {
            Links::Anywhere => archive::Links::Any,
            Links::Inside => archive::Links::Inside,
        };
        let limits = Limits { bytes: arguments.max_size.0, entries: arguments.max_entries };
        Ok(Copy { live, limits, links, interrupt, _ears: ears })
    }

    fn amount(&self) -> stream::Amount {
        (self.limits.bytes, self.limits.entries)
    }

    /// Out of the sandbox, to a place of the host.
    fn out(mut self, path: &str, destination: &Path) -> Result<(), Fault> {
        let inside = absolute(path, &self.live.workdir);
        let name = Path::new(&inside).file_name().filter(|_| !ends_upwards(&inside)).map(OsStr::to_owned);
        let place = match means_content(path) {
            true => Place::find(destination, None)?,
            false => Place::find(destination, name.as_deref())?,
        };
        let landing = Landing::make(&place.folder)?;
        let rules = Rules { links: self.links, ..Rules::strict(self.limits) };
        let into = landing.folder().map_err(|error| failed(ArchiveError::ReadArchive { source: error }))?;
        let amount = self.amount();
        let taken = stream::out(&mut self.live, &inside, amount, |reader| {
            archive::unpack(io::BufReader::with_capacity(64 << 10, reader), into, rules)
        });
        taken.map_err(|broken| self.told(broken))?;
        landing.settle(name.as_deref(), &place)
    }

    /// Out of the sandbox, as an archive on stdout.
    fn out_as_archive(mut self, path: &str) -> Result<u8, Fault> {
        if isatty(io::stdout()) {
            return Err(Fault::new(Code::Usage, "an archive is nothing for a terminal")
                .hint("redirect stdout, or pipe it into tar"));
        }
        let inside = absolute(path, &self.live.workdir);
        let amount = self.amount();
        let poured = stream::out(&mut self.live, &inside, amount, |reader| pour(reader, io::stdout().lock()));
        match poured {
            // A reader that went away is no failure.
            Err(Broken::Ours(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(0),
            Err(Broken::Ours(error)) => {
                Err(Fault::new(Code::OutputUnwritable, format!("could not write to stdout: {error}"))
                    .caused_by(error))
            }
            Err(Broken::Sandbox(fault)) => Err(self.ours(fault)),
            Ok(()) => Ok(0),
        }
    }

    /// Into the sandbox, from a place of the host.
    fn into(mut self, source: &Path, path: &str) -> Result<(), Fault> {
        let (root, what, name) = opened(source)?;
        let inside = absolute(path, &self.live.workdir);
        let (folder, called) = match &name {
            // The content of a folder goes into the folder that was named.
            None => (inside, std::ffi::OsString::new()),
            Some(name) => self.target(&inside, path, name)?,
        };
        let (limits, amount) = (self.limits, self.amount());
        let given = stream::into(&mut self.live, &folder, amount, |writer| {
            archive::pack(root.as_fd(), &what, &called, writer, limits).map(drop)
        });
        given.map_err(|broken| self.told(broken))
    }

    /// As `cp -r` understands a destination: into a folder that exists, or under a name that does not.
    fn target(
        &mut self,
        inside: &str,
        typed: &str,
        name: &OsStr,
    ) -> Result<(String, std::ffi::OsString), Fault> {
        let into = (inside.to_owned(), name.to_owned());
        let path = Path::new(inside);
        let (Some(parent), Some(new)) = (path.parent(), path.file_name()) else { return Ok(into) };
        if typed.is_empty() || typed.ends_with('/') || means_content(typed) || self.is_folder(inside) {
            return Ok(into);
        }
        Ok((parent.to_string_lossy().into_owned(), new.to_owned()))
    }

    /// Whether there is such a folder inside: only then is there one above it by way of it.
    fn is_folder(&mut self, inside: &str) -> bool {
        let Ok((_reader, writer)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else {
            return false;
        };
        let above = format!("{}/..", inside.trim_end_matches('/'));
        match self.live.get(&above, (0, 0), writer.as_fd()) {
            Ok(()) => true,
            // One that is there is refused for its size, not for its path.
            Err(fault) => !fault.message.starts_with(&above),
        }
    }

    /// Into the sandbox, from an archive on stdin.
    fn into_from_archive(mut self, path: &str) -> Result<(), Fault> {
        if isatty(io::stdin()) {
            return Err(Fault::new(Code::Usage, "stdin is a terminal, not an archive")
                .hint("tar c … | belljar sandbox cp - …"));
        }
        let inside = absolute(path, &self.live.workdir);
        let amount = self.amount();
        let given =
            stream::into(&mut self.live, &inside, amount, |writer| match pour(io::stdin().lock(), writer) {
                // Whatever follows the end of the archive is nobody's.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
                other => other,
            });
        given.map_err(|broken| match broken {
            Broken::Sandbox(fault) => self.ours(fault),
            Broken::Ours(error) => {
                Fault::new(Code::ArchiveRefused, format!("could not read stdin: {error}")).caused_by(error)
            }
        })
    }

    fn told(&self, broken: Broken<ArchiveError>) -> Fault {
        match broken {
            Broken::Ours(error) if !self.interrupt.is_asked() => failed(error),
            Broken::Ours(error) => self.ours(failed(error)),
            Broken::Sandbox(fault) => self.ours(fault),
        }
    }

    /// What failed because somebody asked for it is told so; anything else with the sandbox in which it failed.
    fn ours(&self, fault: Fault) -> Fault {
        if self.interrupt.is_asked() {
            return Fault::new(Code::Interrupted, "interrupted; not everything was copied");
        }
        let message = format!("{}: {}", self.live.id, fault.message);
        Fault { message, ..fault }
    }
}

fn ends_upwards(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/..")
}

fn failed(error: ArchiveError) -> Fault {
    Fault::new(Code::ArchiveRefused, error.to_string()).hint(Code::ArchiveRefused.remedy()).caused_by(error)
}

/// A file or folder of the host: the folder that holds it, its path there, and its name. What has no name of its own
/// (`.`, `/`, `a/..`) is its content.
fn opened(source: &Path) -> Result<(OwnedFd, PathBuf, Option<std::ffi::OsString>), Fault> {
    let missing = |error: io::Error| {
        Fault::new(Code::Usage, format!("could not read {}: {error}", source.display())).caused_by(error)
    };
    let text = source.to_string_lossy();
    let name = source.file_name().filter(|_| !means_content(&text)).map(OsStr::to_owned);
    let parent = match (&name, source.parent()) {
        (Some(_), Some(parent)) if parent.as_os_str().is_empty() => Path::new("."),
        (Some(_), Some(parent)) => parent,
        _ => source,
    };
    source.symlink_metadata().map_err(missing)?;
    // The way there is the caller's own, links and all.
    let folder = openat(CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let folder = folder.map_err(|error| missing(error.into()))?;
    let what = name.as_ref().map_or_else(|| PathBuf::from("."), PathBuf::from);
    Ok((folder, what, name))
}

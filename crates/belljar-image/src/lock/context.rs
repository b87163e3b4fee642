//! What a build can see, as one digest: the Dockerfile, and the context without what `.dockerignore` leaves out.
//!
//! Names, kinds, bytes, where links lead, and whether a file may be executed count; times, owners and other rights do
//! not, because a fresh clone has others.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::digest::{Digest, Hashed};
use crate::ignore::{self, Ignore, IgnoreError};

/// Changed whenever what is hashed changes.
const TITLE: &[u8] = b"belljar build context 1\n";

/// Why a context has no digest.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// Something could not be read.
    #[error("failed to read {}: {source}", path.display())]
    Read {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The patterns are wrong.
    #[error("{}: {source}", path.display())]
    Ignore {
        /// Where they are.
        path: PathBuf,
        /// What is wrong.
        source: IgnoreError,
    },
}

/// The digest of a Dockerfile and of what a build can see of its context.
pub fn context_hash(dockerfile: &Path, context: &Path) -> Result<Digest, ContextError> {
    let ignore = patterns(dockerfile, context)?;
    let mut walk = Walk { context, ignore, sum: Hashed::new(io::sink()) };
    walk.say(TITLE);
    let file = digest_of(dockerfile).map_err(read(dockerfile))?;
    walk.say(format!("dockerfile {file}\n").as_bytes());
    walk.folder(Path::new(""))?;
    Ok(walk.sum.finish().0)
}

fn read(path: &Path) -> impl Fn(io::Error) -> ContextError {
    let path = path.to_owned();
    move |source| ContextError::Read { path: path.clone(), source }
}

fn patterns(dockerfile: &Path, context: &Path) -> Result<Ignore, ContextError> {
    for path in ignore::candidates(context, dockerfile) {
        let mut text = String::new();
        match plain_file(&path).and_then(|file| file.take(ignore::MOST_BYTES).read_to_string(&mut text)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(read(&path)(error)),
            Ok(_) => return Ignore::parse(&text).map_err(|source| ContextError::Ignore { path, source }),
        }
    }
    Ok(Ignore::default())
}

struct Walk<'a> {
    context: &'a Path,
    ignore: Ignore,
    sum: Hashed<io::Sink>,
}

impl Walk<'_> {
    fn say(&mut self, bytes: &[u8]) {
        // A sink takes everything.
        let _ = self.sum.write_all(bytes);
    }

    /// Everything in a folder, in the order of the names' bytes.
    fn folder(&mut self, inner: &Path) -> Result<(), ContextError> {
        let folder = self.context.join(inner);
        let listed = fs::read_dir(&folder).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let mut names: Vec<_> = listed.map_err(read(&folder))?.iter().map(fs::DirEntry::file_name).collect();
        names.sort();
        names.iter().try_for_each(|name| self.entry(&inner.join(name)))
    }

    fn entry(&mut self, inner: &Path) -> Result<(), ContextError> {
        let path = self.context.join(inner);
        let meta = path.symlink_metadata().map_err(read(&path))?;
        let shown = inner.to_string_lossy();
        let excluded = self.ignore.excludes(&shown);
        if meta.is_dir() {
            if !excluded {
                self.line("folder", "", inner);
            }
            return if excluded && !self.ignore.enters(&shown) { Ok(()) } else { self.folder(inner) };
        }
        if excluded {
            return Ok(());
        }
        if meta.is_symlink() {
            let target = fs::read_link(&path).map_err(read(&path))?;
            self.line("link", &Digest::of(target.as_os_str().as_bytes()).to_string(), inner);
        } else if meta.is_file() {
            let kind = if meta.mode() & 0o100 == 0 { "file" } else { "program" };
            let digest = digest_of(&path).map_err(read(&path))?;
            self.line(kind, &digest.to_string(), inner);
        } else {
            // Pipes, sockets and devices are never opened; a build refuses or leaves them out.
            self.line("other", "", inner);
        }
        Ok(())
    }

    /// The length stands before the name, so that no name can look like two lines.
    fn line(&mut self, kind: &str, digest: &str, name: &Path) {
        let name = name.as_os_str().as_bytes();
        self.say(format!("{kind} {digest} {} ", name.len()).as_bytes());
        self.say(name);
        self.say(b"\n");
    }
}

fn digest_of(path: &Path) -> io::Result<Digest> {
    let mut file = Hashed::new(plain_file(path)?);
    io::copy(&mut file, &mut io::sink())?;
    Ok(file.finish().0)
}

/// Opened without following a link at its end, and without waiting for a pipe's other end.
fn plain_file(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a plain file")),
    }
}

//! What a run does with `belljar.lock`: pins what is new, verifies what is pinned, refuses what drifted.

mod bring;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_image::digest::Digest;
use belljar_image::fingerprint::Fingerprint;
use belljar_image::lock::{Entry, Identity, Intent, Locators, Lock, LockFile, LockFileError, Pin, Wrong};
use belljar_image::oci::Platform;
use belljar_image::pack::{self, Options, Owners, Times};
use belljar_image::reference::Image;

use crate::canonical;
use crate::fault::{Code, Fault};
use crate::images::{Images, Pull};
use crate::record::{LockRecord, LockState};
use crate::spec::LoadedTask;

/// The key that all of this is about.
const KEY: &str = "environment.image";
/// The most that a root directory may hold to be pinned by its content.
const MOST_CONTENT: u64 = 1 << 40;

/// What may be done with the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Locking {
    /// Pin what is new, verify what is pinned.
    #[default]
    Pin,
    /// Verify what is pinned, and write nothing.
    Look,
    /// Verify what is pinned, and refuse everything else.
    Frozen,
    /// Pin what is there now, whatever was pinned.
    Update,
}

/// Where images come from, and what decides which one.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// The store, and who fills it.
    pub images: &'a Images,
    /// When a registry is asked for what is not pinned.
    pub pull: Pull,
    /// What may be done with the task's lock.
    pub locking: Locking,
}

/// A root file system that was held against the lock.
#[derive(Debug, Clone)]
pub struct Root {
    /// The image.
    pub image: Image,
    /// What the lock says of it.
    pub pinned: Pinned,
}

/// The lock of a task and what it says of the task's image.
#[derive(Debug, Clone)]
pub struct Pins<'a> {
    task: &'a LoadedTask,
    locking: Locking,
    file: LockFile,
    platform: String,
    /// What the lock is asked for; or why it cannot be.
    intent: Result<Intent, String>,
    read: Option<(Lock, Digest)>,
}

/// An image that was held against the lock.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// Which lock and entry, and what was done.
    pub lock: LockRecord,
    /// The content of a root directory, where it is pinned.
    pub content_digest: Option<Digest>,
    /// What a person should know though nothing is wrong.
    pub notice: Option<String>,
    /// What a person should act on.
    pub warning: Option<String>,
}

impl<'a> Pins<'a> {
    /// Finds and reads the lock of a task, for images of this platform.
    pub fn open(task: &'a LoadedTask, platform: &Platform, locking: Locking) -> Result<Pins<'a>, Fault> {
        let unreadable = |error: io::Error| {
            Fault::new(Code::LockUnreadable, format!("the task's folder cannot be read: {error}"))
        };
        let file = LockFile::find(&task.folder).map_err(unreadable)?;
        let folder = task.folder.canonicalize().map_err(unreadable)?;
        let written = &task.spec.environment.image;
        let intent = Intent::new(written, platform, &folder, file.folder());
        let read = file.read().map_err(fault)?.map(|read| (read.lock, read.digest));
        let intent = intent.map_err(|error| error.to_string());
        Ok(Pins { task, locking, file, platform: platform.to_string(), intent, read })
    }

    /// The image that is to be used whatever its name means by now: first by what it is, from the store, else from where
    /// its locators say. `None` when the name decides.
    pub fn wanted(&self) -> Option<&Entry> {
        match self.locking {
            Locking::Update => None,
            Locking::Pin | Locking::Look | Locking::Frozen => self.entry(),
        }
    }

    /// Holds the image that would be used against the lock; pins it where that is allowed.
    pub fn settle(&self, image: &Image, locators: Locators, cancel: &AtomicBool) -> Result<Pinned, Fault> {
        match (image, &self.intent) {
            (Image::Host, Ok(intent)) => self.host(intent),
            (_, Err(reason)) => self.unportable(reason),
            (Image::Directory(path), Ok(intent)) => self.directory(intent, path, cancel),
            (Image::Stored(root), Ok(intent)) => {
                let (config_digest, diff_ids) = (root.config_digest, root.diff_ids.clone());
                let pin = Pin::Image(Identity { config_digest, diff_ids });
                self.hold(intent, Entry { pin, locators })
            }
        }
    }

    /// The same for an image that was built; its context is part of what is pinned.
    pub fn settle_build(&self, context_hash: Digest, image: Identity) -> Result<Pinned, Fault> {
        match &self.intent {
            Ok(intent) => {
                let pin = Pin::Build { context_hash, image };
                self.hold(intent, Entry { pin, locators: Locators::default() })
            }
            Err(reason) => self.unportable(reason),
        }
    }

    fn entry(&self) -> Option<&Entry> {
        let intent = self.intent.as_ref().ok()?;
        self.read.as_ref()?.0.images.get(intent)
    }

    /// The machine itself is noted in a lock that there is, and compared for people only.
    fn host(&self, intent: &Intent) -> Result<Pinned, Fault> {
        let unpinned = self.answer(LockState::Unpinned, self.digest());
        match self.locking {
            Locking::Frozen => {
                return Err(self
                    .refused("it is this machine itself and cannot be pinned")
                    .hint("choose an image that can be pinned: docs/images.md lists them"));
            }
            Locking::Pin | Locking::Look if self.read.is_none() => return Ok(unpinned),
            Locking::Pin | Locking::Look | Locking::Update => {}
        }
        let entry = Entry { pin: machine()?, locators: Locators::default() };
        let (note, update) = (entry.clone(), self.locking == Locking::Update);
        if self.locking == Locking::Look || (self.entry().is_some() && !update) {
            return self.compare_machines(unpinned, &entry.pin);
        }
        let noted = self.file.change(|lock| {
            if update || !lock.images.contains_key(intent) {
                lock.images.insert(intent.clone(), note);
            }
        });
        match noted {
            Ok(changed) => Ok(self.answer(LockState::Unpinned, changed.digest)),
            // It only informs, so it may as well be left out.
            Err(LockFileError::Write { .. }) if !update => Ok(unpinned),
            Err(error) => Err(fault(error)),
        }
    }

    fn compare_machines(&self, unpinned: Pinned, now: &Pin) -> Result<Pinned, Fault> {
        match self.entry().map(|entry| &entry.pin) {
            Some(Pin::Host { system, .. }) if Some(now) != self.entry().map(|entry| &entry.pin) => {
                let notice =
                    format!("{} was written on another machine or before a change: {system}", self.shown());
                Ok(Pinned { notice: Some(notice), ..unpinned })
            }
            Some(Pin::Host { .. }) | None => Ok(unpinned),
            Some(_) => self.check(&Entry { pin: now.clone(), locators: Locators::default() }),
        }
    }

    /// All of a root directory must be read to pin it, so that is done when it was asked for once.
    fn directory(&self, intent: &Intent, path: &Path, cancel: &AtomicBool) -> Result<Pinned, Fault> {
        let pinned = self.entry().is_some();
        match self.locking {
            Locking::Frozen if !pinned => {
                return Err(self
                    .refused("the root directory is not pinned")
                    .hint("pin it with --update-lock, and commit belljar.lock"));
            }
            Locking::Pin | Locking::Look if !pinned => {
                return Ok(self.answer(LockState::Unpinned, self.digest()));
            }
            Locking::Pin | Locking::Look | Locking::Frozen | Locking::Update => {}
        }
        let content_digest =
            content(path, cancel).map_err(|reason| match cancel.load(Ordering::Relaxed) {
                true => Fault::new(Code::Interrupted, "interrupted while the root directory was read"),
                false => self.refused(&format!("the root directory cannot be read whole: {reason}")),
            })?;
        let entry = Entry { pin: Pin::Directory { content_digest }, locators: Locators::default() };
        Ok(Pinned { content_digest: Some(content_digest), ..self.hold(intent, entry)? })
    }

    /// An image with an identity, held against its entry.
    fn hold(&self, intent: &Intent, now: Entry) -> Result<Pinned, Fault> {
        match (self.locking, self.entry()) {
            (Locking::Update, _) | (Locking::Pin, None) => self.write(intent, now),
            (Locking::Pin | Locking::Look | Locking::Frozen, Some(_)) => self.check(&now),
            (Locking::Look, None) => Ok(self.answer(LockState::WouldPin, self.digest())),
            (Locking::Frozen, None) => Err(self.not_pinned()),
        }
    }

    fn check(&self, now: &Entry) -> Result<Pinned, Fault> {
        match self.entry().and_then(|entry| entry.pin.drift(&now.pin)) {
            Some(drift) => Err(self.drifted(&drift)),
            None => Ok(self.answer(LockState::Verified, self.digest())),
        }
    }

    /// Decided while nobody else writes: another run may have pinned the same image a moment ago.
    fn write(&self, intent: &Intent, now: Entry) -> Result<Pinned, Fault> {
        let update = self.locking == Locking::Update;
        let written = self.file.change(|lock| match lock.images.get(intent) {
            Some(entry) if !update => match entry.pin.drift(&now.pin) {
                Some(drift) => Err(Box::new(drift)),
                None => Ok(LockState::Verified),
            },
            earlier => {
                let state = match earlier {
                    // Its locators may be new all the same.
                    Some(entry) if entry.pin == now.pin => LockState::Verified,
                    Some(_) => LockState::Updated,
                    None => LockState::Pinned,
                };
                lock.images.insert(intent.clone(), now.clone());
                Ok(state)
            }
        });
        match written {
            Ok(changed) => match changed.value {
                Ok(state) => Ok(self.answer(state, changed.digest)),
                Err(drift) => Err(self.drifted(&drift)),
            },
            Err(LockFileError::Write { source, .. }) if !update => {
                let warning = format!(
                    "the image is not pinned: {} cannot be written: {source}; the next run may get another image",
                    self.shown()
                );
                let pinned = self.answer(LockState::NotWritten, self.digest());
                Ok(Pinned { warning: Some(warning), ..pinned })
            }
            Err(error) => Err(fault(error)),
        }
    }

    /// A path that means something on this machine only is not put into a lock.
    fn unportable(&self, reason: &str) -> Result<Pinned, Fault> {
        match self.locking {
            Locking::Pin | Locking::Look => Ok(self.answer(LockState::Unpinned, self.digest())),
            Locking::Frozen | Locking::Update => {
                Err(self.refused(reason).hint("write the path relative to the task's folder"))
            }
        }
    }

    fn drifted(&self, drift: &belljar_image::lock::Drift) -> Fault {
        let image = &self.task.spec.environment.image;
        let message = format!("the image `{image}` is not what {} pins\n{drift}", self.shown());
        self.task.fault_at(KEY, Code::ImageDrift, message)
    }

    fn refused(&self, reason: &str) -> Fault {
        let image = &self.task.spec.environment.image;
        let message = format!("the image `{image}` cannot be held to {}: {reason}", self.shown());
        self.task.fault_at(KEY, Code::ImageUnpinned, message)
    }

    fn not_pinned(&self) -> Fault {
        self.refused("it is not pinned").hint("run once without --frozen to pin it, and commit belljar.lock")
    }

    fn digest(&self) -> Option<Digest> {
        self.read.as_ref().map(|(_, digest)| *digest)
    }

    fn answer(&self, state: LockState, digest: Option<Digest>) -> Pinned {
        let lock = LockRecord {
            path: self.shown(),
            digest: digest.map(|digest| digest.to_string()),
            reference: self.intent.as_ref().ok().map(|intent| intent.reference.clone()),
            platform: self.platform.clone(),
            state,
        };
        Pinned { lock, content_digest: None, notice: None, warning: None }
    }

    /// The lock as it is seen from the task's folder.
    fn shown(&self) -> String {
        let own = self.task.folder.canonicalize().unwrap_or_else(|_| self.task.folder.clone());
        let up = own.strip_prefix(self.file.folder()).map_or(0, |way| way.components().count());
        let way: PathBuf = std::iter::repeat_n(Component::ParentDir, up).collect();
        way.join(belljar_image::lock::LOCK_FILE).display().to_string()
    }
}

fn machine() -> Result<Pin, Fault> {
    let fingerprint = Fingerprint::take();
    let digest = canonical::to_string(&fingerprint).map(|text| Digest::of(text.as_bytes()));
    let digest = digest
        .map_err(|error| Fault::new(Code::Internal, "the machine has no fingerprint").caused_by(error))?;
    Ok(Pin::Host { system: fingerprint.system, fingerprint: digest })
}

/// Names, kinds, rights, bytes and links of a root directory; not times and owners, which a copy does not have.
fn content(path: &Path, cancel: &AtomicBool) -> Result<Digest, String> {
    let options =
        Options { times: Times::Fixed(0), owners: Owners::Fixed { uid: 0, gid: 0 }, bytes: MOST_CONTENT };
    let folder = File::open(path).map_err(|error| error.to_string())?;
    let packed = pack::pack(folder.as_fd(), &options, Patience(cancel));
    packed.map(|packed| packed.diff_id).map_err(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}

/// Takes everything until somebody asks for the end.
struct Patience<'a>(&'a AtomicBool);

impl Write for Patience<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Not `Interrupted`, after which a writer tries again.
        if self.0.load(Ordering::Relaxed) { Err(io::Error::other("interrupted")) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn fault(error: LockFileError) -> Fault {
    let code = match &error {
        LockFileError::Wrong { source, .. } if matches!(source.wrong, Wrong::Version(_)) => Code::LockVersion,
        LockFileError::Read { .. } | LockFileError::NotALock { .. } | LockFileError::Wrong { .. } => {
            Code::LockUnreadable
        }
        LockFileError::Write { .. } => Code::LockUnwritable,
    };
    Fault::new(code, error.to_string()).hint(code.remedy())
}

#[cfg(test)]
mod tests;

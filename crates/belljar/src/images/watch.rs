//! What is told while an image comes, and how that is stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_image::digest::Digest;
use belljar_image::registry::{self, Progress};
use belljar_image::store::Notice;

use crate::fault::{Code, Fault};

/// Whom to tell, and where to hear that it should stop.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Once true, the work ends within a moment.
    pub cancel: &'a AtomicBool,
    /// Called from several threads.
    pub tell: &'a (dyn Fn(Told) + Sync),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Something longer began, in words.
    Began(String),
    /// Bytes of a blob came or went.
    Blob {
        /// Which.
        digest: Digest,
        /// As many as are there now.
        done: u64,
        /// As many as there will be.
        size: u64,
    },
    /// A blob was there already.
    There(Digest),
    /// A layer is being unpacked.
    Unpacking(Digest),
    /// A layer is unpacked.
    Unpacked(Digest),
    /// Another process makes this now; its work will be used.
    Waiting(Digest),
    /// Something failed and is tried again after a while.
    Retry {
        /// Why.
        reason: String,
        /// After how long.
        wait: Duration,
    },
    /// A mirror failed, and the next one or the registry itself is asked.
    NextHost {
        /// Which.
        host: String,
        /// Why.
        reason: String,
    },
}

impl Watch<'_> {
    pub(super) fn notice(&self, notice: Notice) {
        (self.tell)(match notice {
            Notice::Waiting(digest) => Told::Waiting(digest),
            Notice::Unpacking(digest) => Told::Unpacking(digest),
            Notice::There(digest) => Told::Unpacked(digest),
        });
    }

    pub(super) fn progress(&self, progress: Progress) {
        (self.tell)(match progress {
            Progress::Blob { digest, done, size } => Told::Blob { digest, done, size },
            Progress::There { digest } => Told::There(digest),
            Progress::Retry { reason, wait, .. } => Told::Retry { reason, wait },
            Progress::NextHost { host, reason } => Told::NextHost { host, reason },
        });
    }

    pub(super) fn registry<'b>(&'b self, progress: &'b (dyn Fn(Progress) + Sync)) -> registry::Watch<'b> {
        registry::Watch { cancel: self.cancel, progress }
    }

    /// What failed because somebody wanted it to end, failed because of that.
    pub(super) fn unless_cancelled(&self, fault: Fault) -> Fault {
        if fault.code != Code::Interrupted && self.cancel.load(Ordering::SeqCst) {
            return Fault::new(Code::Interrupted, "interrupted while the image came");
        }
        fault
    }
}

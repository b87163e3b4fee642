//! The two sides of a difference, for people.

use std::fmt;

use super::Pin;
use crate::digest::Digest;

/// What the lock says and what is there now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// As pinned.
    pub locked: Pin,
    /// As found.
    pub now: Pin,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  the lock has  {}\n  there is now  {}", side(&self.locked), side(&self.now))?;
        match (self.locked.identity(), self.now.identity()) {
            (Some(locked), Some(now)) => layers(f, &locked.diff_ids, &now.diff_ids),
            _ => Ok(()),
        }
    }
}

fn side(pin: &Pin) -> String {
    match pin {
        Pin::Image(image) => format!("the image {}", image.config_digest),
        Pin::Build { context_hash, image } => {
            format!("the image {} built from the context {context_hash}", image.config_digest)
        }
        Pin::Directory { content_digest } => format!("a root directory with the content {content_digest}"),
        Pin::Host { system, .. } => format!("the machine itself ({system})"),
    }
}

/// The first layer that is not the same, with both sides.
fn layers(f: &mut fmt::Formatter<'_>, locked: &[Digest], now: &[Digest]) -> fmt::Result {
    let shared = locked.iter().zip(now).take_while(|(locked, now)| locked == now).count();
    if shared == locked.len().max(now.len()) {
        return write!(f, "\n  the layers are the same; the configuration differs");
    }
    let shown = |layers: &[Digest]| layers.get(shared).map_or("nothing".to_owned(), Digest::to_string);
    write!(
        f,
        "\n  layer {} of {} in the lock and {} now is the first that differs: {} was pinned, {} is there",
        shared + 1,
        locked.len(),
        now.len(),
        shown(locked),
        shown(now)
    )
}

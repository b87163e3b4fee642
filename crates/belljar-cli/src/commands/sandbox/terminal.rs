//! The caller's terminal, lent to a guest: raw while the guest has it, and always given back.

use std::sync::{Arc, Mutex, PoisonError};

use belljar_cell::cell::Size;
use rustix::stdio;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The size of a terminal that nobody looks at.
const UNSEEN: Size = Size { rows: 24, columns: 80 };

/// The size of the caller's terminal, whichever of its streams is one.
pub(crate) fn size() -> Size {
    let sizes = [tcgetwinsize(stdio::stdin()), tcgetwinsize(stdio::stdout()), tcgetwinsize(stdio::stderr())];
    let seen = sizes.into_iter().flatten().find(|size| size.ws_row > 0 && size.ws_col > 0);
    seen.map_or(UNSEEN, |size| Size { rows: size.ws_row, columns: size.ws_col })
}

/// The caller's terminal in raw mode: what is typed goes to the guest, Ctrl-C included.
///
/// It is as before when this value goes, also by a panic, and after [`Handle::give_back`].
#[derive(Debug)]
pub(crate) struct Raw {
    handle: Handle,
}

/// A handle on a terminal that is raw, for another thread.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    /// How it was; nothing once it is so again.
    before: Arc<Mutex<Option<Termios>>>,
}

impl Raw {
    /// Makes the terminal raw, if standard input is one.
    pub(crate) fn take() -> Option<Raw> {
        let before = tcgetattr(stdio::stdin()).ok()?;
        let raw = Raw { handle: Handle { before: Arc::new(Mutex::new(Some(before))) } };
        raw.handle.take_again();
        Some(raw)
    }

    /// A handle for another thread.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.handle.give_back();
    }
}

impl Handle {
    /// Makes it raw once more: a shell that had stopped us has changed it.
    pub(crate) fn take_again(&self) {
        if let Some(before) = &*self.before.lock().unwrap_or_else(PoisonError::into_inner) {
            let mut raw = before.clone();
            raw.make_raw();
            // A terminal that went away meanwhile is nobody's concern.
            let _ = tcsetattr(stdio::stdin(), OptionalActions::Now, &raw);
        }
    }

    /// Puts it back as it was, for good.
    pub(crate) fn give_back(&self) {
        if let Some(before) = self.before.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = tcsetattr(stdio::stdin(), OptionalActions::Now, &before);
        }
    }
}

//! A request to stop, from a person or a signal, that reaches whatever runs at the moment.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What ends the work in hand.
type Stopper = Arc<dyn Fn() + Send + Sync>;

/// Asked at most once, heard everywhere.
#[derive(Default)]
pub struct Interrupt {
    asked: AtomicBool,
    stopper: Mutex<Option<Stopper>>,
}

impl Interrupt {
    /// Asks the run to stop: the command in hand is ended, no further one is begun.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        let stopper = self.stopper.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(stop) = stopper {
            stop();
        }
    }

    /// Whether somebody asked.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// True once somebody asked, for work that looks by itself.
    pub fn flag(&self) -> &AtomicBool {
        &self.asked
    }

    /// Says what ends the work in hand from now on; a request that came before is passed on at once.
    pub fn arm(&self, stopper: Stopper) {
        *self.stopper.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&stopper));
        if self.is_asked() {
            stopper();
        }
    }

    /// There is nothing to end any more.
    pub fn disarm(&self) {
        *self.stopper.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").field("asked", &self.is_asked()).finish_non_exhaustive()
    }
}

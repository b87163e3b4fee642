//! Ctrl-C and its kin: once asks the run to end, twice ends this process at once.

use std::io;
use std::sync::Arc;
use std::thread;

use belljar::interrupt::Interrupt;
use belljar::{Code, Fault};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// The exit code of an interrupted command.
pub(crate) const INTERRUPTED: u8 = 130;

/// Signals are heard as long as this value lives.
#[derive(Debug)]
pub(crate) struct Ears {
    handle: Handle,
}

impl Ears {
    /// Starts to listen: the first signal asks, and is told to `heard`; the second one kills.
    ///
    /// A sandbox does not survive the kill: its keeper sees the closed socket and takes it down.
    pub(crate) fn open(interrupt: &Arc<Interrupt>, heard: impl Fn() + Send + 'static) -> Result<Ears, Fault> {
        Ears::start(Arc::clone(interrupt), heard)
            .map_err(|error| Fault::new(Code::Internal, "could not listen to signals").caused_by(error))
    }

    fn start(interrupt: Arc<Interrupt>, heard: impl Fn() + Send + 'static) -> io::Result<Ears> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let mut arrivals = signals.forever();
            if arrivals.next().is_none() {
                return;
            }
            // Aside, so that a second signal is heard even while the first one is being passed on.
            let asking = Arc::clone(&interrupt);
            let asked = thread::Builder::new().name("asking".to_owned()).spawn(move || asking.ask());
            if asked.is_err() {
                interrupt.ask();
            }
            heard();
            // A terminal that closes may send its signal twice; only a person or a supervisor asks twice.
            if arrivals.any(|signal| signal != SIGHUP) {
                std::process::exit(i32::from(INTERRUPTED));
            }
        })?;
        Ok(Ears { handle })
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.handle.close();
    }
}

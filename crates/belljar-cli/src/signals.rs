//! Ctrl-C and its kin: once asks the run to end, twice ends this process at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use belljar::interrupt::Interrupt;
use belljar::{Code, Fault};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::{flag, low_level};

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
        Ears::start(Arc::clone(interrupt), heard).map_err(deaf)
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

/// Signals as something to wait for beside other things: readable once one has arrived.
#[derive(Debug)]
pub(crate) struct Bell {
    reader: UnixStream,
}

impl Bell {
    /// Rings when somebody asks this process to end.
    pub(crate) fn for_the_end() -> Result<Bell, Fault> {
        Bell::hang(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT])
    }

    /// Rings when the terminal has another size, or is ours again after a stop.
    pub(crate) fn for_the_terminal() -> Result<Bell, Fault> {
        Bell::hang(&[SIGWINCH, SIGCONT])
    }

    fn hang(signals: &[i32]) -> Result<Bell, Fault> {
        let hung = || -> io::Result<Bell> {
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            for signal in signals {
                low_level::pipe::register(*signal, writer.try_clone()?)?;
            }
            Ok(Bell { reader })
        };
        hung().map_err(deaf)
    }

    /// How often it rang since it was last asked.
    pub(crate) fn rang(&self) -> usize {
        rustix::io::read(&self.reader, &mut [0; 16]).unwrap_or(0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Lets a second request to end kill this process on the spot, whatever it is at.
pub(crate) fn twice_is_at_once() -> Result<(), Fault> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGQUIT] {
        // In this order: the first signal finds the flag unset, and sets it.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&asked))
            .map_err(deaf)?;
        flag::register(signal, Arc::clone(&asked)).map_err(deaf)?;
    }
    Ok(())
}

fn deaf(error: io::Error) -> Fault {
    Fault::new(Code::Internal, "could not listen to signals").caused_by(error)
}

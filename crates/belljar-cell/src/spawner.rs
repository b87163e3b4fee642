//! The spawner: a small process with one thread that forks keepers for a client that has many.
//!
//! A process with threads must not fork and go on; and starting a program for every cell costs more than the cell.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};

use crate::client::CellError;
use crate::keeper;
use crate::kernel::{self, Cloned};
use crate::kit::Kit;
use crate::lobby::Lobby;
use crate::sealed;
use crate::wire::{Channel, Received};

/// The most keepers that wait for a next cell.
const MOST_IDLE: usize = 4;
/// The first argument that turns the program into a spawner.
pub const ARGUMENT: &str = "--belljar-spawner";

/// Becomes a spawner when the arguments say so; call this first in `main`, before any thread is started.
pub fn run_if_asked() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT) {
        std::process::exit(live());
    }
}

/// A process that forks keepers. It ends with this value; lasting cells do not.
#[derive(Debug)]
pub struct Spawner {
    channel: Channel,
    process: std::process::Child,
}

impl Spawner {
    /// Starts a sealed copy of a program whose `main` calls [`run_if_asked`].
    pub fn start(program: &Path) -> Result<Spawner, CellError> {
        let failed = |source| CellError::StartKeeper { program: program.to_owned(), source };
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let copy = sealed::copy(program).map_err(failed)?;
        let process = Command::new(PathBuf::from(format!("/proc/self/fd/{}", copy.as_raw_fd())))
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs.into_socket()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Spawner { channel: ours, process })
    }

    /// A connection to a new keeper, which waits for its first request.
    pub(crate) fn spawn(&self) -> io::Result<Channel> {
        let (ours, theirs) = Channel::pair()?;
        let theirs = theirs.into_socket();
        self.channel.send(&(), &[theirs.as_fd()])?;
        Ok(ours)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        // It holds nothing but its channel, and keepers need it no more once they are forked.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn live() -> i32 {
    let _ = rustix::process::setsid();
    kernel::set_name(c"belljar-spawner");
    kernel::reap_by_kernel();
    let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) else { return 2 };
    let client = Channel::from_socket(socket);
    let Ok(mut pool) = Pool::fill() else { return 2 };
    loop {
        let (asked, returned) = {
            let mut watched = [PollFd::new(&client, PollFlags::IN), PollFd::new(&pool.ours, PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return 2,
            }
            (!watched[0].revents().is_empty(), !watched[1].revents().is_empty())
        };
        // First, so that whoever asks gets one of them.
        if returned {
            pool.take_back();
        }
        if asked {
            let Ok(Received::Message((), connections)) = client.receive::<()>() else { return 0 };
            connections.into_iter().for_each(|connection| pool.hand_out(connection));
        }
    }
}

/// Keepers that wait, each with the namespaces of its next cell, and the channel by which they come back.
struct Pool {
    kit: Kit,
    idle: VecDeque<Channel>,
    ours: Channel,
    theirs: OwnedFd,
}

impl Pool {
    fn fill() -> io::Result<Pool> {
        let (ours, theirs) = Channel::pair()?;
        let mut pool =
            Pool { kit: Kit::prepare(), idle: VecDeque::new(), ours, theirs: theirs.into_socket() };
        pool.idle.extend(pool.fork_spare());
        Ok(pool)
    }

    fn take_back(&mut self) {
        if let Ok(Received::Message((), channels)) = self.ours.receive::<()>() {
            self.idle.extend(channels.into_iter().map(Channel::from_socket));
        }
        // One whose channel is closed ends.
        self.idle.truncate(MOST_IDLE);
    }

    fn hand_out(&mut self, connection: OwnedFd) {
        // One that was killed while it waited takes nothing.
        let takes = |keeper: Channel| keeper.send(&(), &[connection.as_fd()]).is_ok();
        if !std::iter::from_fn(|| self.idle.pop_front()).any(takes) {
            // A keeper that cannot be forked closes its connection, which tells the client.
            let _ = fork_keeper(connection, &self.kit);
        }
        if self.idle.is_empty() {
            // For the next one, while this one is at work.
            self.idle.extend(self.fork_spare());
        }
    }

    /// Forks a keeper that nobody needs yet.
    fn fork_spare(&self) -> Option<Channel> {
        let (ours, theirs) = Channel::pair().ok()?;
        let (theirs, returns) = (theirs.into_socket(), &self.theirs);
        match kernel::clone(0, None).ok()? {
            Cloned::Parent(..) => Some(ours),
            Cloned::Child => {
                let code = match strip(&[&theirs, returns], &self.kit).and_then(|()| returns.try_clone()) {
                    Ok(returns) => {
                        let (spawner, returns) =
                            (Channel::from_socket(theirs), Channel::from_socket(returns));
                        keeper::wait_for_clients(spawner, &returns, &self.kit)
                    }
                    Err(_) => 2,
                };
                kernel::exit_now(code)
            }
        }
    }
}

/// Forks this process, which must have one thread, into a keeper that has nothing but its connection.
pub(crate) fn fork_keeper(connection: OwnedFd, kit: &Kit) -> io::Result<()> {
    match kernel::clone(0, None)? {
        Cloned::Parent(..) => Ok(()),
        Cloned::Child => {
            let code = match strip(&[&connection], kit) {
                Ok(()) => keeper::live(Channel::from_socket(connection), kit),
                Err(_) => 2,
            };
            kernel::exit_now(code)
        }
    }
}

/// Closes everything of the parent's but these and the lobby: its streams would otherwise stay open with the cell.
fn strip(kept: &[&OwnedFd], kit: &Kit) -> io::Result<()> {
    let lobby = kit.lobby.as_deref().map(Lobby::namespace);
    kernel::close_all_but(&lobby.into_iter().chain(kept.iter().copied()).collect::<Vec<_>>());
    for _ in 0..3 {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
        // The lowest numbers are free now, so these become the standard streams; they stay open for good.
        std::mem::forget(null);
    }
    rustix::process::chdir("/")?;
    Ok(())
}

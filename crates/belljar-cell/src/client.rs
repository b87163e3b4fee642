//! The client's side of a cell: has a keeper made, or finds one, and talks to it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use crate::cell::{
    Answer, CellSpec, Control, Created, ExecEnd, ExecInfo, ExecSpec, Lifetime, Refusal, Request, Size,
    Status, Stop,
};
use crate::failure::{Failure, Step};
use crate::kit::Kit;
use crate::lease;
use crate::listener;
use crate::log::LogReader;
use crate::spawner::{self, Spawner};
use crate::wire::{Channel, Received};

/// How long a keeper may take to answer what it can answer at once: it does one thing after the other, and some of them
/// take a while.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Why a cell could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// The keeper could not be started.
    #[error("start the keeper {}: {source}", program.display())]
    StartKeeper {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// This process has threads, and a process with threads cannot become a keeper.
    #[error("a keeper cannot be forked from a process with several threads")]
    Threads,
    /// There is no such cell, or its keeper is gone.
    #[error("there is no sandbox {id}")]
    NoSuchCell {
        /// Its id.
        id: String,
    },
    /// There is no such command.
    #[error("the sandbox has no command {0}")]
    NoSuchExec(u32),
    /// The connection to the keeper broke.
    #[error("talk to the keeper")]
    Talk {
        /// What the system said.
        source: io::Error,
    },
    /// The keeper ended without an answer.
    #[error("the keeper is gone")]
    KeeperGone,
    /// This machine cannot give what was asked for.
    #[error("refused: {}", reason(.0))]
    Refused(Refusal),
    /// A step failed.
    #[error("{0}")]
    Failed(Failure),
    /// The keeper lives and says nothing: it was stopped, or the machine is far too busy.
    #[error("the keeper does not answer")]
    Silent,
    /// The keeper answered something else than was asked.
    #[error("the keeper gave an unexpected answer")]
    Unexpected,
}

fn reason(refusal: &Refusal) -> &str {
    match refusal {
        Refusal::Limits(text) | Refusal::Isolation(text) | Refusal::Link(text) => text,
    }
}

/// A cell being made; the caller may do other things meanwhile.
#[derive(Debug)]
pub struct Pending {
    channel: Channel,
    place: Place,
    /// Whether the keeper is this cell's alone.
    own_keeper: bool,
}

/// A connection to a cell. One command at a time runs over it; [`Cell::another`] gives more.
#[derive(Debug)]
pub struct Cell {
    channel: Arc<Channel>,
    /// The keeper that ends with the cell.
    keeper: Option<OwnedFd>,
    place: Place,
}

/// How to get another connection.
#[derive(Debug, Clone)]
enum Place {
    /// Through the first one.
    Owner(Option<Arc<Channel>>),
    /// Through the socket in the cell's folder.
    Folder(PathBuf),
}

/// A command that was started.
#[derive(Debug)]
pub struct Started {
    /// Its number in the cell.
    pub exec: u32,
    /// The other end of its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
}

/// Ends the running command from another thread.
#[derive(Debug, Clone)]
pub struct Interrupter {
    channel: Arc<Channel>,
}

impl Interrupter {
    /// Asks the keeper to end the running command.
    pub fn interrupt(&self, stop: Stop) -> io::Result<()> {
        self.channel.send(&Request::Interrupt(stop), &[])
    }
}

impl Cell {
    /// Asks for a cell, of a keeper that the spawner forks.
    pub fn start(spawner: &Spawner, spec: &CellSpec) -> Result<Pending, CellError> {
        let channel = spawner.spawn().map_err(|source| CellError::Talk { source })?;
        Cell::request(channel, spec, false)
    }

    /// Asks for a cell, of a keeper forked from this very process, which must have one thread. The quickest way.
    pub fn start_here(spec: &CellSpec) -> Result<Pending, CellError> {
        let talk = |source| CellError::Talk { source };
        if std::fs::read_dir("/proc/self/task").map_err(talk)?.count() != 1 {
            return Err(CellError::Threads);
        }
        let (ours, theirs) = Channel::pair().map_err(talk)?;
        spawner::fork_keeper(theirs.into_socket(), &Kit::prepare()).map_err(talk)?;
        Cell::request(ours, spec, true)
    }

    fn request(channel: Channel, spec: &CellSpec, own_keeper: bool) -> Result<Pending, CellError> {
        let place = match spec.lifetime {
            Lifetime::Owner => Place::Owner(None),
            Lifetime::Until { .. } => Place::Folder(spec.cells.join(&spec.id)),
        };
        let sent = channel.send(&Request::Create(Box::new(spec.clone())), &[]);
        sent.map_err(|source| CellError::Talk { source })?;
        Ok(Pending { channel, place, own_keeper })
    }

    /// Finds a lasting cell.
    pub fn open(cells: &Path, id: &str) -> Result<Cell, CellError> {
        let folder = cells.join(id);
        let channel = listener::call(&folder).map_err(|_| CellError::NoSuchCell { id: id.to_owned() })?;
        Ok(Cell { channel: Arc::new(channel), keeper: None, place: Place::Folder(folder) })
    }

    /// Another connection to the same cell, for another thread.
    pub fn another(&self) -> Result<Cell, CellError> {
        let owner = match &self.place {
            Place::Folder(folder) => {
                let channel = listener::call(folder).map_err(CellError::Failed)?;
                return Ok(Cell { channel: Arc::new(channel), keeper: None, place: self.place.clone() });
            }
            Place::Owner(first) => first.as_ref().unwrap_or(&self.channel),
        };
        let talk = |source| CellError::Talk { source };
        let (ours, theirs) = Channel::pair().map_err(talk)?;
        owner.send(&Request::Join, &[theirs.as_fd()]).map_err(talk)?;
        let place = Place::Owner(Some(Arc::clone(owner)));
        Ok(Cell { channel: Arc::new(ours), keeper: None, place })
    }

    /// A handle that can end the running command from another thread.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter { channel: Arc::clone(&self.channel) }
    }

    /// Starts a command.
    pub fn begin(
        &mut self,
        exec: &ExecSpec,
        streams: &[BorrowedFd<'_>],
    ) -> Result<Result<Started, ExecEnd>, CellError> {
        self.send(&Request::Exec(Box::new(exec.clone())), streams)?;
        match self.receive()? {
            (Answer::Started { exec }, descriptors) => {
                Ok(Ok(Started { exec, terminal: descriptors.into_iter().next() }))
            }
            // It was interrupted before it began.
            (Answer::Ended(end), _) => Ok(Err(*end)),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Waits for the end of the command that this connection started.
    pub fn end(&mut self) -> Result<ExecEnd, CellError> {
        match self.receive()?.0 {
            Answer::Ended(end) => Ok(*end),
            other => Err(unexpected(other)),
        }
    }

    /// Runs a command to its end.
    pub fn exec(&mut self, exec: &ExecSpec, streams: [BorrowedFd<'_>; 3]) -> Result<ExecEnd, CellError> {
        match self.begin(exec, &streams)? {
            Ok(_) => self.end(),
            Err(end) => Ok(end),
        }
    }

    /// Waits for the end of any command.
    pub fn wait(&mut self, exec: u32) -> Result<ExecEnd, CellError> {
        self.send(&Request::Wait { exec }, &[])?;
        self.end()
    }

    /// The commands there are and were.
    pub fn execs(&mut self) -> Result<Vec<ExecInfo>, CellError> {
        match self.ask(&Request::Execs, &[])? {
            Answer::Execs(all) => Ok(all),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a signal to the first process of a command.
    pub fn signal(&mut self, exec: u32, signal: i32) -> Result<(), CellError> {
        self.done(&Request::Signal { exec, signal }, &[])
    }

    /// Kills a command and everything it started.
    pub fn kill(&mut self, exec: u32) -> Result<(), CellError> {
        self.done(&Request::Kill { exec }, &[])
    }

    /// Gives a command's terminal another size.
    pub fn resize(&mut self, exec: u32, size: Size) -> Result<(), CellError> {
        self.done(&Request::Resize { exec, size }, &[])
    }

    /// Unpacks an archive, read from `stream`, into a folder inside.
    pub fn put(&mut self, path: &str, limits: (u64, u64), stream: BorrowedFd<'_>) -> Result<(), CellError> {
        self.carry(&Request::Put { path: path.to_owned(), limits }, &[stream])
    }

    /// Packs a file or folder inside into an archive, written to `stream`.
    pub fn get(&mut self, path: &str, limits: (u64, u64), stream: BorrowedFd<'_>) -> Result<(), CellError> {
        self.carry(&Request::Get { path: path.to_owned(), limits }, &[stream])
    }

    /// Follows the kept output of a command to its end. `each` gets every record, and may stop by answering `false`;
    /// with `wait` unset only what is there by now is read.
    pub fn follow(
        &mut self,
        exec: u32,
        wait: bool,
        mut each: impl FnMut(crate::log::Record) -> io::Result<bool>,
    ) -> Result<Option<ExecEnd>, CellError> {
        let talk = |source| CellError::Talk { source };
        self.send(&Request::Follow { exec }, &[])?;
        let (log, counter) = match self.receive()? {
            (Answer::Log, descriptors) => {
                let mut descriptors = descriptors.into_iter();
                descriptors.next().zip(descriptors.next()).ok_or(CellError::Unexpected)?
            }
            (other, _) => return Err(unexpected(other)),
        };
        let mut log = LogReader::new(File::from(log));
        let mut drain = || -> Result<bool, CellError> {
            while let Some(record) = log.read().map_err(talk)? {
                if !each(record).map_err(talk)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if !wait {
            drain()?;
            return Ok(None);
        }
        self.send(&Request::Wait { exec }, &[])?;
        // What is there already wakes nobody.
        if !drain()? {
            return Ok(None);
        }
        loop {
            let mut watched =
                [PollFd::new(&counter, PollFlags::IN), PollFd::new(&*self.channel, PollFlags::IN)];
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(io::Error::from).map_err(talk)?,
            };
            let ended = !watched[1].revents().is_empty();
            let _ = rustix::io::read(&counter, &mut [0_u8; 8]);
            let end = if ended { Some(self.end()?) } else { None };
            if !drain()? || end.is_some() {
                return Ok(end);
            }
        }
    }

    /// What is known about the cell.
    pub fn status(&mut self) -> Result<Status, CellError> {
        match self.ask(&Request::Status, &[])? {
            Answer::Status(status) => Ok(*status),
            other => Err(unexpected(other)),
        }
    }

    /// What is in force, and how that is known.
    pub fn controls(&mut self) -> Result<Vec<Control>, CellError> {
        match self.ask(&Request::Controls, &[])? {
            Answer::Controls(controls) => Ok(controls),
            other => Err(unexpected(other)),
        }
    }

    /// Sets a new deadline, in milliseconds from now.
    pub fn extend(&mut self, after_ms: u64) -> Result<(), CellError> {
        self.done(&Request::Extend { after_ms }, &[])
    }

    /// Lets all processes stand still until [`Cell::thaw`], or until this connection ends; says whether they do.
    pub fn freeze(&mut self) -> Result<bool, CellError> {
        match self.ask(&Request::Freeze, &[])? {
            Answer::Frozen(still) => Ok(still),
            other => Err(unexpected(other)),
        }
    }

    /// Lets them go on.
    pub fn thaw(&mut self) -> Result<(), CellError> {
        self.done(&Request::Thaw, &[])
    }

    /// The network interfaces the guest has now.
    pub fn interfaces(&mut self) -> Result<Vec<String>, CellError> {
        match self.ask(&Request::Interfaces, &[])? {
            Answer::Interfaces(names) => Ok(names),
            other => Err(unexpected(other)),
        }
    }

    /// Takes the cell down; what could not be removed is listed. A keeper that does not answer is killed.
    pub fn destroy(mut self) -> Result<Vec<Failure>, CellError> {
        let answer = match self.ask(&Request::Destroy, &[]) {
            Err(CellError::Silent) => return self.destroy_by_force(),
            other => other?,
        };
        match &self.keeper {
            Some(keeper) => drop(poll(&mut [PollFd::new(keeper, PollFlags::IN)], None)),
            // The end of the connection is the end of the cell; the keeper may have another one next.
            None => drop(self.channel.receive::<Answer>()),
        }
        match answer {
            Answer::Destroyed(failures) => Ok(failures),
            other => Err(unexpected(other)),
        }
    }

    /// Only of a lasting cell is it known who keeps it: whoever listens at its socket.
    fn destroy_by_force(&self) -> Result<Vec<Failure>, CellError> {
        let Place::Folder(folder) = &self.place else { return Err(CellError::Silent) };
        let failed = |failure: Failure| CellError::Failed(failure);
        let keeper = self.channel.peer().step(|| "find the keeper".to_owned()).map_err(failed)?;
        pidfd_send_signal(&keeper, Signal::KILL).step(|| "kill the keeper".to_owned()).map_err(failed)?;
        let _ = poll(&mut [PollFd::new(&keeper, PollFlags::IN)], Some(&PATIENCE));
        let reaped =
            lease::reap(folder.parent().unwrap_or(folder)).map_err(|source| CellError::Talk { source })?;
        Ok(reaped.failures.into_iter().map(Failure::new).collect())
    }

    /// Takes as long as it takes.
    fn carry(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), CellError> {
        self.send(request, descriptors)?;
        match self.receive()?.0 {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    fn done(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), CellError> {
        match self.ask(request, descriptors)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    fn ask(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, CellError> {
        self.send(request, descriptors)?;
        match poll(&mut [PollFd::new(&*self.channel, PollFlags::IN)], Some(&PATIENCE)) {
            Ok(0) => Err(CellError::Silent),
            _ => Ok(self.receive()?.0),
        }
    }

    fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), CellError> {
        self.channel.send(request, descriptors).map_err(|source| CellError::Talk { source })
    }

    fn receive(&self) -> Result<(Answer, Vec<OwnedFd>), CellError> {
        receive(&self.channel)
    }
}

impl Pending {
    /// Waits until the cell stands; the link's descriptor comes along if it has one.
    pub fn wait(self) -> Result<(Cell, Created, Option<OwnedFd>), CellError> {
        match receive(&self.channel)? {
            (Answer::Created(created), descriptors) => {
                let mut descriptors = descriptors.into_iter();
                let keeper = descriptors.next().filter(|_| self.own_keeper);
                let cell = Cell { channel: Arc::new(self.channel), keeper, place: self.place };
                Ok((cell, *created, descriptors.next()))
            }
            (other, _) => Err(unexpected(other)),
        }
    }
}

fn receive(channel: &Channel) -> Result<(Answer, Vec<OwnedFd>), CellError> {
    match channel.receive::<Answer>().map_err(|source| CellError::Talk { source })? {
        Received::Message(answer, descriptors) => Ok((answer, descriptors)),
        Received::Closed => Err(CellError::KeeperGone),
    }
}

fn unexpected(answer: Answer) -> CellError {
    match answer {
        Answer::Refused(refusal) => CellError::Refused(refusal),
        Answer::Failed(failure) => CellError::Failed(failure),
        Answer::NoSuchExec(exec) => CellError::NoSuchExec(exec),
        Answer::Created(_)
        | Answer::Started { .. }
        | Answer::Ended(_)
        | Answer::Execs(_)
        | Answer::Log
        | Answer::Status(_)
        | Answer::Controls(_)
        | Answer::Frozen(_)
        | Answer::Interfaces(_)
        | Answer::Done
        | Answer::Destroyed(_) => CellError::Unexpected,
    }
}

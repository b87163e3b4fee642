//! The client's side of a cell: starts the keeper and talks to it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::cell::{Answer, CellSpec, Created, ExecEnd, ExecSpec, Refusal, Request};
use crate::failure::Failure;
use crate::keeper;
use crate::wire::{Channel, Received};

/// Why a cell could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// The keeper could not be started.
    #[error("start the keeper {}", program.display())]
    StartKeeper {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
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
    cell: Cell,
}

/// A cell, held by its keeper for as long as this value lives.
#[derive(Debug)]
pub struct Cell {
    channel: Arc<Channel>,
    keeper: Child,
}

/// Ends the running command from another thread.
#[derive(Debug, Clone)]
pub struct Interrupter {
    channel: Arc<Channel>,
}

impl Interrupter {
    /// Asks the keeper to end the running command.
    pub fn interrupt(&self) -> io::Result<()> {
        self.channel.send(&Request::Interrupt, &[])
    }
}

impl Cell {
    /// Starts the keeper (`program` must call [`keeper::run_if_asked`]) and asks it for a cell.
    pub fn start(program: &Path, spec: &CellSpec) -> Result<Pending, CellError> {
        let (ours, theirs) = Channel::pair().map_err(|source| CellError::Talk { source })?;
        let child = Command::new(program)
            .arg(keeper::ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(theirs.into_socket()))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|source| CellError::StartKeeper { program: program.to_owned(), source })?;
        let cell = Cell { channel: Arc::new(ours), keeper: child };
        cell.send(&Request::Create(Box::new(spec.clone())), &[])?;
        Ok(Pending { cell })
    }

    /// The keeper's process id.
    pub fn keeper(&self) -> u32 {
        self.keeper.id()
    }

    /// A handle that can end the running command from another thread.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter { channel: Arc::clone(&self.channel) }
    }

    /// Runs a command to its end.
    pub fn exec(&mut self, exec: &ExecSpec, streams: [BorrowedFd<'_>; 3]) -> Result<ExecEnd, CellError> {
        self.send(&Request::Exec(Box::new(exec.clone())), &streams)?;
        match self.receive()?.0 {
            Answer::Ended(end) => Ok(end),
            other => Err(unexpected(other)),
        }
    }

    /// The network interfaces the guest has now.
    pub fn interfaces(&mut self) -> Result<Vec<String>, CellError> {
        self.send(&Request::Interfaces, &[])?;
        match self.receive()?.0 {
            Answer::Interfaces(names) => Ok(names),
            other => Err(unexpected(other)),
        }
    }

    /// Takes the cell down; what could not be removed is listed.
    pub fn destroy(mut self) -> Result<Vec<Failure>, CellError> {
        self.send(&Request::Destroy, &[])?;
        let answer = self.receive()?.0;
        let _ = self.keeper.wait();
        match answer {
            Answer::Destroyed(failures) => Ok(failures),
            other => Err(unexpected(other)),
        }
    }

    fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), CellError> {
        self.channel.send(request, descriptors).map_err(|source| CellError::Talk { source })
    }

    fn receive(&self) -> Result<(Answer, Vec<OwnedFd>), CellError> {
        match self.channel.receive::<Answer>().map_err(|source| CellError::Talk { source })? {
            Received::Message(answer, descriptors) => Ok((answer, descriptors)),
            Received::Closed => Err(CellError::KeeperGone),
        }
    }
}

impl Pending {
    /// Waits until the cell stands; the link's descriptor comes along if it has one.
    pub fn wait(self) -> Result<(Cell, Created, Option<OwnedFd>), CellError> {
        let mut cell = self.cell;
        match cell.receive()? {
            (Answer::Created(created), descriptors) => Ok((cell, *created, descriptors.into_iter().next())),
            (other, _) => {
                let _ = cell.keeper.wait();
                Err(unexpected(other))
            }
        }
    }
}

fn unexpected(answer: Answer) -> CellError {
    match answer {
        Answer::Refused(refusal) => CellError::Refused(refusal),
        Answer::Failed(failure) => CellError::Failed(failure),
        Answer::Created(_) | Answer::Ended(_) | Answer::Interfaces(_) | Answer::Destroyed(_) => {
            CellError::Unexpected
        }
    }
}

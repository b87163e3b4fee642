//! A sandbox in use: commands, files and signals over one connection.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_cell::cell::{ExecEnd, ExecInfo, ExecSpec, Full, Given, Size, Streams, User};
use belljar_cell::client::{Cell, CellError, Interrupter, Pending};
use belljar_cell::log::Record;

use super::{Execution, Info, describe, fault};
use crate::engine::NetworkSink;
use crate::engine::embedded::{self, Embedded};
use crate::fault::{Code, Fault};
use crate::gateway::Gateway;
use crate::spec::Network;

/// A sandbox in the making, which ends with the value that comes of it.
#[derive(Debug)]
pub struct Starting {
    pub(super) id: String,
    pub(super) workdir: String,
    pub(super) given: Given,
    pub(super) network: Network,
    pub(super) engine: Embedded,
    pub(super) pending: Pending,
}

impl Starting {
    /// Waits until it stands, and opens its network if it has one.
    pub fn ready(self, sink: NetworkSink) -> Result<Live, Fault> {
        let (mut cell, created, link) = self.pending.wait().map_err(fault)?;
        let gateway = match (created.link, link) {
            (Some(kind), Some(link)) => Some(self.engine.open_gateway(kind, link, sink)?),
            _ => None,
        };
        if self.network != Network::None {
            embedded::network_control(self.network, &cell.interfaces().map_err(fault)?)?;
        }
        Ok(Live { id: self.id, cell, workdir: self.workdir, given: self.given, gateway })
    }
}

/// What came of the start of a command.
#[derive(Debug)]
pub enum Launched {
    /// It runs, under this number.
    Running(u32),
    /// It was interrupted before it began.
    Over(Box<ExecEnd>),
}

/// A sandbox in use: one connection to it, with one command at a time. [`Live::another`] gives more.
#[derive(Debug)]
pub struct Live {
    /// Its id.
    pub id: String,
    /// Where commands run when nobody says otherwise.
    pub workdir: String,
    pub(super) given: Given,
    pub(super) cell: Cell,
    pub(super) gateway: Option<Gateway>,
}

impl Live {
    /// Another connection, for another thread.
    pub fn another(&self) -> Result<Live, Fault> {
        let cell = self.cell.another().map_err(fault)?;
        let (id, workdir, given) = (self.id.clone(), self.workdir.clone(), self.given.clone());
        Ok(Live { id, workdir, given, cell, gateway: None })
    }

    /// What is known about it.
    pub fn info(&mut self) -> Result<Info, Fault> {
        describe(&mut self.cell)
    }

    /// Ends the running command from another thread.
    pub fn interrupter(&self) -> Interrupter {
        self.cell.interrupter()
    }

    /// Runs a command to its end with the streams given: standard input, output and error.
    pub fn exec(&mut self, execution: &Execution, streams: [BorrowedFd<'_>; 3]) -> Result<ExecEnd, Fault> {
        self.cell.exec(&self.spec(execution, Streams::Given)?, streams).map_err(fault)
    }

    /// Starts a command with the streams given: standard input, output and error. [`Live::end`] waits for it.
    pub fn launch(&mut self, execution: &Execution, streams: [BorrowedFd<'_>; 3]) -> Result<Launched, Fault> {
        let spec = self.spec(execution, Streams::Given)?;
        Ok(match self.cell.begin(&spec, &streams).map_err(fault)? {
            Ok(started) => Launched::Running(started.exec),
            Err(end) => Launched::Over(Box::new(end)),
        })
    }

    /// Starts a command on a terminal; its other end is given, and [`Live::end`] waits for the command.
    pub fn terminal(&mut self, execution: &Execution, size: Size) -> Result<(u32, OwnedFd), Fault> {
        let spec = self.spec(execution, Streams::Terminal(size))?;
        match self.cell.begin(&spec, &[]).map_err(fault)? {
            Ok(started) => {
                let terminal = started.terminal.ok_or_else(|| fault(CellError::Unexpected))?;
                Ok((started.exec, terminal))
            }
            Err(_) => Err(Fault::new(Code::Interrupted, "interrupted before it began")),
        }
    }

    /// Starts a command whose output is kept; it goes on when this process ends.
    pub fn start(
        &mut self,
        execution: &Execution,
        stdin: BorrowedFd<'_>,
        limit: u64,
        full: Full,
    ) -> Result<u32, Fault> {
        let spec = self.spec(execution, Streams::Kept { limit, full })?;
        match self.cell.begin(&spec, &[stdin]).map_err(fault)? {
            Ok(started) => Ok(started.exec),
            Err(_) => Err(Fault::new(Code::Interrupted, "interrupted before it began")),
        }
    }

    /// Waits for the end of the command that was started over this connection.
    pub fn end(&mut self) -> Result<ExecEnd, Fault> {
        self.cell.end().map_err(fault)
    }

    /// Waits for the end of any command.
    pub fn wait(&mut self, exec: u32) -> Result<ExecEnd, Fault> {
        self.cell.wait(exec).map_err(fault)
    }

    /// The commands there are and were, oldest first.
    pub fn execs(&mut self) -> Result<Vec<ExecInfo>, Fault> {
        self.cell.execs().map_err(fault)
    }

    /// Sends a signal to the first process of a command.
    pub fn signal(&mut self, exec: u32, signal: i32) -> Result<(), Fault> {
        self.cell.signal(exec, signal).map_err(fault)
    }

    /// Kills a command and everything it started.
    pub fn kill(&mut self, exec: u32) -> Result<(), Fault> {
        self.cell.kill(exec).map_err(fault)
    }

    /// Gives a command's terminal another size.
    pub fn resize(&mut self, exec: u32, size: Size) -> Result<(), Fault> {
        self.cell.resize(exec, size).map_err(fault)
    }

    /// Reads the kept output of a command; see [`Cell::follow`].
    pub fn follow(
        &mut self,
        exec: u32,
        wait: bool,
        each: impl FnMut(Record) -> io::Result<bool>,
    ) -> Result<Option<ExecEnd>, Fault> {
        self.cell.follow(exec, wait, each).map_err(fault)
    }

    /// Unpacks a tar archive, read from `stream`, into a folder inside, as the guest.
    pub fn put(&mut self, path: &str, limits: (u64, u64), stream: BorrowedFd<'_>) -> Result<(), Fault> {
        self.cell.put(path, limits, stream).map_err(carrying)
    }

    /// Packs a file or folder inside into a tar archive, written to `stream`, as the guest.
    pub fn get(&mut self, path: &str, limits: (u64, u64), stream: BorrowedFd<'_>) -> Result<(), Fault> {
        self.cell.get(path, limits, stream).map_err(carrying)
    }

    /// Sets a new deadline.
    pub fn extend(&mut self, after: Duration) -> Result<(), Fault> {
        self.cell.extend(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)).map_err(fault)
    }

    /// Takes it down; what could not be removed is listed.
    pub fn destroy(self) -> Result<Vec<String>, Fault> {
        if let Some(gateway) = self.gateway {
            gateway.stop();
        }
        let failures = self.cell.destroy().map_err(fault)?;
        Ok(failures.iter().map(ToString::to_string).collect())
    }

    /// What makes a shell one that somebody logs in to. A profile may drop the image's own path, so that is set again
    /// before anybody types.
    pub fn login_arguments(&self) -> Vec<String> {
        if !self.given.environment.contains_key("PATH") {
            return vec!["-l".to_owned()];
        }
        let environment = crate::plan::image_environment(self.given.environment.clone());
        let path = environment.into_iter().filter(|(name, _)| name == "PATH").collect();
        vec!["-lc".to_owned(), format!("{}exec \"$0\" -i", crate::shell::exports(&path))]
    }

    fn spec(&self, execution: &Execution, streams: Streams) -> Result<ExecSpec, Fault> {
        let Some((program, arguments)) = execution.command.split_first() else {
            return Err(Fault::new(Code::Usage, "no command was given"));
        };
        let mut environment = crate::plan::image_environment(self.given.environment.clone());
        if matches!(streams, Streams::Terminal(_)) {
            // Somebody looks.
            environment.remove("NO_COLOR");
        }
        environment.extend(execution.environment.clone());
        let path = environment.get("PATH").map_or("/usr/bin:/bin", String::as_str);
        let programs = [program].into_iter().chain(&execution.otherwise);
        Ok(ExecSpec {
            programs: programs.flat_map(|program| candidates(program, path)).collect(),
            name: execution.otherwise.is_empty().then(|| program.clone()),
            arguments: arguments.to_vec(),
            directory: execution.directory.clone().unwrap_or_else(|| self.workdir.clone()),
            user: execution.user.map(|(uid, gid)| User { uid, gid }),
            timeout_ms: execution.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            limits: execution.limits,
            environment,
            streams,
        })
    }
}

/// As a shell looks for a program.
fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    path.split(':')
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| format!("{folder}/{program}"))
        .collect()
}

fn carrying(error: CellError) -> Fault {
    match error {
        CellError::Failed(failure) => Fault::new(Code::ArchiveRefused, failure.to_string()),
        other => fault(other),
    }
}

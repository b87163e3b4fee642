//! The door of a cell: how a process of the keeper's gets in and becomes a command of the guest's.
//!
//! The keeper's own children are born in the cell's process namespace; each enters the control groups and the other
//! namespaces by itself and gives up every power. Their parent stays outside, so nobody inside can forge their status.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::cell::{ExecLimits, ExecSpec, Guest, Limits, User, Weakness};
use crate::courier::{self, Errand};
use crate::failure::{Failure, Step};
use crate::filter::Filter;
use crate::groups::CommandGroups;
use crate::guest::{self, Cage, NotStarted};
use crate::ids::Ids;
use crate::kernel::{self, Cloned};
use crate::policy::GUEST_OOM_SCORE;
use crate::powers::Role;
use crate::probe::{self, Expected, Finding};
use crate::wire::Channel;

/// A child of the keeper's.
#[derive(Debug)]
pub(crate) struct Child {
    /// Its id outside.
    pub pid: Pid,
    /// Its descriptor, which no stranger can take over.
    pub pidfd: OwnedFd,
}

/// What a process goes in for.
#[derive(Debug)]
pub(crate) enum Job<'a> {
    /// To become a program.
    Program(&'a ExecSpec),
    /// To carry files in or out.
    Courier(&'a Errand),
    /// To try what is forbidden.
    Probe(&'a Expected),
}

/// What a process that went in writes into its pipe when it does not become a program.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// It could not be started.
    NotStarted(NotStarted),
    /// It was the probe.
    Found(Vec<Finding>),
    /// It was a courier, and this is what it says of its errand.
    Carried(Result<(), String>),
}

/// Everything that is needed to let processes in.
#[derive(Debug)]
pub(crate) struct Door {
    /// The cell's namespaces, opened before its init hid, in the order they are entered.
    pub namespaces: Vec<(LinkNameSpaceType, OwnedFd)>,
    /// How ids map.
    pub ids: Ids,
    /// Who the guest is.
    pub guest: Guest,
    /// What it is allowed to be.
    pub role: Role,
    /// The cell's limits.
    pub limits: Limits,
    /// The syscall filter.
    pub filter: Filter,
    /// The keeper's own score, opened while it still may.
    pub score: OomScore,
    /// Deliberate faults.
    pub weaknesses: Vec<Weakness>,
}

impl Door {
    /// Lets a process in; its pipe tells why it could not start, or what came of its errand.
    pub(crate) fn admit(
        &self,
        job: &Job<'_>,
        streams: &[OwnedFd],
        groups: Option<&CommandGroups>,
    ) -> Result<(Child, OwnedFd), Failure> {
        let (reader, writer) = match groups {
            Some(_) => rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC),
            // A mark can only be carried by a socket.
            None => socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None),
        }
        .step(|| "make a pipe".to_owned())?;
        let place = groups.map(CommandGroups::place).transpose()?.flatten();
        match self.score.clone_guest(place.as_ref())? {
            Cloned::Parent(pid, pidfd) => Ok((Child { pid, pidfd }, reader)),
            Cloned::Child => {
                let outcome = match self.enter(groups).and_then(|()| mark(groups, &writer)) {
                    Ok(()) => self.become_it(job, streams),
                    Err(failure) => {
                        if groups.is_none() {
                            // A mark comes first, even nobody's.
                            let _ = rustix::io::write(&writer, &[0; 8]);
                        }
                        Outcome::NotStarted(NotStarted::Ours(failure))
                    }
                };
                let text = serde_json::to_vec(&outcome).unwrap_or_default();
                let _ = rustix::io::write(&writer, &text);
                kernel::exit_now(127)
            }
        }
    }

    /// Groups first: their files are on the host, which is out of sight after the namespaces are entered.
    fn enter(&self, groups: Option<&CommandGroups>) -> Result<(), Failure> {
        if let Some(groups) = groups {
            groups.enter()?;
        }
        for (kind, namespace) in &self.namespaces {
            move_into_link_name_space(namespace.as_fd(), Some(*kind))
                .step(|| format!("enter the {kind:?} namespace"))?;
        }
        let mut fresh = UnshareFlags::NEWCGROUP;
        if groups.is_none() {
            // Nobody inside can leave or enter such a namespace: it marks what belongs to this command.
            fresh |= UnshareFlags::NEWUTS;
        }
        // SAFETY: this process has one thread, and shares nothing that these namespaces would separate.
        unsafe { rustix::thread::unshare_unsafe(fresh) }
            .step(|| "make the command's namespaces".to_owned())?;
        kernel::join_new_keyring().step(|| "make a session keyring".to_owned())
    }

    fn become_it(&self, job: &Job<'_>, streams: &[OwnedFd]) -> Outcome {
        let (user, limits) = match job {
            Job::Program(exec) => (exec.user, exec.limits),
            Job::Courier(_) | Job::Probe(_) => (None, ExecLimits::default()),
        };
        let user = user.unwrap_or(User { uid: self.guest.uid, gid: self.guest.gid });
        let cage = Cage {
            user,
            role: self.role,
            ids: self.ids,
            filter: &self.filter,
            pids: self.limits.pids,
            limits,
            weaknesses: &self.weaknesses,
        };
        match (job, streams) {
            (Job::Program(exec), [stdin, stdout, stderr]) => {
                Outcome::NotStarted(guest::run(&cage, exec, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]))
            }
            (Job::Courier(errand), [stream]) => match courier::run(&cage, errand, stream.as_fd()) {
                Ok(carried) => Outcome::Carried(carried),
                Err(failure) => Outcome::NotStarted(NotStarted::Ours(failure)),
            },
            (Job::Probe(expected), _) => match cage.enter() {
                Ok(()) => Outcome::Found(probe::full(expected)),
                Err(failure) => Outcome::NotStarted(NotStarted::Ours(failure)),
            },
            (Job::Program(_) | Job::Courier(_), _) => Outcome::NotStarted(NotStarted::Ours(Failure::new(
                "the command's streams did not come along",
            ))),
        }
    }
}

/// Tells the keeper by what to know the processes of a command that has no group of its own. The namespace itself goes
/// along, so that its number is nobody else's for as long as the command is known.
fn mark(groups: Option<&CommandGroups>, pipe: &OwnedFd) -> Result<(), Failure> {
    if groups.is_some() {
        return Ok(());
    }
    let step = || "tell the command's mark".to_owned();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let namespace = rustix::fs::open("/proc/self/ns/uts", flags, Mode::empty()).step(step)?;
    let number = rustix::fs::fstat(&namespace).step(step)?.st_ino;
    let socket = Channel::from_socket(pipe.try_clone().step(step)?);
    socket.send_with_descriptors(&number.to_le_bytes(), &[namespace.as_fd()]).step(step)?;
    Ok(())
}

impl Outcome {
    /// The mark of a command without groups, once it is inside; it comes first in the pipe, and stays there.
    pub(crate) fn peek_mark(pipe: &OwnedFd) -> Option<u64> {
        let mut bytes = [0; 8];
        let (read, _) = rustix::net::recv(pipe, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT).ok()?;
        (read == 8).then(|| u64::from_le_bytes(bytes)).filter(|mark| *mark != 0)
    }

    /// Reads a pipe to its end; nothing in it but the mark means that the program was started.
    pub(crate) fn read(pipe: OwnedFd, groups: Option<&CommandGroups>) -> Result<Option<Outcome>, Failure> {
        let mut text = Vec::new();
        File::from(pipe).read_to_end(&mut text).step(|| "read the start pipe".to_owned())?;
        let mark = if groups.is_none() { text.len().min(8) } else { 0 };
        let text = &text[mark..];
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(text)
            .map(Some)
            .map_err(|error| Failure::new(format!("read the start pipe: {error}")))
    }
}

/// The keeper's own score, opened while it still may: guests are cloned with a higher one, which they inherit.
#[derive(Debug)]
pub(crate) struct OomScore {
    file: File,
    own: String,
}

impl OomScore {
    /// Opens the score of this process.
    pub(crate) fn open() -> Result<OomScore, Failure> {
        let step = || "open oom_score_adj".to_owned();
        let mut file = File::options().read(true).write(true).open("/proc/self/oom_score_adj").step(step)?;
        let mut own = String::new();
        file.read_to_string(&mut own).step(step)?;
        Ok(OomScore { file, own: own.trim().to_owned() })
    }

    fn set(&self, value: &str) -> Result<(), Failure> {
        self.file.write_all_at(value.as_bytes(), 0).step(|| format!("set oom_score_adj to {value}"))
    }

    /// Clones a child that has the guests' score, into a group of version 2 where there is one.
    fn clone_guest(&self, place: Option<&OwnedFd>) -> Result<Cloned, Failure> {
        self.set(GUEST_OOM_SCORE)?;
        let cloned = kernel::clone(0, place.map(AsFd::as_fd)).step(|| "clone into the cell".to_owned());
        match cloned {
            Ok(Cloned::Child) => Ok(Cloned::Child),
            other => self.set(&self.own).and(other),
        }
    }
}

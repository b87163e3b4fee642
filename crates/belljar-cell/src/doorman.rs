//! The doorman: enters the cell's groups and namespaces once, then lets commands in, one clone each.
//!
//! Entering version 1 groups is dear after a pause, so it is done once and every command inherits it. What the doorman
//! clones are children of the keeper: their status reaches a process that the guest can neither see nor touch.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Pid, Signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::cell::{CellSpec, ExecSpec, Refusal};
use crate::failure::{Failure, Step};
use crate::filter::Filter;
use crate::groups::Groups;
use crate::guest::{self, Cage, NotStarted, become_user};
use crate::ids::Ids;
use crate::init::{self, Built, Go};
use crate::kernel::{self, Cloned};
use crate::link::LinkKind;
use crate::probe::{self, Finding};
use crate::sources::{Owners, Sources};
use crate::wire::{Channel, Received};

/// What guests are worth to the kernel when memory runs out: more than anything that holds the cell.
pub(crate) const GUEST_OOM_SCORE: &str = "500";

/// What the keeper asks of the doorman.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Let a command in; its three streams come along.
    Admit(Box<ExecSpec>),
    /// Let the probe in.
    Probe,
}

/// What the doorman answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The cell stands; the init's pidfd and perhaps the link come along.
    Made {
        /// The init's id outside.
        init: i32,
        /// The link, if there is one.
        link: Option<LinkKind>,
    },
    /// A process went in; its pidfd comes along, and a pipe that tells why it could not start or what it found.
    Admitted(i32),
    /// This machine does not let us have it.
    Refused(Refusal),
    /// It failed.
    Failed(Failure),
}

/// Everything the doorman holds.
#[derive(Debug)]
pub(crate) struct Doorman<'a> {
    /// The cell.
    pub spec: &'a CellSpec,
    /// How ids map.
    pub ids: Ids,
    /// The cell's groups, if it has any.
    pub groups: Option<&'a Groups>,
    /// To the keeper.
    pub keeper: Channel,
    /// The init's end of its channel to the keeper.
    pub init: Channel,
}

impl Doorman<'_> {
    /// The life of the doorman; never returns.
    pub(crate) fn live(self) -> ! {
        let Doorman { spec, ids, groups, keeper, init } = self;
        let code = match set_up(spec, ids, groups, &keeper, init) {
            Ok(score) => serve(spec, ids, &score, &keeper),
            Err(reply) => {
                // Nobody to tell is nobody to serve.
                let _ = keeper.send(&reply, &[]);
                1
            }
        };
        kernel::exit_now(code)
    }
}

struct Made {
    pid: Pid,
    pidfd: OwnedFd,
    channel: Channel,
    namespaces: Vec<(LinkNameSpaceType, OwnedFd)>,
}

fn set_up(
    spec: &CellSpec,
    ids: Ids,
    groups: Option<&Groups>,
    keeper: &Channel,
    init: Channel,
) -> Result<OomScore, Reply> {
    let score = OomScore::open().map_err(Reply::Failed)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "watch the keeper".to_owned())
        .map_err(Reply::Failed)?;
    if let Some(groups) = groups {
        groups.enter().map_err(Reply::Failed)?;
    }
    let made = make_init(spec, ids, keeper, &init)?;
    drop(init);
    let (link, mut descriptors) = build(spec, ids, &made)?;
    enter(&made, ids, spec).map_err(Reply::Failed)?;
    descriptors.insert(0, made.pidfd);
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let reply = Reply::Made { init: made.pid.as_raw_nonzero().get(), link };
    keeper.send(&reply, &borrowed).step(|| "answer the keeper".to_owned()).map_err(Reply::Failed)?;
    Ok(score)
}

/// The doorman's own score, opened while it still may: guests are cloned with a higher one, which they inherit.
struct OomScore {
    file: File,
    own: String,
}

impl OomScore {
    fn open() -> Result<OomScore, Failure> {
        let step = || "open oom_score_adj".to_owned();
        let mut file = File::options().read(true).write(true).open("/proc/self/oom_score_adj").step(step)?;
        let mut own = String::new();
        file.read_to_string(&mut own).step(step)?;
        Ok(OomScore { file, own: own.trim().to_owned() })
    }

    fn set(&self, value: &str) -> Result<(), Failure> {
        self.file.write_all_at(value.as_bytes(), 0).step(|| format!("set oom_score_adj to {value}"))
    }

    /// Clones a child that has the guests' score.
    fn clone_guest(&self) -> Result<Cloned, Failure> {
        self.set(GUEST_OOM_SCORE)?;
        let cloned = kernel::clone(libc::CLONE_PARENT as u64).step(|| "clone into the cell".to_owned());
        match cloned {
            Ok(Cloned::Child) => Ok(Cloned::Child),
            other => self.set(&self.own).and(other),
        }
    }
}

fn make_init(spec: &CellSpec, ids: Ids, keeper: &Channel, init: &Channel) -> Result<Made, Reply> {
    let (ours, theirs) = Channel::pair().step(|| "make a channel".to_owned()).map_err(Reply::Failed)?;
    let cloned = kernel::clone(kernel::NAMESPACES | libc::CLONE_PARENT as u64);
    match cloned.step(|| "create namespaces".to_owned()).map_err(refused_namespaces)? {
        Cloned::Child => {
            drop(ours);
            // Held here as well, the doorman's death would not end the channel and the keeper would wait for ever.
            kernel::close_for_good(keeper.as_fd());
            init::live(spec, ids, &theirs, init)
        }
        Cloned::Parent(pid, pidfd) => {
            let namespaces = open_namespaces(pid).map_err(Reply::Failed)?;
            Ok(Made { pid, pidfd, channel: ours, namespaces })
        }
    }
}

fn refused_namespaces(failure: Failure) -> Reply {
    match failure.errno {
        libc::EPERM | libc::ENOSPC | libc::EINVAL | libc::EACCES => Reply::Refused(Refusal::Isolation(
            format!("{failure}: this machine does not let this user make user namespaces"),
        )),
        _ => Reply::Failed(failure),
    }
}

/// Opened at once: later the init hides, and an ordinary user could not reach its namespaces any more.
fn open_namespaces(pid: Pid) -> Result<Vec<(LinkNameSpaceType, OwnedFd)>, Failure> {
    let all = [
        ("user", LinkNameSpaceType::User),
        ("mnt", LinkNameSpaceType::Mount),
        ("net", LinkNameSpaceType::Network),
        ("ipc", LinkNameSpaceType::InterProcessCommunication),
        ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
        ("cgroup", LinkNameSpaceType::ControlGroup),
        ("pid", LinkNameSpaceType::ProcessID),
    ];
    all.into_iter().map(|(name, kind)| Ok((kind, open_namespace(pid, name)?))).collect()
}

fn open_namespace(pid: Pid, name: &str) -> Result<OwnedFd, Failure> {
    let path = format!("/proc/{}/ns/{name}", pid.as_raw_nonzero());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("open the {name} namespace"))
}

/// Maps the ids, hands the mounts over and waits until the root stands.
fn build(spec: &CellSpec, ids: Ids, made: &Made) -> Result<(Option<LinkKind>, Vec<OwnedFd>), Reply> {
    ids.write_maps(made.pid, &spec.guest).map_err(refused_namespaces)?;
    let sources = cut_sources(spec, ids, made).map_err(Reply::Failed)?;
    let descriptors = sources.as_ref().map(Sources::descriptors).unwrap_or_default();
    made.channel
        .send(&Go::Build, &descriptors)
        .step(|| "start the init".to_owned())
        .map_err(Reply::Failed)?;
    match made.channel.receive::<Built>().step(|| "hear from the init".to_owned()).map_err(Reply::Failed)? {
        Received::Message(Built::Ready(link), descriptors) => Ok((link, descriptors)),
        Received::Message(Built::Refused(refusal), _) => Err(Reply::Refused(refusal)),
        Received::Message(Built::Failed(failure), _) => Err(Reply::Failed(failure)),
        Received::Closed => Err(Reply::Failed(Failure::new("the cell's init died while building its root"))),
    }
}

fn cut_sources(spec: &CellSpec, ids: Ids, made: &Made) -> Result<Option<Sources>, Failure> {
    if !ids.is_range() {
        return Ok(None);
    }
    let image = made.namespaces.iter().find(|(kind, _)| matches!(kind, LinkNameSpaceType::User));
    let image = image.ok_or_else(|| Failure::new("open the user namespace"))?.1.as_fd();
    let workspace = workspace_owners(spec, ids)?;
    Sources::open(spec, Some(Owners { image, workspace: workspace.as_fd() })).map(Some)
}

/// A user namespace that exists only to say how the workspace's owners map.
fn workspace_owners(spec: &CellSpec, ids: Ids) -> Result<OwnedFd, Failure> {
    let (ours, theirs) = Channel::pair().step(|| "make a channel".to_owned())?;
    match kernel::clone(libc::CLONE_NEWUSER as u64).step(|| "create a user namespace".to_owned())? {
        Cloned::Child => {
            drop(ours);
            let _ = theirs.receive::<()>();
            kernel::exit_now(0)
        }
        Cloned::Parent(pid, _) => {
            let opened =
                ids.write_workspace_maps(pid, &spec.guest).and_then(|()| open_namespace(pid, "user"));
            drop((ours, theirs));
            kernel::wait_for(pid).step(|| "wait for the namespace's holder".to_owned())?;
            opened
        }
    }
}

fn enter(made: &Made, ids: Ids, spec: &CellSpec) -> Result<(), Failure> {
    for (kind, namespace) in &made.namespaces {
        move_into_link_name_space(namespace.as_fd(), Some(*kind)).step(|| "enter a namespace".to_owned())?;
    }
    if ids.is_range() {
        let (uid, gid) = ids.init_user(&spec.guest);
        kernel::clear_groups().step(|| "clear groups".to_owned())?;
        become_user(uid, gid)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .step(|| "watch the keeper".to_owned())?;
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "hide from the guest".to_owned())
}

fn serve(spec: &CellSpec, ids: Ids, score: &OomScore, keeper: &Channel) -> i32 {
    let filter = Filter::compile();
    loop {
        let (call, streams) = match keeper.receive::<Call>() {
            Ok(Received::Message(call, streams)) => (call, streams),
            Ok(Received::Closed) | Err(_) => return 0,
        };
        let cage = Cage { guest: &spec.guest, ids, filter: &filter, pids: spec.limits.pids };
        let sent = match admit(&cage, score, &call, streams) {
            Ok((pid, descriptors)) => {
                keeper.send(&Reply::Admitted(pid), &descriptors.iter().map(AsFd::as_fd).collect::<Vec<_>>())
            }
            Err(failure) => keeper.send(&Reply::Failed(failure), &[]),
        };
        if sent.is_err() {
            return 0;
        }
    }
}

fn admit(
    cage: &Cage<'_>,
    score: &OomScore,
    call: &Call,
    streams: Vec<OwnedFd>,
) -> Result<(i32, [OwnedFd; 2]), Failure> {
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(|| "make a pipe".to_owned())?;
    match score.clone_guest()? {
        Cloned::Parent(pid, pidfd) => Ok((pid.as_raw_nonzero().get(), [pidfd, reader])),
        Cloned::Child => {
            let message = match call {
                Call::Admit(exec) => Outcome::NotStarted(run(cage, exec, &streams)),
                Call::Probe => examine(cage),
            };
            let text = serde_json::to_vec(&message).unwrap_or_default();
            let _ = rustix::io::write(&writer, &text);
            kernel::exit_now(127)
        }
    }
}

fn run(cage: &Cage<'_>, exec: &ExecSpec, streams: &[OwnedFd]) -> NotStarted {
    match streams {
        [stdin, stdout, stderr] => guest::run(cage, exec, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]),
        _ => NotStarted::Ours(Failure::new("three streams are needed")),
    }
}

fn examine(cage: &Cage<'_>) -> Outcome {
    match cage.enter() {
        Ok(()) => Outcome::Found(probe::examine(cage.guest.uid)),
        Err(failure) => Outcome::NotStarted(NotStarted::Ours(failure)),
    }
}

/// What a process that went in writes into its pipe when it does not become a program.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// It could not be started.
    NotStarted(NotStarted),
    /// It was the probe.
    Found(Vec<Finding>),
}

impl Outcome {
    /// Reads a pipe to its end; nothing in it means that the program was started.
    pub(crate) fn read(pipe: OwnedFd) -> Result<Option<Outcome>, Failure> {
        let mut text = Vec::new();
        File::from(pipe).read_to_end(&mut text).step(|| "read the start pipe".to_owned())?;
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| Failure::new(format!("read the start pipe: {error}")))
    }
}

//! Where a cell stands: everything it consists of on this machine, made, asked and taken down.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cell::{
    Answer, CellSpec, Control, Created, DiskLimit, ExecLimits, Guest, Isolation, Refusal, User, Weakness,
    Workspace,
};
use crate::controls;
use crate::disk::Disk;
use crate::door::{Child, Door, Job, OomScore, Outcome};
use crate::failure::{Failure, Step};
use crate::filter::Filter;
use crate::groups::Groups;
use crate::guest::NotStarted;
use crate::ids::Ids;
use crate::init::{self, Order, Report};
use crate::kernel::{self, Cloned};
use crate::kit::Kit;
use crate::lease::{Held, Lease};
use crate::link::LinkKind;
use crate::powers::Role;
use crate::probe::{Expected, Finding, Namespace};
use crate::scratch::Scratch;
use crate::sources::{Owners, Sources};
use crate::wire::{Channel, Received};
use crate::workspace::find_socket;

/// How long what was killed may take to be gone.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// An init that waits in namespaces of its own for what it is to build.
///
/// A spare keeper makes one before anybody asks: namespaces are what takes longest, and they are all alike.
pub(crate) struct Ahead {
    init: Child,
    to_init: Channel,
}

impl Ahead {
    /// Starts an init. For an ordinary user its ids depend on who the guest is to be.
    pub(crate) fn make(guest: &Guest, ids: Ids, weaknesses: &[Weakness]) -> Result<Ahead, Answer> {
        let (ours, theirs) = Channel::pair().step(|| "make a channel".to_owned()).map_err(Answer::Failed)?;
        let cloned = clone_init(ids);
        match cloned.step(|| "create namespaces".to_owned()).map_err(refused_namespaces)? {
            Cloned::Parent(pid, pidfd) => {
                let init = Child { pid, pidfd };
                match ids.write_maps(pid, guest).and_then(|()| prepare(ids, &ours)) {
                    Ok(()) => Ok(Ahead { init, to_init: ours }),
                    Err(failure) => {
                        end(&init, ours);
                        Err(refused_namespaces(failure))
                    }
                }
            }
            Cloned::Child => {
                drop(ours);
                init::live(ids, weaknesses, &theirs)
            }
        }
    }

    /// Starts an init for whoever will ask; only root's are all alike.
    pub(crate) fn for_anybody() -> Option<Ahead> {
        let ids = Ids::for_this_process(std::process::id());
        let nobody = Guest { uid: 0, gid: 0, name: String::new(), home: std::path::PathBuf::new() };
        if ids.is_range() { Ahead::make(&nobody, ids, &[]).ok() } else { None }
    }
}

/// Where the children of this process are born before it has made a cell.
pub(crate) fn own_process_namespace() -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::open("/proc/self/ns/pid", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Lets the children of this process be born where they were before it made a cell.
pub(crate) fn come_home(namespace: &OwnedFd) -> std::io::Result<()> {
    // An init that was ready for a cell that was refused ends by itself.
    reap_ready();
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ProcessID))?)
}

/// What the kernel counts by user, it counts against whoever made a user namespace as well: root's are made by the
/// cell's own nobody, so that no guest can use up what root and other cells may have.
fn clone_init(ids: Ids) -> std::io::Result<Cloned> {
    let flags = (libc::CLONE_NEWUSER | libc::CLONE_NEWPID) as u64;
    match ids.base() {
        None => kernel::clone(flags, None),
        Some(base) => kernel::clone_as(base, flags),
    }
}

fn prepare(ids: Ids, init: &Channel) -> Result<(), Failure> {
    if ids.is_range() { init.send(&Order::Prepare, &[]).step(|| "start the init".to_owned()) } else { Ok(()) }
}

/// A cell that stands.
pub(crate) struct Site {
    pub spec: CellSpec,
    pub groups: Option<Groups>,
    pub ids: Ids,
    pub door: Door,
    /// The folder of the cell's terminals.
    pub terminals: OwnedFd,
    /// The cell's own disk, when it has a limit.
    pub disk: Option<Disk>,
    /// What the full probe found, in this cell or in one like it.
    findings: Vec<Finding>,
    /// The namespaces of the host, as the probe must not find them.
    outside: Vec<Namespace>,
    init: Child,
    to_init: Channel,
    lease: Held,
    /// What others leave alone for as long as the cell lives.
    _holds: Vec<File>,
}

/// A cell in the making: what exists before its root does, so that it can be undone.
struct Shell {
    lease: Held,
    init: Child,
    to_init: Channel,
    disk: Option<Disk>,
}

impl Shell {
    fn make(
        spec: &CellSpec,
        ids: Ids,
        groups: Option<&Groups>,
        ahead: Option<Ahead>,
    ) -> Result<Shell, Answer> {
        // One that was made ahead is sound, and has its mounts already.
        let ahead = ahead.filter(|_| spec.weaknesses.is_empty() && spec.limits.disk.is_none());
        match plan_disk(spec, ids)? {
            Some(limit) => Shell::with_disk(spec, ids, groups, limit),
            None => Shell::without_disk(spec, ids, groups, ahead),
        }
    }

    /// The init first, so that it makes its namespaces while this process makes folders and groups.
    fn without_disk(
        spec: &CellSpec,
        ids: Ids,
        groups: Option<&Groups>,
        ahead: Option<Ahead>,
    ) -> Result<Shell, Answer> {
        let Ahead { init, to_init } = match ahead {
            Some(ahead) => ahead,
            None => Ahead::make(&spec.guest, ids, &spec.weaknesses)?,
        };
        match take_lease(spec, groups) {
            Ok(lease) => Ok(Shell { lease, init, to_init, disk: None }),
            Err(answer) => {
                end(&init, to_init);
                Err(answer)
            }
        }
    }

    /// The disk first: its mount must be there when the init gets its own.
    fn with_disk(
        spec: &CellSpec,
        ids: Ids,
        groups: Option<&Groups>,
        limit: DiskLimit,
    ) -> Result<Shell, Answer> {
        let lease = take_lease(spec, groups)?;
        let made = make_disk(spec, ids, limit)
            .map_err(Answer::Failed)
            .and_then(|disk| Ok((disk, Ahead::make(&spec.guest, ids, &spec.weaknesses)?)));
        match made {
            Ok((disk, Ahead { init, to_init })) => Ok(Shell { lease, init, to_init, disk: Some(disk) }),
            Err(answer) => {
                lease.release();
                Err(answer)
            }
        }
    }

    /// Takes it all down and gives back why.
    fn undo(self, answer: Answer) -> Answer {
        end(&self.init, self.to_init);
        self.lease.release();
        answer
    }
}

/// What the init hands out when the root stands.
struct Inside {
    namespaces: Vec<(LinkNameSpaceType, OwnedFd)>,
    processes: OwnedFd,
    terminals: OwnedFd,
    link: Option<(LinkKind, OwnedFd)>,
}

impl Inside {
    fn sort(spec: &CellSpec, kind: Option<LinkKind>, mut descriptors: Vec<OwnedFd>) -> Option<Inside> {
        let link = match kind {
            Some(kind) => Some((kind, descriptors.pop()?)),
            None => None,
        };
        let (terminals, processes) = (descriptors.pop()?, descriptors.pop()?);
        let kinds = init::NAMESPACES.iter().map(|(_, kind)| *kind);
        let namespaces = kinds.zip(descriptors).filter(|(kind, _)| !init::is_shared(spec, *kind)).collect();
        Some(Inside { namespaces, processes, terminals, link })
    }
}

/// What a cell brings with it.
pub(crate) type Made = (Site, Created, Option<OwnedFd>);

impl Site {
    /// Makes a cell; what was made is undone when a part cannot be had.
    pub(crate) fn raise(spec: &CellSpec, kit: &Kit, ahead: Option<Ahead>) -> Result<Made, Answer> {
        let groups = plan_groups(spec, kit)?;
        look_at_workspace(spec)?;
        let holds = hold(spec).map_err(Answer::Failed)?;
        let ids = kit.enter_lobby(std::process::id()).map_err(refused_namespaces)?;
        let score = OomScore::open().map_err(Answer::Failed)?;
        let shell = Shell::make(spec, ids, groups.as_ref(), ahead)?;
        let begun = begin(spec, ids, groups.as_ref(), &shell);
        // While the init builds.
        let findings = controls::remembered(spec, ids, groups.as_ref()).unwrap_or_default();
        let inside = match begun.and_then(|()| hear_ready(&shell.to_init, spec)) {
            Ok(inside) => inside,
            Err(answer) => return Err(shell.undo(answer)),
        };
        let Inside { namespaces, processes, terminals, link } = inside;
        let door = make_door(spec, ids, kit, namespaces, score);
        let Shell { lease, init, to_init, disk } = shell;
        let outside = kit.outside.clone();
        let spec = spec.clone();
        let mut site = Site {
            spec,
            groups,
            ids,
            door,
            terminals,
            disk,
            findings,
            outside,
            init,
            to_init,
            lease,
            _holds: holds,
        };
        let (kind, link) = link.unzip();
        match site.open_door(&processes).map_err(Answer::Failed).and_then(|()| site.prove()) {
            Ok(()) => {
                let created = site.describe(kind);
                Ok((site, created, link))
            }
            Err(answer) => {
                site.destroy();
                Err(answer)
            }
        }
    }

    /// From here on every child of this process is born inside, and this process hides.
    fn open_door(&self, processes: &OwnedFd) -> Result<(), Failure> {
        move_into_link_name_space(processes.as_fd(), Some(LinkNameSpaceType::ProcessID))
            .step(|| "enter the process namespace".to_owned())?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "hide".to_owned())
    }

    fn describe(&self, link: Option<LinkKind>) -> Created {
        Created {
            init: self.init.pid.as_raw_nonzero().get(),
            link,
            mode: controls::mode(self.ids).to_owned(),
            groups: controls::version(self.groups.as_ref()).to_owned(),
        }
    }

    /// The init's descriptor, which becomes readable when it dies.
    pub(crate) fn init(&self) -> &OwnedFd {
        &self.init.pidfd
    }

    /// Asks the init for something, but does not wait for ever.
    pub(crate) fn ask_init(&self, order: &Order) -> Result<Report, Failure> {
        self.to_init.send(order, &[]).step(|| "call the cell's init".to_owned())?;
        Ok(hear(&self.to_init)?.0)
    }

    /// The cell's first process.
    pub(crate) fn first(&self) -> Pid {
        self.init.pid
    }

    /// Kills the cell's init, and the kernel everything in its process namespace.
    pub(crate) fn kill(&self) {
        kill(&self.init);
    }

    /// Makes sure that every wall stands: by what an earlier probe found in this boot, or by a probe now, before any
    /// guest is in here.
    fn prove(&mut self) -> Result<(), Answer> {
        if self.findings.is_empty() {
            let found = self.probe().map_err(Answer::Failed)?;
            // Whoever asked for a fault wants it.
            if let Some(refusal) = controls::breach(&found).filter(|_| self.spec.weaknesses.is_empty()) {
                return Err(Answer::Refused(refusal));
            }
            let kept = controls::remember(&self.spec, self.ids, self.groups.as_ref(), &found);
            self.findings = kept.map_err(Answer::Failed)?;
        }
        match controls::refusal(&self.limits(), self.spec.isolation) {
            Some(refusal) => Err(Answer::Refused(refusal)),
            None => Ok(()),
        }
    }

    /// What is in force.
    pub(crate) fn controls(&self) -> Vec<Control> {
        controls::all(self.spec.isolation, self.findings.clone(), self.limits())
    }

    fn limits(&self) -> Vec<Control> {
        controls::limits(&self.spec, self.groups.as_ref(), self.disk.as_ref())
    }

    /// Lets the full probe in.
    fn probe(&self) -> Result<Vec<Finding>, Failure> {
        let expected = Expected::of(&self.spec, self.ids, self.outside.clone());
        let groups = match &self.groups {
            Some(groups) => Some(groups.for_command(0, &self.spec.limits, &ExecLimits::default())?),
            None => None,
        };
        let (child, pipe) = self.door.admit(&Job::Probe(&expected), &[], groups.as_ref())?;
        let outcome = Outcome::read(pipe, groups.as_ref())?;
        kernel::wait_for(child.pid).step(|| "wait for the probe".to_owned())?;
        if let Some(groups) = groups {
            // What stays is removed with the cell's own groups.
            let _ = groups.remove();
        }
        match outcome {
            Some(Outcome::Found(findings)) => Ok(findings),
            Some(Outcome::NotStarted(NotStarted::Ours(failure) | NotStarted::Guests(failure))) => {
                Err(failure)
            }
            Some(Outcome::Carried(_)) | None => Err(Failure::new("the probe said nothing")),
        }
    }

    /// Kills what lives, removes what is left.
    pub(crate) fn destroy(self) -> Vec<Failure> {
        end(&self.init, self.to_init);
        if let Some(disk) = self.disk {
            disk.unmount(&Scratch::disk(&self.spec));
        }
        self.lease.release()
    }
}

fn make_door(
    spec: &CellSpec,
    ids: Ids,
    kit: &Kit,
    namespaces: Vec<(LinkNameSpaceType, OwnedFd)>,
    score: OomScore,
) -> Door {
    let role = spec.role();
    let filter = match role {
        Role::Guest => kit.filter,
        Role::Builder => Filter::for_building(),
    };
    let (guest, limits, weaknesses) = (spec.guest.clone(), spec.limits, spec.weaknesses.clone());
    Door { namespaces, ids, guest, role, limits, filter, score, weaknesses }
}

/// Kills an init and waits for every child: the kernel ends a process namespace only when each of its processes was
/// waited for. What does not die even so is left to the kernel; the groups it holds are then named as not removed.
fn end(init: &Child, to_init: Channel) {
    kill(init);
    drop(to_init);
    let deadline = Instant::now() + PATIENCE;
    let mut watched = [PollFd::new(&init.pidfd, PollFlags::IN)];
    let _ = poll_for(&mut watched, PATIENCE);
    loop {
        reap_ready();
        let childless = rustix::process::wait(WaitOptions::NOHANG).is_err();
        if childless || Instant::now() > deadline {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn kill(child: &Child) {
    // Gone already is what is wanted.
    let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
}

/// Waits for children that have ended, whoever they are.
fn reap_ready() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Waits until something happens, for at most this long.
pub(crate) fn poll_for(watched: &mut [PollFd<'_>], left: Duration) -> Result<usize, Failure> {
    // A millisecond more, so that a wait never ends just before its deadline and spins.
    let left =
        Timespec::try_from(left + Duration::from_millis(1)).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
    match poll(watched, Some(&left)) {
        Err(rustix::io::Errno::INTR) => Ok(0),
        other => other.step(|| "wait for the command".to_owned()),
    }
}

fn hear(init: &Channel) -> Result<(Report, Vec<OwnedFd>), Failure> {
    let mut watched = [PollFd::new(init, PollFlags::IN)];
    if poll_for(&mut watched, 2 * PATIENCE)? == 0 {
        return Err(Failure::new("the cell's init does not answer"));
    }
    match init.receive().step(|| "hear from the cell's init".to_owned())? {
        Received::Message(report, descriptors) => Ok((report, descriptors)),
        Received::Closed => Err(Failure::new("the cell's init is gone")),
    }
}

fn plan_groups(spec: &CellSpec, kit: &Kit) -> Result<Option<Groups>, Answer> {
    match (&kit.parents, spec.isolation) {
        (Ok(parents), _) => Ok(Some(Groups::planned(parents, &spec.id))),
        (Err(_), Isolation::BestEffort) => Ok(None),
        (Err(reason), Isolation::Full) => Err(Answer::Refused(Refusal::Limits(reason.to_string()))),
    }
}

fn look_at_workspace(spec: &CellSpec) -> Result<(), Answer> {
    let Workspace::Host { source, .. } = &spec.workspace else { return Ok(()) };
    match find_socket(source) {
        None => Ok(()),
        Some(socket) => Err(Answer::Refused(Refusal::Isolation(format!(
            "the workspace holds the socket {}, through which a guest could talk to whoever listens outside: remove it, or use another folder",
            socket.display()
        )))),
    }
}

fn hold(spec: &CellSpec) -> Result<Vec<File>, Failure> {
    let lock = |path: &PathBuf| -> std::io::Result<File> {
        let file = File::open(path)?;
        file.lock_shared()?;
        Ok(file)
    };
    spec.holds.iter().map(|path| lock(path).step(|| format!("hold {}", path.display()))).collect()
}

/// What was asked for is had, or refused, or, where the task takes that, gone without.
fn plan_disk(spec: &CellSpec, ids: Ids) -> Result<Option<DiskLimit>, Answer> {
    let Some(limit) = spec.limits.disk else { return Ok(None) };
    match (Disk::unavailable(ids.is_range()), spec.isolation) {
        (None, _) => Ok(Some(limit)),
        (Some(_), Isolation::BestEffort) => Ok(None),
        (Some(reason), Isolation::Full) => Err(Answer::Refused(Refusal::Limits(reason))),
    }
}

fn take_lease(spec: &CellSpec, groups: Option<&Groups>) -> Result<Held, Answer> {
    Lease::take(&spec.cells, &spec.id, groups.cloned()).map_err(Answer::Failed)
}

fn make_disk(spec: &CellSpec, ids: Ids, limit: DiskLimit) -> Result<Disk, Failure> {
    let owner = ids.outside(User { uid: 0, gid: 0 }, &spec.guest);
    Disk::make(&spec.cells.join(&spec.id), &Scratch::disk(spec), limit, owner)
}

fn refused_namespaces(failure: Failure) -> Answer {
    match failure.errno {
        libc::EPERM | libc::ENOSPC | libc::EINVAL | libc::EACCES => {
            Answer::Refused(Refusal::Isolation(format!(
                "{failure}: this machine does not let this user make user namespaces (in a container of Docker's, \
                 start it with --security-opt seccomp=unconfined)"
            )))
        }
        _ => Answer::Failed(failure),
    }
}

/// Makes folders and groups and hands the mounts over; the init goes on by itself.
fn begin(spec: &CellSpec, ids: Ids, groups: Option<&Groups>, shell: &Shell) -> Result<(), Answer> {
    let scratch = Scratch::of(spec).create(spec, ids);
    scratch.map_err(Answer::Failed)?;
    let sources = cut_sources(spec, ids, shell.init.pid).map_err(Answer::Failed)?;
    let descriptors = sources.as_ref().map(Sources::descriptors).unwrap_or_default();
    let sent = shell.to_init.send(&Order::Build(Box::new(spec.clone())), &descriptors);
    sent.step(|| "start the init".to_owned()).map_err(Answer::Failed)?;
    drop(sources);
    match groups {
        Some(groups) => groups.create(&spec.limits).map_err(Answer::Failed),
        None => Ok(()),
    }
}

fn hear_ready(to_init: &Channel, spec: &CellSpec) -> Result<Inside, Answer> {
    match hear(to_init).map_err(Answer::Failed)? {
        (Report::Ready { link }, descriptors) => Inside::sort(spec, link, descriptors)
            .ok_or_else(|| Answer::Failed(Failure::new("the init's answer is incomplete"))),
        (Report::Refused(refusal), _) => Err(Answer::Refused(refusal)),
        (Report::Failed(failure), _) => Err(Answer::Failed(failure)),
        (Report::Swept { .. } | Report::Interfaces(_), _) => {
            Err(Answer::Failed(Failure::new("the cell's init is confused")))
        }
    }
}

fn cut_sources(spec: &CellSpec, ids: Ids, init: Pid) -> Result<Option<Sources>, Failure> {
    if !ids.is_range() {
        return Ok(None);
    }
    let image = open_user_namespace(init)?;
    let workspace = match &spec.workspace {
        Workspace::Host { .. } if !spec.is_weak(Weakness::ForeignOwner) => Some(workspace_owners(spec, ids)?),
        Workspace::Host { .. } | Workspace::Own { .. } => None,
    };
    Sources::open(
        spec,
        ids,
        Some(Owners { image: image.as_fd(), workspace: workspace.as_ref().map(AsFd::as_fd) }),
    )
    .map(Some)
}

fn open_user_namespace(pid: Pid) -> Result<OwnedFd, Failure> {
    let path = format!("/proc/{}/ns/user", pid.as_raw_nonzero());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open the user namespace".to_owned())
}

/// A user namespace that exists only to say how the workspace's owners map.
fn workspace_owners(spec: &CellSpec, ids: Ids) -> Result<OwnedFd, Failure> {
    let (ours, theirs) = Channel::pair().step(|| "make a channel".to_owned())?;
    match kernel::clone(libc::CLONE_NEWUSER as u64, None).step(|| "create a user namespace".to_owned())? {
        Cloned::Child => {
            drop(ours);
            let _ = theirs.receive::<()>();
            kernel::exit_now(0)
        }
        Cloned::Parent(pid, _) => {
            let opened = ids.write_workspace_maps(pid, &spec.guest).and_then(|()| open_user_namespace(pid));
            drop((ours, theirs));
            kernel::wait_for(pid).step(|| "wait for the namespace's holder".to_owned())?;
            opened
        }
    }
}

//! The keeper: one process per cell, its only parent. No keeper, no cell.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Pid, Signal, pidfd_send_signal};

use crate::cell::{
    Answer, CellSpec, Control, Created, Ended, ExecEnd, ExecSpec, Isolation, Refusal, Request, Weakness,
};
use crate::doorman::{Call, Doorman, Outcome, Reply};
use crate::failure::{Failure, Step};
use crate::groups::{Groups, Parents};
use crate::guest::NotStarted;
use crate::ids::Ids;
use crate::init::{Order, Report};
use crate::kernel::{self, Cloned, Waited};
use crate::lease::{Held, Lease};
use crate::link::LinkKind;
use crate::probe::Finding;
use crate::scratch::Scratch;
use crate::wire::{Channel, Received};

/// How long what was killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(15);

/// The first argument that turns the program into a keeper.
pub const ARGUMENT: &str = "--belljar-keeper";

/// Becomes a keeper when the arguments say so; call this first in `main`, before any thread is started.
pub fn run_if_asked() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT) {
        std::process::exit(live());
    }
}

/// The keeper's life: its standard input is the socket to the client.
fn live() -> i32 {
    // Signals of the client's terminal are the client's business.
    let _ = rustix::process::setsid();
    let Ok(client) = take_client() else { return 2 };
    let spec = match client.receive::<Request>() {
        Ok(Received::Message(Request::Create(spec), _)) => spec,
        _ => return 2,
    };
    match Cell::create(&spec) {
        Ok((mut cell, created, link)) => {
            let descriptors: Vec<_> = link.iter().map(AsFd::as_fd).collect();
            let answered = client.send(&Answer::Created(Box::new(created)), &descriptors);
            drop(link);
            if answered.is_ok() {
                cell.serve(&client);
            }
            let failures = cell.destroy();
            i32::from(client.send(&Answer::Destroyed(failures), &[]).is_err())
        }
        Err(answer) => i32::from(client.send(&answer, &[]).is_err()),
    }
}

/// Moves the socket away from the standard streams, which become the null device.
fn take_client() -> std::io::Result<Channel> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(Channel::from_socket(socket))
}

/// A cell as its keeper holds it.
struct Cell {
    spec: CellSpec,
    lease: Held,
    groups: Option<Groups>,
    doorman: Child,
    to_doorman: Channel,
    init: Child,
    to_init: Channel,
    /// The client asked for the end while no command ran; the next one is not begun.
    interrupted: bool,
}

struct Child {
    pid: Pid,
    pidfd: OwnedFd,
}

/// A cell in the making: what exists so far, so that a failure can be undone.
struct Site {
    lease: Held,
    groups: Option<Groups>,
    ids: Ids,
}

type Made = (Cell, Created, Option<OwnedFd>);

impl Cell {
    fn create(spec: &CellSpec) -> Result<Made, Answer> {
        let groups = plan_groups(spec)?;
        let lease = Lease::take(&spec.cells, &spec.id, groups.clone()).map_err(Answer::Failed)?;
        let site = Site { lease, groups, ids: Ids::for_this_process(std::process::id()) };
        if let Err(failure) = prepare(spec, &site) {
            site.lease.release();
            return Err(Answer::Failed(failure));
        }
        raise(spec, site)
    }

    /// Answers the client until it asks for the end or is gone.
    fn serve(&mut self, client: &Channel) {
        loop {
            let (request, descriptors) = match client.receive::<Request>() {
                Ok(Received::Message(request, descriptors)) => (request, descriptors),
                Ok(Received::Closed) | Err(_) => return,
            };
            let answer = match request {
                Request::Exec(exec) => self.exec(&exec, &descriptors, client),
                Request::Interfaces => self.interfaces(),
                Request::Interrupt => {
                    self.interrupted = true;
                    continue;
                }
                Request::Destroy => return,
                Request::Create(_) => Ok(Answer::Failed(Failure::new("the cell exists already"))),
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(Gone::Failed(failure)) => Answer::Failed(failure),
                Err(Gone::Client) => return,
            };
            drop(descriptors);
            if client.send(&answer, &[]).is_err() {
                return;
            }
        }
    }

    fn exec(&mut self, exec: &ExecSpec, streams: &[OwnedFd], client: &Channel) -> Result<Answer, Gone> {
        if self.interrupted {
            return Ok(Answer::Ended(ExecEnd::not_begun()));
        }
        let before = self.groups.as_ref().and_then(Groups::oom_kills);
        if let Some(groups) = &self.groups {
            groups.reset_peak();
        }
        let started = Instant::now();
        let mut end = match self.run(exec, streams, client, started) {
            Ok(end) => end,
            Err(Gone::Client) => return Err(Gone::Client),
            Err(Gone::Failed(failure)) => self.starved(before, started).ok_or(Gone::Failed(failure))?,
        };
        end.oom_kills = self.oom_since(before);
        end.peak_memory = self.groups.as_ref().and_then(Groups::peak_memory);
        Ok(Answer::Ended(end))
    }

    /// A cell that lost its own processes to a lack of memory that the guest brought about: that is how the command
    /// ended, not a failure of the machine.
    fn starved(&self, before: Option<u64>, started: Instant) -> Option<ExecEnd> {
        let kills = self.oom_since(before)?;
        if kills == 0 {
            return None;
        }
        kill(&self.init);
        let survivors = self.wait_for_the_end();
        Some(ExecEnd {
            ended: Ended::Signalled(libc::SIGKILL),
            survivors,
            wall_us: micros(started),
            ..ExecEnd::not_begun()
        })
    }

    fn run(
        &mut self,
        exec: &ExecSpec,
        streams: &[OwnedFd],
        client: &Channel,
        started: Instant,
    ) -> Result<ExecEnd, Gone> {
        let (child, pipe) = self.admit(&Call::Admit(Box::new(exec.clone())), streams)?;
        let watched = self.watch(&child, client, started + Duration::from_millis(exec.timeout_ms));
        let wall_us = micros(started);
        let swept = self.sweep(if matches!(watched, Ok(None)) { Main::Ended } else { Main::Alive });
        let forced = watched?;
        let (killed, survivors) = swept?;
        let waited = self.take(&child)?;
        reap_ready();
        let ended = match Outcome::read(pipe)? {
            Some(Outcome::NotStarted(NotStarted::Ours(failure))) => return Err(Gone::Failed(failure)),
            Some(Outcome::NotStarted(NotStarted::Guests(failure))) => Ended::NotStarted(failure),
            Some(Outcome::Found(_)) | None => forced.unwrap_or_else(|| ended(waited)),
        };
        let (user_us, system_us) = (waited.user_us, waited.system_us);
        Ok(ExecEnd { ended, killed, survivors, wall_us, user_us, system_us, ..ExecEnd::not_begun() })
    }

    /// Waits for a command that was killed; one that even so does not end is given up.
    fn take(&self, child: &Child) -> Result<Waited, Failure> {
        let mut watched = [PollFd::new(&child.pidfd, PollFlags::IN)];
        if poll_for(&mut watched, PATIENCE)? == 0 {
            return Err(Failure::new("the command does not end although it was killed"));
        }
        kernel::wait_for(child.pid).step(|| "wait for the command".to_owned())
    }

    fn oom_since(&self, before: Option<u64>) -> Option<u64> {
        let now = self.groups.as_ref().and_then(Groups::oom_kills)?;
        Some(now.saturating_sub(before?))
    }

    fn admit(&self, call: &Call, streams: &[OwnedFd]) -> Result<(Child, OwnedFd), Failure> {
        let borrowed: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
        self.to_doorman.send(call, &borrowed).step(|| "call the doorman".to_owned())?;
        match hear::<Reply>(&self.to_doorman, "the doorman")? {
            Received::Message(Reply::Admitted(pid), descriptors) => admitted(pid, descriptors),
            Received::Message(Reply::Failed(failure), _) => Err(failure),
            Received::Message(Reply::Made { .. } | Reply::Refused(_), _) => {
                Err(Failure::new("the doorman is confused"))
            }
            Received::Closed => Err(Failure::new("the doorman is gone")),
        }
    }

    /// Waits until the command ends by itself, its time is up, or the client wants its end; answers with the force
    /// that ended it, if any.
    fn watch(&self, child: &Child, client: &Channel, deadline: Instant) -> Result<Option<Ended>, Gone> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut watched = [
                PollFd::new(&child.pidfd, PollFlags::IN),
                PollFd::new(client, PollFlags::IN),
                PollFd::new(&self.init.pidfd, PollFlags::IN),
            ];
            let ready = poll_for(&mut watched, left)?;
            let [command, from_client, init] = watched.map(|fd| !fd.revents().is_empty());
            match () {
                () if command => return Ok(None),
                () if init => return Err(Gone::Failed(Failure::new("the cell's init was killed"))),
                () if from_client => match client.receive::<Request>() {
                    Ok(Received::Message(Request::Interrupt, _)) => return Ok(Some(Ended::Interrupted)),
                    Ok(Received::Message(_, _)) => {}
                    Ok(Received::Closed) | Err(_) => return Err(Gone::Client),
                },
                () if ready == 0 && Instant::now() >= deadline => return Ok(Some(Ended::TimedOut)),
                () => {}
            }
        }
    }

    /// Kills whatever the command left; counts before and after.
    ///
    /// An init that does not answer is killed, and its whole process namespace with it.
    fn sweep(&self, main: Main) -> Result<(u32, u32), Failure> {
        let counted = self.groups.as_ref().and_then(Groups::count);
        let counted = counted.map(|count| count.saturating_sub(u32::from(main == Main::Ended)));
        let report = self.unthrottled(|| self.ask_init(self.sweep_order(counted)));
        match report {
            Ok(Report::Swept { before, after }) => Ok((counted.or(before).unwrap_or(0), after)),
            Ok(Report::Failed(failure)) | Err(failure) => {
                kill(&self.init);
                self.wait_for_the_end();
                Err(failure)
            }
            Ok(Report::Interfaces(_)) => Err(Failure::new("the cell's init is confused")),
        }
    }

    fn sweep_order(&self, counted: Option<u32>) -> Order {
        match counted {
            _ if self.spec.weaknesses.contains(&Weakness::KeepProcesses) => Order::Count,
            Some(_) => Order::Sweep,
            None => Order::CountAndSweep,
        }
    }

    /// Lets the cell use the whole machine meanwhile: neither the killing nor the dying is to be held back.
    fn unthrottled<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let Some(groups) = &self.groups else { return work() };
        groups.lift_processor_limit();
        let result = work();
        groups.restore_processor_limit(&self.spec.limits)?;
        result
    }

    /// Waits until a killed process namespace is empty; gives the number of processes that are left all the same.
    fn wait_for_the_end(&self) -> u32 {
        let Some(groups) = &self.groups else { return 0 };
        let deadline = Instant::now() + PATIENCE;
        loop {
            reap_ready();
            let own = self.doorman.pid.as_raw_nonzero().get();
            let left = groups.processes().into_iter().filter(|pid| *pid != own).count();
            if left == 0 || Instant::now() > deadline {
                return u32::try_from(left).unwrap_or(u32::MAX);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn interfaces(&self) -> Result<Answer, Gone> {
        match self.ask_init(Order::Interfaces)? {
            Report::Interfaces(names) => Ok(Answer::Interfaces(names)),
            Report::Failed(failure) => Err(Gone::Failed(failure)),
            Report::Swept { .. } => Err(Gone::Failed(Failure::new("the cell's init is confused"))),
        }
    }

    fn ask_init(&self, order: Order) -> Result<Report, Failure> {
        self.to_init.send(&order, &[]).step(|| "call the cell's init".to_owned())?;
        match hear::<Report>(&self.to_init, "the cell's init")? {
            Received::Message(report, _) => Ok(report),
            Received::Closed => Err(Failure::new("the cell's init is gone")),
        }
    }

    /// Lets the probe in and adds the groups' own word.
    fn attest(&self) -> Result<Vec<Control>, Failure> {
        let (child, pipe) = self.admit(&Call::Probe, &[])?;
        let outcome = Outcome::read(pipe)?;
        kernel::wait_for(child.pid).step(|| "wait for the probe".to_owned())?;
        let findings = match outcome {
            Some(Outcome::Found(findings)) => findings,
            Some(Outcome::NotStarted(NotStarted::Ours(failure) | NotStarted::Guests(failure))) => {
                return Err(failure);
            }
            None => return Err(Failure::new("the probe said nothing")),
        };
        let mut controls: Vec<Control> = findings.into_iter().map(control).collect();
        controls.extend(limit_controls(&self.spec, self.groups.as_ref()));
        Ok(controls)
    }

    /// Kills what lives, removes what is left.
    fn destroy(self) -> Vec<Failure> {
        if let Some(groups) = &self.groups {
            groups.lift_processor_limit();
        }
        kill(&self.init);
        kill(&self.doorman);
        drop((self.to_doorman, self.to_init));
        reap_all();
        self.lease.release()
    }
}

/// Whether the command's first process has ended by itself; until it is waited for it still counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Main {
    Ended,
    Alive,
}

/// Why a request got no answer of its own.
enum Gone {
    Client,
    Failed(Failure),
}

impl From<Failure> for Gone {
    fn from(failure: Failure) -> Gone {
        Gone::Failed(failure)
    }
}

fn admitted(pid: i32, descriptors: Vec<OwnedFd>) -> Result<(Child, OwnedFd), Failure> {
    let mut descriptors = descriptors.into_iter();
    match (Pid::from_raw(pid), descriptors.next(), descriptors.next()) {
        (Some(pid), Some(pidfd), Some(pipe)) => Ok((Child { pid, pidfd }, pipe)),
        _ => Err(Failure::new("the doorman's answer is incomplete")),
    }
}

fn poll_for(watched: &mut [PollFd<'_>], left: Duration) -> Result<usize, Failure> {
    // A millisecond more, so that a wait never ends just before its deadline and spins.
    let left =
        Timespec::try_from(left + Duration::from_millis(1)).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
    match poll(watched, Some(&left)) {
        Err(rustix::io::Errno::INTR) => Ok(0),
        other => other.step(|| "wait for the command".to_owned()),
    }
}

/// Waits for an answer from one of the cell's own processes, but not for ever.
fn hear<T: serde::de::DeserializeOwned>(channel: &Channel, whom: &str) -> Result<Received<T>, Failure> {
    let mut watched = [PollFd::new(channel, PollFlags::IN)];
    if poll_for(&mut watched, 2 * PATIENCE)? == 0 {
        return Err(Failure::new(format!("{whom} does not answer")));
    }
    channel.receive().step(|| format!("hear from {whom}"))
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn ended(waited: Waited) -> Ended {
    if libc::WIFSIGNALED(waited.status) {
        Ended::Signalled(libc::WTERMSIG(waited.status))
    } else {
        Ended::Exited(libc::WEXITSTATUS(waited.status))
    }
}

fn kill(child: &Child) {
    // Gone already is what is wanted.
    let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
}

/// Waits for children that have ended, whoever they are.
fn reap_ready() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// Waits for all children: the kernel ends a process namespace only when each of its processes was waited for.
///
/// What does not die even so is left to the kernel; the groups it holds are then named as not removed.
fn reap_all() {
    let deadline = Instant::now() + PATIENCE;
    loop {
        reap_ready();
        let childless = rustix::process::wait(rustix::process::WaitOptions::NOHANG).is_err();
        if childless || Instant::now() > deadline {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn plan_groups(spec: &CellSpec) -> Result<Option<Groups>, Answer> {
    match (Parents::find(), spec.isolation) {
        (Ok(parents), _) => Ok(Some(Groups::planned(&parents, &spec.id))),
        (Err(_), Isolation::BestEffort) => Ok(None),
        (Err(reason), Isolation::Full) => Err(Answer::Refused(Refusal::Limits(reason.to_string()))),
    }
}

fn prepare(spec: &CellSpec, site: &Site) -> Result<(), Failure> {
    Scratch::of(spec).create(site.ids, &spec.guest)?;
    match &site.groups {
        Some(groups) => groups.create(&spec.limits),
        None => Ok(()),
    }
}

/// Starts the doorman, waits until the cell stands, and has it probed.
fn raise(spec: &CellSpec, site: Site) -> Result<Made, Answer> {
    let ids = site.ids;
    let started = start_doorman(spec, &site);
    let (doorman, to_doorman, to_init) = match started {
        Ok(started) => started,
        Err(failure) => {
            site.lease.release();
            return Err(Answer::Failed(failure));
        }
    };
    let (init, kind, link) = match hear_made(&to_doorman) {
        Ok(made) => made,
        Err(answer) => {
            kill(&doorman);
            drop((to_doorman, to_init));
            reap_all();
            site.lease.release();
            return Err(answer);
        }
    };
    let Site { lease, groups, .. } = site;
    let cell =
        Cell { spec: spec.clone(), lease, groups, doorman, to_doorman, init, to_init, interrupted: false };
    // Only now: an ordinary user's child must be reachable while its ids are mapped.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    finish(cell, ids, kind, link)
}

fn finish(cell: Cell, ids: Ids, kind: Option<LinkKind>, link: Option<OwnedFd>) -> Result<Made, Answer> {
    let controls = match cell.attest() {
        Ok(controls) => controls,
        Err(failure) => {
            cell.destroy();
            return Err(Answer::Failed(failure));
        }
    };
    if let Some(refusal) = refusal(&controls, cell.spec.isolation) {
        cell.destroy();
        return Err(Answer::Refused(refusal));
    }
    let created = Created {
        init: cell.init.pid.as_raw_nonzero().get(),
        controls,
        link: kind,
        mode: if ids.is_range() { "root" } else { "user" }.to_owned(),
        groups: cell.groups.as_ref().map_or("none", |groups| groups.version.name()).to_owned(),
    };
    Ok((cell, created, link))
}

/// What was asked for and is not in force: a broken control always, a missing limit unless the task takes that.
fn refusal(controls: &[Control], isolation: Isolation) -> Option<Refusal> {
    let says = |control: &Control| {
        format!(
            "`{}` is {} instead of {}: {}",
            control.control, control.enforced, control.requested, control.proof
        )
    };
    if let Some(broken) = controls.iter().find(|control| control.enforced == "broken") {
        return Some(Refusal::Isolation(says(broken)));
    }
    let missing = controls.iter().find(|control| control.enforced != control.requested)?;
    (isolation == Isolation::Full).then(|| Refusal::Limits(says(missing)))
}

fn start_doorman(spec: &CellSpec, site: &Site) -> Result<(Child, Channel, Channel), Failure> {
    let (to_doorman, doormans_end) = Channel::pair().step(|| "make a channel".to_owned())?;
    let (to_init, inits_end) = Channel::pair().step(|| "make a channel".to_owned())?;
    match kernel::clone(0).step(|| "start the doorman".to_owned())? {
        Cloned::Parent(pid, pidfd) => Ok((Child { pid, pidfd }, to_doorman, to_init)),
        Cloned::Child => {
            drop((to_doorman, to_init));
            let groups = site.groups.as_ref();
            Doorman { spec, ids: site.ids, groups, keeper: doormans_end, init: inits_end }.live()
        }
    }
}

type Standing = (Child, Option<LinkKind>, Option<OwnedFd>);

fn hear_made(doorman: &Channel) -> Result<Standing, Answer> {
    let failed = |text: &str| Answer::Failed(Failure::new(text));
    match hear::<Reply>(doorman, "the doorman").map_err(Answer::Failed)? {
        Received::Message(Reply::Made { init, link }, descriptors) => {
            let mut descriptors = descriptors.into_iter();
            match (Pid::from_raw(init), descriptors.next()) {
                (Some(pid), Some(pidfd)) => Ok((Child { pid, pidfd }, link, descriptors.next())),
                _ => Err(failed("the doorman's answer is incomplete")),
            }
        }
        Received::Message(Reply::Refused(refusal), _) => Err(Answer::Refused(refusal)),
        Received::Message(Reply::Failed(failure), _) => Err(Answer::Failed(failure)),
        Received::Message(Reply::Admitted(_), _) => Err(failed("the doorman is confused")),
        Received::Closed => Err(failed("the doorman died while making the cell")),
    }
}

fn control(finding: Finding) -> Control {
    let enforced = if finding.holds { "yes" } else { "broken" };
    Control {
        control: finding.control,
        requested: "yes".to_owned(),
        enforced: enforced.to_owned(),
        proof: finding.proof,
    }
}

/// The limits as the kernel reads them back.
fn limit_controls(spec: &CellSpec, groups: Option<&Groups>) -> Vec<Control> {
    let asked = spec.limits;
    let found = groups.and_then(Groups::read_limits);
    let source = groups.map_or("no control group may be made here".to_owned(), |groups| {
        format!("read back from control groups {}", groups.version.name())
    });
    let row = |name: &str, requested: String, enforced: Option<String>| Control {
        control: name.to_owned(),
        requested,
        enforced: enforced.unwrap_or_else(|| "none".to_owned()),
        proof: source.clone(),
    };
    vec![
        row("memory", asked.memory.to_string(), found.map(|limits| limits.memory.to_string())),
        row("cpu_millis", asked.cpu_millis.to_string(), found.map(|limits| limits.cpu_millis.to_string())),
        row("pids", asked.pids.to_string(), found.map(|limits| limits.pids.to_string())),
        row("swap", "0".to_owned(), groups.and_then(Groups::swap).map(|bytes| bytes.to_string())),
    ]
}

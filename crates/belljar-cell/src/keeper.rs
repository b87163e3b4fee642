//! The keeper: one process per cell, its only parent. No keeper, no cell.
//!
//! One thread, one loop: it waits for clients, commands, their output and the clock, and does one thing at a time.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::{PidfdFlags, Signal};

use crate::cell::{
    Answer, CellSpec, Created, Ended, ExecEnd, ExecInfo, ExecSpec, Lifetime, Request, State, Status, Stop,
    Streams,
};
use crate::command::{Finished, Running, now_ms};
use crate::courier::Errand;
use crate::failure::{Failure, Step};
use crate::groups::Groups;
use crate::init::{Order, Report};
use crate::kernel;
use crate::kit::Kit;
use crate::listener::Listener;
use crate::site::{self, Ahead, PATIENCE, Site, poll_for};
use crate::wire::{Channel, Received};

/// How often what the kernel does not report by itself is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How many ended commands are remembered.
const REMEMBERED: usize = 1000;
/// The longest wait at once.
const LONG: Duration = Duration::from_secs(3600);

/// The life of a keeper that is forked before it is needed: it makes what all cells have, and waits for its client.
/// One cell after the other, as long as each is gone without a trace and the spawner takes it back.
pub(crate) fn wait_for_clients(mut spawner: Channel, returns: &Channel, kit: &Kit) -> i32 {
    begin();
    let Ok(home) = site::own_process_namespace() else { return 2 };
    loop {
        let ahead = Ahead::for_anybody();
        let reusable = ahead.is_some();
        let client = match spawner.receive::<()>() {
            Ok(Received::Message((), mut connections)) => connections.pop(),
            Ok(Received::Closed) | Err(_) => return 0,
        };
        let Some(client) = client else { return 2 };
        match keep(Channel::from_socket(client), kit, ahead) {
            Kept::Gone if reusable && site::come_home(&home).is_ok() => {}
            Kept::Gone => return 0,
            Kept::Marked(code) => return code,
        }
        match return_to(returns) {
            Ok(channel) => spawner = channel,
            Err(_) => return 0,
        }
    }
}

/// Tells the spawner that this keeper is free, and by which channel it waits.
fn return_to(spawner: &Channel) -> std::io::Result<Channel> {
    let (ours, theirs) = Channel::pair()?;
    spawner.send(&(), &[theirs.into_socket().as_fd()])?;
    Ok(ours)
}

/// The keeper's life, in a process that was forked for it and has one thread.
pub(crate) fn live(client: Channel, kit: &Kit) -> i32 {
    begin();
    kernel::forget_arguments();
    match keep(client, kit, None) {
        Kept::Gone => 0,
        Kept::Marked(code) => code,
    }
}

/// What is left of a cell in the process that kept it.
enum Kept {
    /// Nothing: it can keep another one.
    Gone,
    /// Something, or nobody knows: it must end, with this code.
    Marked(i32),
}

fn begin() {
    kernel::map_code();
    kernel::set_name(c"belljar-keeper");
    // Signals of the client's terminal are the client's business, and so is what it does about signals.
    let _ = rustix::process::setsid();
    let _ = kernel::reset_signals();
    kernel::ignore(libc::SIGPIPE);
    kernel::wait_for_children();
}

fn keep(client: Channel, kit: &Kit, ahead: Option<Ahead>) -> Kept {
    let spec = match client.receive::<Request>() {
        Ok(Received::Message(Request::Create(spec), _)) => spec,
        _ => return Kept::Marked(2),
    };
    let answer = match Site::raise(&spec, kit, ahead) {
        Ok((site, created, link)) => match listen(&spec) {
            Ok(listener) => return Keeper::new(site, created, listener).serve(client, link),
            Err(failure) => {
                site.destroy();
                Answer::Failed(failure)
            }
        },
        Err(answer) => answer,
    };
    let told = client.send(&answer, &[]);
    match answer {
        Answer::Refused(_) if told.is_ok() => Kept::Gone,
        _ => Kept::Marked(1),
    }
}

/// Only a cell that outlives its owner has to be found by others.
fn listen(spec: &CellSpec) -> Result<Option<Listener>, Failure> {
    match spec.lifetime {
        Lifetime::Owner => Ok(None),
        Lifetime::Until { .. } => Listener::open(&spec.cells.join(&spec.id)).map(Some),
    }
}

/// A living cell and everybody who has to do with it.
struct Keeper {
    site: Site,
    created: Created,
    created_ms: u64,
    state: State,
    listener: Option<Listener>,
    deadline: Option<Instant>,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    running: BTreeMap<u32, Running>,
    ended: BTreeMap<u32, ExecInfo>,
    next_command: u32,
    logs: PathBuf,
}

/// A connection.
struct Client {
    channel: Channel,
    /// The command that ends with this connection.
    command: Option<u32>,
    /// Commands whose end it waits for.
    waits: Vec<u32>,
    /// It asked for the end while no command ran; its next one is not begun.
    interrupted: Option<Stop>,
    /// It has made the cell stand still.
    froze: bool,
}

/// Something that happened.
#[derive(Clone, Copy)]
enum Event {
    Knock,
    Init,
    Client(u64),
    Ended(u32),
    Output(u32),
}

/// Why the loop ends, and whom to tell.
enum End {
    Nobody,
    Client(u64),
}

/// The number of the client that made the cell.
const OWNER: u64 = 0;

impl Keeper {
    fn new(site: Site, created: Created, listener: Option<Listener>) -> Keeper {
        let logs = site.spec.cells.join(&site.spec.id).join("logs");
        let deadline = match site.spec.lifetime {
            Lifetime::Owner => None,
            Lifetime::Until { after_ms } => Some(Instant::now() + Duration::from_millis(after_ms)),
        };
        Keeper {
            site,
            created,
            created_ms: now_ms(),
            state: State::Ready,
            listener,
            deadline,
            clients: BTreeMap::new(),
            next_client: OWNER,
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_command: 1,
            logs,
        }
    }

    /// Tells the client that the cell is there, serves until the end, and takes the cell down.
    fn serve(mut self, client: Channel, link: Option<OwnedFd>) -> Kept {
        let answered = self.announce(&client, link.as_ref());
        drop(link);
        let owned = self.site.spec.lifetime == Lifetime::Owner;
        if answered.is_err() && owned {
            self.site.destroy();
            return Kept::Marked(1);
        }
        self.welcome(client);
        let told = loop {
            if let Some(end) = self.turn() {
                break end;
            }
        };
        self.become_state(State::Ending);
        for number in self.running.keys().copied().collect::<Vec<_>>() {
            self.finish(number, Some(Ended::CellEnded));
        }
        let client = match told {
            End::Client(number) => self.clients.remove(&number),
            End::Nobody => None,
        };
        drop((self.listener, self.clients));
        // A disk of its own has taken this process into a mount namespace of its own.
        let has_moved = self.site.disk.is_some();
        let failures = self.site.destroy();
        let clean = failures.is_empty();
        if let Some(client) = client {
            // One that is gone wanted no answer.
            let _ = client.channel.send(&Answer::Destroyed(failures), &[]);
        }
        match (clean, has_moved) {
            (true, false) => Kept::Gone,
            (true, true) => Kept::Marked(0),
            (false, _) => Kept::Marked(1),
        }
    }

    /// The keeper itself comes along, so that the client can see its end.
    fn announce(&self, client: &Channel, link: Option<&OwnedFd>) -> std::io::Result<()> {
        let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let descriptors: Vec<_> = [Some(&own), link].into_iter().flatten().map(AsFd::as_fd).collect();
        client.send(&Answer::Created(Box::new(self.created.clone())), &descriptors)
    }

    fn welcome(&mut self, channel: Channel) {
        let client = Client { channel, command: None, waits: Vec::new(), interrupted: None, froze: false };
        self.clients.insert(self.next_client, client);
        self.next_client += 1;
    }

    fn become_state(&mut self, next: State) {
        debug_assert!(self.state.may_become(next));
        self.state = next;
    }

    /// Waits for something to happen and does what it asks for.
    fn turn(&mut self) -> Option<End> {
        let events = match self.wait() {
            Ok(events) => events,
            // A keeper that cannot wait cannot keep.
            Err(_) => return Some(End::Nobody),
        };
        for event in events {
            match event {
                Event::Knock => self.open_up(),
                Event::Init => return Some(End::Nobody),
                Event::Ended(number) => self.finish(number, None),
                Event::Output(number) => self.copy_output(number),
                Event::Client(number) => {
                    if let Some(end) = self.hear(number) {
                        return Some(end);
                    }
                }
            }
        }
        self.look_at_the_clock()
    }

    fn wait(&self) -> Result<Vec<Event>, Failure> {
        let (events, descriptors): (Vec<Event>, Vec<BorrowedFd<'_>>) = self.sources().into_iter().unzip();
        let mut watched: Vec<PollFd<'_>> = descriptors
            .into_iter()
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        poll_for(&mut watched, self.patience())?;
        let happened = events.into_iter().zip(&watched).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(happened.map(|(event, _)| event).collect())
    }

    /// Everything that can happen, and where it shows.
    fn sources(&self) -> Vec<(Event, BorrowedFd<'_>)> {
        let mut all = vec![(Event::Init, self.site.init().as_fd())];
        all.extend(self.listener.iter().map(|listener| (Event::Knock, listener.as_fd())));
        for (number, running) in &self.running {
            // Output first: what a command wrote before its end is copied before its end is told.
            let pipes = running.kept.iter().flat_map(|kept| kept.pipes.iter().flatten());
            all.extend(pipes.map(|pipe| (Event::Output(*number), pipe.as_fd())));
            all.push((Event::Ended(*number), running.pidfd().as_fd()));
        }
        all.extend(
            self.clients.iter().map(|(number, client)| (Event::Client(*number), client.channel.as_fd())),
        );
        all
    }

    /// How long until the clock asks for something.
    fn patience(&self) -> Duration {
        let deadlines = self.running.values().filter_map(|running| running.deadline).chain(self.deadline);
        let left =
            deadlines.min().map_or(LONG, |deadline| deadline.saturating_duration_since(Instant::now()));
        if self.running.values().any(Running::is_metered) { left.min(LOOK) } else { left }
    }

    fn look_at_the_clock(&mut self) -> Option<End> {
        let now = Instant::now();
        let over = |running: &Running| -> Option<Ended> {
            match running.deadline {
                Some(deadline) if deadline <= now => Some(Ended::TimedOut),
                _ => running.is_spent().then_some(Ended::CpuTimeLimit),
            }
        };
        let spent: Vec<(u32, Ended)> =
            self.running.iter().filter_map(|(number, running)| Some((*number, over(running)?))).collect();
        for (number, ended) in spent {
            self.finish(number, Some(ended));
        }
        self.deadline.is_some_and(|deadline| deadline <= now).then_some(End::Nobody)
    }

    fn open_up(&mut self) {
        if let Some(channel) = self.listener.as_ref().and_then(Listener::accept) {
            self.welcome(channel);
        }
    }

    fn copy_output(&mut self, number: u32) {
        if self.running.get_mut(&number).is_some_and(Running::copy_output) {
            self.finish(number, Some(Ended::OutputLimit));
        }
    }

    /// Ends a command and tells everybody who waits for that.
    fn finish(&mut self, number: u32, forced: Option<Ended>) {
        let Some(running) = self.running.remove(&number) else { return };
        let info = running.info.clone();
        let (answer, end) = match running.finish(&self.site, forced, self.running.is_empty()) {
            Ok(Finished::Program(end)) => (Answer::Ended(end.clone()), Some(*end)),
            Ok(Finished::Courier(Ok(()))) => (Answer::Done, None),
            Ok(Finished::Courier(Err(text))) => (Answer::Failed(Failure::new(text)), None),
            Err(failure) => {
                (Answer::Failed(failure.clone()), Some(ExecEnd::bare(Ended::NotStarted(failure))))
            }
        };
        for client in self.clients.values_mut() {
            let waited = client.command == Some(number) || client.waits.contains(&number);
            if client.command == Some(number) {
                client.command = None;
            }
            client.waits.retain(|waiting| *waiting != number);
            if waited {
                // A client that is gone shows as such by itself.
                let _ = client.channel.send(&answer, &[]);
            }
        }
        // Couriers are no commands of anybody's.
        if end.is_some() {
            self.ended.insert(number, ExecInfo { end, ..info });
        }
        while self.ended.len() > REMEMBERED {
            if let Some((oldest, _)) = self.ended.pop_first() {
                let _ = std::fs::remove_file(self.logs.join(oldest.to_string()));
            }
        }
    }

    /// Takes one request of a client.
    fn hear(&mut self, number: u64) -> Option<End> {
        let client = self.clients.get(&number)?;
        let (request, descriptors) = match client.channel.receive::<Request>() {
            Ok(Received::Message(request, descriptors)) => (request, descriptors),
            Ok(Received::Closed) | Err(_) => return self.lose(number),
        };
        let answer = match request {
            Request::Destroy => return Some(End::Client(number)),
            Request::Join => {
                descriptors.into_iter().for_each(|socket| self.welcome(Channel::from_socket(socket)));
                return None;
            }
            Request::Interrupt(stop) => {
                self.interrupt(number, stop);
                return None;
            }
            Request::Exec(exec) => self.exec(number, &exec, descriptors),
            Request::Put { path, limits } => self.send(number, &Errand::Put { path, limits }, descriptors),
            Request::Get { path, limits } => self.send(number, &Errand::Get { path, limits }, descriptors),
            Request::Wait { exec } => self.wait_for(number, exec),
            Request::Follow { exec } => self.follow(number, exec),
            other => self.answer(number, other).map(Some),
        };
        let answer = match answer {
            Ok(None) => return None,
            Ok(Some(answer)) => answer,
            Err(failure) => Answer::Failed(failure),
        };
        self.tell(number, &answer, &[]);
        None
    }

    /// Answers a client. One that is gone shows as such at the next turn, and only there is it given up.
    fn tell(&self, number: u64, answer: &Answer, descriptors: &[BorrowedFd<'_>]) {
        if let Some(client) = self.clients.get(&number) {
            let _ = client.channel.send(answer, descriptors);
        }
    }

    /// Requests that are answered at once.
    fn answer(&mut self, number: u64, request: Request) -> Result<Answer, Failure> {
        match request {
            Request::Signal { exec, signal } => self.signal(exec, signal),
            Request::Kill { exec } => Ok(self.kill(exec)),
            Request::Resize { exec, size } => match self.running.get(&exec) {
                Some(running) => running.resize(size).map(|()| Answer::Done),
                None => Ok(Answer::NoSuchExec(exec)),
            },
            Request::Execs => Ok(Answer::Execs(self.execs())),
            Request::Status => Ok(Answer::Status(Box::new(self.status()))),
            Request::Controls => Ok(Answer::Controls(self.site.controls())),
            Request::Extend { after_ms } => Ok(self.extend(after_ms)),
            Request::Freeze => self.freeze(number),
            Request::Thaw => {
                self.thaw(number);
                Ok(Answer::Done)
            }
            Request::Interfaces => self.interfaces(),
            Request::Create(_)
            | Request::Join
            | Request::Exec(_)
            | Request::Interrupt(_)
            | Request::Put { .. }
            | Request::Get { .. }
            | Request::Wait { .. }
            | Request::Follow { .. }
            | Request::Destroy => Err(Failure::new("the cell exists already")),
        }
    }

    /// A client went away: with it goes its command, and with the owner the cell.
    fn lose(&mut self, number: u64) -> Option<End> {
        self.thaw(number);
        for kept in self.running.values_mut().filter_map(|running| running.kept.as_mut()) {
            kept.followers.retain(|(follower, _)| *follower != number);
        }
        let client = self.clients.remove(&number)?;
        if let Some(command) = client.command {
            self.finish(command, Some(Ended::Interrupted));
        }
        (number == OWNER && self.site.spec.lifetime == Lifetime::Owner).then_some(End::Nobody)
    }

    fn interrupt(&mut self, number: u64, stop: Stop) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        match client.command {
            Some(command) => self.finish(command, Some(stopped(stop))),
            // A person wants no more of it; too much output was only that of a command that has ended meanwhile.
            None if stop == Stop::Interrupted => client.interrupted = Some(stop),
            None => {}
        }
    }

    fn exec(
        &mut self,
        number: u64,
        exec: &ExecSpec,
        streams: Vec<OwnedFd>,
    ) -> Result<Option<Answer>, Failure> {
        let interrupted = self.clients.get(&number).and_then(|client| client.interrupted);
        if let Some(stop) = interrupted {
            return Ok(Some(Answer::Ended(Box::new(ExecEnd::bare(stopped(stop))))));
        }
        if self.state != State::Ready {
            return Err(Failure::new("the sandbox stands still while its files are copied"));
        }
        if matches!(exec.streams, Streams::Kept { .. }) && !self.logs.exists() {
            std::fs::create_dir(&self.logs).step(|| "make the folder of logs".to_owned())?;
        }
        let command = self.take_number();
        let (running, terminal) = match Running::start(&self.site, command, exec, streams, &self.logs) {
            // The guest has as many processes as it may: that this one could not be started is its own doing.
            Err(failure) if failure.errno == libc::EAGAIN => {
                let end = ExecEnd::bare(Ended::NotStarted(failure));
                return Ok(Some(Answer::Ended(Box::new(end))));
            }
            other => other?,
        };
        let kept = running.kept.is_some();
        self.running.insert(command, running);
        if let Some(client) = self.clients.get_mut(&number).filter(|_| !kept) {
            client.command = Some(command);
        }
        let descriptors: Vec<_> = terminal.iter().map(AsFd::as_fd).collect();
        self.tell(number, &Answer::Started { exec: command }, &descriptors);
        Ok(None)
    }

    fn send(
        &mut self,
        number: u64,
        errand: &Errand,
        streams: Vec<OwnedFd>,
    ) -> Result<Option<Answer>, Failure> {
        if self.clients.get(&number).is_some_and(|client| client.interrupted.is_some()) {
            return Err(Failure::new("the copy was ended before it began"));
        }
        let stream = streams.into_iter().next().ok_or_else(|| Failure::new("no stream came along"))?;
        let command = self.take_number();
        let running = Running::send(&self.site, command, errand, stream)?;
        self.running.insert(command, running);
        if let Some(client) = self.clients.get_mut(&number) {
            client.command = Some(command);
        }
        Ok(None)
    }

    fn take_number(&mut self) -> u32 {
        self.next_command += 1;
        self.next_command - 1
    }

    fn wait_for(&mut self, number: u64, exec: u32) -> Result<Option<Answer>, Failure> {
        if let Some(client) = self.clients.get_mut(&number).filter(|_| self.running.contains_key(&exec)) {
            client.waits.push(exec);
            return Ok(None);
        }
        let end = self.ended.get(&exec).and_then(|info| info.end.clone());
        Ok(Some(end.map_or(Answer::NoSuchExec(exec), |end| Answer::Ended(Box::new(end)))))
    }

    /// Hands out the log and a counter; the counter's other copy closes when the command ends.
    fn follow(&mut self, number: u64, exec: u32) -> Result<Option<Answer>, Failure> {
        let step = || "open the log".to_owned();
        let known = self.running.get(&exec).map(|running| running.info.kept);
        match known.or_else(|| self.ended.get(&exec).map(|info| info.kept)) {
            None => return Ok(Some(Answer::NoSuchExec(exec))),
            Some(false) => {
                return Err(Failure::new("the output of this command was not kept: it went to its client"));
            }
            Some(true) => {}
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let log = rustix::fs::open(self.logs.join(exec.to_string()), flags, Mode::empty()).step(step)?;
        let counter = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).step(step)?;
        if let Some(kept) = self.running.get_mut(&exec).and_then(|running| running.kept.as_mut()) {
            kept.followers.push((number, counter.try_clone().step(step)?));
        }
        self.tell(number, &Answer::Log, &[log.as_fd(), counter.as_fd()]);
        Ok(None)
    }

    fn signal(&self, exec: u32, signal: i32) -> Result<Answer, Failure> {
        let Some(running) = self.running.get(&exec) else { return Ok(Answer::NoSuchExec(exec)) };
        let signal = Signal::from_named_raw(signal)
            .ok_or_else(|| Failure::new(format!("{signal} is not a signal")))?;
        running.signal(signal).map(|()| Answer::Done)
    }

    fn kill(&mut self, exec: u32) -> Answer {
        if !self.running.contains_key(&exec) {
            return Answer::NoSuchExec(exec);
        }
        self.finish(exec, Some(Ended::Interrupted));
        Answer::Done
    }

    fn execs(&self) -> Vec<ExecInfo> {
        let commands = self.running.values().filter(|running| !running.is_courier);
        let running = commands.map(|running| running.info.clone());
        let mut all: Vec<ExecInfo> = self.ended.values().cloned().chain(running).collect();
        all.sort_by_key(|info| info.exec);
        all
    }

    fn status(&self) -> Status {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        Status {
            state: self.state,
            keeper: std::process::id(),
            created_ms: self.created_ms,
            spec: self.site.spec.clone(),
            created: self.created.clone(),
            left_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            base: self.site.ids.base(),
            running: u32::try_from(self.running.len()).unwrap_or(u32::MAX),
            memory: self.site.groups.as_ref().and_then(Groups::memory),
        }
    }

    fn extend(&mut self, after_ms: u64) -> Answer {
        match self.deadline {
            None => Answer::Failed(Failure::new("this cell ends with the process that made it")),
            Some(_) => {
                self.deadline = Some(Instant::now() + Duration::from_millis(after_ms));
                Answer::Done
            }
        }
    }

    fn freeze(&mut self, number: u64) -> Result<Answer, Failure> {
        if self.state != State::Ready {
            return Err(Failure::new("the sandbox stands still already"));
        }
        let still = self.site.groups.as_ref().is_some_and(|groups| groups.freeze(true, PATIENCE));
        self.become_state(State::Frozen);
        if let Some(client) = self.clients.get_mut(&number) {
            client.froze = true;
        }
        Ok(Answer::Frozen(still || self.running.is_empty()))
    }

    fn thaw(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if std::mem::take(&mut client.froze) {
            if let Some(groups) = &self.site.groups {
                groups.freeze(false, PATIENCE);
            }
            self.become_state(State::Ready);
        }
    }

    fn interfaces(&self) -> Result<Answer, Failure> {
        match self.site.ask_init(&Order::Interfaces)? {
            Report::Interfaces(names) => Ok(Answer::Interfaces(names)),
            Report::Failed(failure) => Err(failure),
            Report::Ready { .. } | Report::Refused(_) | Report::Swept { .. } => {
                Err(Failure::new("the cell's init is confused"))
            }
        }
    }
}

fn stopped(stop: Stop) -> Ended {
    match stop {
        Stop::Interrupted => Ended::Interrupted,
        Stop::OutputLimit => Ended::OutputLimit,
    }
}

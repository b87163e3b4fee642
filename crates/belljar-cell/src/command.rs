//! A command in a cell, from its start to the count of what it left: the keeper's side.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::pty::OpenptFlags;

use crate::cell::{Ended, ExecEnd, ExecInfo, ExecLimits, ExecSpec, Full, Size, Streams, User, Weakness};
use crate::courier::Errand;
use crate::disk::Disk;
use crate::door::{Child, Job, Outcome};
use crate::failure::{Failure, Step};
use crate::groups::{CommandGroups, Groups};
use crate::guest::NotStarted;
use crate::init::{Order, Report};
use crate::kernel::{self, Waited};
use crate::log::{LogWriter, Stream};
use crate::site::{PATIENCE, Site, poll_for};

/// How much fits into a pipe to or from a command.
const WIDE: usize = 256 << 10;

/// A command that runs.
pub(crate) struct Running {
    /// What a list shows of it.
    pub info: ExecInfo,
    /// When it is killed.
    pub deadline: Option<Instant>,
    /// The output that the keeper keeps.
    pub kept: Option<Kept>,
    child: Child,
    pipe: OwnedFd,
    groups: Option<CommandGroups>,
    started: Instant,
    cpu_time: Option<Duration>,
    throttled_before: Option<u64>,
    terminal: Option<OwnedFd>,
    /// Whether it carries files, and is no command of anybody's.
    pub is_courier: bool,
}

/// What came of a command.
pub(crate) enum Finished {
    /// A program ended.
    Program(Box<ExecEnd>),
    /// A courier did its errand, or says why not.
    Courier(Result<(), String>),
}

impl Running {
    /// Lets a program in. Gives the other end of its terminal if it has one.
    pub(crate) fn start(
        site: &Site,
        number: u32,
        exec: &ExecSpec,
        streams: Vec<OwnedFd>,
        logs: &Path,
    ) -> Result<(Running, Option<OwnedFd>), Failure> {
        let user = exec.user.unwrap_or(User { uid: site.spec.guest.uid, gid: site.spec.guest.gid });
        site.ids.check(user, &site.spec.guest, site.spec.role())?;
        streams.iter().try_for_each(is_safe)?;
        let (streams, terminal, kept) = prepare(site, number, exec, streams, logs, user)?;
        streams.iter().for_each(|stream| give(site, stream, user));
        let mut command: Vec<String> = exec.name.iter().chain(&exec.programs).take(1).cloned().collect();
        command.extend(exec.arguments.iter().cloned());
        let mut running = Running::admit(site, number, command, &Job::Program(exec), &streams, &exec.limits)?;
        running.deadline = exec.timeout_ms.map(|millis| running.started + Duration::from_millis(millis));
        running.cpu_time = exec.limits.cpu_time_ms.map(Duration::from_millis);
        running.info.kept = kept.is_some();
        running.kept = kept;
        let handed = terminal
            .as_ref()
            .map(|fd| fd.try_clone().step(|| "hand out the terminal".to_owned()))
            .transpose()?;
        running.terminal = terminal;
        Ok((running, handed))
    }

    /// Lets a courier in.
    pub(crate) fn send(
        site: &Site,
        number: u32,
        errand: &Errand,
        stream: OwnedFd,
    ) -> Result<Running, Failure> {
        let name = match errand {
            Errand::Put { path, .. } => vec!["(put)".to_owned(), path.clone()],
            Errand::Get { path, .. } => vec!["(get)".to_owned(), path.clone()],
        };
        Running::admit(site, number, name, &Job::Courier(errand), &[stream], &ExecLimits::default())
    }

    fn admit(
        site: &Site,
        number: u32,
        command: Vec<String>,
        job: &Job<'_>,
        streams: &[OwnedFd],
        limits: &ExecLimits,
    ) -> Result<Running, Failure> {
        let groups = match &site.groups {
            Some(groups) => Some(groups.for_command(number, &site.spec.limits, limits)?),
            None => None,
        };
        let throttled_before = site.groups.as_ref().and_then(Groups::throttled_us);
        let started = Instant::now();
        let (child, pipe) = match site.door.admit(job, streams, groups.as_ref()) {
            Ok(admitted) => admitted,
            Err(failure) => {
                if let Some(groups) = groups {
                    // What stays is removed with the cell's own groups.
                    let _ = groups.remove();
                }
                return Err(failure);
            }
        };
        let info = ExecInfo { exec: number, command, started_ms: now_ms(), kept: false, end: None };
        Ok(Running {
            info,
            deadline: None,
            kept: None,
            child,
            pipe,
            groups,
            started,
            cpu_time: None,
            throttled_before,
            terminal: None,
            is_courier: matches!(job, Job::Courier(_)),
        })
    }

    /// Readable when the command's first process has ended.
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.child.pidfd
    }

    /// Whether it used up the processor time it may have.
    pub(crate) fn is_spent(&self) -> bool {
        let Some(limit) = self.cpu_time else { return false };
        let used = self.groups.as_ref().and_then(CommandGroups::cpu_us);
        used.is_some_and(|(user, system)| Duration::from_micros(user + system) >= limit)
    }

    /// Whether its processor time has to be looked at now and then.
    pub(crate) fn is_metered(&self) -> bool {
        self.cpu_time.is_some()
    }

    /// Sends a signal to its first process.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        rustix::process::pidfd_send_signal(&self.child.pidfd, signal).step(|| "send the signal".to_owned())
    }

    /// Gives its terminal another size.
    pub(crate) fn resize(&self, size: Size) -> Result<(), Failure> {
        let terminal = self.terminal.as_ref().ok_or_else(|| Failure::new("the command has no terminal"))?;
        resize(terminal, size)
    }

    /// Copies what is there of its kept output to the log; says whether it went beyond a limit that kills.
    pub(crate) fn copy_output(&mut self) -> bool {
        let at_us = micros(self.started);
        self.kept.as_mut().is_some_and(|kept| kept.copy(at_us))
    }

    /// Ends it: kills what it left, or all of it when it did not end by itself, and counts.
    pub(crate) fn finish(
        mut self,
        site: &Site,
        forced: Option<Ended>,
        alone: bool,
    ) -> Result<Finished, Failure> {
        let wall_us = micros(self.started);
        let (waited, killed, survivors) = self.sweep(site, forced.is_some(), alone)?;
        // Whatever it still wrote.
        let too_much = self.copy_output();
        if forced.is_none() && ended(waited) == Ended::Signalled(libc::SIGKILL) {
            // The death of the cell's init kills everything in it, and shows only afterwards.
            site.ask_init(&Order::Interfaces)?;
        }
        let mut end = ExecEnd { killed, survivors, wall_us, ..ExecEnd::bare(ended(waited)) };
        self.take_usage(site, waited, &mut end);
        if let Some(groups) = &self.groups {
            // What stays is removed with the cell's own groups.
            let _ = groups.remove();
        }
        end.ended = match Outcome::read(self.pipe, self.groups.as_ref())? {
            Some(Outcome::NotStarted(NotStarted::Ours(failure))) => return Err(failure),
            Some(Outcome::NotStarted(NotStarted::Guests(failure))) => Ended::NotStarted(failure),
            Some(Outcome::Carried(carried)) => return Ok(Finished::Courier(carried)),
            Some(Outcome::Found(_)) | None if self.is_courier => {
                return Ok(Finished::Courier(Err(cut_short(forced.as_ref()))));
            }
            Some(Outcome::Found(_)) | None => match (forced, self.cpu_time) {
                (Some(forced), _) => forced,
                (None, _) if too_much => Ended::OutputLimit,
                (None, Some(_)) if end.ended == Ended::Signalled(libc::SIGXCPU) => Ended::CpuTimeLimit,
                (None, _) => end.ended,
            },
        };
        Ok(Finished::Program(Box::new(end)))
    }

    /// Kills whatever is left of the command and waits for its first process.
    fn sweep(&self, site: &Site, forced: bool, alone: bool) -> Result<(Waited, u32, u32), Failure> {
        let mark = self.mark();
        if !forced {
            let waited = self.take(site)?;
            let (killed, survivors) = self.sweep_all(site, mark, alone)?;
            return Ok((waited, killed, survivors));
        }
        let (killed, _) = self.sweep_all(site, mark, alone)?;
        // One that was just born was in no group then, and had no mark; it may have got further since.
        let _ = self.signal(Signal::KILL);
        let waited = self.take(site)?;
        let (late, survivors) = self.sweep_all(site, mark.or_else(|| self.mark()), alone)?;
        Ok((waited, (killed + late).max(1), survivors))
    }

    /// What its processes are known by where it has no groups.
    fn mark(&self) -> Option<u64> {
        if self.groups.is_none() { Outcome::peek_mark(&self.pipe) } else { None }
    }

    /// Kills whatever can be told to be the command's.
    fn sweep_all(&self, site: &Site, mark: Option<u64>, alone: bool) -> Result<(u32, u32), Failure> {
        let keep = site.spec.is_weak(Weakness::KeepProcesses);
        match (&self.groups, mark) {
            (Some(groups), _) => Ok(self.sweep_groups(site, groups, keep)),
            (None, _) if alone => sweep_inside(site, None, keep),
            (None, Some(mark)) => sweep_inside(site, Some(mark), keep),
            // Without a mark it never got so far as to start anything.
            (None, None) => Ok((0, 0)),
        }
    }

    fn sweep_groups(&self, site: &Site, groups: &CommandGroups, keep: bool) -> (u32, u32) {
        let left = u32::try_from(groups.members().len()).unwrap_or(u32::MAX);
        if left == 0 || keep {
            return (0, left);
        }
        // Neither the killing nor the dying is to be held back.
        if let Some(cell) = &site.groups {
            cell.lift_processor_limit();
        }
        let survivors = groups.kill(PATIENCE);
        if let Some(cell) = &site.groups {
            // A cell whose limit cannot be put back is taken down at its end all the same; nothing else runs faster.
            let _ = cell.restore_processor_limit(&site.spec.limits);
        }
        (left, survivors)
    }

    /// Takes the first process, which has ended or was killed; one that even so does not end is given up. The kernel
    /// keeps it from us as long as another process of the guest's traces it: such a tracer is killed.
    fn take(&self, site: &Site) -> Result<Waited, Failure> {
        let deadline = Instant::now() + PATIENCE;
        let mut watched = [PollFd::new(&self.child.pidfd, PollFlags::IN)];
        if poll_for(&mut watched, PATIENCE)? == 0 {
            return Err(Failure::new("the command does not end although it was killed"));
        }
        loop {
            let taken = kernel::take_ended(self.child.pid).step(|| "wait for the command".to_owned())?;
            if let Some(waited) = taken {
                return Ok(waited);
            }
            kill_tracer(site, self.child.pid);
            if Instant::now() > deadline {
                // Nothing is left but to end all of it.
                site.kill();
                return Err(Failure::new("the command cannot be told from one that is traced"));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn take_usage(&self, site: &Site, waited: Waited, end: &mut ExecEnd) {
        (end.user_us, end.system_us, end.io) = (waited.user_us, waited.system_us, waited.io);
        end.disk_full = site.disk.as_ref().map(Disk::is_full);
        end.output = self.kept.as_ref().map(|kept| (kept.kept, kept.dropped));
        let Some(groups) = &self.groups else { return };
        if let Some((user, system)) = groups.cpu_us() {
            (end.user_us, end.system_us) = (user, system);
        }
        end.oom_kills = groups.oom_kills();
        end.peak_memory = groups.peak_memory();
        end.pressure = groups.pressure();
        let throttled = site.groups.as_ref().and_then(Groups::throttled_us);
        end.throttled_us =
            throttled.zip(self.throttled_before).map(|(now, before)| now.saturating_sub(before));
    }
}

/// Kills whoever of the cell traces a process. Somebody outside who debugs a guest may go on: it is in as many process
/// namespaces as we are, and not in one more.
fn kill_tracer(site: &Site, traced: Pid) {
    let Some(tracer) = tracer_of(traced) else { return };
    let Ok(held) = rustix::process::pidfd_open(tracer, PidfdFlags::empty()) else { return };
    // Held by a descriptor its number is nobody else's; so it is asked for once more.
    if tracer_of(traced) == Some(tracer) && depth(tracer) == depth(site.first()) {
        // Gone already is what is wanted.
        let _ = rustix::process::pidfd_send_signal(&held, Signal::KILL);
    }
}

/// The process, one of whose threads traces another process.
fn tracer_of(traced: Pid) -> Option<Pid> {
    named(named(traced, "TracerPid:")?, "Tgid:")
}

/// The process that is named in what the kernel tells of another one; none is 0.
fn named(process: Pid, name: &str) -> Option<Pid> {
    Pid::from_raw(told(process, name)?.trim().parse().ok()?)
}

/// In how many process namespaces a process is.
fn depth(process: Pid) -> Option<usize> {
    Some(told(process, "NSpid:")?.split_whitespace().count())
}

fn told(process: Pid, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

/// Where no group says who belongs to the command, the cell's init looks for its mark.
fn sweep_inside(site: &Site, mark: Option<u64>, keep: bool) -> Result<(u32, u32), Failure> {
    let order = if keep { Order::Count(mark) } else { Order::Sweep(mark) };
    match site.ask_init(&order) {
        Ok(Report::Swept { after, .. }) if keep => Ok((0, after)),
        Ok(Report::Swept { before, after }) => Ok((before, after)),
        Ok(Report::Failed(failure)) | Err(failure) => {
            // An init that cannot answer is killed, and its whole process namespace with it.
            site.kill();
            Err(failure)
        }
        Ok(Report::Ready { .. } | Report::Refused(_) | Report::Interfaces(_)) => {
            Err(Failure::new("the cell's init is confused"))
        }
    }
}

/// A guest can open again, by its name in /proc, whatever it holds: a file for writing that was given for reading, or
/// a folder and what lies beside it. So it is given neither.
fn is_safe(stream: &OwnedFd) -> Result<(), Failure> {
    use rustix::fs::FileType::{CharacterDevice, Fifo, Socket};
    let stat = rustix::fs::fstat(stream).step(|| "look at the command's streams".to_owned())?;
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        Fifo | Socket | CharacterDevice => Ok(()),
        _ => Err(Failure::new(
            "a stream of a command is a pipe, a socket or a device, never a file or a folder",
        )),
    }
}

/// A pipe belongs to who made it; the guest may open its own again by name, as `/dev/stdout`, only when it is the
/// guest's. And it is made wide: the guest and its reader then take turns four times less often.
fn give(site: &Site, stream: &OwnedFd, user: User) {
    let is_pipe = rustix::fs::fstat(stream)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Fifo);
    if !is_pipe {
        return;
    }
    if rustix::pipe::fcntl_getpipe_size(stream).is_ok_and(|size| size < WIDE) {
        // Who has many wide pipes already gets no more of them, and goes on as it is.
        let _ = rustix::pipe::fcntl_setpipe_size(stream, WIDE);
    }
    if site.ids.has_others() {
        let (uid, gid) = site.ids.owner(user, &site.spec.guest);
        // Refused, the guest only cannot open it again.
        let _ = rustix::fs::fchown(stream, Some(uid), Some(gid));
    }
}

type Prepared = (Vec<OwnedFd>, Option<OwnedFd>, Option<Kept>);

/// Makes the streams that did not come along.
fn prepare(
    site: &Site,
    number: u32,
    exec: &ExecSpec,
    mut streams: Vec<OwnedFd>,
    logs: &Path,
    user: User,
) -> Result<Prepared, Failure> {
    match exec.streams {
        Streams::Given => Ok((streams, None, None)),
        Streams::Terminal(size) => {
            let (ours, theirs) = open_terminal(site, size, user)?;
            let copy = || theirs.try_clone().step(|| "copy the terminal".to_owned());
            Ok((vec![copy()?, copy()?, copy()?], Some(ours), None))
        }
        Streams::Kept { limit, full } => {
            let (kept, ends) = Kept::open(&logs.join(number.to_string()), limit, full)?;
            streams.truncate(1);
            streams.extend(ends);
            Ok((streams, None, Some(kept)))
        }
    }
}

/// A terminal of the cell's own, opened from outside.
fn open_terminal(site: &Site, size: Size, user: User) -> Result<(OwnedFd, OwnedFd), Failure> {
    let step = || "open a terminal".to_owned();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = rustix::fs::openat(&site.terminals, "ptmx", flags, Mode::empty()).step(step)?;
    rustix::pty::unlockpt(&ours).step(step)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags).step(step)?;
    if site.ids.has_others() {
        let (uid, gid) = site.ids.owner(user, &site.spec.guest);
        rustix::fs::fchown(&theirs, Some(uid), Some(gid)).step(step)?;
    }
    resize(&ours, size)?;
    Ok((ours, theirs))
}

fn resize(terminal: &OwnedFd, size: Size) -> Result<(), Failure> {
    let size =
        rustix::termios::Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size).step(|| "resize the terminal".to_owned())
}

/// The output of a command that the keeper keeps.
pub(crate) struct Kept {
    /// The reading ends of its pipes; one that is at its end is gone.
    pub pipes: [Option<OwnedFd>; 2],
    /// Counters of clients that follow the log, by the client's number.
    pub followers: Vec<(u64, OwnedFd)>,
    log: LogWriter,
    limit: u64,
    full: Full,
    kept: u64,
    dropped: u64,
}

impl Kept {
    fn open(path: &Path, limit: u64, full: Full) -> Result<(Kept, [OwnedFd; 2]), Failure> {
        let step = || "make the log".to_owned();
        let log = LogWriter::create(path).step(step)?;
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(step);
        let ((out, out_end), (error, error_end)) = (pipe()?, pipe()?);
        for reader in [&out, &error] {
            rustix::fs::fcntl_setfl(reader, OFlags::NONBLOCK).step(step)?;
        }
        let kept = Kept {
            pipes: [Some(out), Some(error)],
            followers: Vec::new(),
            log,
            limit,
            full,
            kept: 0,
            dropped: 0,
        };
        Ok((kept, [out_end, error_end]))
    }

    /// Copies what is there; says whether the limit was reached and kills.
    fn copy(&mut self, at_us: u64) -> bool {
        for (index, stream) in [Stream::Out, Stream::Error].into_iter().enumerate() {
            self.copy_stream(index, stream, at_us);
        }
        for (_, follower) in &self.followers {
            // A counter that is full wakes its reader just as well.
            let _ = rustix::io::write(follower, &1_u64.to_ne_bytes());
        }
        self.dropped > 0 && self.full == Full::Kill
    }

    fn copy_stream(&mut self, index: usize, stream: Stream, at_us: u64) {
        // A bounded number of turns: a guest that writes without pause must not keep the keeper from anything else.
        for _ in 0..16 {
            let Some(pipe) = &self.pipes[index] else { return };
            let mut buffer = [0; 64 << 10];
            match rustix::io::read(pipe, &mut buffer[..]) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Ok(0) | Err(_) => self.pipes[index] = None,
                Ok(count) => self.keep(stream, at_us, &buffer[..count]),
            }
        }
    }

    fn keep(&mut self, stream: Stream, at_us: u64, bytes: &[u8]) {
        let room = usize::try_from(self.limit.saturating_sub(self.kept)).unwrap_or(usize::MAX);
        let (taken, rest) = bytes.split_at(bytes.len().min(room));
        // A disk that is full loses output, which is counted.
        let written = taken.is_empty() || self.log.append(at_us, stream, taken).is_ok();
        let lost = if written { rest.len() } else { bytes.len() };
        self.kept += (bytes.len() - lost) as u64;
        self.dropped += lost as u64;
    }
}

/// Why a courier said nothing.
fn cut_short(forced: Option<&Ended>) -> String {
    match forced {
        Some(_) => "the copy was ended before it was whole".to_owned(),
        None => "the copy was killed inside the sandbox before it was whole".to_owned(),
    }
}

fn ended(waited: Waited) -> Ended {
    if libc::WIFSIGNALED(waited.status) {
        Ended::Signalled(libc::WTERMSIG(waited.status))
    } else {
        Ended::Exited(libc::WEXITSTATUS(waited.status))
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

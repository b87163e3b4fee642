//! The last steps before guest code runs: give up every power, then become the program.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{Gid, Uid};
use serde::{Deserialize, Serialize};

use crate::cell::{ExecLimits, ExecSpec, Streams, User, Weakness};
use crate::failure::{Failure, Step};
use crate::filter::Filter;
use crate::ids::Ids;
use crate::kernel;
use crate::policy;
use crate::powers::Role;
use crate::probe;

/// Open files a guest starts with, and may raise to.
const OPEN_FILES: (u64, u64) = (1024, 65_536);

/// Signals that may wait; they too are counted by user.
const SIGNALS: (u64, u64) = (1024, 1024);

/// Everything a guest process is stripped down to.
#[derive(Debug)]
pub(crate) struct Cage<'a> {
    /// Who it is to be inside.
    pub user: User,
    /// What it is allowed to be.
    pub role: Role,
    /// How ids map.
    pub ids: Ids,
    /// The syscall filter.
    pub filter: &'a Filter,
    /// The most processes and threads, also where no control group counts them.
    pub pids: u32,
    /// Limits of the command's own.
    pub limits: ExecLimits,
    /// Deliberate faults.
    pub weaknesses: &'a [Weakness],
}

impl Cage<'_> {
    /// Gives up every power of this process that guest code has not.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        kernel::reset_signals().step(|| "reset signals".to_owned())?;
        if self.is_weak(Weakness::IgnoreSignals) {
            kernel::ignore(libc::SIGPIPE);
        }
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        self.limit_resources()?;
        if self.is_weak(Weakness::KeepCapabilities) {
            self.change_identity_only()?;
        } else {
            self.drop_powers()?;
        }
        if !self.is_weak(Weakness::NewPrivileges) {
            kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).step(|| "set no_new_privs".to_owned())?;
        }
        kernel::close_on_exec_from(3).step(|| "mark descriptors".to_owned())?;
        if self.is_weak(Weakness::LeakDescriptor) {
            leak()?;
        }
        if !self.is_weak(Weakness::NoFilter) && !self.is_weak(Weakness::NewPrivileges) {
            self.filter.install().step(|| "install the syscall filter".to_owned())?;
        }
        if !self.weaknesses.is_empty() {
            return Ok(());
        }
        // Believing is not knowing: what was given up is looked for once more.
        let User { uid, gid } = self.user;
        probe::cheap(uid, gid, self.capabilities())
            .map_err(|found| Failure::new(format!("`{}` does not hold: {}", found.control, found.proof)))
    }

    fn is_weak(&self, weakness: Weakness) -> bool {
        self.weaknesses.contains(&weakness)
    }

    /// What it may do beyond what any user may: nothing, but for root in a cell for building.
    fn capabilities(&self) -> u32 {
        policy::capabilities(self.role, self.user.uid)
    }

    /// Becomes the user and loses every capability that it is not to have, now and for ever.
    fn drop_powers(&self) -> Result<(), Failure> {
        // Before the change of identity, which takes away the power to do so.
        kernel::limit_bounding_set(self.capabilities()).step(|| "drop the bounding set".to_owned())?;
        self.change_identity()?;
        kernel::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong)
            .step(|| "clear ambient capabilities".to_owned())?;
        kernel::keep_capabilities(self.capabilities()).step(|| "drop capabilities".to_owned())
    }

    /// The opposite of [`Cage::drop_powers`]: a deliberate fault.
    fn change_identity_only(&self) -> Result<(), Failure> {
        kernel::prctl(libc::PR_SET_KEEPCAPS, 1).step(|| "keep capabilities".to_owned())?;
        self.change_identity()?;
        kernel::pass_on_capabilities().step(|| "pass capabilities on".to_owned())
    }

    fn limit_resources(&self) -> Result<(), Failure> {
        // One byte, not none: a host that pipes cores into a program obeys only this limit.
        let most = Some(if self.is_weak(Weakness::KeepCores) { 1 << 30 } else { 1 });
        let cores = Rlimit { current: most, maximum: most };
        rustix::process::setrlimit(Resource::Core, cores).step(|| "forbid core files".to_owned())?;
        let (soft, hard) = self.limits.open_files.map_or(OPEN_FILES, |most| (most, most));
        // Descriptors on their way are counted by user, and this user is the caller: some are left for the keeper.
        let own = rustix::process::getrlimit(Resource::Nofile).maximum.filter(|_| !self.ids.is_range());
        lower(Resource::Nofile, (soft, own.map_or(hard, |own| hard.min(own / 2))))?;
        lower(Resource::Sigpending, SIGNALS)?;
        if let Some(millis) = self.limits.cpu_time_ms {
            // The keeper counts the whole tree; this stops a single process also where nobody can.
            let seconds = millis.div_ceil(1000);
            lower(Resource::Cpu, (seconds, seconds + 1))?;
        }
        let pids = u64::from(self.limits.pids.unwrap_or(self.pids));
        lower(Resource::Nproc, (pids, pids))
    }

    fn change_identity(&self) -> Result<(), Failure> {
        let User { uid, gid } = self.user;
        if self.ids.has_others() {
            kernel::clear_groups().step(|| "clear groups".to_owned())?;
        }
        if self.is_weak(Weakness::RootGuest) { become_user(0, 0) } else { become_user(uid, gid) }
    }
}

/// Leaves a descriptor open for the guest: a deliberate fault.
fn leak() -> Result<(), Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let folder = rustix::fs::open("/", flags, Mode::empty()).step(|| "open /".to_owned())?;
    let _ = folder.into_raw_fd();
    Ok(())
}

/// Changes all user and group ids of this process.
pub(crate) fn become_user(uid: u32, gid: u32) -> Result<(), Failure> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).step(|| "change group".to_owned())?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step(|| "change user".to_owned())
}

/// Lowers a limit; a hard limit that is lower already stays, because it cannot be raised.
fn lower(resource: Resource, (soft, hard): (u64, u64)) -> Result<(), Failure> {
    let now = rustix::process::getrlimit(resource);
    let hard = now.maximum.map_or(hard, |ceiling| ceiling.min(hard));
    let limit = Rlimit { current: Some(soft.min(hard)), maximum: Some(hard) };
    rustix::process::setrlimit(resource, limit).step(|| format!("limit {resource:?}"))
}

/// Why a command did not start, and whose doing that is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NotStarted {
    /// Ours, or the machine's.
    Ours(Failure),
    /// The guest's: its folder or its program is not there, or not for it.
    Guests(Failure),
}

/// Becomes the command: standard streams, directory, cage, program. Returns only on failure.
pub(crate) fn run(cage: &Cage<'_>, exec: &ExecSpec, streams: [BorrowedFd<'_>; 3]) -> NotStarted {
    let prepared = match prepare(cage, exec, streams) {
        Err(failure) => return NotStarted::Ours(failure),
        Ok(prepared) => prepared,
    };
    // As the guest: a folder that only somebody more powerful could enter must not become its working directory.
    let entered = rustix::process::chdir(exec.directory.as_str());
    match entered.step(|| format!("enter {}", exec.directory)) {
        Err(failure) => NotStarted::Guests(failure),
        Ok(()) => NotStarted::Guests(start(&prepared)),
    }
}

/// A command as the kernel takes it.
struct Prepared {
    programs: Vec<CString>,
    name: Option<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

fn prepare(cage: &Cage<'_>, exec: &ExecSpec, streams: [BorrowedFd<'_>; 3]) -> Result<Prepared, Failure> {
    let programs = exec.programs.iter().map(|text| c_string(text)).collect::<Result<Vec<_>, _>>()?;
    let name = exec.name.as_deref().map(c_string).transpose()?;
    let arguments = exec.arguments.iter().map(|text| c_string(text)).collect::<Result<Vec<_>, _>>()?;
    let environment = exec
        .environment
        .iter()
        .map(|(key, value)| c_string(&format!("{key}={value}")))
        .collect::<Result<_, _>>()?;
    take_streams(streams)?;
    rustix::process::setsid().step(|| "start a session".to_owned())?;
    if matches!(exec.streams, Streams::Terminal(_)) {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).step(|| "take the terminal".to_owned())?;
    }
    cage.enter()?;
    Ok(Prepared { programs, name, arguments, environment })
}

fn c_string(text: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::new("a command or variable contains a NUL byte"))
}

/// The streams sit above 2 already, so that none is overwritten before it is copied.
fn take_streams([stdin, stdout, stderr]: [BorrowedFd<'_>; 3]) -> Result<(), Failure> {
    debug_assert!(stdin.as_raw_fd() > 2 && stdout.as_raw_fd() > 2 && stderr.as_raw_fd() > 2);
    rustix::stdio::dup2_stdin(stdin.as_fd()).step(|| "take stdin".to_owned())?;
    rustix::stdio::dup2_stdout(stdout.as_fd()).step(|| "take stdout".to_owned())?;
    rustix::stdio::dup2_stderr(stderr.as_fd()).step(|| "take stderr".to_owned())
}

/// Tries each place where the program may be, as a shell does: one that is not there, or not for the guest, is passed
/// over, and only when no other is found does it count.
fn start(command: &Prepared) -> Failure {
    let mut forbidden = None;
    let mut failure = Failure::new("no program was given");
    for program in &command.programs {
        let name = command.name.as_ref().unwrap_or(program);
        let argv: Vec<CString> = [name].into_iter().chain(&command.arguments).cloned().collect();
        let error = kernel::execute(program, &argv, &command.environment);
        failure = Failure {
            step: format!("start {}", program.to_string_lossy()),
            errno: error.raw_os_error().unwrap_or(0),
        };
        match failure.errno {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => forbidden = forbidden.or(Some(failure.clone())),
            _ => return failure,
        }
    }
    forbidden.unwrap_or(failure)
}

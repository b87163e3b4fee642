//! The cell's first process: builds the root, then only reaps and kills. It never runs guest code.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Pid, Signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use serde::{Deserialize, Serialize};

use crate::cell::{CellSpec, Network, Refusal, Weakness};
use crate::failure::{Failure, Step};
use crate::guest::become_user;
use crate::ids::Ids;
use crate::kernel;
use crate::link::{self, LinkKind};
use crate::root;
use crate::sources::Sources;
use crate::wire::{Channel, Received};

/// How long killed processes may take to be gone before they count as survivors.
const PATIENCE: Duration = Duration::from_secs(10);

/// The namespaces that a command enters, in this order, and the name of each in `/proc/self/ns`. It is born in the
/// process namespace, and makes a control group namespace of its own.
pub(crate) const NAMESPACES: [(&str, LinkNameSpaceType); 6] = [
    ("user", LinkNameSpaceType::User),
    ("mnt", LinkNameSpaceType::Mount),
    ("net", LinkNameSpaceType::Network),
    ("ipc", LinkNameSpaceType::InterProcessCommunication),
    ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
    ("time_for_children", LinkNameSpaceType::Time),
];

/// What the keeper tells the init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The id maps are there: make what needs no specification. Only root's inits are told so; for an ordinary user the
    /// init itself finds the mounts, and until then nothing of the host may be out of sight.
    Prepare,
    /// The id maps are there, and this is what to build; the mounts come along, or are to be cut off by the init itself.
    Build(Box<CellSpec>),
    /// Kill everything but the init, or only what carries the mark, and count what is left.
    Sweep(Option<u64>),
    /// Only count, everything or what carries the mark.
    Count(Option<u64>),
    /// Name the network interfaces.
    Interfaces,
}

/// What the init answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The root stands; [`NAMESPACES`] come along, the process namespace, the folder of terminals, and the link if
    /// there is one.
    Ready {
        /// What kind of link.
        link: Option<LinkKind>,
    },
    /// Something this machine does not let us have.
    Refused(Refusal),
    /// Living processes beside the init, before and after the killing.
    Swept {
        /// Before it.
        before: u32,
        /// After it.
        after: u32,
    },
    /// The network interfaces there are.
    Interfaces(Vec<String>),
    /// It could not be done.
    Failed(Failure),
}

/// The life of the init; never returns.
pub(crate) fn live(ids: Ids, weaknesses: &[Weakness], keeper: &Channel) -> ! {
    let code = match set_up(ids, weaknesses, keeper) {
        Ok(()) => serve(keeper),
        Err(report) => {
            // Nobody to tell is nobody to serve.
            let _ = keeper.send(&report, &[]);
            1
        }
    };
    kernel::exit_now(code)
}

fn set_up(ids: Ids, weaknesses: &[Weakness], keeper: &Channel) -> Result<(), Report> {
    // What needs neither id map nor specification is done before there are any.
    let namespaces = begin(weaknesses).map_err(Report::Failed)?;
    if !ids.is_range() {
        limit_watches();
    }
    let (spec, mounts) = hear_build(ids, weaknesses, keeper).map_err(refused_proc)?;
    let link = match spec.network {
        Network::None => None,
        Network::Link => {
            Some(link::open_link().map_err(|error| Report::Refused(Refusal::Link(error.to_string())))?)
        }
    };
    let mut descriptors = namespaces;
    descriptors.push(build(&spec, ids, mounts).map_err(refused_proc)?);
    let kind = link.as_ref().map(|(kind, _)| *kind);
    descriptors.extend(link.map(|(_, descriptor)| descriptor));
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let sent = keeper.send(&Report::Ready { link: kind }, &borrowed);
    sent.step(|| "answer the keeper".to_owned()).map_err(Report::Failed)
}

/// The kernel gives a fresh /proc only to who sees all of the one there is.
fn refused_proc(failure: Failure) -> Report {
    if failure.step != root::MOUNT_PROC || failure.errno != libc::EPERM {
        return Report::Failed(failure);
    }
    Report::Refused(Refusal::Isolation(format!(
        "{failure}: parts of /proc are covered here, as in a container; start the container with \
         --security-opt systempaths=unconfined (Docker, Podman: --security-opt unmask=ALL)"
    )))
}

/// While the host's /proc is in sight, and before a change of identity hides this process.
fn begin(weaknesses: &[Weakness]) -> Result<Vec<OwnedFd>, Failure> {
    kernel::map_code();
    kernel::set_name(c"belljar-init");
    make_namespaces(weaknesses)?;
    if !weaknesses.contains(&Weakness::HostNetwork) {
        link::raise_loopback().step(|| "raise the loopback".to_owned())?;
    }
    start_clocks()?;
    let names = NAMESPACES.iter().map(|(name, _)| *name).chain(["pid"]);
    names.map(|name| open(&format!("/proc/self/ns/{name}"), OFlags::RDONLY)).collect()
}

/// What the guest of an ordinary user watches is counted against that user, who needs some of it for others. A /proc
/// that cannot be written to leaves it as it is.
fn limit_watches() {
    for (file, most) in [("max_inotify_instances", "64"), ("max_inotify_watches", "32768")] {
        let _ = fs::write(format!("/proc/sys/user/{file}"), most);
    }
}

/// Done here and not by the cloning keeper, which has other things to do meanwhile.
fn make_namespaces(weaknesses: &[Weakness]) -> Result<(), Failure> {
    let mut all = UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    all.set(UnshareFlags::NEWNET, !weaknesses.contains(&Weakness::HostNetwork));
    all.set(UnshareFlags::NEWIPC, !weaknesses.contains(&Weakness::ShareMessages));
    // SAFETY: this process has one thread and shares nothing that these namespaces would separate.
    unsafe { rustix::thread::unshare_unsafe(all | UnshareFlags::NEWTIME) }
        .step(|| "create namespaces".to_owned())
}

/// Waits for what to build, and makes ready what all cells have.
fn hear_build(
    ids: Ids,
    weaknesses: &[Weakness],
    keeper: &Channel,
) -> Result<(CellSpec, Vec<OwnedFd>), Failure> {
    loop {
        match keeper.receive::<Order>() {
            Ok(Received::Message(Order::Prepare, _)) => {
                become_init(ids)?;
                root::prepare(weaknesses)?;
            }
            Ok(Received::Message(Order::Build(spec), mounts)) => return Ok((*spec, mounts)),
            Ok(_) | Err(_) => return Err(Failure::new("the keeper is gone")),
        }
    }
}

/// The init is root inside, unless there is none: with one id it stays who it is.
fn become_init(ids: Ids) -> Result<(), Failure> {
    if ids.has_others() {
        kernel::clear_groups().step(|| "clear groups".to_owned())?;
        become_user(0, 0)?;
    }
    watch_keeper()
}

/// Whether the cell is to share a namespace with the host, by a deliberate fault.
pub(crate) fn is_shared(spec: &CellSpec, kind: LinkNameSpaceType) -> bool {
    match kind {
        LinkNameSpaceType::Network => spec.is_weak(Weakness::HostNetwork),
        LinkNameSpaceType::InterProcessCommunication => spec.is_weak(Weakness::ShareMessages),
        _ => false,
    }
}

/// Builds the root and gives the folder of the cell's terminals.
fn build(spec: &CellSpec, ids: Ids, mounts: Vec<OwnedFd>) -> Result<OwnedFd, Failure> {
    rustix::system::sethostname(spec.hostname.as_bytes()).step(|| "set the host name".to_owned())?;
    let sources = match ids {
        Ids::Range { .. } => Sources::from_descriptors(spec, ids, mounts)?,
        Ids::Caller { .. } | Ids::Mapped(_) => {
            // As the caller, who may enter folders that are closed to root inside.
            let sources = Sources::open(spec, ids, None)?;
            become_init(ids)?;
            root::prepare(&spec.weaknesses)?;
            sources
        }
    };
    root::build(spec, ids, sources)?;
    let terminals = open("/dev/pts", OFlags::PATH | OFlags::DIRECTORY)?;
    if spec.is_weak(Weakness::OpenFirstProcess) {
        open_up(spec)?;
    } else {
        weaken()?;
    }
    Ok(terminals)
}

fn watch_keeper() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "watch the keeper".to_owned())
}

/// The opposite of [`weaken`]: a deliberate fault.
fn open_up(spec: &CellSpec) -> Result<(), Failure> {
    kernel::reap_by_kernel();
    become_user(spec.guest.uid, spec.guest.gid)?;
    kernel::keep_capabilities(0).step(|| "drop capabilities".to_owned())?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).step(|| "show itself".to_owned())?;
    // A change of identity ends the watch.
    watch_keeper()
}

/// Gives the commands clocks that began with the cell: how long the machine has been up is none of their business.
fn start_clocks() -> Result<(), Failure> {
    let offset = |clock| -> i64 { -rustix::time::clock_gettime(clock).tv_sec };
    let monotonic = offset(rustix::time::ClockId::Monotonic);
    let boot = offset(rustix::time::ClockId::Boottime);
    let text = format!("monotonic {monotonic} 0\nboottime {boot} 0\n");
    fs::write("/proc/self/timens_offsets", text).step(|| "set the cell's clocks".to_owned())
}

fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Failure> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).step(|| format!("open {path}"))
}

/// Keeps only what counting and killing need, and shuts this process's memory and files to the guest.
fn weaken() -> Result<(), Failure> {
    kernel::reap_by_kernel();
    kernel::limit_bounding_set(0).step(|| "drop the bounding set".to_owned())?;
    kernel::keep_capabilities(1 << kernel::CAP_KILL | 1 << kernel::CAP_SYS_PTRACE)
        .step(|| "drop capabilities".to_owned())?;
    kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).step(|| "set no_new_privs".to_owned())?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "hide from the guest".to_owned())
}

fn serve(keeper: &Channel) -> i32 {
    loop {
        let order = match keeper.receive::<Order>() {
            Ok(Received::Message(order, _)) => order,
            Ok(Received::Closed) | Err(_) => return 0,
        };
        let report = match order {
            Order::Prepare | Order::Build(_) => Err(Failure::new("the root stands already")),
            Order::Sweep(mark) => sweep(mark),
            Order::Count(mark) => others(mark).map(|count| Report::Swept { before: count, after: count }),
            Order::Interfaces => Ok(Report::Interfaces(interfaces())),
        };
        if keeper.send(&report.unwrap_or_else(Report::Failed), &[]).is_err() {
            return 0;
        }
    }
}

/// Kills everything in the process namespace but this init at once: the kernel walks all of it under one lock, and a
/// process with a pending kill cannot fork, so nothing escapes by being quick. What carries a mark can only be killed
/// one by one; what outruns that for too long takes the whole cell with it.
fn sweep(mark: Option<u64>) -> Result<Report, Failure> {
    let before = others(mark)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match mark {
            Some(mark) if Instant::now() < deadline - PATIENCE / 2 => kill_marked(mark)?,
            Some(_) | None => kernel::kill_all_others(),
        }
        let after = others(mark)?;
        if after == 0 || Instant::now() > deadline {
            return Ok(Report::Swept { before, after });
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn kill_marked(mark: u64) -> Result<(), Failure> {
    for pid in processes()? {
        if carries(pid, mark)
            && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            // Gone already is what is wanted; nobody but the guest's own can have the number in here.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    Ok(())
}

/// A command's own namespace is its mark.
fn carries(pid: u32, mark: u64) -> bool {
    fs::metadata(format!("/proc/{pid}/ns/uts")).is_ok_and(|found| found.ino() == mark)
}

fn processes() -> Result<Vec<u32>, Failure> {
    let step = || "look into /proc".to_owned();
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").step(step)? {
        if let Ok(pid) = entry.step(step)?.file_name().to_string_lossy().parse::<u32>()
            && pid != 1
        {
            all.push(pid);
        }
    }
    Ok(all)
}

/// Living processes beside this one; a whole zombie is dead and only waits for its parent outside.
fn others(mark: Option<u64>) -> Result<u32, Failure> {
    let mut living = 0;
    for pid in processes()? {
        if is_alive(pid).step(|| "look into /proc".to_owned())? && mark.is_none_or(|mark| carries(pid, mark))
        {
            living += 1;
        }
    }
    Ok(living)
}

fn is_alive(pid: u32) -> io::Result<bool> {
    let stat = match fs::read(format!("/proc/{pid}/stat")) {
        // Gone between the listing and the look.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => return Ok(false),
        other => other?,
    };
    // The name in parentheses is the guest's choice and may hold anything; the state follows the last one.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    Ok(match state {
        None | Some(b'X') => false,
        // A first thread that ended before the others shows as a zombie although the process lives on.
        Some(b'Z') => fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1),
        Some(_) => true,
    })
}

fn interfaces() -> Vec<String> {
    let table = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

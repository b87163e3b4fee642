//! The cell's first process: builds the root, then only reaps and kills. It never runs guest code.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{DumpableBehavior, Signal};
use serde::{Deserialize, Serialize};

use crate::cell::{CellSpec, Network, Refusal};
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

/// What the doorman tells the init once.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Go {
    /// The id maps are there; the mounts come along, or are to be cut off by the init itself.
    Build,
}

/// What the init answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Built {
    /// The root stands; the link's descriptor comes along if there is one.
    Ready(Option<LinkKind>),
    /// Something this machine does not let us have.
    Refused(Refusal),
    /// It failed.
    Failed(Failure),
}

/// What the keeper asks of the init.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Kill everything but the init, and count what is left.
    Sweep,
    /// The same, counting first: where no control group has the number at hand.
    CountAndSweep,
    /// Only count.
    Count,
    /// Name the network interfaces.
    Interfaces,
}

/// What the init answers to an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Living processes beside the init, before and after.
    Swept {
        /// Before the killing, where that was asked for.
        before: Option<u32>,
        /// After it.
        after: u32,
    },
    /// The network interfaces there are.
    Interfaces(Vec<String>),
    /// It could not be found out.
    Failed(Failure),
}

/// The life of the init; never returns.
pub(crate) fn live(spec: &CellSpec, ids: Ids, doorman: &Channel, keeper: &Channel) -> ! {
    let code = match set_up(spec, ids, doorman) {
        Ok(()) => serve(keeper),
        Err(Built::Ready(_)) => 0,
        Err(answer) => {
            // Nobody to tell is nobody to serve.
            let _ = doorman.send(&answer, &[]);
            1
        }
    };
    kernel::exit_now(code)
}

fn set_up(spec: &CellSpec, ids: Ids, doorman: &Channel) -> Result<(), Built> {
    let mounts = match doorman.receive::<Go>() {
        Ok(Received::Message(Go::Build, mounts)) => mounts,
        Ok(Received::Closed) | Err(_) => return Err(Built::Failed(Failure::new("the doorman is gone"))),
    };
    link::raise_loopback().step(|| "raise the loopback".to_owned()).map_err(Built::Failed)?;
    let link = match spec.network {
        Network::None => None,
        Network::Link => {
            Some(link::open_link().map_err(|error| Built::Refused(Refusal::Link(error.to_string())))?)
        }
    };
    build(spec, ids, mounts).map_err(Built::Failed)?;
    let (kind, descriptor) = link.map_or((None, None), |(kind, fd)| (Some(kind), Some(fd)));
    let descriptors: Vec<_> = descriptor.iter().map(std::os::fd::AsFd::as_fd).collect();
    let sent = doorman.send(&Built::Ready(kind), &descriptors);
    sent.step(|| "answer the doorman".to_owned()).map_err(Built::Failed)
}

fn build(spec: &CellSpec, ids: Ids, mounts: Vec<std::os::fd::OwnedFd>) -> Result<(), Failure> {
    let (uid, gid) = ids.init_user(&spec.guest);
    if ids.is_range() {
        kernel::clear_groups().step(|| "clear groups".to_owned())?;
        become_user(uid, gid)?;
    }
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "watch the keeper".to_owned())?;
    rustix::system::sethostname(spec.hostname.as_bytes()).step(|| "set the host name".to_owned())?;
    let sources = match ids {
        Ids::Range { .. } => Sources::from_descriptors(spec, mounts)?,
        Ids::Caller { .. } => Sources::open(spec, None)?,
    };
    root::build(spec, sources)?;
    weaken()
}

/// Keeps only what killing needs, and shuts this process's memory and files to the guest.
fn weaken() -> Result<(), Failure> {
    kernel::reap_by_kernel();
    kernel::drop_bounding_set().step(|| "drop the bounding set".to_owned())?;
    kernel::keep_capabilities(1 << kernel::CAP_KILL).step(|| "drop capabilities".to_owned())?;
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
            Order::Sweep => sweep(None),
            Order::CountAndSweep => others().and_then(|before| sweep(Some(before))),
            Order::Count => others().map(|count| Report::Swept { before: Some(count), after: count }),
            Order::Interfaces => Ok(Report::Interfaces(interfaces())),
        };
        if keeper.send(&report.unwrap_or_else(Report::Failed), &[]).is_err() {
            return 0;
        }
    }
}

/// Kills everything in the process namespace but this init, at once: the kernel walks all of it under one lock, and a
/// process with a pending kill cannot fork, so nothing escapes by being quick.
fn sweep(before: Option<u32>) -> Result<Report, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        kernel::kill_all_others();
        let after = others()?;
        if after == 0 || Instant::now() > deadline {
            return Ok(Report::Swept { before, after });
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Living processes beside this one; a whole zombie is dead and only waits for its parent outside.
fn others() -> Result<u32, Failure> {
    let step = || "look into /proc".to_owned();
    let mut living = 0;
    for entry in fs::read_dir("/proc").step(step)? {
        let number = entry.step(step)?.file_name().to_string_lossy().parse::<u32>();
        if let Ok(pid) = number
            && pid != 1
            && is_alive(pid).step(step)?
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

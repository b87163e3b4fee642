//! Control groups: where the limits of a cell and of its commands live, and what they used is counted.
//!
//! A cell has one group per controller, and no process of ours is ever in it. A command enters with its first process,
//! before that becomes the guest's program. On version 1 it writes `0` to `tasks`: moving oneself as a single thread is
//! the one way in that does not take the kernel's global lock, which costs ten milliseconds after a pause.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::cell::{ExecLimits, Limits, Pressure};
use crate::failure::{Failure, Step};
use crate::parents::{ACCOUNTING, ASIDE, CONTROLLERS, Parents, Version};

/// The period of the processor quota, in microseconds; the kernel's own default.
const PERIOD_US: u64 = 100_000;
/// How long to go after processes that others start meanwhile.
const ASIDE_PATIENCE: Duration = Duration::from_secs(5);

/// The groups of one cell, or of one command in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Whose rules apply.
    pub version: Version,
    /// Controller and folder.
    pub folders: Vec<(String, PathBuf)>,
    /// The folder in a version 2 tree without controllers, beside version 1.
    #[serde(default)]
    pub placing: Option<PathBuf>,
}

impl Groups {
    /// The groups a cell of this name would have, before any is made: what the lease must know first.
    pub fn planned(parents: &Parents, id: &str) -> Groups {
        let name = format!("belljar-cell-{id}");
        let folders = parents
            .folders
            .iter()
            .map(|(controller, folder)| (controller.clone(), folder.join(&name)))
            .collect();
        let placing = parents.placing.as_ref().map(|folder| folder.join(&name));
        Groups { version: parents.version, folders, placing }
    }

    /// Makes the groups of a cell and sets its limits.
    pub fn create(&self, limits: &Limits) -> Result<(), Failure> {
        if self.version == Version::V2 {
            self.enable_controllers()?;
        }
        self.all().try_for_each(|folder| make(folder))?;
        self.limit(limits)
    }

    /// Sets the limits of a cell whose groups exist.
    pub(crate) fn limit(&self, limits: &Limits) -> Result<(), Failure> {
        self.set(&wanted(self.version, Some(limits.memory), Some(limits.cpu_millis), Some(limits.pids)))?;
        self.set_if_there("memory", &swap_setting(self.version, limits.memory))?;
        self.limit_sockets(limits.memory)?;
        match self.version {
            Version::V1 => Ok(()),
            Version::V2 => self.put("unified", "cgroup.subtree_control", "+memory +pids +cpu"),
        }
    }

    /// Makes the groups of a command: those of the cell, but its own where it must be told from other commands.
    pub(crate) fn for_command(
        &self,
        number: u32,
        cell: &Limits,
        limits: &ExecLimits,
    ) -> Result<CommandGroups, Failure> {
        let name = format!("command-{number}");
        let apart = |controller: &str| match controller {
            "cpu" => limits.cpu_millis.is_some(),
            // Without a version 2 folder this is what says who belongs to the command.
            "pids" => limits.pids.is_some() || self.placing.is_none(),
            _ => true,
        };
        let mut groups = self.clone();
        let mut own = Vec::new();
        for (controller, folder) in &mut groups.folders {
            if apart(controller) {
                folder.push(&name);
                own.push(folder.clone());
            }
        }
        if let Some(folder) = &mut groups.placing {
            folder.push(&name);
            own.push(folder.clone());
        }
        let made = CommandGroups { groups, own };
        made.create(limits, limits.memory.unwrap_or(cell.memory)).inspect_err(|_| drop(made.remove()))?;
        Ok(made)
    }

    /// Version 1 counts the buffers of TCP apart from memory, and only in groups that have a limit of their own for
    /// them; version 2 counts them within memory.
    fn limit_sockets(&self, bytes: u64) -> Result<(), Failure> {
        match self.version {
            Version::V1 => {
                self.set_if_there("memory", &("memory.kmem.tcp.limit_in_bytes", bytes.to_string()))
            }
            Version::V2 => Ok(()),
        }
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.folders.iter().map(|(_, folder)| folder).chain(&self.placing)
    }

    fn set(&self, settings: &[(&'static str, &'static str, String)]) -> Result<(), Failure> {
        settings.iter().try_for_each(|(controller, file, text)| self.put(controller, file, text))
    }

    /// Without the kernel's accounting the file is not there, and then there is nothing to set.
    fn set_if_there(&self, controller: &str, (file, text): &(&str, String)) -> Result<(), Failure> {
        match write(&self.folder(controller).join(file), text) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.step(|| format!("set {file} to {text}")),
        }
    }

    /// Lets children of the parent have controllers; a group with processes of its own may not, so these move aside.
    fn enable_controllers(&self) -> Result<(), Failure> {
        let Some(parent) = self.folders.first().and_then(|(_, folder)| folder.parent()) else {
            return Ok(());
        };
        let switch = parent.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&switch).unwrap_or_default();
        if CONTROLLERS.iter().all(|wanted| enabled.split_whitespace().any(|name| name == *wanted)) {
            return Ok(());
        }
        let wanted = "+memory +pids +cpu";
        if fs::write(&switch, wanted).is_ok() {
            return Ok(());
        }
        let deadline = Instant::now() + ASIDE_PATIENCE;
        loop {
            move_aside(parent)?;
            match fs::write(&switch, wanted) {
                // A process that was started while the others were moved is still there.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {}
                other => return other.step(|| format!("enable controllers in {}", parent.display())),
            }
        }
    }

    fn put(&self, controller: &str, file: &str, text: &str) -> Result<(), Failure> {
        write(&self.folder(controller).join(file), text).step(|| format!("set {file} to {text}"))
    }

    /// The folder of a controller.
    pub(crate) fn folder(&self, controller: &str) -> &Path {
        let found = self.folders.iter().find(|(name, _)| name == controller).or(self.folders.first());
        found.map_or(Path::new(""), |(_, folder)| folder)
    }

    fn read(&self, controller: &str, file: &str) -> Option<String> {
        read(&self.folder(controller).join(file))
    }

    /// The folder through which version 2 places, kills, freezes and counts, if there is one.
    fn unified(&self) -> Option<&Path> {
        match self.version {
            Version::V1 => self.placing.as_deref(),
            Version::V2 => Some(self.folder("unified")),
        }
    }

    /// The swap that the cell may use: what its own limit leaves, or, where nothing counts it, what the machine has.
    pub fn swap(&self) -> Option<u64> {
        let read = |file: &str| -> Option<u64> { self.read("memory", file)?.trim().parse().ok() };
        let limited = match self.version {
            Version::V1 => {
                let both = read("memory.memsw.limit_in_bytes");
                both.and_then(|both| Some(both.saturating_sub(read("memory.limit_in_bytes")?)))
            }
            Version::V2 => read("memory.swap.max"),
        };
        limited.or_else(machine_swap)
    }

    /// Bytes of memory in use now.
    pub fn memory(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        self.read("memory", file)?.trim().parse().ok()
    }

    /// For how long the processor limit held processes back, in microseconds, since the group was made.
    pub fn throttled_us(&self) -> Option<u64> {
        let text = self.read("cpu", "cpu.stat")?;
        match self.version {
            Version::V1 => field(&text, "throttled_time").map(|nanoseconds| nanoseconds / 1000),
            Version::V2 => field(&text, "throttled_usec"),
        }
    }

    /// Takes the processor limit away: what is to die needs time to do so.
    pub fn lift_processor_limit(&self) {
        let (file, text) = match self.version {
            Version::V1 => ("cpu.cfs_quota_us", "-1"),
            Version::V2 => ("cpu.max", "max"),
        };
        // Missing this only makes the end slower.
        let _ = write(&self.folder("cpu").join(file), text);
    }

    /// Puts the processor limit back.
    pub fn restore_processor_limit(&self, limits: &Limits) -> Result<(), Failure> {
        self.set(&wanted(self.version, None, Some(limits.cpu_millis), None))
    }

    /// What the kernel says the limits are.
    pub fn read_limits(&self) -> Option<Limits> {
        let (memory, quota) = match self.version {
            Version::V1 => {
                (self.read("memory", "memory.limit_in_bytes")?, self.read("cpu", "cpu.cfs_quota_us")?)
            }
            Version::V2 => (self.read("memory", "memory.max")?, self.read("cpu", "cpu.max")?),
        };
        let quota: u64 = quota.split_whitespace().next()?.parse().ok()?;
        Some(Limits {
            memory: memory.trim().parse().ok()?,
            cpu_millis: u32::try_from(quota * 1000 / PERIOD_US).ok()?,
            pids: self.read("pids", "pids.max")?.trim().parse().ok()?,
            disk: None,
        })
    }

    /// The processes in the groups now, those of commands included.
    pub fn processes(&self) -> Vec<i32> {
        let mut all: Vec<i32> = self.all().flat_map(|folder| members_below(folder)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Lets every process stand still, or go on; says whether the kernel did.
    pub(crate) fn freeze(&self, still: bool, patience: Duration) -> bool {
        let Some(folder) = self.unified() else { return false };
        if write(&folder.join("cgroup.freeze"), if still { "1" } else { "0" }).is_err() {
            return false;
        }
        let deadline = Instant::now() + patience;
        let wanted = u64::from(still);
        loop {
            let events = read(&folder.join("cgroup.events")).unwrap_or_default();
            if field(&events, "frozen") == Some(wanted) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Kills what is inside and removes the groups; what is not there is fine.
    pub fn remove(&self, patience: Duration) -> Result<(), Failure> {
        if self.remove_folders().is_ok() {
            return Ok(());
        }
        let deadline = Instant::now() + patience;
        self.lift_processor_limit();
        loop {
            for folder in self.all() {
                kill_below(folder);
            }
            match self.remove_folders() {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                other => return other.step(|| "remove the cell's control groups".to_owned()),
            }
        }
    }

    fn remove_folders(&self) -> io::Result<()> {
        self.all().try_for_each(|folder| remove_below(folder))
    }
}

/// The groups of one command: some its own, the others those of its cell.
#[derive(Debug)]
pub(crate) struct CommandGroups {
    groups: Groups,
    own: Vec<PathBuf>,
}

impl CommandGroups {
    fn create(&self, limits: &ExecLimits, memory: u64) -> Result<(), Failure> {
        self.own.iter().try_for_each(|folder| make(folder))?;
        self.groups.limit_sockets(memory)?;
        self.groups.set(&wanted(self.groups.version, limits.memory, limits.cpu_millis, limits.pids))
    }

    /// The folder to clone into, where version 2 has one.
    pub(crate) fn place(&self) -> Result<Option<OwnedFd>, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |folder: &Path| rustix::fs::open(folder, flags, Mode::empty());
        self.groups.unified().map(open).transpose().step(|| "open the command's group".to_owned())
    }

    /// Moves the calling process, which has one thread, into the groups of version 1.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        if self.groups.version == Version::V2 {
            return Ok(());
        }
        for (controller, folder) in &self.groups.folders {
            write(&folder.join("tasks"), "0").step(|| format!("enter the {controller} group"))?;
        }
        Ok(())
    }

    /// How often the kernel killed in here for lack of memory.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        let file = match self.groups.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        field(&self.groups.read("memory", file)?, "oom_kill")
    }

    /// The peak of memory.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let file = match self.groups.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        self.groups.read("memory", file)?.trim().parse().ok()
    }

    /// User and system time of the whole tree in microseconds, where a group of its own counts it.
    pub(crate) fn cpu_us(&self) -> Option<(u64, u64)> {
        if let Some(folder) = self.groups.unified() {
            let text = read(&folder.join("cpu.stat"))?;
            return Some((field(&text, "user_usec")?, field(&text, "system_usec")?));
        }
        let (_, folder) = self.groups.folders.iter().find(|(name, _)| name == ACCOUNTING)?;
        let used = |file: &str| -> Option<u64> {
            Some(read(&folder.join(file))?.trim().parse::<u64>().ok()? / 1000)
        };
        Some((used("cpuacct.usage_user")?, used("cpuacct.usage_sys")?))
    }

    /// For how long processes had to wait, where the kernel counts that.
    pub(crate) fn pressure(&self) -> Option<Pressure> {
        let folder = self.groups.unified()?;
        let total = |file: &str| -> Option<u64> {
            let text = read(&folder.join(file))?;
            let some = text.lines().find(|line| line.starts_with("some "))?;
            some.rsplit_once("total=")?.1.trim().parse().ok()
        };
        Some(Pressure {
            cpu_us: total("cpu.pressure")?,
            memory_us: total("memory.pressure")?,
            io_us: total("io.pressure")?,
        })
    }

    /// The living processes of the command.
    pub(crate) fn members(&self) -> Vec<i32> {
        members(self.census())
    }

    /// The folder that says who belongs to the command.
    fn census(&self) -> &Path {
        self.groups.unified().unwrap_or_else(|| self.groups.folder("pids"))
    }

    /// Kills everything in here until nothing is left; gives the number of processes that are left all the same.
    pub(crate) fn kill(&self, patience: Duration) -> u32 {
        let folder = self.census();
        let deadline = Instant::now() + patience;
        // Where the kernel cannot kill all at once, nobody may have children meanwhile.
        if !folder.join("cgroup.kill").exists() {
            let _ = write(&folder.join("pids.max"), "0");
        }
        loop {
            kill_members(folder);
            let left = members(folder).len();
            if left == 0 || Instant::now() > deadline {
                return u32::try_from(left).unwrap_or(u32::MAX);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Removes the groups that are the command's own.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.own.iter().try_for_each(|folder| remove_one(folder))
    }
}

fn make(folder: &Path) -> Result<(), Failure> {
    fs::create_dir(folder).step(|| format!("create control group {}", folder.display()))
}

/// The files of the kernel take one write each; nothing is truncated, nothing created.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes())?;
    Ok(())
}

/// They are read whole at once too, and are never longer than a page.
fn read(path: &Path) -> Option<String> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0; 4096];
    let count = rustix::io::read(&file, &mut buffer[..]).ok()?;
    String::from_utf8(buffer[..count].to_vec()).ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn machine_swap() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("SwapTotal:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn members(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
}

/// Groups of commands are the only ones below a cell's.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn members_below(folder: &Path) -> Vec<i32> {
    let mut all = members(folder);
    all.extend(below(folder).iter().flat_map(|folder| members(folder)));
    all
}

fn kill_below(folder: &Path) {
    for folder in below(folder).iter().map(PathBuf::as_path).chain([folder]) {
        kill_members(folder);
    }
}

/// All at once where the kernel can, so that nothing escapes by having children. It passes over processes whose first
/// thread has ended, so those that are left are killed one by one.
fn kill_members(folder: &Path) {
    if !members(folder).is_empty() {
        let _ = write(&folder.join("cgroup.kill"), "1");
    }
    for pid in members(folder) {
        kill_member(folder, pid);
    }
}

/// Between the listing and the killing a number may have gone to a stranger: held by a descriptor it cannot, so it is
/// looked for in the group once more.
fn kill_member(folder: &Path, pid: i32) {
    let Some(held) =
        Pid::from_raw(pid).and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return;
    };
    if members(folder).contains(&pid) {
        // Gone already is what is wanted.
        let _ = rustix::process::pidfd_send_signal(&held, Signal::KILL);
    }
}

fn remove_below(folder: &Path) -> io::Result<()> {
    match remove_one(folder) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            below(folder).iter().try_for_each(|folder| remove_one(folder))?;
            remove_one(folder)
        }
        other => other,
    }
}

fn remove_one(folder: &Path) -> io::Result<()> {
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The no-internal-processes rule of version 2: a group that hands out controllers may hold no process itself.
fn move_aside(group: &Path) -> Result<(), Failure> {
    let aside = group.join(ASIDE);
    match fs::create_dir(&aside) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.step(|| format!("create {}", aside.display()))?,
    }
    for pid in members(group) {
        // A process that ended meanwhile cannot be moved and need not be.
        let _ = fs::write(aside.join("cgroup.procs"), pid.to_string());
    }
    Ok(())
}

fn swap_setting(version: Version, memory: u64) -> (&'static str, String) {
    match version {
        Version::V1 => ("memory.memsw.limit_in_bytes", memory.to_string()),
        Version::V2 => ("memory.swap.max", "0".to_owned()),
    }
}

/// The files and texts that set these limits.
fn wanted(
    version: Version,
    memory: Option<u64>,
    cpu_millis: Option<u32>,
    pids: Option<u32>,
) -> Vec<(&'static str, &'static str, String)> {
    let quota = cpu_millis.map(|millis| u64::from(millis) * PERIOD_US / 1000);
    let (memory_file, cpu) = match version {
        Version::V1 => ("memory.limit_in_bytes", quota.map(|quota| ("cpu.cfs_quota_us", quota.to_string()))),
        Version::V2 => ("memory.max", quota.map(|quota| ("cpu.max", format!("{quota} {PERIOD_US}")))),
    };
    let memory = memory.map(|bytes| ("memory", memory_file, bytes.to_string()));
    let cpu = cpu.map(|(file, text)| ("cpu", file, text));
    let pids = pids.map(|pids| ("pids", "pids.max", pids.to_string()));
    [memory, cpu, pids].into_iter().flatten().collect()
}

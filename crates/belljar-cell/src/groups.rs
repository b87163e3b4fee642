//! Control groups: where a cell's limits live, on version 1, version 2 and hybrid hosts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cell::Limits;
use crate::failure::{Failure, Step};

/// The controllers a cell needs.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// The doorman and the init count as processes of the cell.
const OWN_PROCESSES: u32 = 2;
/// The period of the processor quota, in microseconds.
const PERIOD_US: u64 = 100_000;

/// Which version of control groups carries the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// One tree per controller.
    V1,
    /// One tree for all.
    V2,
}

impl Version {
    /// `v1` or `v2`.
    pub fn name(self) -> &'static str {
        match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        }
    }
}

/// The folders under which this process may make groups: one per controller on version 1, one on version 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parents {
    /// Whose rules apply.
    pub version: Version,
    /// Controller and parent folder; on version 2 a single entry named `unified`.
    pub folders: Vec<(String, PathBuf)>,
}

/// Why no parent could be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoParents {
    /// Nothing is mounted.
    #[error("no control group tree with memory, pids and cpu controllers is mounted")]
    NotMounted,
    /// Something is mounted but not ours to write.
    #[error("this user may not create control groups in {}", .0.display())]
    NotDelegated(PathBuf),
    /// The group we are in has been given no controllers to hand on.
    #[error("the control group {} has no memory, pids and cpu controllers to hand on", .0.display())]
    NoControllers(PathBuf),
    /// A group was handed over, but the kernel would not let this process move into it.
    #[error("this process may not move into the control group {}: no group that holds both is this user's", .0.display())]
    Elsewhere(PathBuf),
}

/// One line of the mount table that matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tree {
    at: PathBuf,
    /// The part of the hierarchy that is mounted there.
    root: PathBuf,
    version: Version,
    options: Vec<String>,
}

impl Parents {
    /// Looks for a place where this process may make groups.
    pub fn find() -> Result<Parents, NoParents> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Parents::find_in(&mounts, &own, rustix::process::geteuid().as_raw())
    }

    /// Which version carries the controllers on this machine, whoever may use it.
    pub fn mounted_version() -> Option<Version> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let trees: Vec<Tree> = mounts.lines().filter_map(parse_mount).collect();
        match trees.iter().find(|tree| tree.version == Version::V2 && has_controllers(&tree.at)) {
            Some(_) => Some(Version::V2),
            None => trees.iter().any(|tree| tree.version == Version::V1).then_some(Version::V1),
        }
    }

    fn find_in(mounts: &str, own: &str, uid: u32) -> Result<Parents, NoParents> {
        let trees: Vec<Tree> = mounts.lines().filter_map(parse_mount).collect();
        if let Some(tree) = trees.iter().find(|tree| tree.version == Version::V2 && has_controllers(&tree.at))
        {
            return find_v2(tree, own, uid);
        }
        find_v1(&trees, own, uid)
    }
}

fn find_v1(trees: &[Tree], own: &str, uid: u32) -> Result<Parents, NoParents> {
    let mut folders = Vec::new();
    for controller in CONTROLLERS {
        let tree = trees
            .iter()
            .find(|tree| {
                tree.version == Version::V1 && tree.options.iter().any(|option| option == controller)
            })
            .ok_or(NoParents::NotMounted)?;
        let place = own_path(own, controller).unwrap_or_else(|| PathBuf::from("/"));
        let candidates = [inside(tree, &place), delegated(tree, uid)];
        let found = candidates.iter().find(|folder| may_create_in(folder));
        folders.push((controller.to_owned(), found.ok_or_else(|| not_delegated(tree, uid))?.clone()));
    }
    Ok(Parents { version: Version::V1, folders })
}

fn find_v2(tree: &Tree, own: &str, uid: u32) -> Result<Parents, NoParents> {
    let mut place = own_path(own, "").unwrap_or_else(|| PathBuf::from("/"));
    // An earlier run moved this process aside; its siblings belong beside it, not below it.
    if place.ends_with(ASIDE) {
        place.pop();
    }
    let own = inside(tree, &place);
    let mut candidates = vec![own.clone(), delegated(tree, uid)];
    if uid == 0 {
        // Root needs nobody to hand controllers on to it.
        candidates.push(tree.at.clone());
    }
    candidates.retain(|folder| may_create_in(folder));
    let first = candidates.first().cloned().ok_or_else(|| not_delegated(tree, uid))?;
    candidates.retain(|folder| may_move(&own, folder));
    if candidates.is_empty() {
        return Err(NoParents::Elsewhere(first));
    }
    let found = candidates.into_iter().find(|folder| has_controllers(folder));
    let folder = found.ok_or(NoParents::NoControllers(first))?;
    Ok(Parents { version: Version::V2, folders: vec![("unified".to_owned(), folder)] })
}

/// Where processes go that stand in the way of handing controllers on.
const ASIDE: &str = "belljar-supervisor";
/// How long to go after processes that others start meanwhile.
const ASIDE_PATIENCE: Duration = Duration::from_secs(5);

fn not_delegated(tree: &Tree, uid: u32) -> NoParents {
    NoParents::NotDelegated(delegated(tree, uid))
}

/// The folder that root hands over to a user.
fn delegated(tree: &Tree, uid: u32) -> PathBuf {
    tree.at.join(format!("belljar-{uid}"))
}

fn inside(tree: &Tree, place: &Path) -> PathBuf {
    let below = place.strip_prefix(&tree.root).unwrap_or(place);
    tree.at.join(below.strip_prefix("/").unwrap_or(below))
}

fn may_create_in(folder: &Path) -> bool {
    let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    writable(folder) && writable(&folder.join("cgroup.procs"))
}

/// Version 2 lets a process move only within a group that holds both ends and whose members the mover may change.
fn may_move(from: &Path, to: &Path) -> bool {
    let shared = from.ancestors().find(|ancestor| to.starts_with(ancestor));
    shared.is_some_and(|shared| {
        rustix::fs::access(shared.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok()
    })
}

fn has_controllers(at: &Path) -> bool {
    let available = fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
    CONTROLLERS.iter().all(|wanted| available.split_whitespace().any(|name| name == *wanted))
}

fn parse_mount(line: &str) -> Option<Tree> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(3);
    let (root, at) = (fields.next()?, fields.next()?);
    let mut kind = right.split(' ');
    let version = match kind.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let options = kind.nth(1).unwrap_or_default().split(',').map(str::to_owned).collect();
    Some(Tree { at: PathBuf::from(at), root: PathBuf::from(root), version, options })
}

/// The path of this process in the hierarchy of a controller; the empty name means version 2.
fn own_path(own: &str, controller: &str) -> Option<PathBuf> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers.split(',').any(|name| name == controller).then(|| PathBuf::from(path))
    })
}

/// The groups of one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Whose rules apply.
    pub version: Version,
    /// Controller and folder.
    pub folders: Vec<(String, PathBuf)>,
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
        Groups { version: parents.version, folders }
    }

    /// Makes the groups and sets the limits.
    pub fn create(&self, limits: &Limits) -> Result<(), Failure> {
        if self.version == Version::V2 {
            self.enable_controllers()?;
        }
        for (_, folder) in &self.folders {
            fs::create_dir(folder).step(|| format!("create control group {}", folder.display()))?;
        }
        for (controller, file, text) in settings(self.version, limits) {
            self.put(controller, file, &text)?;
        }
        self.turn_swap_off(limits)?;
        self.limit_sockets(limits)
    }

    /// Version 1 counts the buffers of TCP apart from memory, and version 2 within it.
    fn limit_sockets(&self, limits: &Limits) -> Result<(), Failure> {
        let file = "memory.kmem.tcp.limit_in_bytes";
        let present = self.folder("memory").join(file).exists();
        if present { self.put("memory", file, &limits.memory.to_string()) } else { Ok(()) }
    }

    /// Lets children of the parent have controllers; a group with processes of its own may not, so these move aside.
    fn enable_controllers(&self) -> Result<(), Failure> {
        let Some(parent) = self.folders.first().and_then(|(_, folder)| folder.parent()) else {
            return Ok(());
        };
        let enabled = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
        if CONTROLLERS.iter().all(|wanted| enabled.split_whitespace().any(|name| name == *wanted)) {
            return Ok(());
        }
        let switch = parent.join("cgroup.subtree_control");
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
        let path = self.folder(controller).join(file);
        fs::write(&path, text).step(|| format!("set {file} to {text}"))
    }

    /// Without swap accounting the file is not there, and then there is nothing to turn off.
    fn turn_swap_off(&self, limits: &Limits) -> Result<(), Failure> {
        let (file, text) = match self.version {
            Version::V1 => ("memory.memsw.limit_in_bytes", limits.memory.to_string()),
            Version::V2 => ("memory.swap.max", "0".to_owned()),
        };
        let present = self.folder("memory").join(file).exists();
        if present { self.put("memory", file, &text) } else { Ok(()) }
    }

    fn folder(&self, controller: &str) -> &Path {
        let found = self.folders.iter().find(|(name, _)| name == controller).or(self.folders.first());
        found.map_or(Path::new(""), |(_, folder)| folder)
    }

    /// Moves the calling process into all groups.
    pub fn enter(&self) -> Result<(), Failure> {
        for (controller, folder) in &self.folders {
            fs::write(folder.join("cgroup.procs"), "0").step(|| format!("enter the {controller} group"))?;
        }
        Ok(())
    }

    /// The swap that the cell may use: what its own limit leaves, or, where nothing counts it, what the machine has.
    pub fn swap(&self) -> Option<u64> {
        let read = |file: &str| -> Option<u64> {
            fs::read_to_string(self.folder("memory").join(file)).ok()?.trim().parse().ok()
        };
        let limited = match self.version {
            Version::V1 => {
                let both = read("memory.memsw.limit_in_bytes");
                both.and_then(|both| Some(both.saturating_sub(read("memory.limit_in_bytes")?)))
            }
            Version::V2 => read("memory.swap.max"),
        };
        limited.or_else(machine_swap)
    }

    /// How often the kernel killed in here for lack of memory.
    pub fn oom_kills(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = fs::read_to_string(self.folder("memory").join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// The peak of memory since the last reset.
    pub fn peak_memory(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        fs::read_to_string(self.folder("memory").join(file)).ok()?.trim().parse().ok()
    }

    /// Starts a new peak; only version 1 can.
    pub fn reset_peak(&self) {
        if self.version == Version::V1 {
            // Missing this only makes the figure larger than it is.
            let _ = fs::write(self.folder("memory").join("memory.max_usage_in_bytes"), "0");
        }
    }

    /// The processes and threads in the cell now, dead ones that nobody waited for included.
    pub fn count(&self) -> Option<u32> {
        let text = fs::read_to_string(self.folder("pids").join("pids.current")).ok()?;
        Some(text.trim().parse::<u32>().ok()?.saturating_sub(OWN_PROCESSES))
    }

    /// Takes the processor limit away: what is to die needs time to do so.
    pub fn lift_processor_limit(&self) {
        let (file, text) = match self.version {
            Version::V1 => ("cpu.cfs_quota_us", "-1"),
            Version::V2 => ("cpu.max", "max"),
        };
        // Missing this only makes the end slower.
        let _ = fs::write(self.folder("cpu").join(file), text);
    }

    /// Puts the processor limit back.
    pub fn restore_processor_limit(&self, limits: &Limits) -> Result<(), Failure> {
        let mut own =
            settings(self.version, limits).into_iter().filter(|(controller, ..)| *controller == "cpu");
        own.try_for_each(|(controller, file, text)| self.put(controller, file, &text))
    }

    /// What the kernel says the limits are.
    pub fn read_limits(&self) -> Option<Limits> {
        let read = |controller: &str, file: &str| fs::read_to_string(self.folder(controller).join(file)).ok();
        let (memory, quota) = match self.version {
            Version::V1 => (read("memory", "memory.limit_in_bytes")?, read("cpu", "cpu.cfs_quota_us")?),
            Version::V2 => (read("memory", "memory.max")?, read("cpu", "cpu.max")?),
        };
        let quota: u64 = quota.split_whitespace().next()?.parse().ok()?;
        Some(Limits {
            memory: memory.trim().parse().ok()?,
            cpu_millis: u32::try_from(quota * 1000 / PERIOD_US).ok()?,
            pids: read("pids", "pids.max")?.trim().parse::<u32>().ok()?.saturating_sub(OWN_PROCESSES),
        })
    }

    /// The processes in the groups now.
    pub fn processes(&self) -> Vec<i32> {
        let mut all: Vec<i32> = self.folders.iter().flat_map(|(_, folder)| members(folder)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Kills what is inside and removes the groups; what is not there is fine.
    pub fn remove(&self, patience: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + patience;
        self.lift_processor_limit();
        loop {
            self.kill();
            match self.remove_folders() {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                other => return other.step(|| "remove the cell's control groups".to_owned()),
            }
        }
    }

    fn kill(&self) {
        for (_, folder) in &self.folders {
            if members(folder).is_empty() || fs::write(folder.join("cgroup.kill"), "1").is_ok() {
                continue;
            }
            for pid in members(folder) {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    // Gone already is what is wanted.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
    }

    fn remove_folders(&self) -> io::Result<()> {
        for (_, folder) in &self.folders {
            match fs::remove_dir(folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }
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

fn settings(version: Version, limits: &Limits) -> Vec<(&'static str, &'static str, String)> {
    let quota = u64::from(limits.cpu_millis) * PERIOD_US / 1000;
    let pids = ("pids", "pids.max", (limits.pids + OWN_PROCESSES).to_string());
    match version {
        Version::V1 => vec![
            ("memory", "memory.limit_in_bytes", limits.memory.to_string()),
            ("cpu", "cpu.cfs_period_us", PERIOD_US.to_string()),
            ("cpu", "cpu.cfs_quota_us", quota.to_string()),
            pids,
        ],
        Version::V2 => vec![
            ("memory", "memory.max", limits.memory.to_string()),
            ("cpu", "cpu.max", format!("{quota} {PERIOD_US}")),
            pids,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory: 1 << 20, cpu_millis: 1500, pids: 10 };

    /// A folder that looks like a version 2 tree; the kernel's own files are plain files here.
    fn tree(controllers: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(folder.path().join("cgroup.procs"), "").unwrap();
        fs::write(folder.path().join("cgroup.subtree_control"), "").unwrap();
        folder
    }

    fn mountinfo(at: &Path, kind: &str, options: &str) -> String {
        format!("30 25 0:26 / {} rw,nosuid - {kind} {kind} {options}\n", at.display())
    }

    #[test]
    fn version_two_is_taken_where_it_has_the_controllers() {
        let folder = tree("cpuset cpu io memory pids");
        let mounts = mountinfo(folder.path(), "cgroup2", "rw");
        let parents = Parents::find_in(&mounts, "0::/\n", 1).unwrap();
        assert_eq!(parents.version, Version::V2);
        let groups = Groups::planned(&parents, "x");
        groups.create(&LIMITS).unwrap();
        assert_eq!(groups.read_limits(), Some(LIMITS));
        assert_eq!(fs::read_to_string(groups.folder("cpu").join("cpu.max")).unwrap(), "150000 100000");
        let enabled = fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!(enabled, "+memory +pids +cpu");
    }

    #[test]
    fn version_two_takes_the_folder_that_was_handed_over() {
        let folder = tree("cpu memory pids");
        let handed = folder.path().join("belljar-77");
        fs::create_dir(&handed).unwrap();
        for (file, text) in [("cgroup.procs", ""), ("cgroup.controllers", "cpu memory pids")] {
            fs::write(handed.join(file), text).unwrap();
        }
        // The process is somewhere it may not write, as an ordinary user's is.
        let own = "0::/user.slice\n";
        let parents = Parents::find_in(&mountinfo(folder.path(), "cgroup2", "rw"), own, 77).unwrap();
        assert_eq!(parents.folders, vec![("unified".to_owned(), handed.clone())]);
        fs::write(handed.join("cgroup.controllers"), "pids").unwrap();
        let refused = Parents::find_in(&mountinfo(folder.path(), "cgroup2", "rw"), own, 77);
        assert_eq!(refused, Err(NoParents::NoControllers(handed)));
    }

    #[test]
    fn version_two_groups_are_made_beside_those_that_were_moved_aside() {
        let folder = tree("cpu memory pids");
        let scope = folder.path().join("scope");
        fs::create_dir(&scope).unwrap();
        for (file, text) in [("cgroup.procs", ""), ("cgroup.controllers", "cpu memory pids")] {
            fs::write(scope.join(file), text).unwrap();
        }
        let own = "0::/scope/belljar-supervisor\n";
        let parents = Parents::find_in(&mountinfo(folder.path(), "cgroup2", "rw"), own, 77).unwrap();
        assert_eq!(parents.folders, vec![("unified".to_owned(), scope)]);
    }

    #[test]
    fn an_empty_version_two_tree_leaves_the_choice_to_version_one() {
        let empty = tree("");
        let one = tree("");
        let mounts =
            mountinfo(empty.path(), "cgroup2", "rw") + &mountinfo(one.path(), "cgroup", "rw,memory,pids,cpu");
        let own = "3:memory,pids,cpu:/\n0::/\n";
        assert_eq!(Parents::find_in(&mounts, own, 1).unwrap().version, Version::V1);
    }

    #[test]
    fn a_controller_that_is_not_mounted_is_said() {
        let one = tree("");
        let mounts = mountinfo(one.path(), "cgroup", "rw,memory");
        assert_eq!(Parents::find_in(&mounts, "3:memory:/\n", 1), Err(NoParents::NotMounted));
    }

    #[test]
    fn the_path_below_a_partial_mount_is_right() {
        let tree = Tree {
            at: PathBuf::from("/sys/fs/cgroup/memory"),
            root: PathBuf::from("/docker/abc"),
            version: Version::V1,
            options: Vec::new(),
        };
        assert_eq!(inside(&tree, Path::new("/docker/abc/sub")), Path::new("/sys/fs/cgroup/memory/sub"));
        assert_eq!(inside(&tree, Path::new("/docker/abc")), Path::new("/sys/fs/cgroup/memory/"));
    }
}

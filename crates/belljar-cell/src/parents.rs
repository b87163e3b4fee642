//! Where this process may make control groups, on version 1, version 2 and hybrid hosts.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The controllers a cell needs.
pub(crate) const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

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
    /// A version 2 folder beside version 1 controllers: it limits nothing, but places, kills, freezes and counts.
    pub placing: Option<PathBuf>,
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
    let placing = find_placing(trees, own, uid);
    if placing.is_none() {
        folders.extend(find_accounting(trees, own, uid));
    }
    Ok(Parents { version: Version::V1, folders, placing })
}

/// What counts the processor time of a whole tree where version 2 does not; without it only what was waited for counts.
fn find_accounting(trees: &[Tree], own: &str, uid: u32) -> Option<(String, PathBuf)> {
    let named =
        |tree: &&Tree| tree.version == Version::V1 && tree.options.iter().any(|option| option == ACCOUNTING);
    let tree = trees.iter().find(named)?;
    let place = own_path(own, ACCOUNTING).unwrap_or_else(|| PathBuf::from("/"));
    // Where one tree does both, the group for processors counts as well.
    let apart = !tree.options.iter().any(|option| option == "cpu");
    let candidates = [inside(tree, &place), delegated(tree, uid)];
    let found = candidates.into_iter().find(|folder| apart && may_create_in(folder))?;
    Some((ACCOUNTING.to_owned(), found))
}

/// Killing through version 2 takes one write; without it the same is done process by process.
fn find_placing(trees: &[Tree], own: &str, uid: u32) -> Option<PathBuf> {
    let tree = trees.iter().find(|tree| tree.version == Version::V2)?;
    let place = inside(tree, &own_path(own, "").unwrap_or_else(|| PathBuf::from("/")));
    let candidates = [place.clone(), delegated(tree, uid)];
    candidates
        .into_iter()
        .find(|folder| may_create_in(folder) && may_move(&place, folder) && can_kill(folder))
}

/// Only the root of the tree lacks the file; there the kernel's version decides.
fn can_kill(folder: &Path) -> bool {
    folder.join("cgroup.kill").exists() || !folder.join("cgroup.events").exists()
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
    Ok(Parents { version: Version::V2, folders: vec![("unified".to_owned(), folder)], placing: None })
}

/// The controller of version 1 that counts processor time.
pub(crate) const ACCOUNTING: &str = "cpuacct";

/// Where processes go that stand in the way of handing controllers on.
pub(crate) const ASIDE: &str = "belljar-supervisor";

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Limits;
    use crate::groups::Groups;

    const LIMITS: Limits = Limits { memory: 1 << 20, cpu_millis: 1500, pids: 10, disk: None };

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
        // The kernel makes these files with the folder; here the test does.
        let group = groups.folder("unified").to_owned();
        fs::create_dir(&group).unwrap();
        for file in ["memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.subtree_control"] {
            fs::write(group.join(file), "").unwrap();
        }
        groups.limit(&LIMITS).unwrap();
        assert_eq!(groups.read_limits(), Some(LIMITS));
        assert_eq!(fs::read_to_string(group.join("cpu.max")).unwrap(), "150000 100000");
        assert_eq!(fs::read_to_string(group.join("memory.swap.max")).unwrap(), "0");
        assert_eq!(fs::read_to_string(group.join("cgroup.subtree_control")).unwrap(), "+memory +pids +cpu");
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

//! Builds what the guest sees as `/`. Runs in the cell's init, with every source already open.
//!
//! Every mount and every file costs microseconds, files on a disk a hundred of them, so there are few: one tmpfs holds
//! all that is the cell's own, and nothing is written to the layer that the guest's files go to.

mod building;

use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{chown, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, mknodat, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind,
    mount_change, move_mount, open_tree, unmount,
};

use crate::cell::{CERTIFICATES, CellSpec, Guest, Piece, Root, Weakness, Workspace};
use crate::failure::{Failure, Step};
use crate::ids::Ids;
use crate::kernel::{self, Depth, MOUNT_NO_DEVICES, MOUNT_NO_SUID, MOUNT_READ_ONLY};
use crate::link;
use crate::policy::{HIDDEN_FILES, HIDDEN_FOLDERS, Hidden};
use crate::scratch::{Scratch, is_sealed};
use crate::sources::Sources;

/// Devices that the host lends; they cannot be made here.
const DEVICES: [&str; 5] = ["null", "zero", "full", "urandom", "tty"];
/// Links in /dev. The two kinds of randomness are one since Linux 5.6.
const DEVICE_LINKS: [(&str, &str); 6] = [
    ("random", "urandom"),
    ("fd", "/proc/self/fd"),
    ("stdin", "fd/0"),
    ("stdout", "fd/1"),
    ("stderr", "fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// What programs ask /sys for: how many processors there are, and what they are like. There is no more of it.
const PROCESSORS: &str = "sys/devices/system/cpu";
/// Side channels within that, one per processor, which Docker hides too.
const THERMAL: &str = "thermal_throttle";
/// Folders that mounts are put on, in every root.
const MOUNT_POINTS: [&str; 3] = ["dev", "proc", "sys"];
/// The cell's own tmpfs: its files are few, so nearly all of it is what a guest may put into /dev/shm.
const OWN: &std::ffi::CStr = c"size=68m,mode=0755";
/// The step at which a machine that hides parts of its own /proc refuses to give another.
pub(crate) const MOUNT_PROC: &str = "mount /proc";
/// The most bytes of an image's account files that are read.
const ACCOUNTS_LIMIT: u64 = 1 << 20;
const PLAIN: Mode = Mode::from_raw_mode(0o755);
/// What everybody may write to, and only the owner of a file remove it from.
const SHARED: Mode = Mode::from_raw_mode(0o1777);

/// Makes what is the same in every root, in a place of its own; nothing of the host is out of sight yet but the folder
/// that the place is mounted on.
pub(crate) fn prepare(weaknesses: &[Weakness]) -> Result<(), Failure> {
    let mask = rustix::process::umask(Mode::empty());
    enter_stage()?;
    furnish(weaknesses)?;
    rustix::process::umask(mask);
    Ok(())
}

/// Builds the root where it was prepared, makes it `/`, and drops every trace of the old one.
pub(crate) fn build(spec: &CellSpec, ids: Ids, sources: Sources) -> Result<(), Failure> {
    let mask = rustix::process::umask(Mode::empty());
    let Sources { workspace, private, certificates, image, layer, fittings } = sources;
    let own = OwnFolders::of(&private);
    match (&spec.root, layer) {
        (Root::Layers(_), Some(layer)) if spec.building().is_some() => {
            building::build(spec, &image, &layer, fittings)?;
        }
        (Root::Pieces(pieces), _) => build_of_pieces(spec, own, pieces, &image)?,
        (Root::Layers(_), Some(layer)) => build_overlay(spec, own, &image, &layer)?,
        (Root::Layers(_), None) => return Err(Failure::new("receive the cell's layer")),
    }
    if let Some(certificates) = certificates {
        place(certificates.as_fd(), Path::new(CERTIFICATES))?;
    }
    place_private(spec, ids, &private)?;
    if let Some(workspace) = workspace {
        place(workspace.as_fd(), spec.workspace.target())?;
    }
    if is_sealed(spec, ids) {
        seal_root()?;
    }
    // At the end, so that trees which came from outside no longer follow what is mounted on the host later.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the mounts private".to_owned())?;
    rustix::process::umask(mask);
    Ok(())
}

/// Where home, `/tmp` and `/var/tmp` are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnFolders {
    /// They come as mounts of their own.
    Mounted,
    /// They are folders of the root itself.
    InRoot,
}

impl OwnFolders {
    fn of(private: &[OwnedFd]) -> OwnFolders {
        if private.is_empty() { OwnFolders::InRoot } else { OwnFolders::Mounted }
    }
}

/// Mounts the cell's tmpfs on some folder and enters it; any folder will do, for the namespace is the cell's own.
fn enter_stage() -> Result<(), Failure> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mounted = ["/tmp", "/mnt", "/usr"].into_iter().find_map(|folder| {
        match mount("tmpfs", folder, "tmpfs", flags, OWN) {
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            other => Some(other.map(|()| folder)),
        }
    });
    let folder = mounted.ok_or_else(|| Failure::new("find a folder to mount on"))?;
    let folder = folder.step(|| "mount the cell's tmpfs".to_owned())?;
    rustix::process::chdir(folder).step(|| "enter the cell's tmpfs".to_owned())
}

/// The tmpfs itself becomes the root.
fn build_of_pieces(
    spec: &CellSpec,
    own: OwnFolders,
    pieces: &[Piece],
    trees: &[OwnedFd],
) -> Result<(), Failure> {
    let here = Path::new("");
    write_basics(here, spec, own, None)?;
    write_accounts(here, &spec.guest)?;
    pivot()?;
    place_pieces(pieces, trees)
}

/// The tmpfs holds a layer of its own above the image's, and what is mounted into the overlay.
fn build_overlay(
    spec: &CellSpec,
    own: OwnFolders,
    image: &[OwnedFd],
    layer: &OwnedFd,
) -> Result<(), Failure> {
    let trees = [cut_read_only("dev")?, cut("proc")?, cut_read_only("sys")?];
    for name in ["basics", "layer", "root"] {
        make_folder(Path::new(name), PLAIN)?;
    }
    let lower = place_layers(image)?;
    let view = view_of(&lower)?;
    place(layer.as_fd(), Path::new("layer"))?;
    let basics = Path::new("basics");
    write_basics(basics, spec, own, Some(view.as_fd()))?;
    extend_accounts(view.as_fd(), basics, &spec.guest)?;
    drop(view);
    let options =
        format!("lowerdir=basics:{lower},upperdir=layer/upper,workdir=layer/work,userxattr,xino=off");
    mount_overlay("root", &options)?;
    rustix::process::chdir("root").step(|| "enter the new root".to_owned())?;
    pivot()?;
    // Only now: a link in the image must not lead to the host, which is no longer there.
    for (tree, target) in trees.iter().zip(["/dev", "/proc", "/sys"]) {
        place(tree.as_fd(), Path::new(target))?;
    }
    Ok(())
}

/// Puts the image's layers side by side, and gives them as an overlay takes them: the highest first.
fn place_layers(image: &[OwnedFd]) -> Result<String, Failure> {
    let mut names = Vec::new();
    for (number, tree) in image.iter().enumerate() {
        let name = number.to_string();
        make_folder(Path::new(&name), PLAIN)?;
        place(tree.as_fd(), Path::new(&name))?;
        names.insert(0, name);
    }
    Ok(names.join(":"))
}

/// What the image looks like by itself: a single layer as it is, several as an overlay that nothing else uses.
fn view_of(lower: &str) -> Result<OwnedFd, Failure> {
    let folder = if lower.contains(':') { "view" } else { lower };
    if folder != lower {
        make_folder(Path::new(folder), PLAIN)?;
        mount_overlay(folder, &format!("lowerdir={lower},userxattr,xino=off"))?;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, folder, flags, Mode::empty()).step(|| "look at the image".to_owned())
}

fn mount_overlay(folder: &str, options: &str) -> Result<(), Failure> {
    let options = CString::new(options).map_err(|_| Failure::new("mount overlay"))?;
    mount("overlay", folder, "overlay", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
        .step(|| "mount overlay".to_owned())
}

fn pivot() -> Result<(), Failure> {
    rustix::process::pivot_root(".", ".").step(|| "pivot_root".to_owned())?;
    unmount(".", UnmountFlags::DETACH).step(|| "drop the old root".to_owned())?;
    rustix::process::chdir("/").step(|| "enter the new root".to_owned())
}

fn place(tree: BorrowedFd<'_>, target: &Path) -> Result<(), Failure> {
    move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step(|| format!("mount {}", target.display()))
}

fn cut(path: &str) -> Result<OwnedFd, Failure> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).step(|| format!("open {path}"))
}

fn cut_read_only(path: &str) -> Result<OwnedFd, Failure> {
    let tree = cut(path)?;
    kernel::set_mount_attributes(tree.as_fd(), MOUNT_READ_ONLY, None, Depth::One)
        .step(|| format!("make {path} read-only"))?;
    Ok(tree)
}

/// Makes `dev`, `proc` and `sys` in the folder we are in, which is our own: no path in it can lead elsewhere.
fn furnish(weaknesses: &[Weakness]) -> Result<(), Failure> {
    for name in MOUNT_POINTS {
        make_folder(Path::new(name), PLAIN)?;
    }
    furnish_dev()?;
    furnish_proc(weaknesses)?;
    furnish_sys()
}

fn furnish_dev() -> Result<(), Failure> {
    for name in DEVICES {
        let (device, path) = (format!("/dev/{name}"), format!("dev/{name}"));
        make_file(Path::new(&path))?;
        mount_bind(device.as_str(), path.as_str()).step(|| format!("lend {device}"))?;
    }
    for (name, target) in DEVICE_LINKS {
        symlink(target, format!("dev/{name}")).step(|| format!("link /dev/{name}"))?;
    }
    make_folder(Path::new("dev/pts"), PLAIN)?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", "dev/pts", "devpts", flags, c"mode=0620,ptmxmode=0666,max=256")
        .step(|| "mount /dev/pts".to_owned())?;
    make_folder(Path::new("dev/shm"), SHARED)?;
    // A mount of its own stays writable when what is around it no longer is.
    mount_bind("dev/shm", "dev/shm").step(|| "mount /dev/shm".to_owned())
}

/// Must come before the old root goes: the kernel gives a fresh /proc only to who could see one already.
///
/// All of it is read-only: /proc/sys and what else changes the machine, and what would change the order in which the
/// kernel kills when memory runs out.
fn furnish_proc(weaknesses: &[Weakness]) -> Result<(), Failure> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("proc", "proc", "proc", flags, None::<&std::ffi::CStr>).step(|| MOUNT_PROC.to_owned())?;
    if weaknesses.contains(&Weakness::ShowKernelFiles) {
        return Ok(());
    }
    for (path, _) in HIDDEN_FILES.iter().filter(|(_, hidden)| *hidden == Hidden::Covered) {
        cover("dev/null", path)?;
    }
    fs::metadata(EMPTY).step(|| "find an empty folder in /proc".to_owned())?;
    HIDDEN_FOLDERS.iter().try_for_each(|path| cover(EMPTY, path))
}

/// A folder of every kernel's /proc that has been empty for ages.
const EMPTY: &str = "proc/tty/ldisc";

/// Puts something empty, which is there, over a path that starts with `/` but lies in the folder we are in, if it is
/// there as well.
fn cover(empty: &str, path: &str) -> Result<(), Failure> {
    match mount_bind(empty, path.trim_start_matches('/')) {
        Err(Errno::NOENT) => Ok(()),
        other => other.step(|| format!("hide {path}")),
    }
}

/// A machine whose processors cannot be shown has none of it: programs then look into /proc.
fn furnish_sys() -> Result<(), Failure> {
    let Ok(tree) = cut("/sys/devices/system/cpu") else { return Ok(()) };
    let attributes = MOUNT_READ_ONLY | MOUNT_NO_SUID | MOUNT_NO_DEVICES;
    kernel::set_mount_attributes(tree.as_fd(), attributes, None, Depth::All)
        .step(|| "make /sys read-only".to_owned())?;
    make_folders(Path::new(""), Path::new(PROCESSORS), None)?;
    place(tree.as_fd(), Path::new(PROCESSORS))?;
    for number in 0.. {
        let processor = format!("{PROCESSORS}/cpu{number}");
        if !Path::new(&processor).exists() {
            break;
        }
        // One that is switched off has none.
        cover(EMPTY, &format!("{processor}/{THERMAL}"))?;
    }
    Ok(())
}

fn make_folder(path: &Path, mode: Mode) -> Result<(), Failure> {
    mkdirat(CWD, path, mode).step(|| format!("create {} in the cell", path.display()))
}

/// An empty file.
fn make_file(path: &Path) -> Result<(), Failure> {
    mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
        .step(|| format!("create {} in the cell", path.display()))
}

fn relative(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// Like `mkdir -p`, below a folder of our own. Folders that hide one of the image below take over its mode.
fn make_folders(base: &Path, path: &Path, lower: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
    let path = relative(path);
    let mut at = PathBuf::new();
    for part in path.components() {
        at.push(part);
        let below = lower.and_then(|lower| folder_in(lower, &at));
        let mode = below.map_or(PLAIN, |below| Mode::from_raw_mode(below.st_mode & 0o777));
        match mkdirat(CWD, base.join(&at), mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).step(|| format!("create {} in the cell", at.display())),
        }
    }
    Ok(())
}

/// What the image has at a path, if it is a folder.
fn folder_in(root: BorrowedFd<'_>, path: &Path) -> Option<Stat> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let folder = openat2(root, relative(path), flags, Mode::empty(), resolve).ok()?;
    fstat(folder).ok()
}

/// What every root has: the folders that mounts are put on, the guest's own folders, the names of the machine.
fn write_basics(
    base: &Path,
    spec: &CellSpec,
    own: OwnFolders,
    lower: Option<BorrowedFd<'_>>,
) -> Result<(), Failure> {
    let has = |path: &Path| lower.is_some_and(|lower| folder_in(lower, path).is_some());
    let points = MOUNT_POINTS.iter().map(Path::new).chain([spec.workspace.target()]);
    for point in points.filter(|point| !has(point)) {
        make_folders(base, point, lower)?;
    }
    write_own_folders(base, &spec.guest, own, lower)?;
    if let (Workspace::Own { target }, OwnFolders::InRoot) = (&spec.workspace, own) {
        give_to_guest(base, target, &spec.guest, lower)?;
    }
    write_names(base, spec, lower)
}

fn write_own_folders(
    base: &Path,
    guest: &Guest,
    own: OwnFolders,
    lower: Option<BorrowedFd<'_>>,
) -> Result<(), Failure> {
    let fits = |path: &Path, right: &dyn Fn(&Stat) -> bool| match (lower, own) {
        (None, _) => false,
        (Some(lower), OwnFolders::Mounted) => folder_in(lower, path).is_some(),
        (Some(lower), OwnFolders::InRoot) => usable_in(lower, path).is_some_and(|below| right(&below)),
    };
    for path in ["/tmp", "/var/tmp"].map(Path::new) {
        if !fits(path, &|below| mode_of(below) == SHARED) {
            make_folders(base, path, lower)?;
            let made = base.join(relative(path));
            rustix::fs::chmod(&made, SHARED).step(|| format!("create {} in the cell", path.display()))?;
        }
    }
    let home = guest.home.as_path();
    if fits(home, &|below| (below.st_uid, below.st_gid) == (guest.uid, guest.gid)) {
        return Ok(());
    }
    match own {
        OwnFolders::InRoot => give_to_guest(base, home, guest, lower),
        OwnFolders::Mounted => make_folders(base, home, lower),
    }
}

/// Makes a folder that is the guest's own.
fn give_to_guest(
    base: &Path,
    path: &Path,
    guest: &Guest,
    lower: Option<BorrowedFd<'_>>,
) -> Result<(), Failure> {
    make_folders(base, path, lower)?;
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if own == (guest.uid, guest.gid) {
        return Ok(());
    }
    chown(base.join(relative(path)), Some(guest.uid), Some(guest.gid))
        .step(|| format!("give {} to the guest", path.display()))
}

/// Who owns what belongs to somebody that does not exist in the cell.
const STRANGER: u32 = 65_534;

/// What the image has at a path, if it is a folder and the overlay can make a writable copy of it and all above it.
fn usable_in(root: BorrowedFd<'_>, path: &Path) -> Option<Stat> {
    let path = relative(path);
    let known = |path: &Path| folder_in(root, path).filter(|below| below.st_uid != STRANGER);
    let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    if above.into_iter().any(|above| known(above).is_none()) {
        return None;
    }
    known(&path)
}

fn mode_of(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

/// The names of the machine, and an empty file for the certificates to be shown at.
fn write_names(base: &Path, spec: &CellSpec, lower: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
    make_folders(base, Path::new("/etc"), lower)?;
    if spec.certificates.is_some() {
        let path = Path::new(CERTIFICATES);
        make_folders(base, path.parent().unwrap_or(path), lower)?;
        make_file(&base.join(relative(path)))?;
    }
    names(&spec.hostname).iter().try_for_each(|(path, text)| write_file(base, path, text))
}

/// Files that tell a cell its name, and where names are looked up.
fn names(hostname: &str) -> [(&'static str, String); 3] {
    [
        ("etc/hosts", format!("127.0.0.1 localhost {hostname}\n::1 localhost {hostname}\n")),
        ("etc/hostname", format!("{hostname}\n")),
        ("etc/resolv.conf", format!("nameserver {}\noptions timeout:5\n", link::GATEWAY_V4)),
    ]
}

fn write_file(base: &Path, path: &str, text: &str) -> Result<(), Failure> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let step = || format!("write {path} in the cell");
    let file = rustix::fs::open(base.join(path), flags, Mode::from_raw_mode(0o644)).step(step)?;
    io::Write::write_all(&mut fs::File::from(file), text.as_bytes()).step(step)
}

fn account(guest: &Guest) -> (String, String) {
    let Guest { uid, gid, name, home } = guest;
    (format!("{name}:x:{uid}:{gid}:{name}:{}:/bin/bash\n", home.display()), format!("{name}:x:{gid}:\n"))
}

fn write_accounts(base: &Path, guest: &Guest) -> Result<(), Failure> {
    let (user, group) = account(guest);
    let users = format!(
        "root:x:0:0:root:/root:/usr/sbin/nologin\n{user}nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    );
    write_file(base, "etc/passwd", &users)?;
    write_file(base, "etc/group", &format!("root:x:0:\n{group}nogroup:x:65534:\n"))
}

/// Gives the guest a name in an image that has none for its id.
fn extend_accounts(lower: BorrowedFd<'_>, base: &Path, guest: &Guest) -> Result<(), Failure> {
    let (user, group) = account(guest);
    for (file, line, id) in [("etc/passwd", user, guest.uid), ("etc/group", group, guest.gid)] {
        let mut text = read_in(lower, Path::new(file)).unwrap_or_default();
        let known = text.lines().any(|line| line.split(':').nth(2) == Some(&id.to_string()));
        if known {
            continue;
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        write_file(base, file, &(text + &line))?;
    }
    Ok(())
}

fn read_in(root: BorrowedFd<'_>, path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = fs::File::from(openat2(root, path, flags, Mode::empty(), resolve)?);
    let mut bytes = Vec::with_capacity(8192);
    file.take(ACCOUNTS_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn place_pieces(pieces: &[Piece], trees: &[OwnedFd]) -> Result<(), Failure> {
    let mut trees = trees.iter();
    for piece in pieces {
        match piece {
            Piece::Folder(path) => make_folders(Path::new("/"), path, None)?,
            Piece::Link { path, target } => place_link(path, target)?,
            Piece::Host(path) => {
                let tree = trees.next().ok_or_else(|| Failure::new("receive the image's pieces"))?;
                place_on_new(tree.as_fd(), path)?;
            }
        }
    }
    Ok(())
}

fn place_link(path: &Path, target: &Path) -> Result<(), Failure> {
    make_folders(Path::new("/"), path.parent().unwrap_or(path), None)?;
    symlink(target, path).step(|| format!("link {}", path.display()))
}

/// Makes a mount point of the same type as what is mounted there.
fn place_on_new(tree: BorrowedFd<'_>, path: &Path) -> Result<(), Failure> {
    let kind = fstat(tree).step(|| format!("look at {}", path.display()))?;
    if FileType::from_raw_mode(kind.st_mode) == FileType::Directory {
        make_folders(Path::new("/"), path, None)?;
    } else {
        make_folders(Path::new("/"), path.parent().unwrap_or(path), None)?;
        make_file(path)?;
    }
    place(tree, path)
}

/// Home, `/tmp` and `/var/tmp`, where they are mounts of their own.
fn place_private(spec: &CellSpec, ids: Ids, private: &[OwnedFd]) -> Result<(), Failure> {
    let targets = Scratch::of(spec).private(spec, ids);
    private.iter().zip(targets).try_for_each(|(tree, (_, target))| place(tree.as_fd(), &target))
}

fn seal_root() -> Result<(), Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty()).step(|| "open /".to_owned())?;
    kernel::set_mount_attributes(root.as_fd(), MOUNT_READ_ONLY, None, Depth::One)
        .step(|| "make / read-only".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;
    use crate::cell::{Isolation, Lifetime, Limits, Network};
    use crate::powers::Powers;
    use crate::probe::trial::{NOBODY, in_namespaces};

    const GUEST: u32 = 1000;

    /// A ground that an ordinary user owns, with an image, a layer and a workspace.
    struct Ground {
        base: tempfile::TempDir,
    }

    impl Ground {
        fn new() -> Ground {
            let ground = Ground { base: tempfile::tempdir().unwrap() };
            for folder in ["image", "layer", "layer/upper", "layer/work", "workspace", "victim"] {
                ground.make(folder);
            }
            ground.hand_over("");
            ground
        }

        fn path(&self, name: &str) -> PathBuf {
            self.base.path().join(name)
        }

        fn make(&self, folder: &str) {
            fs::create_dir_all(self.path(folder)).unwrap();
            for above in Path::new(folder).ancestors() {
                self.hand_over(above.to_str().unwrap());
            }
        }

        fn hand_over(&self, name: &str) {
            if rustix::process::geteuid().is_root() {
                chown(self.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }

        fn spec(&self, root: Root) -> CellSpec {
            CellSpec {
                id: "trial".to_owned(),
                cells: self.path("cells"),
                root,
                image: String::new(),
                holds: Vec::new(),
                given: crate::cell::Given::default(),
                workspace: Workspace::Host {
                    source: self.path("workspace"),
                    target: PathBuf::from("/workspace"),
                },
                certificates: None,
                guest: Guest { uid: GUEST, gid: GUEST, name: "runner".into(), home: "/home/runner".into() },
                hostname: "glass".to_owned(),
                limits: Limits { memory: 1 << 30, cpu_millis: 1000, pids: 64, disk: None },
                isolation: Isolation::BestEffort,
                network: Network::None,
                lifetime: Lifetime::Owner,
                origin: None,
                powers: Powers::None,
                weaknesses: Vec::new(),
            }
        }

        fn sources(&self, spec: &CellSpec) -> Sources {
            let tree = |path: PathBuf| cut(path.to_str().unwrap()).unwrap();
            let (image, layer) = match &spec.root {
                Root::Layers(layers) => {
                    (layers.iter().cloned().map(tree).collect(), Some(tree(self.path("layer"))))
                }
                Root::Pieces(_) => (vec![tree(PathBuf::from("/usr"))], None),
            };
            let workspace = Some(tree(self.path("workspace")));
            Sources { workspace, private: Vec::new(), certificates: None, image, layer, fittings: Vec::new() }
        }

        /// Builds a root in namespaces of its own and tells what is seen there.
        fn seen(&self, root: Root) -> Seen {
            let spec = self.spec(root);
            in_namespaces(GUEST, || {
                follow_the_host();
                let sources = self.sources(&spec);
                prepare(&[]).unwrap();
                build(&spec, Ids::Range { base: 0 }, sources).unwrap();
                look()
            })
        }

        fn image(&self) -> Root {
            Root::Layers(vec![self.path("image")])
        }
    }

    /// As on most machines, where what is mounted on the host later would appear in namespaces made before.
    fn follow_the_host() {
        let change = |how| mount_change("/", how | MountPropagationFlags::REC).unwrap();
        change(MountPropagationFlags::SHARED);
        // SAFETY: this process has one thread.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
        change(MountPropagationFlags::DOWNSTREAM);
    }

    fn pieces() -> Root {
        Root::Pieces(vec![
            Piece::Host("/usr".into()),
            Piece::Link { path: "/bin".into(), target: "usr/bin".into() },
            Piece::Folder("/srv/empty".into()),
        ])
    }

    type Seen = BTreeMap<String, String>;

    fn look() -> Seen {
        let mut seen = Seen::new();
        for path in ["/tmp", "/var/tmp", "/home/runner", "/dev/shm", "/etc", "/var", "/workspace"] {
            let told = fs::metadata(path).map(|about| format!("{:o} {}", about.mode() & 0o7777, about.uid()));
            seen.insert(format!("mode {path}"), told.unwrap_or_else(|error| error.to_string()));
        }
        for path in ["/", "/dev", "/sys", "/dev/shm", "/workspace", "/home/runner", "/tmp"] {
            let told = fs::write(Path::new(path).join("new"), "x").map_err(|error| error.kind().to_string());
            seen.insert(format!("write {path}"), format!("{told:?}"));
        }
        let files =
            ["/proc/self/oom_score_adj", "/proc/sys/kernel/hostname", "/sys/devices/system/cpu/uevent"];
        for path in files {
            let told = fs::write(path, "1").map_err(|error| error.kind().to_string());
            seen.insert(format!("write {path}"), format!("{told:?}"));
        }
        for path in [
            "/etc/hostname",
            "/etc/hosts",
            "/etc/passwd",
            "/etc/mark",
            "/proc/interrupts",
            "/proc/cmdline",
            "/sys/devices/system/cpu/possible",
        ] {
            seen.insert(path.to_owned(), fs::read_to_string(path).unwrap_or_else(|error| error.to_string()));
        }
        for path in ["/", "/dev", "/proc/acpi", "/sys"] {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let mut names: Vec<_> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort_unstable();
            seen.insert(format!("list {path}"), names.join(" "));
        }
        seen.insert("mounts".to_owned(), fs::read_to_string("/proc/self/mountinfo").unwrap());
        seen
    }

    fn is_common(seen: &Seen) {
        assert_eq!(
            seen["list /dev"],
            "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
        );
        assert_eq!(seen["list /sys"], "devices");
        assert!(seen["/sys/devices/system/cpu/possible"].starts_with('0'), "{seen:#?}");
        for path in ["/dev", "/sys", "/proc/self/oom_score_adj", "/proc/sys/kernel/hostname"] {
            let told = &seen[&format!("write {path}")];
            assert!(told.starts_with("Err") && told.contains("read-only"), "{path}: {told}");
        }
        assert!(seen["write /sys/devices/system/cpu/uevent"].starts_with("Err"));
        for path in ["/dev/shm", "/workspace", "/home/runner", "/tmp"] {
            assert_eq!(seen[&format!("write {path}")], "Ok(())", "{path}");
        }
        assert_eq!((seen["/proc/interrupts"].as_str(), seen["/proc/cmdline"].as_str()), ("", ""));
        assert_eq!(seen["list /proc/acpi"], "");
        assert_eq!(seen["mode /tmp"], format!("1777 {GUEST}"));
        assert_eq!(seen["mode /var/tmp"], format!("1777 {GUEST}"));
        assert_eq!(seen["mode /dev/shm"], format!("1777 {GUEST}"));
        assert!(seen["mode /home/runner"].ends_with(&format!(" {GUEST}")), "{seen:#?}");
        assert_eq!(seen["/etc/hostname"], "glass\n");
        assert!(seen["/etc/hosts"].contains("127.0.0.1 localhost glass\n"));
        assert!(seen["/etc/passwd"].contains("runner:x:1000:1000:"), "{}", seen["/etc/passwd"]);
        for line in seen["mounts"].lines() {
            let (about, _) = line.split_once(" - ").unwrap();
            assert!(!about.contains("shared:") && !about.contains("master:"), "follows the host: {line}");
        }
    }

    #[test]
    fn a_root_of_pieces_is_whole_and_sealed() {
        let ground = Ground::new();
        let spec = ground.spec(pieces());
        let names = ["home", "tmp", "var-tmp"];
        for name in names {
            ground.make(name);
            fs::set_permissions(ground.path(name), fs::Permissions::from_mode(0o1777)).unwrap();
        }
        let seen = in_namespaces(GUEST, || {
            follow_the_host();
            let mut sources = ground.sources(&spec);
            sources.private =
                names.iter().map(|name| cut(ground.path(name).to_str().unwrap()).unwrap()).collect();
            prepare(&[]).unwrap();
            build(&spec, Ids::Range { base: 0 }, sources).unwrap();
            look()
        });
        is_common(&seen);
        assert!(ground.path("tmp/new").exists() && ground.path("home/new").exists(), "they are mounted");
        assert_eq!(seen["list /"], "bin dev etc home proc srv sys tmp usr var workspace");
        assert!(seen["write /"].contains("read-only"), "{}", seen["write /"]);
    }

    #[test]
    fn an_overlay_has_what_the_image_lacks_and_nothing_is_written_to_its_layer() {
        let ground = Ground::new();
        ground.make("image/etc");
        ground.make("image/var");
        fs::write(ground.path("image/etc/mark"), "image").unwrap();
        fs::write(ground.path("image/etc/passwd"), "root:x:0:0::/root:/bin/sh").unwrap();
        fs::set_permissions(ground.path("image/var"), fs::Permissions::from_mode(0o711)).unwrap();
        let seen = ground.seen(ground.image());
        is_common(&seen);
        assert_eq!(seen["/etc/mark"], "image");
        assert!(
            seen["/etc/passwd"].starts_with("root:x:0:0::/root:/bin/sh\nrunner:"),
            "{}",
            seen["/etc/passwd"]
        );
        assert_eq!(seen["mode /var"], format!("711 {GUEST}"), "the image's own mode");
        let mut upper: Vec<PathBuf> = Vec::new();
        let mut folders = vec![ground.path("layer/upper")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                upper.push(path.strip_prefix(ground.path("layer/upper")).unwrap().to_owned());
            }
        }
        upper.sort_unstable();
        let written = ["home", "home/runner", "home/runner/new", "new", "tmp", "tmp/new"].map(PathBuf::from);
        assert_eq!(upper, written, "only what the guest wrote");
    }

    #[test]
    fn folders_that_the_image_has_right_are_left_to_it() {
        let ground = Ground::new();
        for (folder, mode) in [("image/tmp", 0o1777), ("image/var/tmp", 0o1777), ("image/home/runner", 0o700)]
        {
            ground.make(folder);
            fs::set_permissions(ground.path(folder), fs::Permissions::from_mode(mode)).unwrap();
        }
        let seen = ground.seen(ground.image());
        is_common(&seen);
        assert_eq!(seen["mode /home/runner"], format!("700 {GUEST}"));
    }

    /// Wherever the links of an image lead, it is not to the host.
    #[test]
    fn links_of_an_image_do_not_lead_out() {
        for target in ["/", "../../../../../../../..", "/proc/self/cwd"] {
            let ground = Ground::new();
            let victim = ground.path("victim");
            let outward = Path::new(target).join(relative(&victim));
            for name in ["etc", "tmp", "home", "workspace"] {
                symlink(&outward, ground.path("image").join(name)).unwrap();
            }
            let seen = ground.seen(ground.image());
            assert_eq!(seen["/etc/hostname"], "glass\n");
            assert_eq!(
                fs::read_dir(&victim).unwrap().count(),
                0,
                "the host was written to by way of {target}"
            );
            assert_eq!(
                fs::read_dir(ground.path("workspace")).unwrap().count(),
                1,
                "the workspace is in place"
            );
        }
    }

    /// The overlay could not copy a folder of somebody who does not exist inside, so the guest could not write to it.
    #[test]
    fn folders_of_strangers_are_replaced() {
        // Needs root to make such a folder; an ordinary user's image has none.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let ground = Ground::new();
        for folder in ["image/tmp", "image/var/tmp", "image/home/runner"] {
            ground.make(folder);
            fs::set_permissions(ground.path(folder), fs::Permissions::from_mode(0o1777)).unwrap();
        }
        for folder in ["image/tmp", "image/var", "image/home"] {
            chown(ground.path(folder), Some(0), Some(0)).unwrap();
        }
        is_common(&ground.seen(ground.image()));
    }
}

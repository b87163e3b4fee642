//! Builds what the guest sees as `/`. Runs in the cell's init, with every source already open.

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, mount_change,
    move_mount, open_tree, unmount,
};

use crate::cell::{CERTIFICATES, CellSpec, Guest, Piece, Root};
use crate::failure::{Failure, Step};
use crate::kernel::{self, Depth, MOUNT_READ_ONLY};
use crate::link;
use crate::scratch::Scratch;
use crate::sources::{DEVICES, Sources};

/// Folders of /proc that tell about the machine rather than about the cell.
const HIDDEN_FOLDERS: [&str; 3] = ["/proc/acpi", "/proc/asound", "/proc/scsi"];
/// Files of /proc likewise.
const HIDDEN_FILES: [&str; 15] = [
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/timer_stats",
];
/// What a guest may read but not change.
const READ_ONLY: [&str; 6] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/sys", "/proc/sysrq-trigger"];
/// Folders every root has.
const FOLDERS: [&str; 5] = ["/dev", "/proc", "/sys", "/tmp", "/var/tmp"];
/// The most bytes of an image's account files that are read.
const ACCOUNTS_LIMIT: u64 = 1 << 20;

/// Builds the root, makes it `/`, and drops every trace of the old one.
pub(crate) fn build(spec: &CellSpec, sources: Sources) -> Result<(), Failure> {
    let old = rustix::process::umask(Mode::from_raw_mode(0o022));
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the mounts private".to_owned())?;
    // Must exist before the old root goes: the kernel gives a fresh /proc only to who could see one already.
    let proc = new_mount(c"proc", &[], MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    let Sources { devices, workspace, private, certificates, image, layer } = sources;
    match layer {
        None => enter_empty_root()?,
        Some(layer) => enter_overlay(spec, &image, &layer)?,
    }
    if let Root::Pieces(pieces) = &spec.root {
        place_pieces(pieces, &image)?;
        write_accounts(Path::new("/"), &spec.guest)?;
        write_names(Path::new("/"), &spec.hostname)?;
    }
    if let Some(certificates) = certificates {
        place(certificates.as_fd(), Path::new(CERTIFICATES))?;
    }
    place_private(spec, &private)?;
    if let Some(workspace) = workspace {
        place(workspace.as_fd(), spec.workspace.target())?;
    }
    place(proc.as_fd(), Path::new("/proc"))?;
    build_dev(&devices)?;
    protect_proc()?;
    if matches!(spec.root, Root::Pieces(_)) {
        seal_root()?;
    }
    rustix::process::umask(old);
    Ok(())
}

fn new_mount(kind: &CStr, options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, Failure> {
    let name = kind.to_string_lossy();
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).step(|| format!("open file system {name}"))?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value).step(|| format!("set {key} of {name}"))?;
    }
    fsconfig_create(&context).step(|| format!("create {name}"))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(|| format!("mount {name}"))
}

fn new_tmpfs(size: &str, mode: &str) -> Result<OwnedFd, Failure> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    new_mount(c"tmpfs", &[("size", size), ("mode", mode)], attributes)
}

fn place(tree: BorrowedFd<'_>, target: &Path) -> Result<(), Failure> {
    move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step(|| format!("mount {}", target.display()))
}

/// A tmpfs becomes the root; it needs some folder to stand on for a moment, and any will do in a private namespace.
fn enter_empty_root() -> Result<(), Failure> {
    let stage = stage()?;
    place(new_tmpfs("4m", "0755")?.as_fd(), stage)?;
    rustix::process::chdir(stage).step(|| "enter the new root".to_owned())?;
    pivot()
}

fn stage() -> Result<&'static Path, Failure> {
    let candidates = ["/tmp", "/mnt", "/usr"].map(Path::new);
    candidates.into_iter().find(|path| path.is_dir()).ok_or_else(|| Failure::new("find a folder to mount on"))
}

fn pivot() -> Result<(), Failure> {
    rustix::process::pivot_root(".", ".").step(|| "pivot_root".to_owned())?;
    unmount(".", UnmountFlags::DETACH).step(|| "drop the old root".to_owned())?;
    rustix::process::chdir("/").step(|| "enter the new root".to_owned())
}

fn enter_overlay(spec: &CellSpec, image: &[OwnedFd], layer: &OwnedFd) -> Result<(), Failure> {
    let lower = image.first().ok_or_else(|| Failure::new("receive the image's layer"))?;
    let stage = stage()?;
    place(new_tmpfs("64k", "0755")?.as_fd(), stage)?;
    rustix::process::chdir(stage).step(|| "enter the stage".to_owned())?;
    for name in ["lower", "layer", "root"] {
        fs::create_dir(name).step(|| format!("create {name}"))?;
    }
    place(lower.as_fd(), Path::new("lower"))?;
    place(layer.as_fd(), Path::new("layer"))?;
    prepare_upper(spec, lower.as_fd())?;
    let options = c"lowerdir=lower,upperdir=layer/upper,workdir=layer/work,userxattr";
    mount("overlay", "root", "overlay", MountFlags::NOSUID | MountFlags::NODEV, options)
        .step(|| "mount overlay".to_owned())?;
    rustix::process::chdir("root").step(|| "enter the new root".to_owned())?;
    pivot()
}

/// Adds to the upper layer what the image lacks, so that no mount point has to be made in foreign folders later.
fn prepare_upper(spec: &CellSpec, lower: BorrowedFd<'_>) -> Result<(), Failure> {
    let upper = Path::new("layer/upper");
    let wanted =
        FOLDERS.iter().map(Path::new).chain([spec.workspace.target(), spec.guest.home.as_path()]);
    for path in wanted {
        if !is_folder_in(lower, path) {
            create_folders(upper, path)?;
        }
    }
    create_folders(upper, Path::new("/etc"))?;
    write_names(upper, &spec.hostname)?;
    extend_accounts(lower, upper, &spec.guest)
}

fn is_folder_in(root: BorrowedFd<'_>, path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(root, relative(path), flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
        .is_ok()
}

fn relative(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// Like `mkdir -p`, below a folder of our own.
fn create_folders(base: &Path, path: &Path) -> Result<(), Failure> {
    let mut at = base.to_owned();
    for part in relative(path).components() {
        at.push(part);
        match mkdirat(CWD, &at, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error).step(|| format!("create {} in the cell", path.display())),
        }
    }
    Ok(())
}

/// The names of the machine, and an empty file for the certificates to be shown at.
fn write_names(root: &Path, hostname: &str) -> Result<(), Failure> {
    create_folders(root, Path::new("/etc/belljar"))?;
    write_file(&root.join(relative(Path::new(CERTIFICATES))), "")?;
    let hosts = format!("127.0.0.1 localhost {hostname}\n::1 localhost {hostname}\n");
    write_file(&root.join("etc/hosts"), &hosts)?;
    write_file(&root.join("etc/hostname"), &format!("{hostname}\n"))?;
    write_file(
        &root.join("etc/resolv.conf"),
        &format!("nameserver {}\noptions timeout:5\n", link::GATEWAY_V4),
    )
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).step(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, Permissions::from_mode(0o644)).step(|| format!("write {}", path.display()))
}

fn account(guest: &Guest) -> (String, String) {
    let Guest { uid, gid, name, home } = guest;
    (format!("{name}:x:{uid}:{gid}:{name}:{}:/bin/bash\n", home.display()), format!("{name}:x:{gid}:\n"))
}

fn write_accounts(root: &Path, guest: &Guest) -> Result<(), Failure> {
    let (user, group) = account(guest);
    create_folders(root, Path::new("/etc"))?;
    let users = format!(
        "root:x:0:0:root:/root:/usr/sbin/nologin\n{user}nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    );
    write_file(&root.join("etc/passwd"), &users)?;
    write_file(&root.join("etc/group"), &format!("root:x:0:\n{group}nogroup:x:65534:\n"))
}

/// Gives the guest a name in an image that has none for its id.
fn extend_accounts(lower: BorrowedFd<'_>, upper: &Path, guest: &Guest) -> Result<(), Failure> {
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
        write_file(&upper.join(file), &(text + &line))?;
    }
    Ok(())
}

fn read_in(root: BorrowedFd<'_>, path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = fs::File::from(openat2(root, path, flags, Mode::empty(), resolve)?);
    let mut bytes = Vec::new();
    file.take(ACCOUNTS_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn place_pieces(pieces: &[Piece], trees: &[OwnedFd]) -> Result<(), Failure> {
    let mut trees = trees.iter();
    for folder in FOLDERS {
        create_folders(Path::new("/"), Path::new(folder))?;
    }
    for piece in pieces {
        match piece {
            Piece::Folder(path) => create_folders(Path::new("/"), path)?,
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
    create_folders(Path::new("/"), path.parent().unwrap_or(Path::new("/")))?;
    symlink(target, path).step(|| format!("link {}", path.display()))
}

/// Makes a mount point of the same type as what is mounted there.
fn place_on_new(tree: BorrowedFd<'_>, path: &Path) -> Result<(), Failure> {
    let kind = rustix::fs::fstat(tree).step(|| format!("look at {}", path.display()))?;
    if rustix::fs::FileType::from_raw_mode(kind.st_mode) == rustix::fs::FileType::Directory {
        create_folders(Path::new("/"), path)?;
    } else {
        create_folders(Path::new("/"), path.parent().unwrap_or(Path::new("/")))?;
        fs::write(path, "").step(|| format!("create {}", path.display()))?;
    }
    place(tree, path)
}

fn place_private(spec: &CellSpec, private: &[OwnedFd]) -> Result<(), Failure> {
    if matches!(spec.root, Root::Pieces(_)) {
        create_folders(Path::new("/"), &spec.guest.home)?;
        create_folders(Path::new("/"), spec.workspace.target())?;
    }
    for (tree, (_, target)) in private.iter().zip(Scratch::of(spec).private(spec)) {
        place(tree.as_fd(), &target)?;
    }
    Ok(())
}

fn build_dev(devices: &[OwnedFd]) -> Result<(), Failure> {
    place(
        new_mount(c"tmpfs", &[("size", "64k"), ("mode", "0755")], MountAttrFlags::MOUNT_ATTR_NOSUID)?.as_fd(),
        Path::new("/dev"),
    )?;
    for (name, tree) in DEVICES.iter().zip(devices) {
        place_on_new(tree.as_fd(), &Path::new("/dev").join(name))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, Path::new("/dev").join(name)).step(|| format!("link /dev/{name}"))?;
    }
    for name in ["/dev/pts", "/dev/shm"] {
        fs::create_dir(name).step(|| format!("create {name}"))?;
    }
    let pts =
        new_mount(c"devpts", &[("mode", "0620"), ("ptmxmode", "0666")], MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    place(pts.as_fd(), Path::new("/dev/pts"))?;
    place(new_tmpfs("64m", "1777")?.as_fd(), Path::new("/dev/shm"))?;
    remount_read_only("/dev", Depth::One)
}

fn protect_proc() -> Result<(), Failure> {
    for path in READ_ONLY.iter().filter(|path| Path::new(path).exists()) {
        let tree = cut(path)?;
        kernel::set_mount_attributes(tree.as_fd(), MOUNT_READ_ONLY, None, Depth::All)
            .step(|| format!("make {path} read-only"))?;
        place(tree.as_fd(), Path::new(path))?;
    }
    for path in HIDDEN_FILES.iter().filter(|path| Path::new(path).exists()) {
        place(cut("/dev/null")?.as_fd(), Path::new(path))?;
    }
    for path in HIDDEN_FOLDERS.iter().filter(|path| Path::new(path).is_dir()) {
        let empty =
            new_mount(c"tmpfs", &[("size", "4k"), ("mode", "0555")], MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        place(empty.as_fd(), Path::new(path))?;
    }
    Ok(())
}

fn cut(path: &str) -> Result<OwnedFd, Failure> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).step(|| format!("open {path}"))
}

fn seal_root() -> Result<(), Failure> {
    remount_read_only("/", Depth::One)
}

fn remount_read_only(path: &str, depth: Depth) -> Result<(), Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).step(|| format!("open {path}"))?;
    kernel::set_mount_attributes(fd.as_fd(), MOUNT_READ_ONLY, None, depth)
        .step(|| format!("make {path} read-only"))
}

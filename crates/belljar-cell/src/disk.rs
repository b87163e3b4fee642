//! A disk of a cell's own: a file system of limited size in a file, mounted where only the keeper can see it.
//!
//! Only root can have one. It goes by itself when the keeper does: the mount is in the keeper's own namespace, and the
//! kernel frees the loop device with the last mount.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
};

use crate::cell::DiskLimit;
use crate::failure::{Failure, Step};
use crate::ids::Ids;
use crate::kernel;

/// The name of the file in a cell's folder.
const FILE: &str = "disk";
/// Where distributions keep the program that makes file systems.
const MAKERS: [&str; 4] = ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs", "/bin/mke2fs"];
/// What the file system needs for itself beside its inodes.
const OVERHEAD: u64 = 4 << 20;
/// The size of one inode.
const INODE: u64 = 256;
/// What may be left when a file system is full for all practical purposes: the kernel finds room for as much as this at
/// once, or for nothing of it.
const CRUMBS: u64 = 2 << 20;
/// How often another process may be quicker to take a free loop device.
const TRIES: u32 = 64;

/// A mounted disk.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Its top, to be asked for its state.
    top: OwnedFd,
}

/// How much a disk holds, as the kernel tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Bytes for files.
    pub bytes: u64,
    /// Files.
    pub inodes: u64,
}

impl Disk {
    /// Why a disk cannot be had here at all, if it cannot.
    pub(crate) fn unavailable(is_root: bool) -> Option<String> {
        if !is_root {
            return Some("a disk limit takes a loop device, which only root can use".to_owned());
        }
        if maker().is_none() {
            return Some(
                "a disk limit takes the program mke2fs: as root, apt-get install e2fsprogs".to_owned(),
            );
        }
        if !Path::new("/dev/loop-control").exists() {
            return Some("a disk limit takes loop devices: as root, modprobe loop".to_owned());
        }
        None
    }

    /// Makes a disk in the cell's folder and mounts it at `at`, for this process and its children alone.
    pub(crate) fn make(cell: &Path, at: &Path, limit: DiskLimit, owner: (u32, u32)) -> Result<Disk, Failure> {
        let file = cell.join(FILE);
        format(&file, limit, owner)?;
        let (device, held) = attach(&file)?;
        hide_mounts()?;
        fs::create_dir(at).step(|| format!("create {}", at.display()))?;
        mount(&device, at)?;
        drop(held);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(at, flags, Mode::empty()).step(|| "open the cell's disk".to_owned())?;
        // Of no use to a guest, and the only thing on it.
        let _ = fs::remove_dir(at.join("lost+found"));
        Ok(Disk { top })
    }

    /// Takes it off, so that its folder can be removed; what is on it goes with its file.
    pub(crate) fn unmount(self, at: &Path) {
        drop(self.top);
        // One that stays goes with this process.
        let _ = rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH);
    }

    /// How much it holds.
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        let found = rustix::fs::fstatvfs(&self.top).ok()?;
        Some(Capacity { bytes: found.f_blocks * found.f_frsize, inodes: found.f_files })
    }

    /// Whether it is full.
    pub(crate) fn is_full(&self) -> bool {
        rustix::fs::fstatvfs(&self.top).is_ok_and(|found| {
            found.f_bavail <= (CRUMBS / found.f_frsize).min(found.f_blocks / 8) || found.f_favail == 0
        })
    }
}

/// Why this process could not give a cell a disk of its own, if it could not.
pub fn unavailable() -> Option<String> {
    Disk::unavailable(Ids::for_this_process(0).is_range())
}

fn maker() -> Option<&'static str> {
    MAKERS.into_iter().find(|path| Path::new(path).exists())
}

/// A sparse file takes only the room that is used.
fn format(path: &Path, limit: DiskLimit, (uid, gid): (u32, u32)) -> Result<(), Failure> {
    let size = limit.bytes.saturating_add(limit.inodes.saturating_mul(INODE)).saturating_add(OVERHEAD);
    let file = File::create_new(path).step(|| "make the cell's disk".to_owned())?;
    file.set_len(size).step(|| format!("make a disk of {size} bytes"))?;
    let maker = maker().ok_or_else(|| Failure::new("mke2fs is not installed"))?;
    let made = Command::new(maker)
        .env_clear()
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal,^resize_inode"])
        .args(["-I", &INODE.to_string(), "-N", &limit.inodes.to_string()])
        .args(["-E", &format!("lazy_itable_init=1,nodiscard,root_owner={uid}:{gid}")])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .step(|| "start mke2fs".to_owned())?;
    if made.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
    Err(Failure::new(format!("mke2fs: {said}")))
}

/// Gives a free loop device the file; the device is held open until it is mounted.
fn attach(path: &Path) -> Result<(PathBuf, File), Failure> {
    let step = || "take a loop device".to_owned();
    let file = File::options().read(true).write(true).open(path).step(step)?;
    let control = File::options().read(true).write(true).open("/dev/loop-control").step(step)?;
    for _ in 0..TRIES {
        let number = kernel::free_loop_device(&control).step(step)?;
        let device = PathBuf::from(format!("/dev/loop{number}"));
        let held = File::options().read(true).write(true).open(&device).step(step)?;
        match kernel::configure_loop_device(held.as_raw_fd(), file.as_raw_fd()) {
            // Another process was quicker.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            other => return other.map(|()| (device, held)).step(step),
        }
    }
    Err(Failure::new("take a loop device: all that were free went to others"))
}

/// From here on this process has mounts of its own, which nobody else sees.
fn hide_mounts() -> Result<(), Failure> {
    let step = || "make a mount namespace for the disk".to_owned();
    // SAFETY: this process has one thread; a mount namespace changes no memory.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.step(step)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).step(step)
}

fn mount(device: &Path, at: &Path) -> Result<(), Failure> {
    let step = || "mount the cell's disk".to_owned();
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
    fsconfig_set_string(&context, "source", device).step(step)?;
    fsconfig_create(&context).step(step)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(step)?;
    move_mount(&mounted, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step(step)
}

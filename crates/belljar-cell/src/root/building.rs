//! The root of a cell for building: the image as it is, and nothing of ours in what a step leaves.
//!
//! What the image lacks for mounts to be put on is in a layer below the guest's own, which is gone with the cell. Folders
//! in it look as the image's do, so that a copy of one that ends up in the guest's layer is the image's.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::{
    PLAIN, cut, cut_read_only, make_file, make_folder, mount_overlay, names, pivot, place, place_layers,
    relative, view_of,
};
use crate::cell::{CellSpec, User};
use crate::failure::{Failure, Step};
use crate::powers::{Building, Content, Fitting, FittingKind};

/// Where the layer below the guest's own is made.
const BASICS: &str = "basics";
/// Mounts of every cell, which a step's own do not go into.
const OURS: [&str; 3] = ["/dev", "/proc", "/sys"];

/// What is mounted into the new root, and where.
enum Mounted {
    Tree(OwnedFd, PathBuf),
    Memory(Option<u64>, PathBuf),
}

impl Mounted {
    fn target(&self) -> &Path {
        match self {
            Mounted::Tree(_, target) | Mounted::Memory(_, target) => target,
        }
    }
}

/// Builds the root in the folder we are in, the cell's own tmpfs, and makes it `/`.
pub(super) fn build(
    spec: &CellSpec,
    image: &[OwnedFd],
    layer: &OwnedFd,
    fittings: Vec<OwnedFd>,
) -> Result<(), Failure> {
    for name in [BASICS, "layer", "root", "names", "files"] {
        make_folder(Path::new(name), PLAIN)?;
    }
    let lower = lower(image)?;
    let view = view_of(&lower)?;
    place(layer.as_fd(), Path::new("layer"))?;
    let mut mounts = Vec::new();
    if let Some(building) = spec.building() {
        mounts.extend(name_files(&spec.hostname)?);
        mounts.extend(fit(building, fittings)?);
    }
    let standard = [cut_read_only("dev")?, cut("proc")?, cut_read_only("sys")?];
    let standard =
        standard.into_iter().zip(OURS).map(|(tree, path)| Mounted::Tree(tree, PathBuf::from(path)));
    mounts.splice(0..0, standard);
    // What lies in a folder that is mounted as well comes after it.
    mounts.sort_by_key(|mounted| mounted.target().components().count());
    mounts.iter().try_for_each(|mounted| make_point(view.as_fd(), mounted))?;
    drop(view);
    let options =
        format!("lowerdir={BASICS}:{lower},upperdir=layer/upper,workdir=layer/work,userxattr,xino=off");
    mount_overlay("root", &options)?;
    rustix::process::chdir("root").step(|| "enter the new root".to_owned())?;
    pivot()?;
    mounts.iter().try_for_each(put)
}

/// An image without a layer is an empty folder.
fn lower(image: &[OwnedFd]) -> Result<String, Failure> {
    if !image.is_empty() {
        return place_layers(image);
    }
    make_folder(Path::new("0"), PLAIN)?;
    Ok("0".to_owned())
}

fn put(mounted: &Mounted) -> Result<(), Failure> {
    match mounted {
        Mounted::Tree(tree, target) => place(tree.as_fd(), target),
        Mounted::Memory(size, target) => {
            let size = size.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
            let options = std::ffi::CString::new(format!("mode=1777{size}"))
                .map_err(|_| Failure::new("mount memory"))?;
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            mount("tmpfs", target, "tmpfs", flags, options.as_c_str())
                .step(|| format!("mount {}", target.display()))
        }
    }
}

/// The cell's name and its name server, for this step and not for the image.
fn name_files(hostname: &str) -> Result<Vec<Mounted>, Failure> {
    let made = names(hostname).into_iter().enumerate().map(|(number, (path, text))| {
        let file = PathBuf::from(format!("names/{number}"));
        write(&file, text.as_bytes(), 0o644, None)?;
        Ok(Mounted::Tree(cut(&file.to_string_lossy())?, Path::new("/").join(path)))
    });
    made.collect()
}

/// What the step asked for. Files below `/dev` are made there: it is the cell's own.
fn fit(building: &Building, trees: Vec<OwnedFd>) -> Result<Vec<Mounted>, Failure> {
    let (mut trees, mut mounts) = (trees.into_iter(), Vec::new());
    for (number, Fitting { target, kind }) in building.fittings.iter().enumerate() {
        match kind {
            FittingKind::File { content: Content(bytes), mode, owner } if target.starts_with("/dev") => {
                make_private_folders(&relative(target))?;
                write(&relative(target), bytes, *mode, Some(*owner))?;
            }
            _ if OURS.iter().any(|ours| target.starts_with(ours)) || target == Path::new("/") => {
                return Err(Failure::new(format!("nothing can be mounted at {}", target.display())));
            }
            FittingKind::Tree { .. } => {
                let tree = trees.next().ok_or_else(|| Failure::new("receive the step's mounts"))?;
                mounts.push(Mounted::Tree(tree, target.clone()));
            }
            FittingKind::Memory { size } => mounts.push(Mounted::Memory(*size, target.clone())),
            FittingKind::File { content: Content(bytes), mode, owner } => {
                let file = PathBuf::from(format!("files/{number}"));
                write(&file, bytes, *mode, Some(*owner))?;
                mounts.push(Mounted::Tree(cut_read_only(&file.to_string_lossy())?, target.clone()));
            }
        }
    }
    Ok(mounts)
}

/// Folders on the way to a file in the cell's own tmpfs.
fn make_private_folders(file: &Path) -> Result<(), Failure> {
    let above: Vec<&Path> = file.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).collect();
    for folder in above.into_iter().rev() {
        match mkdirat(CWD, folder, PLAIN) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).step(|| format!("create {} in the cell", folder.display())),
        }
    }
    Ok(())
}

fn write(file: &Path, bytes: &[u8], mode: u32, owner: Option<User>) -> Result<(), Failure> {
    let step = || format!("write {} in the cell", file.display());
    let mut options = fs::OpenOptions::new();
    let mut opened = options.write(true).create_new(true).mode(mode & 0o777).open(file).step(step)?;
    opened.write_all(bytes).step(step)?;
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match owner {
        Some(User { uid, gid }) if (uid, gid) != own => chown(file, Some(uid), Some(gid)).step(step),
        Some(_) | None => Ok(()),
    }
}

/// Makes sure that there is something of the right type to mount on, as the image's own links lead there.
fn make_point(view: BorrowedFd<'_>, mounted: &Mounted) -> Result<(), Failure> {
    let target = mounted.target();
    let (there, missing) = deepest(view, target)?;
    if missing.as_os_str().is_empty() {
        return Ok(());
    }
    let point = there.join(&missing);
    let folder = match mounted {
        Mounted::Memory(..) => true,
        Mounted::Tree(tree, _) => {
            let kind = fstat(tree).step(|| format!("look at {}", target.display()))?;
            FileType::from_raw_mode(kind.st_mode) == FileType::Directory
        }
    };
    if folder {
        return mirror(view, &point);
    }
    mirror(view, point.parent().unwrap_or(Path::new("")))?;
    match make_file(&Path::new(BASICS).join(&point)) {
        Err(failure) if failure.errno == libc::EEXIST => Ok(()),
        other => other,
    }
}

/// How much of a path the image has, with its links resolved inside of it, and the rest.
fn deepest(view: BorrowedFd<'_>, path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let root = told(view)?;
    let path = relative(path);
    for there in path.ancestors() {
        let name = if there.as_os_str().is_empty() { Path::new(".") } else { there };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let Ok(found) = openat2(view, name, flags, Mode::empty(), resolve) else { continue };
        let missing = path.strip_prefix(there).unwrap_or(Path::new("")).to_owned();
        let found = told(found.as_fd())?.strip_prefix(&root).map(Path::to_owned).unwrap_or_default();
        return Ok((found, missing));
    }
    Err(Failure::new(format!("find {} in the image", path.display())))
}

/// The kernel's own name for an open file, by the `/proc` that will be the cell's.
fn told(file: BorrowedFd<'_>) -> Result<PathBuf, Failure> {
    fs::read_link(format!("proc/self/fd/{}", file.as_raw_fd()))
        .step(|| "ask for a path in the image".to_owned())
}

/// Makes folders in the layer of ours; those that the image has look as they do there.
fn mirror(view: BorrowedFd<'_>, folder: &Path) -> Result<(), Failure> {
    let mut at = PathBuf::new();
    for part in folder.components() {
        at.push(part);
        let step = || format!("create {} in the cell", at.display());
        let made = Path::new(BASICS).join(&at);
        match mkdirat(CWD, &made, PLAIN) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(error) => return Err(error).step(step),
        }
        let Some(below) = super::folder_in(view, &at) else { continue };
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if (below.st_uid, below.st_gid) != own {
            // Whoever does not exist inside cannot be given anything; then the folder is root's for this step.
            let _ = chown(&made, Some(below.st_uid), Some(below.st_gid));
        }
        rustix::fs::chmod(&made, Mode::from_raw_mode(below.st_mode & 0o7777)).step(step)?;
    }
    Ok(())
}

//! What a cell's root is built from: trees of the host, cut off as detached mounts before anything else happens.
//!
//! Root cuts them off outside, with owners mapped; an ordinary user cannot, so there the cell's init does it in its
//! own mount namespace. Either way every path of the host is resolved here and never again.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::cell::{CellSpec, Piece, Root, Weakness, Workspace};
use crate::failure::{Failure, Step};
use crate::ids::Ids;
use crate::kernel::{self, Depth, MOUNT_NO_DEVICES, MOUNT_NO_SUID, MOUNT_READ_ONLY};
use crate::powers::{Access, FittingKind};
use crate::scratch::Scratch;

/// User namespaces that say how owners on disk look inside; only root has them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owners<'a> {
    /// For the layers of the image.
    pub image: BorrowedFd<'a>,
    /// For a workspace of the host.
    pub workspace: Option<BorrowedFd<'a>>,
}

/// Everything a root is built from, as detached mounts in a fixed order.
#[derive(Debug)]
pub(crate) struct Sources {
    /// The folder of the host that the guest may write to, when there is one.
    pub workspace: Option<OwnedFd>,
    /// Private folders of the cell, in the order of [`Scratch::private`].
    pub private: Vec<OwnedFd>,
    /// The bundle of certificate authorities, when there is one.
    pub(crate) certificates: Option<OwnedFd>,
    /// The pieces of the host, or the lower layer.
    pub image: Vec<OwnedFd>,
    /// The upper layer's folder, when there is one.
    pub layer: Option<OwnedFd>,
    /// Trees that are mounted over the root of a cell for building.
    pub fittings: Vec<OwnedFd>,
}

impl Sources {
    /// Cuts off every tree that the cell needs.
    pub(crate) fn open(spec: &CellSpec, ids: Ids, owners: Option<Owners<'_>>) -> Result<Sources, Failure> {
        let scratch = Scratch::of(spec);
        let image_owners = owners.map(|owners| owners.image);
        let workspace = match &spec.workspace {
            Workspace::Own { .. } => None,
            Workspace::Host { source, .. } => {
                Some(workspace(source, owners.and_then(|owners| owners.workspace))?)
            }
        };
        let mut folders = scratch.private(spec, ids);
        if spec.is_weak(Weakness::ShareTemporary) {
            share_temporary(spec, &mut folders)?;
        }
        let private = folders.iter().map(|(path, _)| private(path)).collect::<Result<_, _>>()?;
        let image =
            image_paths(&spec.root).iter().map(|path| layer(path, image_owners)).collect::<Result<_, _>>()?;
        let certificates = spec.certificates.as_ref().map(|path| layer(path, image_owners)).transpose()?;
        let layer = match &spec.root {
            Root::Pieces(_) => None,
            Root::Layers(_) => Some(self::private(&scratch.layer_of(spec))?),
        };
        let fittings = fitted(spec)
            .iter()
            .map(|(path, access)| fitting(path, *access, image_owners))
            .collect::<Result<_, _>>()?;
        Ok(Sources { workspace, private, certificates, image, layer, fittings })
    }

    /// All descriptors, in an order that [`Sources::from_descriptors`] knows.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let all = self.workspace.iter().chain(&self.private);
        let all = all.chain(&self.certificates).chain(&self.image);
        all.chain(&self.layer).chain(&self.fittings).map(AsFd::as_fd).collect()
    }

    /// The same sources on the other side of a socket.
    pub(crate) fn from_descriptors(
        spec: &CellSpec,
        ids: Ids,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Sources, Failure> {
        let mut next = descriptors.into_iter();
        let mut take = |count: usize| -> Result<Vec<OwnedFd>, Failure> {
            let taken: Vec<OwnedFd> = next.by_ref().take(count).collect();
            if taken.len() == count { Ok(taken) } else { Err(Failure::new("receive the cell's mounts")) }
        };
        let workspace = take(usize::from(matches!(spec.workspace, Workspace::Host { .. })))?.pop();
        let private = take(Scratch::of(spec).private(spec, ids).len())?;
        let certificates = take(usize::from(spec.certificates.is_some()))?.pop();
        let image = take(image_paths(&spec.root).len())?;
        let layer = match spec.root {
            Root::Pieces(_) => None,
            Root::Layers(_) => take(1)?.pop(),
        };
        let fittings = take(fitted(spec).len())?;
        Ok(Sources { workspace, private, certificates, image, layer, fittings })
    }
}

/// Puts one folder in the place of every cell's own `/tmp`: a deliberate fault.
fn share_temporary(spec: &CellSpec, folders: &mut [(PathBuf, PathBuf)]) -> Result<(), Failure> {
    let shared = spec.cells.with_file_name("shared-temporary");
    let step = || format!("create {}", shared.display());
    fs::create_dir_all(&shared).step(step)?;
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).step(step)?;
    for (path, _) in folders.iter_mut().filter(|(_, target)| target == Path::new("/tmp")) {
        path.clone_from(&shared);
    }
    Ok(())
}

fn image_paths(root: &Root) -> Vec<PathBuf> {
    match root {
        Root::Layers(layers) => layers.clone(),
        Root::Pieces(pieces) => pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Host(path) => Some(path.clone()),
                Piece::Link { .. } | Piece::Folder(_) => None,
            })
            .collect(),
    }
}

/// The trees of the host that a cell for building shows.
fn fitted(spec: &CellSpec) -> Vec<(&Path, Access)> {
    let fittings = spec.building().map(|building| building.fittings.as_slice()).unwrap_or_default();
    let tree = |kind| match kind {
        &FittingKind::Tree { ref source, access } => Some((source.as_path(), access)),
        FittingKind::Memory { .. } | FittingKind::File { .. } => None,
    };
    fittings.iter().filter_map(|fitting| tree(&fitting.kind)).collect()
}

/// What is written to such a tree belongs, on disk, to the numbers that its owners have inside.
fn fitting(path: &Path, access: Access, owners: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Failure> {
    if access == Access::ReadOnly {
        return layer(path, owners);
    }
    let mount = cut(path, Depth::One)?;
    kernel::set_mount_attributes(mount.as_fd(), MOUNT_NO_SUID | MOUNT_NO_DEVICES, owners, Depth::One)
        .step(|| format!("map the owners of {}", path.display()))?;
    Ok(mount)
}

fn private(path: &Path) -> Result<OwnedFd, Failure> {
    let mount = cut(path, Depth::One)?;
    kernel::set_mount_attributes(mount.as_fd(), MOUNT_NO_SUID | MOUNT_NO_DEVICES, None, Depth::One)
        .step(|| format!("protect {}", path.display()))?;
    Ok(mount)
}

fn workspace(path: &Path, owners: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Failure> {
    let mount = cut(path, Depth::One).or_else(|_| cut(path, Depth::All))?;
    kernel::set_mount_attributes(mount.as_fd(), MOUNT_NO_SUID | MOUNT_NO_DEVICES, owners, Depth::One).step(|| {
        format!("map the owners of {} (its file system must support idmapped mounts: ext4, xfs, btrfs, or tmpfs from Linux 6.3 on)", path.display())
    })?;
    Ok(mount)
}

/// A read-only tree of the image. Where its file system cannot map owners, they show as nobody's, which harms nothing.
fn layer(path: &Path, owners: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Failure> {
    const ATTRIBUTES: u64 = MOUNT_READ_ONLY | MOUNT_NO_SUID | MOUNT_NO_DEVICES;
    let mount = cut(path, Depth::All)?;
    if kernel::set_mount_attributes(mount.as_fd(), ATTRIBUTES, owners, Depth::All).is_ok() {
        return Ok(mount);
    }
    kernel::set_mount_attributes(mount.as_fd(), ATTRIBUTES, None, Depth::All)
        .step(|| format!("protect {}", path.display()))?;
    Ok(mount)
}

fn cut(path: &Path, depth: Depth) -> Result<OwnedFd, Failure> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if depth == Depth::All {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(CWD, path, flags).step(|| format!("open {}", path.display()))
}

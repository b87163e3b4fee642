//! Where this user's caches and sandboxes are, and what else the library must be told of the machine.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use belljar::build::{self, Bring, BuildOrder, Workshop};
use belljar::engine::embedded::Embedded;
use belljar::images::{self, Context, ImageSettings, Images, Pull};
use belljar::interrupt::Interrupt;
use belljar::repo::Repositories;
use belljar::sandbox::Sandboxes;
use belljar::spec::Network;
use belljar::{Code, Fault};
use belljar_image::digest::Digest;
use belljar_image::reference::{Image, Name, NameError, Reference};
use belljar_image::store::{Owners, Store};

use crate::args::OwnersArguments;
use crate::environment::{self, BELLJAR_HOME, HOME, Variable, XDG_CACHE_HOME, XDG_STATE_HOME};
use crate::registries;

/// The folders of this user.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// What can be fetched again.
    pub(crate) cache: PathBuf,
    /// Cells with their leases.
    pub(crate) cells: PathBuf,
    /// Snapshots of sandboxes.
    pub(crate) snapshots: PathBuf,
    /// The store of images.
    pub(crate) images: PathBuf,
}

impl Place {
    /// Reads the environment: `BELLJAR_HOME`, else the XDG folders, else the home directory.
    pub(crate) fn find() -> Result<Place, Fault> {
        if BELLJAR_HOME.value().is_some_and(|value| !value.is_empty() && BELLJAR_HOME.folder().is_none()) {
            return Err(Fault::new(Code::Usage, "BELLJAR_HOME is not an absolute path")
                .hint("write it with a leading /, or unset it"));
        }
        if let Some(home) = BELLJAR_HOME.folder() {
            let folders = ["cache", "cells", "snapshots", "images"];
            let [cache, cells, snapshots, images] = folders.map(|name| home.join(name));
            return Ok(Place { cache, cells, snapshots, images });
        }
        match (below(XDG_CACHE_HOME, ".cache"), below(XDG_STATE_HOME, ".local/state")) {
            (Some(cache), Some(state)) => {
                let [cells, snapshots, images] =
                    ["cells", "snapshots", "images"].map(|name| state.join(name));
                Ok(Place { cache, cells, snapshots, images })
            }
            _ => Err(Fault::new(Code::Usage, "neither HOME nor BELLJAR_HOME is set to an absolute path")
                .hint("set BELLJAR_HOME to a folder that Belljar may use")),
        }
    }

    /// The embedded engine of this user.
    pub(crate) fn embedded(&self) -> Embedded {
        Embedded::new(PathBuf::from("/proc/self/exe"), self.cells.clone(), resolvers())
    }

    /// The sandboxes of this user, for verbs that have one thread when they make one. Without network nobody needs
    /// to know the resolvers.
    pub(crate) fn sandboxes(&self, network: Network) -> Sandboxes {
        let resolvers = if network == Network::None { Vec::new() } else { resolvers() };
        let engine =
            Embedded::new(PathBuf::from("/proc/self/exe"), self.cells.clone(), resolvers).forking_here();
        // Snapshots need the store and nothing else of images.
        let images = Arc::new(Images::new(ImageSettings::new(self.images.clone())));
        Sandboxes { engine, snapshots: self.snapshots.clone(), images }
    }

    /// The images of this user.
    pub(crate) fn images(&self, owners: OwnersArguments) -> Result<Images, Fault> {
        let mut settings = ImageSettings::new(self.images.clone());
        if owners.squash && settings.owners == Owners::Refuse {
            settings.owners = Owners::Squash;
        }
        settings.registry = registries::settings()?;
        settings.budget = registries::budget()?;
        settings.programs = environment::passed(&environment::FOR_PROGRAMS);
        let place = self.clone();
        settings.build = Some(Arc::new(move |_, store, context, _| place.build(store, context, owners)));
        Ok(Images::new(settings))
    }

    /// Where images are built.
    pub(crate) fn workshop(&self) -> Workshop {
        Workshop { engine: self.embedded(), kept: self.cache.join("build") }
    }

    /// Brings what a Dockerfile starts from, which is a name as Docker has them: never a path of the reader's, nor a
    /// word that means something else here.
    pub(crate) fn bring(&self, owners: OwnersArguments) -> Result<Bring, Fault> {
        let images = self.images(owners)?;
        Ok(Bring(Arc::new(move |text| {
            let name: Name = text.parse().map_err(|error: NameError| {
                Fault::new(Code::ImageUnknown, error.to_string()).hint("FROM takes a name in a registry")
            })?;
            let watch = images::Watch { cancel: &AtomicBool::new(false), tell: &|_| {} };
            match images.resolve(&Reference::Registry(name), Path::new(""), Pull::Missing, watch)? {
                Image::Stored(root) => Ok(root.config_digest.to_string()),
                Image::Host | Image::Directory(_) => {
                    Err(Fault::new(Code::Internal, "a name of a registry led elsewhere"))
                }
            }
        })))
    }

    /// Builds what a reference names by its Dockerfile: closed, and by the policy as it is.
    fn build(&self, store: &Store, context: Context<'_>, owners: OwnersArguments) -> Result<Digest, Fault> {
        let mut order = BuildOrder::new(context.folder.to_owned(), context.dockerfile.to_owned());
        order.bring = Some(self.bring(owners)?);
        let (_, findings) = order.read()?;
        if let Some(fault) = build::refusal(&order.dockerfile, &findings) {
            return Err(fault);
        }
        let built = self.workshop().build(store, &order, &Arc::new(Interrupt::default()), &mut |_| {})?;
        Ok(built.digest)
    }

    /// The repositories of this user.
    pub(crate) fn repositories(&self) -> Result<Repositories, Fault> {
        Ok(Repositories::open(&self.cache, environment::for_git())?)
    }
}

fn below(variable: Variable, default: &str) -> Option<PathBuf> {
    let folder = variable.folder().or_else(|| Some(HOME.folder()?.join(default)));
    folder.map(|path| path.join("belljar"))
}

/// The resolvers this machine uses.
fn resolvers() -> Vec<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = named.filter_map(|rest| rest.trim().parse::<IpAddr>().ok());
    addresses.map(|address| SocketAddr::new(address, 53)).collect()
}

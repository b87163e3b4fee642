//! Where this user's caches and sandboxes are, and what else the library must be told of the machine.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use belljar::engine::embedded::Embedded;
use belljar::repo::Repositories;
use belljar::sandbox::Sandboxes;
use belljar::spec::Network;
use belljar::{Code, Fault};

use crate::environment::{self, BELLJAR_HOME, HOME, Variable, XDG_CACHE_HOME, XDG_STATE_HOME};

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
        Sandboxes { engine, snapshots: self.snapshots.clone() }
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

//! Where this user's caches and state are, and what else the library must be told of the environment.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use belljar::engine::embedded::Embedded;
use belljar::repo::{GitEnvironment, Repositories};
use belljar::{Code, Fault};

/// Overrides the folder for both cache and state.
pub(crate) const HOME_VARIABLE: &str = "BELLJAR_HOME";

/// The folders of this user.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// What can be fetched again.
    pub(crate) cache: PathBuf,
    /// Cells with their leases.
    pub(crate) cells: PathBuf,
}

impl Place {
    /// Reads the environment: `BELLJAR_HOME`, else the XDG folders, else the home directory.
    pub(crate) fn find() -> Result<Place, Fault> {
        if let Some(home) = folder(HOME_VARIABLE) {
            return Ok(Place { cache: home.join("cache"), cells: home.join("cells") });
        }
        let home = folder("HOME");
        let below = |variable: &str, default: &str| {
            folder(variable).or_else(|| Some(home.clone()?.join(default))).map(|path| path.join("belljar"))
        };
        match (below("XDG_CACHE_HOME", ".cache"), below("XDG_STATE_HOME", ".local/state")) {
            (Some(cache), Some(state)) => Ok(Place { cache, cells: state.join("cells") }),
            _ => Err(Fault::new(Code::Usage, "neither HOME nor BELLJAR_HOME is set to an absolute path")
                .hint("set BELLJAR_HOME to a folder that Belljar may use")),
        }
    }

    /// The embedded engine of this user.
    pub(crate) fn embedded(&self) -> Embedded {
        Embedded {
            keeper: PathBuf::from("/proc/self/exe"),
            cells: self.cells.clone(),
            resolvers: resolvers(),
        }
    }

    /// The repositories of this user.
    pub(crate) fn repositories(&self) -> Result<Repositories, Fault> {
        let environment = GitEnvironment::from_variables(std::env::vars_os());
        Ok(Repositories::open(&self.cache, environment)?)
    }
}

fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The resolvers this machine uses.
fn resolvers() -> Vec<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = named.filter_map(|rest| rest.trim().parse::<IpAddr>().ok());
    addresses.map(|address| SocketAddr::new(address, 53)).collect()
}

//! Where a registry is reached: itself, its mirrors, and whether plain HTTP may be spoken there.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{RegistryError, Settings};
use crate::reference::{DEFAULT_REGISTRY, Name};

/// The host that serves the default registry.
const DEFAULT_HOST: &str = "registry-1.docker.io";

/// One place that an image can be had from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    /// Its name in messages, and the key of its credentials.
    pub(super) name: String,
    /// What is connected to.
    pub(super) address: String,
    /// Whether it stands for another.
    pub(super) role: Role,
}

/// What a host is to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Mirror,
    Registry,
}

/// What is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

/// Whether plain HTTP may be spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plain {
    /// Never.
    Never,
    /// Where HTTPS is not.
    Perhaps,
    /// Always: it was asked for.
    Always,
}

impl Scheme {
    pub(super) fn text(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// The mirrors in order, then the registry itself.
pub(super) fn hosts(settings: &Settings, name: &Name) -> Vec<Host> {
    let mirrors = settings.mirrors.get(name.registry()).into_iter().flatten();
    let mirror = |mirror: &String| Host { name: mirror.clone(), address: mirror.clone(), role: Role::Mirror };
    mirrors.map(mirror).chain([registry(name)]).collect()
}

/// The registry itself.
pub(super) fn registry(name: &Name) -> Host {
    let registry = name.registry().to_owned();
    let address = if registry == DEFAULT_REGISTRY { DEFAULT_HOST.to_owned() } else { registry.clone() };
    Host { name: registry, address, role: Role::Registry }
}

/// Whether plain HTTP may be spoken to an address.
pub(super) fn plain(settings: &Settings, address: &str) -> Plain {
    if settings.plain_http.contains(address) {
        Plain::Always
    } else if is_loopback(address) {
        Plain::Perhaps
    } else {
        Plain::Never
    }
}

/// Whether an address, with or without a port, is this machine's own.
pub(super) fn is_loopback(address: &str) -> bool {
    if let Some((inner, _)) = address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return inner.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback());
    }
    let host = address.split(':').next().unwrap_or_default();
    host == "localhost" || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

/// A mirror is written like the registry of a name.
pub(super) fn check_mirror(mirror: &str) -> Result<(), RegistryError> {
    let wrong = || RegistryError::Mirror { mirror: mirror.to_owned() };
    let name: Name = format!("{mirror}/x").parse().map_err(|_| wrong())?;
    if name.registry() == mirror && name.repository() == "x" { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_and_what_is_allowed_may_be_plain() {
        let mut settings = Settings::default();
        settings.plain_http.insert("registry.example:5000".to_owned());
        for address in ["localhost", "localhost:5000", "127.0.0.1:1", "127.9.9.9", "[::1]:5000"] {
            assert_eq!(plain(&settings, address), Plain::Perhaps, "{address}");
        }
        for address in ["localhost.example", "registry.example", "127.0.0.1.example:80", "10.0.0.1", "[::2]"]
        {
            assert_eq!(plain(&settings, address), Plain::Never, "{address}");
        }
        assert_eq!(plain(&settings, "registry.example:5000"), Plain::Always);
    }

    #[test]
    fn mirrors_come_first_and_the_default_registry_has_another_host() {
        let mut settings = Settings::default();
        settings.mirrors.insert(DEFAULT_REGISTRY.to_owned(), vec!["mirror.example:1".to_owned()]);
        let hosts = hosts(&settings, &"x".parse().unwrap());
        let addresses: Vec<_> = hosts.iter().map(|host| host.address.as_str()).collect();
        assert_eq!(addresses, ["mirror.example:1", DEFAULT_HOST]);
        for wrong in ["https://x.example", "mirror", "x.example/path", ""] {
            assert!(check_mirror(wrong).is_err(), "{wrong}");
        }
        assert!(check_mirror("127.0.0.1:5000").is_ok());
    }
}

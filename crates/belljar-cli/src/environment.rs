//! Every environment variable that Belljar reads, in one place.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar::repo::GitEnvironment;

/// One variable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variable {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it does, for the reference.
    #[cfg_attr(not(test), allow(dead_code, reason = "read by the test that writes the reference"))]
    pub(crate) meaning: &'static str,
}

macro_rules! variables {
    ($($constant:ident, $name:literal, $meaning:literal;)*) => {
        $(
            #[doc = $meaning]
            #[cfg_attr(not(test), allow(dead_code, reason = "some are read by a library, not by us"))]
            pub(crate) const $constant: Variable = Variable { name: $name, meaning: $meaning };
        )*
        /// All of them, in the order of the reference.
        #[cfg(test)]
        pub(crate) const ALL: &[Variable] = &[$($constant,)*];
    };
}

variables! {
    BELLJAR_HOME, "BELLJAR_HOME", "the folder for caches and sandboxes (an absolute path); replaces the XDG folders";
    XDG_CACHE_HOME, "XDG_CACHE_HOME", "caches go to `belljar/` in it; default `~/.cache`";
    XDG_STATE_HOME, "XDG_STATE_HOME", "sandboxes and their leases go to `belljar/` in it; default `~/.local/state`";
    HOME, "HOME", "where the two defaults above are, and git's own configuration";
    NO_COLOR, "NO_COLOR", "when set and not empty, no colours unless `--color always`";
    CLICOLOR, "CLICOLOR", "`0` turns colours off";
    CLICOLOR_FORCE, "CLICOLOR_FORCE", "when set and not `0`, colours also without a terminal";
    TERM, "TERM", "`dumb` means plain lines, without colours and without a moving display; a guest on a terminal gets it, too";
    CI, "CI", "when set, colours are assumed to be shown";
    COLUMNS, "COLUMNS", "the width of `--help` where the terminal does not tell its own";
    PATH, "PATH", "where `git` is found; relative entries are left out. Also where `docker`, `podman`, `mmdebstrap` and `docker-credential-…` are found";
    BELLJAR_IMAGE_BUDGET, "BELLJAR_IMAGE_BUDGET", "how much the store of images may take after an image was added, such as `20GB`; what was not used for longest and can be fetched again goes first";
    BELLJAR_REGISTRY_MIRROR, "BELLJAR_REGISTRY_MIRROR", "hosts that are asked before a registry, with commas between them: `host[:port]` for the default registry, `registry=host[:port]` for another one";
    BELLJAR_REGISTRY_HTTP, "BELLJAR_REGISTRY_HTTP", "registries, with commas between them, to which plain HTTP may be spoken; loopback addresses need no permission";
    BELLJAR_REGISTRY_CA, "BELLJAR_REGISTRY_CA", "PEM files of the authorities that registries' certificates are checked with, with `:` between them, instead of those built in";
    DOCKER_CONFIG, "DOCKER_CONFIG", "the folder with the `config.json` in which credentials for registries are; default `~/.docker`";
    HTTPS_PROXY, "HTTPS_PROXY", "the proxy to registries; `https_proxy` is the same";
    HTTP_PROXY, "HTTP_PROXY", "the proxy to registries over plain HTTP; `http_proxy` is the same";
    NO_PROXY, "NO_PROXY", "hosts that no proxy is used for, with commas between them; `no_proxy` is the same";
    SOURCE_DATE_EPOCH, "SOURCE_DATE_EPOCH", "the latest time of files in images that are made here, in seconds since 1970; default 0";
}

impl Variable {
    /// Its value, if it is set.
    pub(crate) fn value(self) -> Option<OsString> {
        std::env::var_os(self.name)
    }

    /// Its value as an absolute path; anything else counts as not set.
    pub(crate) fn folder(self) -> Option<PathBuf> {
        self.value().map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

impl Variable {
    /// Its value, by its name in capitals or in small letters; an empty one counts as not set.
    pub(crate) fn in_either_case(self) -> Option<String> {
        let small = std::env::var(self.name.to_lowercase()).ok().filter(|value| !value.is_empty());
        small.or_else(|| self.text())
    }

    /// Its value as text; an empty one counts as not set.
    pub(crate) fn text(self) -> Option<String> {
        std::env::var(self.name).ok().filter(|value| !value.is_empty())
    }

    /// Its parts, with commas between them.
    pub(crate) fn parts(self) -> Vec<String> {
        listed(&self.text().unwrap_or_default())
    }
}

/// The parts of a list with commas.
pub(crate) fn listed(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// What Docker, Podman and mmdebstrap get, and nothing else.
pub(crate) const FOR_PROGRAMS: [&str; 9] = [
    "PATH",
    "HOME",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "CONTAINER_HOST",
    "XDG_RUNTIME_DIR",
    "TMPDIR",
    "http_proxy",
];

/// The variables of a list that are set.
pub(crate) fn passed(names: &[&str]) -> Vec<(OsString, OsString)> {
    let set = names.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
    set.collect()
}

/// What git is given: `PATH`, `HOME` and the variables that the library lists.
pub(crate) fn for_git() -> GitEnvironment {
    GitEnvironment::from_variables(std::env::vars_os())
}

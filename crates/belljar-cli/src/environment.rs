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
    PATH, "PATH", "where `git` is found; relative entries are left out";
    SOURCE_DATE_EPOCH, "SOURCE_DATE_EPOCH", "the time of files in images that are made here, in seconds since 1970; default 0";
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

/// What git is given: `PATH`, `HOME` and the variables that the library lists.
pub(crate) fn for_git() -> GitEnvironment {
    GitEnvironment::from_variables(std::env::vars_os())
}

//! One end of a copy, as typed.

use std::ffi::OsStr;
use std::path::PathBuf;

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// `ID:PATH`.
    Sandbox {
        /// The sandbox.
        id: String,
        /// The path inside; one without a leading slash starts at the working folder.
        path: String,
    },
    /// A path of the host.
    Host(PathBuf),
    /// `-`: a tar archive on a standard stream.
    Stream,
}

impl End {
    /// A word with a colon before any slash names a sandbox. What is no text is a path of the host's.
    pub(crate) fn read(word: &OsStr) -> End {
        match word.to_str().map(|text| (text, text.split_once(':'))) {
            Some(("-", _)) => End::Stream,
            Some((_, Some((id, path)))) if !id.is_empty() && !id.contains('/') && !id.starts_with('.') => {
                End::Sandbox { id: id.to_owned(), path: path.to_owned() }
            }
            _ => End::Host(PathBuf::from(word)),
        }
    }
}

/// A path inside as an absolute one; nothing means the working folder.
pub(crate) fn absolute(path: &str, workdir: &str) -> String {
    match path {
        "" => workdir.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{}/{path}", workdir.trim_end_matches('/')),
    }
}

/// Whether what is in a folder is meant, rather than the folder: `.`, `a/.`, `..`.
pub(crate) fn means_content(path: &str) -> bool {
    matches!(path.trim_end_matches('/').rsplit('/').next(), Some("." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_any_slash_names_a_sandbox() {
        let sandbox = |id: &str, path: &str| End::Sandbox { id: id.to_owned(), path: path.to_owned() };
        assert_eq!(End::read(OsStr::new("sb-1:/a:b")), sandbox("sb-1", "/a:b"));
        assert_eq!(End::read(OsStr::new("sb-1:")), sandbox("sb-1", ""));
        assert_eq!(End::read(OsStr::new("-")), End::Stream);
        for host in ["a/b:c", "./a:b", "/a:b", "a", ":a", "..:a"] {
            assert_eq!(End::read(OsStr::new(host)), End::Host(host.into()), "{host}");
        }
    }

    #[test]
    fn paths_inside_start_at_the_working_folder() {
        assert_eq!(absolute("", "/workspace"), "/workspace");
        assert_eq!(absolute("a/b", "/workspace"), "/workspace/a/b");
        assert_eq!(absolute("a", "/"), "/a");
        assert_eq!(absolute("/a", "/workspace"), "/a");
        assert!(means_content(".") && means_content("a/./") && means_content("..") && means_content("/a/.."));
        assert!(!means_content("a") && !means_content("") && !means_content("a/") && !means_content("/"));
    }
}

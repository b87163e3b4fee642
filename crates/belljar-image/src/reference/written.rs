//! One syntax for every kind of image. Reading it touches no file and no network.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::name::{Name, NameError};
use crate::digest::Digest;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// `host`: the machine's own system folders, read-only.
    Host,
    /// `python:3.11`, `registry.example/a/b@sha256:…`: an image in a registry.
    Registry(Name),
    /// `./x`, `/x`, `x.tar.gz`: what it is, is told by looking at it.
    Path(PathBuf),
    /// `oci:PATH[:TAG]`: an OCI layout, as a folder or in an archive.
    OciLayout {
        /// The folder or the archive.
        path: PathBuf,
        /// Which image of several.
        tag: Option<String>,
    },
    /// `docker-archive:PATH[:NAME]`: what `docker save` writes.
    DockerArchive {
        /// The archive.
        path: PathBuf,
        /// Which image of several.
        name: Option<String>,
    },
    /// `docker:NAME`, `podman:NAME`: an image that a program on this machine keeps.
    Daemon {
        /// Which program.
        daemon: Daemon,
        /// A name or an id, for that program to understand.
        name: String,
    },
    /// `build:PATH`: a folder with a Dockerfile in it.
    Build(PathBuf),
    /// `dockerfile:PATH`: a Dockerfile; its folder is the context.
    Dockerfile(PathBuf),
    /// `sha256:…`: an image in Belljar's store, by the digest of its configuration or the beginning of it.
    Stored(Prefix),
    /// `snapshot:NAME`: a sandbox's state that was kept.
    Snapshot(String),
}

/// A program that keeps images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemon {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

/// The beginning of a digest, or all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(String);

/// Why a text is not a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// Nothing was written.
    #[error("the image is empty: write a name, a path or `host`")]
    Empty,
    /// It holds a control character.
    #[error("the image `{}` holds a control character", reference.escape_debug())]
    Control {
        /// As written.
        reference: String,
    },
    /// Something must follow the word before the colon.
    #[error(
        "image `{scheme}:` is not complete: it is written `{form}`. An image of the name `{scheme}` in the \
             default registry is written `library/{scheme}`"
    )]
    Incomplete {
        /// The word.
        scheme: &'static str,
        /// What is asked for.
        form: &'static str,
    },
    /// The beginning of a digest is too short or is none.
    #[error(
        "image `{reference}` was understood as a stored image: after `sha256:` come at least {} and at most 64 \
         lowercase hexadecimal digits",
        Prefix::SHORTEST
    )]
    Stored {
        /// As written.
        reference: String,
    },
    /// A name of a snapshot that cannot be one.
    #[error(
        "image `{reference}` was understood as a snapshot: its name has letters, digits, `_`, `.` and `-`"
    )]
    Snapshot {
        /// As written.
        reference: String,
    },
    /// Not a name in a registry.
    #[error("image `{reference}` is not understood: {source}")]
    Name {
        /// As written.
        reference: String,
        /// What is wrong.
        source: NameError,
    },
}

/// The ends of file names that are archives.
const ARCHIVES: &[&str] =
    &[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tbz"];

impl Reference {
    /// How it was understood, in words.
    pub fn explained(&self) -> String {
        let which =
            |what: &Option<String>| what.as_ref().map_or(String::new(), |what| format!(", image {what}"));
        match self {
            Reference::Host => "understood as this machine's own system folders".to_owned(),
            Reference::Registry(name) => format!("understood as a registry reference: {}", name.explained()),
            Reference::Path(path) => format!("understood as the path {}", path.display()),
            Reference::OciLayout { path, tag } => {
                format!("understood as an OCI layout: {}{}", path.display(), which(tag))
            }
            Reference::DockerArchive { path, name } => {
                format!("understood as a docker archive: {}{}", path.display(), which(name))
            }
            Reference::Daemon { daemon, name } => {
                format!("understood as the image {name} that {daemon} keeps")
            }
            Reference::Build(path) => format!("understood as a folder with a Dockerfile: {}", path.display()),
            Reference::Dockerfile(path) => format!("understood as a Dockerfile: {}", path.display()),
            Reference::Stored(prefix) => format!("understood as a stored image: {prefix}"),
            Reference::Snapshot(name) => format!("understood as the snapshot {name}"),
        }
    }
}

impl FromStr for Reference {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Reference, SyntaxError> {
        if text.is_empty() {
            return Err(SyntaxError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(SyntaxError::Control { reference: text.to_owned() });
        }
        if text == "host" {
            return Ok(Reference::Host);
        }
        if is_path(text) {
            return Ok(Reference::Path(PathBuf::from(text)));
        }
        match scheme(text) {
            Some(found) => found,
            None if is_archive(text) => Ok(Reference::Path(PathBuf::from(text))),
            None => registry(text),
        }
    }
}

fn registry(text: &str) -> Result<Reference, SyntaxError> {
    let name = text.parse().map_err(|source| SyntaxError::Name { reference: text.to_owned(), source })?;
    Ok(Reference::Registry(name))
}

/// A word and a colon; `None` where there is none of the words.
fn scheme(text: &str) -> Option<Result<Reference, SyntaxError>> {
    let (word, rest) = text.split_once(':')?;
    let complete = |scheme, form, make: fn(&str) -> Reference| match rest {
        "" => Err(SyntaxError::Incomplete { scheme, form }),
        rest => Ok(make(rest)),
    };
    Some(match word {
        "oci" => complete("oci", "oci:PATH[:TAG]", |rest| {
            let (path, tag) = split_path(rest);
            Reference::OciLayout { path, tag }
        }),
        "docker-archive" => complete("docker-archive", "docker-archive:PATH[:NAME]", |rest| {
            let (path, name) = split_path(rest);
            Reference::DockerArchive { path, name }
        }),
        // The longer word is what other programs call it.
        "docker" | "docker-daemon" => complete("docker", "docker:NAME", |rest| Reference::Daemon {
            daemon: Daemon::Docker,
            name: rest.to_owned(),
        }),
        "podman" => complete("podman", "podman:NAME", |rest| Reference::Daemon {
            daemon: Daemon::Podman,
            name: rest.to_owned(),
        }),
        "build" => complete("build", "build:PATH", |rest| Reference::Build(PathBuf::from(rest))),
        "dockerfile" => {
            complete("dockerfile", "dockerfile:PATH", |rest| Reference::Dockerfile(PathBuf::from(rest)))
        }
        "sha256" => stored(text, rest),
        "snapshot" => snapshot(text, rest),
        _ => return None,
    })
}

/// A path ends at the first colon; what follows may hold more of them.
fn split_path(text: &str) -> (PathBuf, Option<String>) {
    match text.split_once(':') {
        Some((path, rest)) if !path.is_empty() && !rest.is_empty() => {
            (PathBuf::from(path), Some(rest.to_owned()))
        }
        Some((path, _)) if !path.is_empty() => (PathBuf::from(path), None),
        _ => (PathBuf::from(text), None),
    }
}

fn stored(text: &str, digits: &str) -> Result<Reference, SyntaxError> {
    let prefix = Prefix::new(digits).ok_or_else(|| SyntaxError::Stored { reference: text.to_owned() })?;
    Ok(Reference::Stored(prefix))
}

fn snapshot(text: &str, name: &str) -> Result<Reference, SyntaxError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(SyntaxError::Snapshot { reference: text.to_owned() });
    }
    Ok(Reference::Snapshot(name.to_owned()))
}

fn is_path(text: &str) -> bool {
    ["/", "./", "../"].iter().any(|start| text.starts_with(start)) || matches!(text, "." | "..")
}

fn is_archive(text: &str) -> bool {
    let name = Path::new(text).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ARCHIVES.iter().any(|end| name.len() > end.len() && name.ends_with(end))
}

impl Prefix {
    /// Fewer digits than these are too easily two images.
    pub const SHORTEST: usize = 8;

    fn new(digits: &str) -> Option<Prefix> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let good = (Prefix::SHORTEST..=64).contains(&digits.len()) && digits.bytes().all(hex);
        good.then(|| Prefix(digits.to_owned()))
    }

    /// The digits.
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// The digest, where all of it was written.
    pub fn whole(&self) -> Option<Digest> {
        Digest::from_hex(&self.0)
    }

    /// Whether a digest begins so.
    pub fn matches(&self, digest: Digest) -> bool {
        digest.hex().starts_with(&self.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Daemon::Docker => "docker",
            Daemon::Podman => "podman",
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = |what: &Option<String>| what.as_ref().map_or(String::new(), |what| format!(":{what}"));
        match self {
            Reference::Host => f.write_str("host"),
            Reference::Registry(name) => write!(f, "{name}"),
            Reference::Path(path) => write!(f, "{}", path.display()),
            Reference::OciLayout { path, tag } => write!(f, "oci:{}{}", path.display(), tail(tag)),
            Reference::DockerArchive { path, name } => {
                write!(f, "docker-archive:{}{}", path.display(), tail(name))
            }
            Reference::Daemon { daemon, name } => write!(f, "{daemon}:{name}"),
            Reference::Build(path) => write!(f, "build:{}", path.display()),
            Reference::Dockerfile(path) => write!(f, "dockerfile:{}", path.display()),
            Reference::Stored(prefix) => write!(f, "{prefix}"),
            Reference::Snapshot(name) => write!(f, "snapshot:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Reference {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn each_kind_is_told_from_the_others_and_written_back() {
        let path = |text: &str| Reference::Path(PathBuf::from(text));
        assert_eq!(read("host"), Reference::Host);
        assert!(matches!(read("host:1"), Reference::Registry(_)));
        for text in ["./x", "/x", "../x:y", ".", "..", "root.tar", "a/root.tar.zst", "x.tgz", "./python:3.11"]
        {
            assert_eq!(read(text), path(text));
        }
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            read("oci:./l:a:b"),
            Reference::OciLayout { path: PathBuf::from("./l"), tag: some("a:b") }
        );
        assert_eq!(read("oci:l.tar"), Reference::OciLayout { path: PathBuf::from("l.tar"), tag: None });
        let saved = Reference::DockerArchive { path: PathBuf::from("s.tar"), name: some("a/b:1") };
        assert_eq!(read("docker-archive:s.tar:a/b:1"), saved);
        let kept = Reference::Daemon { daemon: Daemon::Podman, name: "localhost/a:1".to_owned() };
        assert_eq!(read("podman:localhost/a:1"), kept);
        assert_eq!(read("build:."), Reference::Build(PathBuf::from(".")));
        assert_eq!(read("dockerfile:d/Dockerfile"), Reference::Dockerfile(PathBuf::from("d/Dockerfile")));
        assert_eq!(read("snapshot:base-1"), Reference::Snapshot("base-1".to_owned()));
        assert!(matches!(read("library/docker:dind"), Reference::Registry(_)));
        let whole = Digest::of(b"x");
        assert!(
            matches!(read(&whole.to_string()), Reference::Stored(prefix) if prefix.whole() == Some(whole))
        );
    }

    #[test]
    fn what_was_read_reads_the_same_again() {
        for text in [
            "host",
            "./x",
            "oci:./l",
            "oci:./l:",
            "oci:l:t",
            "docker-archive:s:a/b:1",
            "docker:x",
            "podman:y:1",
            "build:d",
            "dockerfile:d/x",
            "sha256:01234567",
            "snapshot:s",
            "python",
            "localhost:1/x:y",
            "r.tar",
        ] {
            let once = read(text);
            assert_eq!(read(&once.to_string()), once, "{text}");
            assert!(once.explained().starts_with("understood as"), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_what_was_understood() {
        let refusal = |text: &str| text.parse::<Reference>().unwrap_err().to_string();
        assert!(refusal("oci:").contains("oci:PATH[:TAG]"));
        assert!(refusal("docker:").contains("library/docker"));
        assert!(refusal("sha256:0123").contains("stored image"));
        assert!(refusal("sha256:0123456G").contains("stored image"));
        assert!(refusal("snapshot:../x").contains("snapshot"));
        assert!(refusal("a\nb").contains("control"));
        assert!(refusal("My/App").contains("registry My"), "{}", refusal("My/App"));
    }
}

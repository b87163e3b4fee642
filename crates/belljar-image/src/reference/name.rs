//! The name of an image in a registry, by Docker's rules.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

/// Where a name without a registry leads.
pub const DEFAULT_REGISTRY: &str = "docker.io";
/// Another way to write the same registry.
const DEFAULT_REGISTRY_ALIAS: &str = "index.docker.io";
/// Where the default registry keeps names of one word.
const OFFICIAL: &str = "library";
/// The tag when none is written.
const DEFAULT_TAG: &str = "latest";
/// How long registry and repository may be together.
const LONGEST_NAME: usize = 255;
/// How long a tag may be.
const LONGEST_TAG: usize = 128;

/// An image in a registry. It is written back in full, so that two ways to write the same name look the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text is not the name of an image in a registry. Each one says what was understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing was written.
    #[error("the name of an image is empty")]
    Empty,
    /// The registry is no host.
    #[error(
        "understood as a registry reference, but the registry `{registry}` is not a host with an optional port"
    )]
    Registry {
        /// As understood.
        registry: String,
    },
    /// Capital letters.
    #[error(
        "understood as a registry reference: registry {registry}, repository {repository}; a repository has no \
         capital letters: did you mean `{hint}`?"
    )]
    Uppercase {
        /// As understood.
        registry: String,
        /// As understood.
        repository: String,
        /// The same in small letters.
        hint: String,
    },
    /// The repository is not one.
    #[error(
        "understood as a registry reference: registry {registry}, repository {repository}; {reason}. \
         The path of a file or folder starts with `./` or `/`"
    )]
    Repository {
        /// As understood.
        registry: String,
        /// As understood.
        repository: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The tag is not one.
    #[error(
        "understood as a registry reference: registry {registry}, repository {repository}, tag {tag}; a tag has at \
         most {LONGEST_TAG} letters, digits, `_`, `.` and `-`, and starts with none of the last two"
    )]
    Tag {
        /// As understood.
        registry: String,
        /// As understood.
        repository: String,
        /// As understood.
        tag: String,
    },
    /// The digest is not one.
    #[error("understood as a registry reference with a digest: {source}")]
    Digest {
        /// What is wrong with it.
        source: crate::digest::DigestError,
    },
}

impl Name {
    /// The registry: a host, and a port where one was written.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository, in full.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; `None` where only a digest was written.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest of the manifest, where it was written.
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The same image, pinned to a manifest; the tag stays for people to read.
    pub fn pinned(mut self, digest: Digest) -> Name {
        self.digest = Some(digest);
        self
    }

    /// How it was understood, in words.
    pub fn explained(&self) -> String {
        let mut text = format!("registry {}, repository {}", self.registry, self.repository);
        if let Some(tag) = &self.tag {
            text += &format!(", tag {tag}");
        }
        if let Some(digest) = self.digest {
            text += &format!(", digest {digest}");
        }
        text
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let (rest, digest) = split_digest(text)?;
        let (path, tag) = split_tag(rest);
        let (registry, repository) = split_registry(path);
        if repository.is_empty() {
            return Err(NameError::Empty);
        }
        if !is_host(&registry) {
            return Err(NameError::Registry { registry });
        }
        check_repository(&registry, &repository)?;
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(NameError::Tag { registry, repository, tag: tag.to_owned() });
        }
        let tag = tag.or(digest.is_none().then_some(DEFAULT_TAG)).map(str::to_owned);
        Ok(Name { registry, repository, tag, digest })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        self.tag.as_ref().map_or(Ok(()), |tag| write!(f, ":{tag}"))?;
        self.digest.map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

fn split_digest(text: &str) -> Result<(&str, Option<Digest>), NameError> {
    let Some((rest, digest)) = text.split_once('@') else { return Ok((text, None)) };
    let digest = digest.parse().map_err(|source| NameError::Digest { source })?;
    Ok((rest, Some(digest)))
}

/// A colon that a slash follows belongs to a port.
fn split_tag(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (text, None),
    }
}

/// The first part is a registry when it looks like a host; otherwise everything is a repository of the default one.
fn split_registry(path: &str) -> (String, String) {
    let host = |first: &str| first.contains(['.', ':']) || first == "localhost" || has_capitals(first);
    match path.split_once('/') {
        Some((first, rest))
            if host(first) && ![DEFAULT_REGISTRY, DEFAULT_REGISTRY_ALIAS].contains(&first) =>
        {
            (host_name(first), rest.to_owned())
        }
        Some((first, rest)) if host(first) => (DEFAULT_REGISTRY.to_owned(), official(rest)),
        _ => (DEFAULT_REGISTRY.to_owned(), official(path)),
    }
}

/// Small letters, unless it is by its capitals that it is known as a host.
fn host_name(text: &str) -> String {
    if text.contains(['.', ':']) { text.to_ascii_lowercase() } else { text.to_owned() }
}

fn official(repository: &str) -> String {
    if repository.contains('/') || repository.is_empty() {
        return repository.to_owned();
    }
    format!("{OFFICIAL}/{repository}")
}

fn has_capitals(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn check_repository(registry: &str, repository: &str) -> Result<(), NameError> {
    let (registry, repository) = (registry.to_owned(), repository.to_owned());
    if has_capitals(&repository) {
        let small = repository.to_ascii_lowercase();
        let hint = match small.strip_prefix("library/") {
            Some(short) if registry == DEFAULT_REGISTRY => short.to_owned(),
            _ if registry == DEFAULT_REGISTRY => small,
            _ => format!("{registry}/{small}"),
        };
        return Err(NameError::Uppercase { registry, repository, hint });
    }
    let last = repository.strip_prefix("library/").unwrap_or(&repository);
    let reason = if registry.len() + 1 + repository.len() > LONGEST_NAME {
        "it is longer than 255 characters"
    } else if last.len() == 64 && last.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        "64 hexadecimal digits are not a repository: a stored image is written `sha256:` and its digits"
    } else if !repository.split('/').all(is_component) {
        "each part of a repository has small letters and digits, with single `.`, `_`, `__` or dashes between them"
    } else {
        return Ok(());
    };
    Err(NameError::Repository { registry, repository, reason })
}

/// Letters and digits, separated by one dot, one or two underscores, or dashes.
fn is_component(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let separator =
        |text: &str| matches!(text, "" | "." | "_" | "__") || text.bytes().all(|byte| byte == b'-');
    let bytes = text.as_bytes();
    let ends =
        bytes.first().is_some_and(|byte| plain(*byte)) && bytes.last().is_some_and(|byte| plain(*byte));
    ends && text.split(|c: char| c.is_ascii() && plain(c as u8)).all(separator)
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= LONGEST_TAG
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || byte == b'.' || byte == b'-')
}

fn is_host(text: &str) -> bool {
    let port = |text: &str| text.parse::<u16>().is_ok_and(|port| port > 0) && !text.starts_with('+');
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let rest = rest.is_empty() || rest.strip_prefix(':').is_some_and(port);
        return rest && address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let (host, number) = text.split_once(':').map_or((text, None), |(host, number)| (host, Some(number)));
    number.is_none_or(port) && host.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let dash = text.starts_with('-') || text.ends_with('-');
    !text.is_empty() && !dash && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str) -> String {
        text.parse::<Name>().unwrap_or_else(|error| panic!("{text}: {error}")).to_string()
    }

    #[test]
    fn names_are_read_as_docker_reads_them() {
        let digest = Digest::of(b"");
        for (written, meant) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.11", "docker.io/library/python:3.11"),
            ("index.docker.io/python", "docker.io/library/python:latest"),
            ("docker.io/a/b/c", "docker.io/a/b/c:latest"),
            ("one/two", "docker.io/one/two:latest"),
            ("localhost/x", "localhost/x:latest"),
            ("localhost:5000/x", "localhost:5000/x:latest"),
            ("127.0.0.1:5000/a/b:v1.0_x-2", "127.0.0.1:5000/a/b:v1.0_x-2"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            ("registry.example:8443/a__b/c-d--e", "registry.example:8443/a__b/c-d--e:latest"),
            ("Host/x", "Host/x:latest"),
            ("Host.Example/x", "host.example/x:latest"),
        ] {
            assert_eq!(full(written), meant);
            assert_eq!(full(meant), meant);
        }
        assert_eq!(full(&format!("x@{digest}")), format!("docker.io/library/x@{digest}"));
        assert_eq!(full(&format!("x:1@{digest}")), format!("docker.io/library/x:1@{digest}"));
    }

    #[test]
    fn what_is_no_name_is_refused_with_what_was_understood() {
        let refusal = |text: &str| text.parse::<Name>().unwrap_err().to_string();
        assert!(refusal("Python:3.11").contains("did you mean `python`"), "{}", refusal("Python:3.11"));
        assert!(refusal("a:b:c").contains("registry docker.io"), "{}", refusal("a:b:c"));
        assert!(refusal("x:").contains("repository library/x, tag ;"));
        assert!(refusal("x:.y").contains("tag .y"));
        assert!(refusal("x@sha512:00").contains("sha256"));
        assert!(refusal("localhost:99999/x").contains("not a host"));
        assert!(refusal("re_gistry.example/x").contains("not a host"));
        assert!(refusal(&"a".repeat(300)).contains("longer"));
        assert!(refusal(&"a".repeat(64)).contains("sha256:"));
        for wrong in
            ["", "/", "a//b", "a/", "a/-b", "a/b_", "a/..", "a..b", "a___b", "a b", "ä", "localhost/"]
        {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }
}

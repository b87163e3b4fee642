//! The address of a repository, understood and vetted.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::RepoError;
use super::local::LocalRepository;
use super::redaction::{percent_decode, redact_address};

/// Where a repository comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A git repository on this machine, with or without a work tree.
    Repository(LocalRepository),
    /// A folder without `.git`; its content is the pin.
    Directory(PathBuf),
    /// A git bundle file.
    Bundle(PathBuf),
    /// A git repository reached over the network.
    Remote(Remote),
}

/// What a source is, as one word for records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A git repository on this machine.
    Repository,
    /// A plain directory.
    Directory,
    /// A git bundle file.
    Bundle,
    /// A git repository reached over the network.
    Remote,
}

/// The ways over the network that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `https://`
    Https,
    /// `http://`
    Http,
    /// `ssh://` and `user@host:path`
    Ssh,
    /// `git://`
    Git,
}

/// A git URL taken apart, so that its secrets are never on a command line.
#[derive(Clone, PartialEq, Eq)]
pub struct Remote {
    /// The way to reach it.
    pub transport: Transport,
    /// The URL for git, without user and password of an http address.
    pub(super) url: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    shown: String,
}

impl Transport {
    /// The name git knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Https => "https",
            Transport::Http => "http",
            Transport::Ssh => "ssh",
            Transport::Git => "git",
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("transport", &self.transport).field("url", &self.shown).finish()
    }
}

impl fmt::Display for Source {
    /// The address as it may be shown and recorded: redacted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Repository(repository) => repository.path().display().fmt(f),
            Source::Directory(path) | Source::Bundle(path) => path.display().fmt(f),
            Source::Remote(remote) => f.write_str(&remote.shown),
        }
    }
}

impl Source {
    /// Understands `repo.url`; a relative path starts at the task file's folder.
    pub fn parse(url: &str, task_folder: &Path) -> Result<Source, RepoError> {
        if let Some(reason) = objection(url) {
            return Err(refuse(url, reason));
        }
        if let Some((helper, _)) = url.split_once("::").filter(|(helper, _)| is_word(helper)) {
            return Err(transport_refused(url, helper));
        }
        if let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| is_word(scheme)) {
            return parse_url(url, scheme, rest);
        }
        // Git's own rule: a colon before the first slash makes it host:path.
        match url.split_once(':') {
            Some((host, path)) if !host.contains('/') => parse_scp(url, host, path),
            _ => open_path(&task_folder.join(url)),
        }
    }

    /// What kind of source this is.
    pub fn kind(&self) -> SourceKind {
        match self {
            Source::Repository(_) => SourceKind::Repository,
            Source::Directory(_) => SourceKind::Directory,
            Source::Bundle(_) => SourceKind::Bundle,
            Source::Remote(_) => SourceKind::Remote,
        }
    }

    /// The commit a local repository stands at, for a hint.
    pub(super) fn head(&self) -> Option<String> {
        match self {
            Source::Repository(repository) => repository.head(),
            Source::Directory(_) | Source::Bundle(_) | Source::Remote(_) => None,
        }
    }
}

/// The address as it may be shown anywhere, whether or not it parses.
pub(super) fn shown(url: &str) -> String {
    redact_address(url).escape_debug().to_string()
}

fn refuse(url: &str, reason: impl Into<String>) -> RepoError {
    RepoError::Address { address: shown(url), reason: reason.into() }
}

fn transport_refused(url: &str, transport: &str) -> RepoError {
    RepoError::Transport { address: shown(url), transport: transport.to_owned() }
}

fn objection(url: &str) -> Option<&'static str> {
    if url.trim().is_empty() {
        Some("is empty")
    } else if url.starts_with('-') {
        Some("starts with a dash, as an option would; write ./ before a relative path")
    } else if url.contains('\0') {
        Some("contains a NUL byte")
    } else if url.chars().any(char::is_control) {
        Some("contains a control character")
    } else if url.starts_with("~/") {
        Some("starts with ~, which only a shell expands; write the whole path")
    } else {
        None
    }
}

fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_');
    !text.is_empty() && text.bytes().all(plain)
}

fn parse_url(url: &str, scheme: &str, rest: &str) -> Result<Source, RepoError> {
    let transport = match scheme.to_ascii_lowercase().as_str() {
        "file" => return parse_file_url(url, rest),
        "https" => Transport::Https,
        "http" => Transport::Http,
        "ssh" => Transport::Ssh,
        "git" => Transport::Git,
        _ => return Err(transport_refused(url, scheme)),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user_info, host) = match authority.rsplit_once('@') {
        Some((user_info, host)) => (Some(user_info), host),
        None => (None, authority),
    };
    check_host(url, host)?;
    if path.trim_matches('/').is_empty() {
        return Err(refuse(url, "has no path after the host"));
    }
    let (user, password) = split_user(url, user_info)?;
    let host = host.to_ascii_lowercase();
    let authority = match (&user, transport) {
        (Some(_), Transport::Ssh) => format!("{}@{host}", user_info.unwrap_or_default()),
        _ => host,
    };
    if transport == Transport::Ssh && password.is_some() {
        return Err(refuse(url, "holds a password, which ssh does not take; use a key or an agent"));
    }
    let clean = format!("{}://{authority}{path}", transport.name());
    Ok(Source::Remote(Remote { transport, url: clean, user, password, shown: shown(url) }))
}

type Login = (Option<String>, Option<String>);

fn split_user(url: &str, user_info: Option<&str>) -> Result<Login, RepoError> {
    let Some(user_info) = user_info else { return Ok((None, None)) };
    let (user, password) = match user_info.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user_info, None),
    };
    let decode = |text: &str| {
        percent_decode(text).ok_or_else(|| refuse(url, "has a user or password that is not valid text"))
    };
    if user.starts_with('-') {
        return Err(refuse(url, "has a user that starts with a dash, as an option would"));
    }
    Ok((Some(decode(user)?), password.map(decode).transpose()?))
}

fn check_host(url: &str, host: &str) -> Result<(), RepoError> {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    if host.is_empty() {
        return Err(refuse(url, "has no host"));
    }
    if host.starts_with('-') {
        return Err(refuse(url, "has a host that starts with a dash, as an option would"));
    }
    if !host.bytes().all(plain) {
        return Err(refuse(url, "has a host with characters that no host name has"));
    }
    Ok(())
}

fn parse_scp(url: &str, host: &str, path: &str) -> Result<Source, RepoError> {
    let (user, name) = match host.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, host),
    };
    check_host(url, name)?;
    if path.is_empty() || path.starts_with('-') {
        return Err(refuse(url, "has no usable path after the host"));
    }
    if user.is_some_and(|user| user.is_empty() || !is_word(user) || user.starts_with('-')) {
        return Err(refuse(url, "has a user that is not a plain name"));
    }
    let user = user.map(str::to_owned);
    let (clean, shown) = (url.to_owned(), shown(url));
    Ok(Source::Remote(Remote { transport: Transport::Ssh, url: clean, user, password: None, shown }))
}

fn parse_file_url(url: &str, rest: &str) -> Result<Source, RepoError> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(refuse(url, "must be file:/// and an absolute path"));
    }
    let path = percent_decode(path).ok_or_else(|| refuse(url, "is not valid percent-encoding"))?;
    open_path(Path::new(&path))
}

fn open_path(path: &Path) -> Result<Source, RepoError> {
    let unreadable = |source| RepoError::Unreadable { path: path.to_path_buf(), source };
    let real = fs::canonicalize(path).map_err(unreadable)?;
    let metadata = fs::metadata(&real).map_err(unreadable)?;
    if metadata.is_file() {
        return open_bundle(real);
    }
    let reason = if metadata.is_dir() { None } else { Some("it is neither a folder nor a file") };
    if let Some(reason) = reason {
        return Err(RepoError::NotRepository { path: real, reason: reason.into() });
    }
    fs::read_dir(&real).map_err(unreadable)?;
    match LocalRepository::open(&real)? {
        Some(repository) => Ok(Source::Repository(repository)),
        None => Ok(Source::Directory(real)),
    }
}

fn open_bundle(path: PathBuf) -> Result<Source, RepoError> {
    let unreadable = |source| RepoError::Unreadable { path: path.clone(), source };
    let mut start = Vec::new();
    File::open(&path).map_err(unreadable)?.take(16).read_to_end(&mut start).map_err(unreadable)?;
    if start.starts_with(b"# v2 git bundle\n") || start.starts_with(b"# v3 git bundle\n") {
        return Ok(Source::Bundle(path));
    }
    Err(RepoError::NotRepository { path, reason: "it is a file, and not a git bundle".into() })
}

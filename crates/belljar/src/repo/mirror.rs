//! What git reads from in place of the source itself: a bare repository of Belljar's own.
//!
//! Of a remote or a bundle it is a copy. Of a local repository it is an empty shell that borrows the
//! objects: nothing is copied twice, and the source's configuration is not there.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::Repositories;
use super::commit::look_up;
use super::error::RepoError;
use super::git::{Answer, Call, Input, Reach};
use super::local::LocalRepository;
use super::name::Name;
use super::refs;
use super::scratch::Scratch;
use super::skeleton::{self, ObjectFormat, Shape};
use super::source::{Remote, Source, Transport};
use super::store::{Facts, Held, Store};
use crate::digest;

const EVERYTHING: [&str; 2] = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
/// Answers of a server that does not give out this commit by its id; another way may work.
const NOT_BY_ID: [&str; 4] =
    ["not our ref", "unadvertised object", "couldn't find remote ref", "no such remote ref"];
const HEALTH: [&str; 5] = ["rev-list", "--objects", "--all", "--quiet", "--"];

/// The mirror of one source.
#[derive(Debug)]
pub(super) struct Mirror {
    store: Store,
    git_dir: PathBuf,
    refs_dir: PathBuf,
    format: ObjectFormat,
    shallow: Option<String>,
}

impl Mirror {
    /// Where the mirror of a source is; makes nothing.
    pub(super) fn of(repositories: &Repositories, source: &Source, name: &Name) -> Result<Mirror, RepoError> {
        match source {
            Source::Repository(repository) => Ok(Mirror::of_local(repositories, repository)),
            Source::Bundle(path) => Mirror::of_bundle(repositories, path),
            Source::Remote(remote) => Ok(Mirror::of_remote(repositories, remote, format_of(name))),
            Source::Directory(path) => Err(RepoError::NotRepository {
                path: path.clone(),
                reason: "a plain directory has no mirror".into(),
            }),
        }
    }

    fn of_local(repositories: &Repositories, repository: &LocalRepository) -> Mirror {
        let common_dir = repository.common_dir();
        let shallow = refs::read_bounded(&common_dir.join("shallow"), 1 << 24);
        let key = format!("repository\0{}\0{}", common_dir.display(), shallow.as_deref().unwrap_or_default());
        let store = repositories.store(&key);
        let git_dir = store.mirror();
        let format = declared_format(&common_dir.join("config"));
        Mirror { store, git_dir, refs_dir: common_dir.to_path_buf(), format, shallow }
    }

    // By content: a bundle that is replaced by another of the same name is another source.
    fn of_bundle(repositories: &Repositories, path: &Path) -> Result<Mirror, RepoError> {
        let content = digest::sha256_file(path)
            .map_err(|source| RepoError::Unreadable { path: path.to_path_buf(), source })?;
        let store = repositories.store(&format!("bundle\0{content}"));
        let header = refs::read_small(path).unwrap_or_default();
        let sha256 = header.lines().take(8).any(|line| line == "@object-format=sha256");
        let format = if sha256 { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 };
        Ok(Mirror { git_dir: store.mirror(), refs_dir: store.mirror(), store, format, shallow: None })
    }

    fn of_remote(repositories: &Repositories, remote: &Remote, format: ObjectFormat) -> Mirror {
        let address = remote.url.trim_end_matches('/');
        let store = repositories.store(&format!("remote\0{address}\0{format:?}"));
        Mirror { git_dir: store.mirror(), refs_dir: store.mirror(), store, format, shallow: None }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    pub(super) fn refs_dir(&self) -> &Path {
        &self.refs_dir
    }

    /// The commits at which the history of a shallow source is cut.
    pub(super) fn shallow(&self) -> Option<&str> {
        self.shallow.as_deref()
    }

    fn exists(&self) -> bool {
        self.git_dir.join("HEAD").is_file()
    }
}

// Read as text, never given to git: only this one word of a stranger's configuration is believed.
fn declared_format(configuration: &Path) -> ObjectFormat {
    let text = refs::read_bounded(configuration, 1 << 20).unwrap_or_default().to_ascii_lowercase();
    let is_sha256 = |line: &str| line.split('=').map(str::trim).eq(["objectformat", "sha256"]);
    if text.lines().any(is_sha256) { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
}

fn format_of(name: &Name) -> ObjectFormat {
    match name {
        Name::Sha(sha) => ObjectFormat::of_sha(sha),
        Name::Short(_) | Name::Ref(_) => ObjectFormat::Sha1,
    }
}

/// A mirror that holds the commit, the lock that keeps it so, and what the commit is.
pub(super) fn find(
    repositories: &Repositories,
    mirror: Mirror,
    source: &Source,
    name: &Name,
) -> Result<(Mirror, Held, Facts), RepoError> {
    let address = source.to_string();
    // What has a name can move, so only a full SHA is taken from the mirror unasked.
    let settled = matches!(name, Name::Sha(_)) || !matches!(source, Source::Remote(_));
    if settled && mirror.exists() {
        let held = mirror.store.lock_shared()?;
        if let Ok(Some(facts)) = look_up(&repositories.git, &mirror, name, &address) {
            return Ok((mirror, held, facts));
        }
    }
    let held = mirror.store.lock_exclusive()?;
    let filled = match source {
        Source::Repository(repository) => borrow(mirror, repository),
        Source::Bundle(path) => unbundle(repositories, mirror, path, &held),
        Source::Remote(remote) => fetch(repositories, mirror, remote, name, &held),
        Source::Directory(_) => Ok(mirror),
    };
    let (mirror, held) = match (filled, source) {
        // Only the server knows which hash it uses; a name does not say.
        (Err(RepoError::Unreachable { message, .. }), Source::Remote(remote))
            if message.contains("mismatched algorithms") && format_of(name) == ObjectFormat::Sha1 =>
        {
            let mirror = Mirror::of_remote(repositories, remote, ObjectFormat::Sha256);
            let held = mirror.store.lock_exclusive()?;
            (fetch(repositories, mirror, remote, name, &held)?, held)
        }
        (filled, _) => (filled?, held),
    };
    match look_up(&repositories.git, &mirror, name, &address)? {
        Some(facts) => Ok((mirror, held, facts)),
        None => Err(RepoError::CommitUnknown { address, commit: name.text().to_owned() }),
    }
}

/// Makes a copied mirror anew, because what it holds turned out to be damaged.
pub(super) fn renew(
    repositories: &Repositories,
    mirror: Mirror,
    source: &Source,
    name: &Name,
    held: &Held,
) -> Result<Mirror, RepoError> {
    remove(&mirror.git_dir)?;
    match source {
        Source::Repository(repository) => borrow(mirror, repository),
        Source::Bundle(path) => unbundle(repositories, mirror, path, held),
        Source::Remote(remote) => fetch(repositories, mirror, remote, name, held),
        Source::Directory(_) => Ok(mirror),
    }
}

fn remove(path: &Path) -> Result<(), RepoError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(RepoError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn borrow(mirror: Mirror, repository: &LocalRepository) -> Result<Mirror, RepoError> {
    let objects = repository.objects();
    let Some(line) = objects.to_str().filter(|text| !text.contains('\n')) else {
        return Err(RepoError::NotRepository { path: objects, reason: "its path is not plain text".into() });
    };
    let scratch = Scratch::new(mirror.store.cache())?;
    let fresh = scratch.path().join("mirror");
    skeleton::write(&fresh, mirror.format, Shape::Bare, "ref: refs/heads/none")?;
    skeleton::write_file(&fresh.join("objects/info/alternates"), format!("{line}\n").as_bytes())?;
    if let Some(shallow) = &mirror.shallow {
        skeleton::write_file(&fresh.join("shallow"), shallow.as_bytes())?;
    }
    install(&fresh, &mirror)?;
    Ok(mirror)
}

// The exclusive lock is held, so nobody sees the moment between the two steps.
fn install(fresh: &Path, mirror: &Mirror) -> Result<(), RepoError> {
    remove(&mirror.git_dir)?;
    fs::rename(fresh, &mirror.git_dir).map_err(RepoError::io("move", fresh))
}

fn unbundle(
    repositories: &Repositories,
    mirror: Mirror,
    path: &Path,
    held: &Held,
) -> Result<Mirror, RepoError> {
    let scratch = Scratch::new(mirror.store.cache())?;
    let fresh = scratch.path().join("mirror");
    skeleton::write(&fresh, mirror.format, Shape::Bare, "ref: refs/heads/none")?;
    let call = fetch_call(&fresh, held)?.configure("protocol.file.allow=always");
    let call = EVERYTHING.iter().fold(call.argument(path), Call::argument);
    repositories.git.run(call)?.demand("read the bundle")?;
    install(&fresh, &mirror)?;
    Ok(mirror)
}

fn fetch_call(git_dir: &Path, held: &Held) -> Result<Call, RepoError> {
    let options = [
        "fetch",
        "--quiet",
        "--force",
        "--prune",
        "--no-tags",
        "--no-recurse-submodules",
        "--no-auto-maintenance",
        "--no-write-fetch-head",
        "--",
    ];
    // Packs appear whole or not at all; loose objects of a killed fetch would be a part of a history.
    let whole = ["fetch.unpackLimit=1", "transfer.unpackLimit=1"];
    let call = Call::new(git_dir, &options).checking_objects();
    let mut call = whole.into_iter().fold(call, Call::configure);
    call.input = Input::Lock(held.share()?);
    Ok(call)
}

fn fetch(
    repositories: &Repositories,
    mirror: Mirror,
    remote: &Remote,
    name: &Name,
    held: &Held,
) -> Result<Mirror, RepoError> {
    if mirror.exists() {
        clear_leftovers(&mirror.git_dir);
        match fetch_into(repositories, &mirror.git_dir, remote, name, held) {
            Ok(()) if holds(repositories, &mirror, name) => return Ok(mirror),
            // The commit may be unknown, or its pack damaged; only the second is mended by starting anew.
            Ok(()) if is_healthy(repositories, &mirror.git_dir) => return Ok(mirror),
            Err(error) if is_healthy(repositories, &mirror.git_dir) => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    fetch_anew(repositories, mirror, remote, name, held)
}

fn fetch_anew(
    repositories: &Repositories,
    mirror: Mirror,
    remote: &Remote,
    name: &Name,
    held: &Held,
) -> Result<Mirror, RepoError> {
    let scratch = Scratch::new(mirror.store.cache())?;
    let fresh = scratch.path().join("mirror");
    skeleton::write(&fresh, mirror.format, Shape::Bare, "ref: refs/heads/none")?;
    fetch_into(repositories, &fresh, remote, name, held)?;
    install(&fresh, &mirror)?;
    Ok(mirror)
}

fn holds(repositories: &Repositories, mirror: &Mirror, name: &Name) -> bool {
    matches!(look_up(&repositories.git, mirror, name, ""), Ok(Some(_)))
}

fn is_healthy(repositories: &Repositories, git_dir: &Path) -> bool {
    repositories.git.run(Call::new(git_dir, &HEALTH)).is_ok_and(|answer| answer.success)
}

// What a killed fetch leaves. The exclusive lock says that none is running.
fn clear_leftovers(git_dir: &Path) {
    let mut folders = vec![git_dir.join("refs"), git_dir.join("objects/pack")];
    for name in ["packed-refs.lock", "shallow.lock", "config.lock", "HEAD.lock"] {
        fs::remove_file(git_dir.join(name)).ok();
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else if name.ends_with(".lock") || name.starts_with("tmp_") {
                fs::remove_file(entry.path()).ok();
            }
        }
    }
}

// First the commit alone: less to transfer than every branch, and it may be on none of them.
fn fetch_into(
    repositories: &Repositories,
    git_dir: &Path,
    remote: &Remote,
    name: &Name,
    held: &Held,
) -> Result<(), RepoError> {
    if let Name::Sha(sha) = name {
        let answer =
            fetch_once(repositories, git_dir, remote, &[format!("+{sha}:refs/belljar/{sha}")], held)?;
        let refused = |text: &&str| String::from_utf8_lossy(&answer.stderr).contains(*text);
        if answer.success || !NOT_BY_ID.iter().any(refused) {
            return fetched(repositories, &answer, remote);
        }
    }
    let everything = EVERYTHING.map(str::to_owned);
    let answer = fetch_once(repositories, git_dir, remote, &everything, held)?;
    fetched(repositories, &answer, remote)
}

fn fetched(repositories: &Repositories, answer: &Answer, remote: &Remote) -> Result<(), RepoError> {
    let address = Source::Remote(remote.clone()).to_string();
    if answer.success {
        Ok(())
    } else if answer.timed_out {
        Err(RepoError::FetchTimeout { address, seconds: repositories.git.fetch_seconds() })
    } else {
        Err(RepoError::Unreachable { address, message: answer.message() })
    }
}

fn fetch_once(
    repositories: &Repositories,
    git_dir: &Path,
    remote: &Remote,
    refspecs: &[String],
    held: &Held,
) -> Result<Answer, RepoError> {
    let mut call = fetch_call(git_dir, held)?;
    call.reach = Reach::Network;
    call.arguments.push(OsString::from(&remote.url));
    call.arguments.extend(refspecs.iter().map(OsString::from));
    for transport in allowed(remote.transport) {
        call = call.configure(format!("protocol.{transport}.allow=always"));
    }
    repositories.git.run(with_login(call, remote))
}

// The caller's own `url.insteadOf` may turn one of the two encrypted ways into the other.
fn allowed(transport: Transport) -> &'static [&'static str] {
    match transport {
        Transport::Https | Transport::Ssh => &["https", "ssh"],
        Transport::Http => &["http", "https"],
        Transport::Git => &["git"],
    }
}

// A password reaches git through a helper that reads it from the environment: an argument would be
// visible to every user of the machine, and git hands the URL to its helpers as an argument.
fn with_login(mut call: Call, remote: &Remote) -> Call {
    if !matches!(remote.transport, Transport::Https | Transport::Http) {
        return call;
    }
    let mut settings = Vec::new();
    if let Some(user) = remote.user.as_ref().filter(|user| !user.is_empty()) {
        settings.push(("credential.username", user.clone()));
    }
    if let Some(password) = &remote.password {
        let helper = r#"!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$BELLJAR_USER" "$BELLJAR_PASSWORD"; }; f"#;
        // The empty value drops the caller's helpers: the address already says who to be, and no
        // helper may store what it holds.
        settings.push(("credential.helper", String::new()));
        settings.push(("credential.helper", helper.to_owned()));
        call = call.variable("BELLJAR_USER", remote.user.as_deref().unwrap_or_default());
        call = call.variable("BELLJAR_PASSWORD", password);
        call.secrets.push(password.clone());
    }
    call = call.variable("GIT_CONFIG_COUNT", settings.len().to_string());
    for (number, (key, value)) in settings.iter().enumerate() {
        call = call.variable(&format!("GIT_CONFIG_KEY_{number}"), key);
        call = call.variable(&format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    call
}

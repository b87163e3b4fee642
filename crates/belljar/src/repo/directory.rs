//! A plain directory as a source: its content becomes a commit whose id depends on nothing else.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::FileType;

use super::Repositories;
use super::commit::ResolvedCommit;
use super::error::RepoError;
use super::git::Call;
use super::history::pack;
use super::inspection::inspect;
use super::name::Name;
use super::scratch::Scratch;
use super::skeleton::{self, ObjectFormat, Shape};
use super::source::SourceKind;
use super::store::{Facts, Store};
use super::walk::{Descend, Entry, Visitor, walk};

/// 2000-01-01T00:00:00Z. Changing any of these changes every pinned directory in the world.
const COMMIT_TIME: i64 = 946_684_800;
const AUTHOR: &str = "Belljar";
const EMAIL: &str = "belljar@localhost";
const MESSAGE: &str = "Content of a plain directory\n";

/// The cache entry of a directory.
pub(super) fn store(repositories: &Repositories, path: &Path) -> Store {
    repositories.store(&format!("directory\0{}", path.display()))
}

/// The commit a directory's content makes, held against the pin.
pub(super) fn resolve(
    repositories: &Repositories,
    path: &Path,
    commit: Option<&str>,
) -> Result<ResolvedCommit, RepoError> {
    let pinned = commit.map(full_sha).transpose()?;
    let snapshot = Snapshot::take(repositories, path)?;
    if let Some(pinned) = pinned.filter(|pinned| *pinned != snapshot.facts.sha) {
        return Err(RepoError::Drift { path: path.to_path_buf(), pinned, found: snapshot.facts.sha });
    }
    snapshot.keep(repositories, path)?;
    Ok(ResolvedCommit::new(snapshot.facts, SourceKind::Directory))
}

/// Packs the directory again, after its pack was evicted; its content must be what it was.
pub(super) fn rebuild(repositories: &Repositories, path: &Path, sha: &str) -> Result<(), RepoError> {
    let snapshot = Snapshot::take(repositories, path)?;
    if snapshot.facts.sha != sha {
        let pinned = sha.to_owned();
        return Err(RepoError::Drift { path: path.to_path_buf(), pinned, found: snapshot.facts.sha });
    }
    snapshot.pack(repositories, path)
}

// There are no tags or branches here, and a short id would pin less than it seems to.
fn full_sha(text: &str) -> Result<String, RepoError> {
    match Name::parse(text)? {
        Name::Sha(sha) => Ok(sha),
        Name::Short(_) | Name::Ref(_) => Err(RepoError::CommitName {
            commit: text.to_owned(),
            reason: "is not a full SHA, which is what pins a plain directory".into(),
        }),
    }
}

struct Snapshot {
    scratch: Scratch,
    facts: Facts,
}

impl Snapshot {
    fn take(repositories: &Repositories, path: &Path) -> Result<Snapshot, RepoError> {
        let scratch = Scratch::new(&repositories.cache)?;
        let git_dir = scratch.path();
        skeleton::write(git_dir, ObjectFormat::Sha1, Shape::Bare, "ref: refs/heads/none")?;
        skeleton::keep_bytes(git_dir)?;
        refuse_strange(repositories, git_dir, path)?;
        let call =
            |arguments: &[&str]| Call::new(git_dir, arguments).in_tree(path).configure("core.bare=false");
        repositories.git.run(call(&["add", "--all", "--", "."]))?.demand("read the directory")?;
        let tree = text(repositories, call(&["write-tree"]), "write the tree")?;
        let commit = signed(call(&["commit-tree"]).argument(&tree).input(MESSAGE));
        let sha = text(repositories, commit, "write the commit")?;
        Ok(Snapshot { scratch, facts: Facts { sha, tree, commit_time: COMMIT_TIME } })
    }

    fn keep(&self, repositories: &Repositories, path: &Path) -> Result<(), RepoError> {
        if store(repositories, path).facts(&self.facts.sha).is_some() {
            return Ok(());
        }
        inspect(&repositories.git, self.scratch.path(), &self.facts.sha, &path.display().to_string())?;
        self.pack(repositories, path)?;
        store(repositories, path).save_facts(&self.facts)
    }

    fn pack(&self, repositories: &Repositories, path: &Path) -> Result<(), RepoError> {
        let store = store(repositories, path);
        let _held = store.lock_exclusive()?;
        pack(&repositories.git, &store, self.scratch.path(), &self.facts.sha, None)
    }
}

fn signed(call: Call) -> Call {
    let date = format!("{COMMIT_TIME} +0000");
    ["AUTHOR", "COMMITTER"].iter().fold(call, |call, role| {
        call.variable(&format!("GIT_{role}_NAME"), AUTHOR)
            .variable(&format!("GIT_{role}_EMAIL"), EMAIL)
            .variable(&format!("GIT_{role}_DATE"), &date)
    })
}

fn text(repositories: &Repositories, call: Call, operation: &'static str) -> Result<String, RepoError> {
    let answer = repositories.git.run(call)?.demand(operation)?;
    Ok(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
}

// Git passes over these in silence; a run without them would not be a run of what is there.
fn refuse_strange(repositories: &Repositories, git_dir: &Path, path: &Path) -> Result<(), RepoError> {
    let mut strange = Strange::default();
    walk(path, &mut strange).map_err(|source| RepoError::Unreadable { path: path.to_path_buf(), source })?;
    if strange.found.is_empty() {
        return Ok(());
    }
    let ignored = ignored(repositories, git_dir, path, &strange.found)?;
    match strange.found.into_iter().find(|(entry, _)| !ignored.contains(entry)) {
        None => Ok(()),
        Some((entry, what)) => Err(RepoError::Refused {
            address: path.display().to_string(),
            what: format!("{:?} is {what}", String::from_utf8_lossy(&entry)),
            remedy: "remove it, or name it in the directory's .gitignore".into(),
        }),
    }
}

type Strangers = Vec<(Vec<u8>, &'static str)>;

fn ignored(
    repositories: &Repositories,
    git_dir: &Path,
    path: &Path,
    strangers: &Strangers,
) -> Result<Vec<Vec<u8>>, RepoError> {
    // This command cannot take paths literally; a leading ./ keeps a name from being read as magic.
    let paths: Vec<Vec<u8>> = strangers.iter().map(|(entry, _)| [b"./", entry.as_slice()].concat()).collect();
    let call = Call::new(git_dir, &["check-ignore", "--no-index", "-z", "--stdin"]).in_tree(path);
    let call = call.variable("GIT_LITERAL_PATHSPECS", "0").configure("core.bare=false");
    let answer = repositories.git.run(call.input(paths.join(&0)))?;
    // Failure without a word means that none is ignored.
    let answer = if answer.stderr.is_empty() { answer } else { answer.demand("read .gitignore")? };
    let named = answer.stdout.split(|byte| *byte == 0);
    Ok(named.filter_map(|entry| entry.strip_prefix(b"./")).map(<[u8]>::to_vec).collect())
}

#[derive(Default)]
struct Strange {
    found: Strangers,
}

impl Visitor for Strange {
    fn visit(&mut self, entry: &Entry<'_>) -> std::io::Result<Descend> {
        if entry.name.as_bytes() == b".git" {
            let parent = Path::new(OsStr::from_bytes(entry.path)).parent().unwrap_or(Path::new("."));
            self.found.push((parent.as_os_str().as_bytes().to_vec(), "another git repository"));
            return Ok(Descend::Past);
        }
        let what = match entry.kind {
            FileType::Directory => return Ok(Descend::Into),
            FileType::RegularFile | FileType::Symlink => return Ok(Descend::Past),
            FileType::Fifo => "a fifo",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            _ => "of an unknown type",
        };
        self.found.push((entry.path.to_vec(), what));
        Ok(Descend::Past)
    }

    // An unreadable folder that matters is reported by git, one that is ignored does not matter.
    fn closed(&mut self, _entry: &Entry<'_>, _error: std::io::Error) -> std::io::Result<()> {
        Ok(())
    }
}

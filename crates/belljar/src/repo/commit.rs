//! From a pin to one commit.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Repositories;
use super::error::RepoError;
use super::git::{Call, Git};
use super::inspection::inspect;
use super::mirror::{self, Mirror};
use super::name::Name;
use super::object::{Found, read_all};
use super::refs;
use super::source::{Source, SourceKind};
use super::store::Facts;

/// A commit that is decided: nothing below this looks at names again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedCommit {
    /// The full object id of the commit.
    pub sha: String,
    /// The object id of its tree.
    pub tree: String,
    /// When it was committed, in seconds since 1970; files of a checkout carry this time.
    pub commit_time: i64,
    /// What the source is.
    pub kind: SourceKind,
}

impl ResolvedCommit {
    pub(super) fn new(facts: Facts, kind: SourceKind) -> ResolvedCommit {
        ResolvedCommit { sha: facts.sha, tree: facts.tree, commit_time: facts.commit_time, kind }
    }
}

/// Resolves a pin of a git source.
pub(super) fn resolve(
    repositories: &Repositories,
    source: &Source,
    name: &Name,
) -> Result<ResolvedCommit, RepoError> {
    let mirror = Mirror::of(repositories, source, name)?;
    if let Name::Sha(sha) = name
        && let Some(facts) = mirror.store().facts(sha)
    {
        return Ok(ResolvedCommit::new(facts, source.kind()));
    }
    let (mirror, _held, facts) = mirror::find(repositories, mirror, source, name)?;
    if mirror.store().facts(&facts.sha).is_none() {
        inspect(&repositories.git, mirror.git_dir(), &facts.sha, &source.to_string())?;
        mirror.store().save_facts(&facts)?;
    }
    Ok(ResolvedCommit::new(facts, source.kind()))
}

/// Looks a name up in what a mirror holds now.
pub(super) fn look_up(
    git: &Git,
    mirror: &Mirror,
    name: &Name,
    address: &str,
) -> Result<Option<Facts>, RepoError> {
    let named = match name {
        Name::Sha(_) => BTreeMap::new(),
        Name::Short(text) | Name::Ref(text) => mirror.refs(text, address)?,
    };
    let direct = match name {
        Name::Sha(sha) => vec![sha.clone()],
        Name::Short(start) => starting_with(git, mirror.git_dir(), start)?,
        Name::Ref(_) => Vec::new(),
    };
    let mut found = read_commits(git, mirror.git_dir(), named.values().chain(&direct))?;
    if found.len() > 1 {
        return Err(RepoError::CommitAmbiguous {
            address: address.to_owned(),
            commit: name.text().to_owned(),
            candidates: named.into_keys().chain(found.into_keys()).collect(),
        });
    }
    Ok(found.pop_first().map(|(_, facts)| facts))
}

fn starting_with(git: &Git, git_dir: &Path, start: &str) -> Result<Vec<String>, RepoError> {
    let call = Call::new(git_dir, &["rev-parse"]).argument(format!("--disambiguate={start}"));
    let answer = git.run(call)?.demand("look up the abbreviated SHA")?;
    Ok(String::from_utf8_lossy(&answer.stdout).lines().map(str::to_owned).collect())
}

// A tag is followed to its commit; what is not a commit counts as missing.
fn read_commits<'a>(
    git: &Git,
    git_dir: &Path,
    wanted: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, Facts>, RepoError> {
    let names: Vec<String> = wanted.map(|name| format!("{name}^{{commit}}")).collect();
    let mut commits = BTreeMap::new();
    for object in read_all(git, git_dir, &names)? {
        if let Found::Object { sha, bytes } = object {
            let facts = parse(&sha, &bytes)?;
            commits.insert(sha, facts);
        }
    }
    Ok(commits)
}

fn parse(sha: &str, bytes: &[u8]) -> Result<Facts, RepoError> {
    let text = String::from_utf8_lossy(bytes);
    let header = text.split("\n\n").next().unwrap_or_default();
    let field = |name: &str| header.lines().find_map(|line| line.strip_prefix(name));
    let tree = field("tree ").map(str::to_owned);
    let time = field("committer ").and_then(|line| line.rsplit(' ').nth(1)?.parse().ok());
    match (tree, time) {
        (Some(tree), Some(commit_time)) => Ok(Facts { sha: sha.to_owned(), tree, commit_time }),
        _ => Err(RepoError::Git {
            operation: "read the commit",
            message: format!("commit {sha} has no tree or no commit time"),
        }),
    }
}

impl Mirror {
    fn refs(&self, name: &str, address: &str) -> Result<BTreeMap<String, String>, RepoError> {
        if refs::uses_reftable(self.refs_dir()) {
            return Err(RepoError::Refused {
                address: address.to_owned(),
                what: "its refs are in a reftable, in which names are not looked up".into(),
                remedy: "give the full SHA: git rev-parse HEAD".into(),
            });
        }
        Ok(refs::lookup(self.refs_dir(), name))
    }
}

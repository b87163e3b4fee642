//! The few files that make a folder a git repository, written by hand: quicker than `git init`,
//! and nothing from a template.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::RepoError;

/// The hash a repository names its objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ObjectFormat {
    Sha1,
    Sha256,
}

impl ObjectFormat {
    pub(super) fn of_sha(sha: &str) -> ObjectFormat {
        if sha.len() == 64 { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
    }

    fn configuration(self) -> &'static str {
        match self {
            ObjectFormat::Sha1 => "[core]\n\trepositoryformatversion = 0\n",
            ObjectFormat::Sha256 => {
                "[extensions]\n\tobjectformat = sha256\n[core]\n\trepositoryformatversion = 1\n"
            }
        }
    }
}

/// What a skeleton is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// In the cache, without a work tree.
    Bare,
    /// The `.git` of a checkout. File identities change when it is mounted elsewhere, so git there
    /// compares size and time only.
    WorkTree,
}

impl Shape {
    fn configuration(self) -> &'static str {
        match self {
            Shape::Bare => "\tbare = true\n",
            Shape::WorkTree => {
                "\tbare = false\n\tfilemode = true\n\ttrustctime = false\n\tcheckstat = minimal\n"
            }
        }
    }
}

/// Writes the skeleton with the given HEAD line.
pub(super) fn write(git_dir: &Path, format: ObjectFormat, shape: Shape, head: &str) -> Result<(), RepoError> {
    for folder in ["objects/pack", "objects/info", "refs/heads", "refs/tags", "info"] {
        let folder = git_dir.join(folder);
        fs::create_dir_all(&folder).map_err(RepoError::io("make", &folder))?;
    }
    let configuration = format!("{}{}", format.configuration(), shape.configuration());
    write_file(&git_dir.join("config"), configuration.as_bytes())?;
    write_file(&git_dir.join("HEAD"), format!("{head}\n").as_bytes())
}

/// Makes git take every file byte for byte, whatever the tree's own attributes say.
pub(super) fn keep_bytes(git_dir: &Path) -> Result<(), RepoError> {
    let line = b"* -text -eol -ident -filter -working-tree-encoding\n";
    write_file(&git_dir.join("info/attributes"), line)
}

pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), RepoError> {
    fs::write(path, bytes).map_err(RepoError::io("write", path))
}

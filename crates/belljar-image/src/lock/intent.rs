//! What was asked for, in words that mean the same on every machine.

use std::path::{Component, Path, PathBuf};

use crate::oci::Platform;
use crate::reference::Reference;

/// A reference on a platform.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Intent {
    /// As written in the task; a path starts at the lock's folder.
    pub reference: String,
    /// `linux/amd64` and the like.
    pub platform: String,
}

/// A reference that means something on one machine only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the path `{path}` is absolute and outside of the lock's folder, so it means something on this machine only"
)]
pub struct Unportable {
    /// The path as written.
    pub path: String,
}

impl Intent {
    /// What a task asks for; `folder` is the task's, `lock` the lock's, both absolute and without links.
    pub fn new(written: &str, platform: &Platform, folder: &Path, lock: &Path) -> Result<Intent, Unportable> {
        let reference = match written.parse::<Reference>() {
            Ok(Reference::Path(path)) => moved(&path, folder, lock)?,
            Ok(Reference::OciLayout { path, tag }) => {
                format!("oci:{}{}", moved(&path, folder, lock)?, tail(tag))
            }
            Ok(Reference::DockerArchive { path, name }) => {
                format!("docker-archive:{}{}", moved(&path, folder, lock)?, tail(name))
            }
            Ok(Reference::Build(path)) => format!("build:{}", moved(&path, folder, lock)?),
            Ok(Reference::Dockerfile(path)) => format!("dockerfile:{}", moved(&path, folder, lock)?),
            // What is not understood is told by whoever looks for the image.
            Ok(
                Reference::Host
                | Reference::Registry(_)
                | Reference::Daemon { .. }
                | Reference::Stored(_)
                | Reference::Snapshot(_),
            )
            | Err(_) => written.to_owned(),
        };
        Ok(Intent { reference, platform: platform.to_string() })
    }
}

fn tail(word: Option<String>) -> String {
    word.map_or(String::new(), |word| format!(":{word}"))
}

/// A path that started at the task's folder, as it is written when it starts at the lock's.
fn moved(path: &Path, folder: &Path, lock: &Path) -> Result<String, Unportable> {
    let target = plain(&folder.join(path));
    let unportable = || Unportable { path: path.display().to_string() };
    if path.is_absolute() && !target.starts_with(lock) {
        return Err(unportable());
    }
    let shared = target.components().zip(lock.components()).take_while(|(a, b)| a == b).count();
    let up = lock.components().skip(shared).map(|_| Component::ParentDir);
    let way: PathBuf = up.chain(target.components().skip(shared)).collect();
    let way = way.to_str().ok_or_else(unportable)?;
    Ok(if way.starts_with("..") { way.to_owned() } else { format!("./{way}") })
}

/// Without `.` and `..`, as far as the text tells.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

//! The host's side of one row: its folders, what it puts there, and what must still hold there afterwards.

use std::collections::BTreeMap;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::collect::collect;
use crate::conformance::expectation::Difference;
use crate::conformance::guest::{Guest, Usual};
use crate::conformance::row::{Check, Prop, Row};
use crate::fault::Fault;
use crate::rundir::unwritable;

/// The most entries of a workspace that are looked at one by one.
const LOOKED_AT: usize = 20_000;
/// How long a workspace is watched for changes.
const WATCHED: Duration = Duration::from_millis(150);
/// A name that somebody on the way could mistake for several, or for an option.
const ODD: &str = "work space, with:all=\\sorts\t'of\" $(things)\n日本";
/// What is told when collecting gave a file of the host away.
const LED_ASTRAY: &str = "collecting by a link";
/// What a guest of any row finds in its environment, beside its mark and the folder it must not reach.
const USUAL: [(&str, &str); 4] = [
    ("HOME", "/home/runner"),
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("USER", "runner"),
];

/// The host's side of one row.
pub(super) struct Ground {
    folder: PathBuf,
    workspace: PathBuf,
    mark: String,
    secret: String,
    variables: BTreeMap<String, String>,
    doors: Vec<Door>,
    collected: Mutex<Vec<Difference>>,
}

/// A place of the host where nobody may come.
struct Door {
    what: &'static str,
    kind: DoorKind,
}

enum DoorKind {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Ground {
    /// Makes the folders of a row and puts there what it asks for.
    pub(super) fn lay(scratch: &Path, mark: String, row: &Row) -> Result<Ground, Fault> {
        let folder = scratch.join(&mark);
        let secret = format!("secret-of-{}", ulid::Ulid::generate());
        let odd = row.props.iter().any(|prop| matches!(prop, Prop::OddWorkspace));
        let workspace = folder.join(if odd { ODD } else { "workspace" });
        let mut ground = Ground {
            folder,
            workspace,
            mark,
            secret,
            variables: BTreeMap::new(),
            doors: Vec::new(),
            collected: Mutex::new(Vec::new()),
        };
        ground.fill(row).map_err(|error| unwritable(&ground.folder, error))?;
        Ok(ground)
    }

    fn fill(&mut self, row: &Row) -> io::Result<()> {
        fs::create_dir(&self.folder)?;
        for folder in [self.workspace(), self.outside(), self.neighbours_workspace()] {
            fs::create_dir(folder)?;
        }
        // Open to everybody: that a stranger could read it must not be what keeps a guest from it.
        fs::set_permissions(&self.folder, Permissions::from_mode(0o755))?;
        fs::set_permissions(self.outside(), Permissions::from_mode(0o777))?;
        fs::write(self.secret_file(), &self.secret)?;
        fs::set_permissions(self.secret_file(), Permissions::from_mode(0o666))?;
        self.variables.extend(USUAL.map(|(name, value)| (name.to_owned(), value.to_owned())));
        self.variables.insert("MARK".to_owned(), self.mark.clone());
        self.variables.insert("OUTSIDE".to_owned(), self.outside().display().to_string());
        row.props.iter().try_for_each(|prop| self.put(prop))
    }

    fn put(&mut self, prop: &Prop) -> io::Result<()> {
        match prop {
            Prop::File { name, text, mode } => {
                let path = self.workspace().join(name);
                fs::write(&path, text)?;
                fs::set_permissions(&path, Permissions::from_mode(*mode))
            }
            Prop::WorkspaceSocket => {
                // By way of a descriptor, because the path of a socket is short.
                let folder = fs::File::open(self.workspace())?;
                let listener =
                    UnixListener::bind(format!("/proc/self/fd/{}/host.socket", folder.as_raw_fd()))?;
                fs::set_permissions(self.workspace().join("host.socket"), Permissions::from_mode(0o777))?;
                self.open("the host's socket in the workspace", DoorKind::Unix(listener))
            }
            Prop::AbstractSocket => {
                let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&self.mark)?)?;
                self.variables.insert("ABSTRACT".to_owned(), self.mark.clone());
                self.open("the host's abstract socket", DoorKind::Unix(listener))
            }
            Prop::LoopbackPort => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                self.variables.insert("PORT".to_owned(), listener.local_addr()?.port().to_string());
                self.open("a port of the host's loopback", DoorKind::Tcp(listener))
            }
            Prop::OddWorkspace | Prop::Neighbour(_) => Ok(()),
        }
    }

    fn open(&mut self, what: &'static str, kind: DoorKind) -> io::Result<()> {
        match &kind {
            DoorKind::Unix(listener) => listener.set_nonblocking(true)?,
            DoorKind::Tcp(listener) => listener.set_nonblocking(true)?,
        }
        self.doors.push(Door { what, kind });
        Ok(())
    }

    /// The folder that the guest works in.
    pub(super) fn workspace(&self) -> PathBuf {
        self.workspace.clone()
    }

    /// The folder that another sandbox works in meanwhile.
    pub(super) fn neighbours_workspace(&self) -> PathBuf {
        self.folder.join("neighbour")
    }

    fn outside(&self) -> PathBuf {
        self.folder.join("outside")
    }

    fn secret_file(&self) -> PathBuf {
        self.outside().join("secret")
    }

    /// A word that only this row's processes carry; also the name of its sandbox.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// The whole environment of a guest.
    pub(super) fn environment(&self, guest: &Guest) -> BTreeMap<String, String> {
        let mut environment = match guest.usual_environment {
            Usual::There => self.variables.clone(),
            Usual::Left => BTreeMap::new(),
        };
        let own = guest.environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        environment.extend(own);
        environment
    }

    /// Text with this row's own words where others stand for them.
    pub(super) fn own(&self, text: &str) -> String {
        text.replace("{mark}", &self.mark).replace("{outside}", &self.outside().display().to_string())
    }

    /// Whether bytes hold the secret.
    pub(super) fn gives_away(&self, bytes: &[u8]) -> bool {
        String::from_utf8_lossy(bytes).contains(&self.secret)
    }

    /// Processes that carry a mark and are left on the machine.
    pub(super) fn left_running(&self, mark: &str) -> Option<Difference> {
        let word = format!("MARK={mark}\0");
        let left: Vec<String> = marked(&word);
        (!left.is_empty()).then(|| Difference::new("left running on the host", "nothing", left.join("; ")))
    }

    /// Collects the patterns of the row's check once more, while the guest runs.
    pub(super) fn collect_meanwhile(&self, row: &Row) {
        for check in &row.checks {
            if let Check::Collects { patterns, .. } = check {
                // It may fail under the hands of a guest; it must not be led astray.
                let found = self.collected(patterns).err().filter(|difference| difference.what == LED_ASTRAY);
                self.collected.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
            }
        }
    }

    /// What is collected for these patterns; a difference when that gives the secret away or fails.
    fn collected(&self, patterns: &[&str]) -> Result<Vec<String>, Difference> {
        let failed =
            |error: &dyn std::fmt::Display| Difference::new("collecting", "files", error.to_string());
        let target = self.folder.join(format!("collected-{}", ulid::Ulid::generate()));
        fs::create_dir(&target).map_err(|error| failed(&error))?;
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let found = collect(&self.workspace(), &target, &patterns).map_err(|fault| failed(&fault))?;
        let mut names = Vec::new();
        for file in &found.files {
            let name = file.path.trim_start_matches("collected/");
            let bytes = fs::read(target.join(name)).map_err(|error| failed(&error))?;
            if self.gives_away(&bytes) {
                return Err(Difference::new(LED_ASTRAY, "no file of the host", name));
            }
            names.push(name.to_owned());
        }
        // Bounded, and of our own making.
        let _ = fs::remove_dir_all(&target);
        names.sort();
        Ok(names)
    }

    /// Everything that must hold after any row, and what this row adds to it.
    pub(super) fn differences(&self, row: &Row) -> Vec<Difference> {
        // The guest may have shut its own folder; it belongs to the caller.
        let _ = fs::set_permissions(self.workspace(), Permissions::from_mode(0o755));
        let mut found = self.collected.lock().unwrap_or_else(PoisonError::into_inner).clone();
        found.truncate(1);
        found.extend(self.secret_kept());
        found.extend(self.doors.iter().filter_map(Door::difference));
        found.extend(self.foreign_entries());
        found.extend(row.checks.iter().filter_map(|check| self.check(check)));
        found
    }

    fn secret_kept(&self) -> Option<Difference> {
        let names: Vec<String> = names(&self.outside());
        let text = fs::read_to_string(self.secret_file()).unwrap_or_default();
        let kept = names == ["secret"] && text == self.secret;
        (!kept).then(|| Difference::new("the folder outside", "unchanged", format!("{names:?}, {text:?}")))
    }

    /// Entries of the workspace that are not the caller's, or that no caller wants.
    fn foreign_entries(&self) -> Option<Difference> {
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let fault = |meta: &Metadata| {
            let kind = meta.file_type();
            if (meta.uid(), meta.gid()) != (user, group) {
                Some(format!("owned by {}:{}", meta.uid(), meta.gid()))
            } else if meta.mode() & 0o6000 != 0 && !meta.is_symlink() {
                Some(format!("mode {:o}", meta.mode()))
            } else if kind.is_block_device() || kind.is_char_device() {
                Some("a device".to_owned())
            } else {
                None
            }
        };
        let workspace = self.workspace();
        let bad = entries(&workspace).into_iter().find_map(|(path, meta)| Some((path, fault(&meta)?)));
        let (path, why) = bad?;
        let name = path.strip_prefix(&workspace).unwrap_or(&path).display().to_string();
        let expected = format!("plain entries owned by {user}:{group}");
        Some(Difference::new("the workspace on the host", expected, format!("{name:?} is {why}")))
    }

    fn check(&self, check: &Check) -> Option<Difference> {
        let workspace = self.workspace();
        match check {
            Check::FileHas { name, text } => {
                let seen = fs::read_to_string(workspace.join(name)).unwrap_or_else(|error| error.to_string());
                (seen != *text).then(|| Difference::new(format!("{name} on the host"), *text, seen))
            }
            Check::NoFileLike(start) => {
                let found: Vec<String> =
                    names(&workspace).into_iter().filter(|name| name.starts_with(start)).collect();
                (!found.is_empty())
                    .then(|| Difference::new("the workspace", format!("no {start}…"), found.join(", ")))
            }
            Check::Collects { patterns, files } => match self.collected(patterns) {
                Ok(seen) if seen == *files => None,
                Ok(seen) => Some(Difference::new("collected", files.join(", "), seen.join(", "))),
                Err(difference) => Some(difference),
            },
            Check::Still => {
                let before = stamps(&workspace);
                std::thread::sleep(WATCHED);
                (before != stamps(&workspace))
                    .then(|| Difference::new("the workspace", "still", "somebody writes to it"))
            }
            // Judged when the sandbox is made.
            Check::Controls => None,
        }
    }

    /// Removes everything; what a guest made must not stand in the way.
    pub(super) fn clear(self) -> Option<Difference> {
        let removed = belljar_cell::remove::remove_tree(&self.folder);
        removed.err().map(|error| Difference::new("removing the workspace", "done", error.to_string()))
    }
}

impl Door {
    fn difference(&self) -> Option<Difference> {
        let came = match &self.kind {
            DoorKind::Unix(listener) => listener.accept().is_ok(),
            DoorKind::Tcp(listener) => listener.accept().is_ok(),
        };
        came.then(|| Difference::new(self.what, "nobody came", "the guest did"))
    }
}

/// The command lines of living processes whose environment holds this word.
fn marked(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path();
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        if environment.windows(word.len()).any(|window| window == word.as_bytes()) {
            let words = fs::read(path.join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words[..words.len().min(80)]).replace('\0', " ");
            found.push(format!("{}: {words}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// A tree's entries, as far as the caller can see them; links are not followed.
fn entries(folder: &Path) -> Vec<(PathBuf, Metadata)> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if found.len() >= LOOKED_AT {
                return found;
            }
            let Ok(meta) = path.symlink_metadata() else { continue };
            if meta.is_dir() {
                folders.push(path.clone());
            }
            found.push((path, meta));
        }
    }
    found
}

fn stamps(folder: &Path) -> Vec<(PathBuf, u64, Option<SystemTime>)> {
    let stamp = |(path, meta): (PathBuf, Metadata)| (path, meta.len(), meta.modified().ok());
    entries(folder).into_iter().map(stamp).collect()
}

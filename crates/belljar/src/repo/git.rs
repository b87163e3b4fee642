//! The git program, run so that nothing a repository says can act on the host.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_cell::tether::{leash, tether};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::error::RepoError;
use super::redaction::redact_bytes;
use crate::interrupt::Interrupt;

/// The variables of the caller that a fetch over the network may see; everything else is dropped.
pub const PASSED_VARIABLES: &[&str] = &[
    "SSH_AUTH_SOCK",
    "SSH_ASKPASS",
    "SSH_ASKPASS_REQUIRE",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "GIT_ASKPASS",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSH_VARIANT",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "GIT_SSL_NO_VERIFY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "GNUPGHOME",
    "USER",
    "LOGNAME",
];

/// Configuration that holds in every call, above whatever a file says.
const HARDENED: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.symlinks=true",
    "core.fileMode=true",
    "core.autocrlf=false",
    "core.sharedRepository=umask",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.alternateRefsCommand=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "pack.writeReverseIndex=false",
    "advice.detachedHead=false",
    "protocol.allow=never",
    "protocol.ext.allow=never",
    "protocol.fd.allow=never",
];

/// Objects from strangers are checked. These blemishes are in the history of well-known projects
/// and harm nobody, so they only warn.
const BLEMISHES: &[&str] = &[
    "badDate",
    "badDateOverflow",
    "badEmail",
    "badFilemode",
    "badName",
    "badTagName",
    "badTimezone",
    "missingEmail",
    "missingNameBeforeEmail",
    "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail",
    "missingTaggerEntry",
    "multipleAuthors",
    "nullSha1",
    "zeroPaddedDate",
    "zeroPaddedFilemode",
];

/// More output than this is a flood, and ends the call.
const OUTPUT_LIMIT: u64 = 512 << 20;
const MESSAGE_LIMIT: usize = 2000;
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Where git is and what of the caller's environment it may use; the library reads none itself.
#[derive(Debug, Clone, Default)]
pub struct GitEnvironment {
    /// The program, by path or by a name on `path`.
    pub program: PathBuf,
    /// `PATH`; relative entries are ignored.
    pub path: OsString,
    /// The caller's home: credential helpers and ssh keys of fetches over the network, nothing else.
    pub home: Option<PathBuf>,
    /// Further variables for fetches over the network, such as `SSH_AUTH_SOCK`.
    pub variables: Vec<(OsString, OsString)>,
}

impl GitEnvironment {
    /// Picks from the caller's variables those that git needs; pass `std::env::vars_os()`.
    pub fn from_variables(variables: impl IntoIterator<Item = (OsString, OsString)>) -> GitEnvironment {
        let mut environment = GitEnvironment { program: "git".into(), ..GitEnvironment::default() };
        for (name, value) in variables {
            match name.to_str() {
                Some("PATH") => environment.path = value,
                Some("HOME") => environment.home = Some(value.into()),
                Some(known) if PASSED_VARIABLES.contains(&known) => environment.variables.push((name, value)),
                _ => {}
            }
        }
        environment
    }

    // A relative entry would find programs in the folder git works in, which a stranger filled.
    fn absolute_path(&self) -> OsString {
        let folders = std::env::split_paths(&self.path).filter(|folder| folder.is_absolute());
        std::env::join_paths(folders).unwrap_or_default()
    }
}

/// How long git may take.
#[derive(Debug, Clone, Copy)]
pub struct GitLimits {
    /// One fetch over the network, from start to end.
    pub fetch: Duration,
    /// An http transfer slower than 1 kB/s for this long is given up.
    pub stall: Duration,
    /// One step on local files.
    pub local: Duration,
}

impl Default for GitLimits {
    fn default() -> GitLimits {
        GitLimits {
            fetch: Duration::from_secs(1800),
            stall: Duration::from_secs(60),
            local: Duration::from_secs(1800),
        }
    }
}

/// The two files that one step's git output is appended to.
#[derive(Debug, Clone)]
pub struct GitLogs {
    /// Standard output.
    pub stdout: PathBuf,
    /// Standard error.
    pub stderr: PathBuf,
}

impl GitLogs {
    /// `<folder>/<step>_stdout.txt` and `<folder>/<step>_stderr.txt`; steps are `git_clone`, `git_checkout`.
    pub fn in_folder(folder: &Path, step: &str) -> GitLogs {
        GitLogs {
            stdout: folder.join(format!("{step}_stdout.txt")),
            stderr: folder.join(format!("{step}_stderr.txt")),
        }
    }

    /// Appends to both files, and makes them where they are missing.
    pub(super) fn append(&self, stdout: &[u8], stderr: &[u8]) -> Result<(), RepoError> {
        append(&self.stdout, stdout)?;
        append(&self.stderr, stderr)
    }
}

fn append(path: &Path, bytes: &[u8]) -> Result<(), RepoError> {
    let written = OpenOptions::new().create(true).append(true).open(path);
    written.and_then(|mut file| file.write_all(bytes)).map_err(RepoError::io("write", path))
}

/// One call of git, described before it is made.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) arguments: Vec<OsString>,
    pub(super) git_dir: PathBuf,
    pub(super) work_tree: Option<PathBuf>,
    pub(super) configuration: Vec<String>,
    pub(super) variables: Vec<(OsString, OsString)>,
    pub(super) input: Input,
    pub(super) reach: Reach,
    pub(super) secrets: Vec<String>,
}

/// What git reads on its standard input.
#[derive(Debug, Default)]
pub(super) enum Input {
    #[default]
    Nothing,
    Bytes(Vec<u8>),
    /// Nothing to read, but git keeps this lock for as long as it lives, even when Belljar is killed.
    Lock(File),
}

/// How far a call reaches.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Local files: an empty home and no configuration of the user or the system.
    #[default]
    Local,
    /// The network: the caller's credentials and the caller's own configuration.
    Network,
}

impl Call {
    pub(super) fn new(git_dir: &Path, arguments: &[&str]) -> Call {
        let arguments = arguments.iter().map(OsString::from).collect();
        Call { arguments, git_dir: git_dir.to_path_buf(), ..Call::default() }
    }

    pub(super) fn argument(mut self, argument: impl AsRef<OsStr>) -> Call {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub(super) fn in_tree(mut self, work_tree: &Path) -> Call {
        self.work_tree = Some(work_tree.to_path_buf());
        self
    }

    pub(super) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Call {
        self.input = Input::Bytes(bytes.into());
        self
    }

    pub(super) fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Call {
        self.variables.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Has git check every object that it takes in.
    pub(super) fn checking_objects(mut self) -> Call {
        self.configuration.extend(["fetch.fsckObjects=true".into(), "transfer.fsckObjects=true".into()]);
        self.configuration.extend(BLEMISHES.iter().map(|blemish| format!("fetch.fsck.{blemish}=warn")));
        self
    }

    pub(super) fn configure(mut self, setting: impl Into<String>) -> Call {
        self.configuration.push(setting.into());
        self
    }
}

/// What came of a call.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) success: bool,
    pub(super) timed_out: bool,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl Answer {
    /// Git's own words, short enough for a message.
    pub(super) fn message(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut message = lines.collect::<Vec<_>>().join("; ");
        if message.is_empty() {
            message = if self.timed_out { "stopped by the clock".into() } else { "no message".into() };
        }
        message.chars().filter(|character| !character.is_control()).take(MESSAGE_LIMIT).collect()
    }

    /// The answer, or an error that names the operation.
    pub(super) fn demand(self, operation: &'static str) -> Result<Answer, RepoError> {
        if self.success { Ok(self) } else { Err(RepoError::Git { operation, message: self.message() }) }
    }
}

/// The git program with the caller's environment and limits.
#[derive(Debug, Clone)]
pub(super) struct Git {
    environment: GitEnvironment,
    limits: GitLimits,
    home: PathBuf,
    logs: Option<GitLogs>,
    interrupt: Option<Arc<Interrupt>>,
}

impl Git {
    pub(super) fn new(environment: GitEnvironment, limits: GitLimits, home: PathBuf) -> Git {
        Git { environment, limits, home, logs: None, interrupt: None }
    }

    /// The same git, whose messages are also written to these logs.
    pub(super) fn logging(&self, logs: &GitLogs) -> Git {
        Git { logs: Some(logs.clone()), ..self.clone() }
    }

    /// The same git, which is stopped when somebody asks for it.
    pub(super) fn interruptible(&self, interrupt: Arc<Interrupt>) -> Git {
        Git { interrupt: Some(interrupt), ..self.clone() }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(|interrupt| interrupt.is_asked())
    }

    /// The limit of one fetch, in seconds.
    pub(super) fn fetch_seconds(&self) -> u64 {
        self.limits.fetch.as_secs()
    }

    /// Runs one call to its end.
    pub(super) fn run(&self, call: Call) -> Result<Answer, RepoError> {
        let (stdout, stderr) = (memory()?, memory()?);
        let mut command = self.command(&call);
        command.stdout(duplicate(&stdout)?).stderr(duplicate(&stderr)?);
        command.stdin(match call.input {
            Input::Nothing => Stdio::null(),
            Input::Bytes(bytes) => Stdio::from(filled(&bytes)?),
            Input::Lock(lock) => Stdio::from(lock),
        });
        // A transfer has helpers that live on by themselves; what works on local files ends with its pipes.
        let tied = if call.reach == Reach::Network { leash(&mut command) } else { tether(&mut command) };
        let child = tied
            .spawn()
            .map_err(|source| RepoError::GitStart { program: self.environment.program.clone(), source })?;
        // The command holds copies of the files; without it only git writes to them.
        drop(command);
        let limit = if call.reach == Reach::Network { self.limits.fetch } else { self.limits.local };
        let (status, timed_out) = self.wait(child, limit, [&stdout, &stderr])?;
        if timed_out && self.is_interrupted() {
            return Err(RepoError::Interrupted);
        }
        let stdout = redact_bytes(content(stdout)?, &call.secrets);
        let stderr = redact_bytes(content(stderr)?, &call.secrets);
        if let Some(logs) = &self.logs {
            // Standard output is data for Belljar: hashes, objects, listings.
            logs.append(b"", &stderr)?;
        }
        Ok(Answer { success: status.success() && !timed_out, timed_out, stdout, stderr })
    }

    /// Waits for the end, and brings it about when the time is up, the output floods or somebody asks for it.
    fn wait(
        &self,
        mut child: Child,
        limit: Duration,
        outputs: [&File; 2],
    ) -> Result<(ExitStatus, bool), RepoError> {
        let failed = |source: io::Error| RepoError::Io { operation: "wait for", path: "git".into(), source };
        let deadline = Instant::now() + limit;
        let pid = Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        loop {
            let mut watched = [PollFd::new(&handle, PollFlags::IN)];
            match poll(&mut watched, Some(&TICK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return child.wait().map(|status| (status, false)).map_err(failed),
                Err(error) => return Err(failed(error.into())),
            }
            if Instant::now() >= deadline
                || self.is_interrupted()
                || outputs.iter().any(|output| floods(output))
            {
                // The whole group: transports and index-pack are children of git.
                kill_process_group(pid, Signal::KILL).ok();
                return child.wait().map(|status| (status, true)).map_err(failed);
            }
        }
    }

    fn command(&self, call: &Call) -> Command {
        let mut command = Command::new(&self.environment.program);
        command.env_clear().process_group(0);
        self.surround(&mut command, call.reach);
        command.arg("--no-optional-locks").arg("--no-pager").arg("--no-replace-objects");
        for setting in HARDENED.iter().copied().chain(call.configuration.iter().map(String::as_str)) {
            command.arg("-c").arg(setting);
        }
        if call.reach == Reach::Network {
            self.give_up_stalls(&mut command);
        }
        command.env("GIT_DIR", &call.git_dir).args(&call.arguments);
        command.current_dir(call.work_tree.as_deref().unwrap_or(&call.git_dir));
        if let Some(work_tree) = &call.work_tree {
            command.env("GIT_WORK_TREE", work_tree);
        }
        command.envs(call.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn surround(&self, command: &mut Command, reach: Reach) {
        command.env("PATH", self.environment.absolute_path());
        command.env("LC_ALL", "C").env("TZ", "UTC");
        command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ATTR_NOSYSTEM", "1");
        command.env("GIT_NO_LAZY_FETCH", "1").env("GIT_LITERAL_PATHSPECS", "1");
        match reach {
            Reach::Local => {
                command.env("HOME", &self.home).env("GIT_CONFIG_NOSYSTEM", "1");
                command.env("GIT_CONFIG_GLOBAL", "/dev/null");
            }
            Reach::Network => self.surround_with_credentials(command),
        }
    }

    // The configuration of the user and of the system is the caller's own, and credential helpers,
    // proxies and certificates are set there. What could act on a repository is overridden above.
    fn surround_with_credentials(&self, command: &mut Command) {
        command.env("HOME", self.environment.home.as_deref().unwrap_or(&self.home));
        // Without a terminal nobody can answer, and a question on it would stop git until the time limit.
        command.env("SSH_ASKPASS", "false").env("SSH_ASKPASS_REQUIRE", "force");
        let names = |name: &OsStr| name.to_str().is_some_and(|name| PASSED_VARIABLES.contains(&name));
        command.envs(self.environment.variables.iter().filter(|(name, _)| names(name)).cloned());
    }

    fn give_up_stalls(&self, command: &mut Command) {
        command.arg("-c").arg("http.lowSpeedLimit=1000");
        command.arg("-c").arg(format!("http.lowSpeedTime={}", self.limits.stall.as_secs().max(1)));
    }
}

// Output goes to memory files: no reader can deadlock, and a helper that stays behind (an ssh master,
// a credential cache) cannot keep Belljar waiting by holding a pipe open.
fn memory() -> Result<File, RepoError> {
    let descriptor = memfd_create("belljar-git", MemfdFlags::CLOEXEC);
    descriptor.map(File::from).map_err(RepoError::io("make", Path::new("a memory file")))
}

fn filled(bytes: &[u8]) -> Result<File, RepoError> {
    let mut file = memory()?;
    let written = file.write_all(bytes).and_then(|()| file.rewind());
    written.map(|()| file).map_err(RepoError::io("fill", Path::new("a memory file")))
}

fn duplicate(file: &File) -> Result<File, RepoError> {
    file.try_clone().map_err(RepoError::io("duplicate", Path::new("a memory file")))
}

fn content(mut file: File) -> Result<Vec<u8>, RepoError> {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(RepoError::io("read", Path::new("git's output")))
}

fn floods(output: &File) -> bool {
    output.metadata().is_ok_and(|metadata| metadata.len() > OUTPUT_LIMIT)
}

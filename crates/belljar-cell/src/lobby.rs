//! The lobby of an ordinary user with subordinate ids: a user namespace in which everybody is who they are outside.
//!
//! Only `newuidmap` and `newgidmap` may write such a map, and they cost as much as a whole cell; so it is made once, kept
//! as a descriptor, and entered by every keeper. From there a cell's own map is written without help. Nobody stays
//! behind in it: there is no process to be reached.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cell::Guest;
use crate::failure::{Failure, Step};
use crate::guest::become_user;
use crate::ids::Ids;
use crate::kernel::{self, Cloned};
use crate::subids::{Line, NoSubIds, SubIds};

/// Where the two programs may be; nobody but root can put a program there.
const FOLDERS: [&str; 5] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/run/wrappers/bin"];
/// The most that is kept of what a program says.
const WORDS: u64 = 1000;

/// A user namespace that holds a user and all that is lent to it.
#[derive(Debug)]
pub struct Lobby {
    namespace: OwnedFd,
    ids: SubIds,
}

impl Lobby {
    /// Makes a lobby for the user this process runs as, or says why there can be none.
    pub fn make() -> Result<Lobby, NoSubIds> {
        let ids = SubIds::find()?;
        let programs = [find("newuidmap")?, find("newgidmap")?];
        if kernel::prctl(libc::PR_GET_NO_NEW_PRIVS, 0).is_ok_and(|set| set != 0) {
            return Err(NoSubIds::NoNewPrivileges);
        }
        let (holder, pidfd) = hold().map_err(NoSubIds::Failed)?;
        let made = fill(holder, &programs, ids);
        // It holds nothing; gone already is what is wanted.
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        // A process whose children the kernel reaps cannot wait for them.
        let _ = kernel::wait_for(holder);
        Ok(Lobby { namespace: made?, ids })
    }

    /// Who is in it.
    pub fn ids(&self) -> SubIds {
        self.ids
    }

    /// Its descriptor.
    pub(crate) fn namespace(&self) -> &OwnedFd {
        &self.namespace
    }

    /// Moves this process, which must have one thread, into the lobby. There it is still itself, and may act as all
    /// that is lent to it; over the rest of the host it has no power it did not have.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::User))
            .step(|| "enter the lobby".to_owned())
    }

    /// Runs something in a child process that is in the lobby: as the caller, with power over the files of every
    /// lent id, whose owners have the same numbers as outside. The child ends with the thread that waits for it.
    ///
    /// The caller may have threads: the child must then use no lock but the allocator's.
    pub fn run<T: Serialize + DeserializeOwned>(
        &self,
        body: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // SAFETY: the C library makes its locks whole in the child, which uses nothing else of other threads.
        let fork = || match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).step(|| "fork".to_owned()),
            number => Ok(Pid::from_raw(number)),
        };
        in_child(fork, |_| Ok(()), || self.enter().and_then(|()| body()))
    }

    /// Runs something in a child process as root of a user namespace that has the very map of a cell with this guest:
    /// a file that is given to an owner there has that owner for the guest. Made for unpacking images.
    ///
    /// The caller may have threads: the child must then use no lock but the allocator's.
    pub fn run_as_in_cell<T: Serialize + DeserializeOwned>(
        &self,
        guest: &Guest,
        body: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let ids = Ids::Mapped(self.ids);
        let clone = || match kernel::clone(libc::CLONE_NEWUSER as u64, None) {
            Ok(Cloned::Parent(pid, _)) => Ok(Some(pid)),
            Ok(Cloned::Child) => Ok(None),
            Err(error) => Err(error).step(|| "create a user namespace".to_owned()),
        };
        let map = |pid| ids.write_maps(pid, guest);
        let become_root = || {
            become_user(0, 0)?;
            // A change of identity ends the watch.
            end_with_parent().step(|| "watch the parent".to_owned())
        };
        self.run(|| in_child(clone, map, || become_root().and_then(|()| body())))
    }
}

fn end_with_parent() -> rustix::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
}

/// Makes a child, prepares it from outside, lets it go, and hands back what it says.
fn in_child<T: Serialize + DeserializeOwned>(
    fork: impl FnOnce() -> Result<Option<Pid>, Failure>,
    prepare: impl FnOnce(Pid) -> Result<(), Failure>,
    body: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe".to_owned());
    let ((gate, opener), (answer, writer)) = (pipe()?, pipe()?);
    let Some(child) = fork()? else {
        drop((opener, answer));
        let code = match catch_unwind(AssertUnwindSafe(|| speak(&gate, &writer, body))) {
            Ok(Ok(())) => 0,
            Ok(Err(_)) | Err(_) => 1,
        };
        kernel::exit_now(code)
    };
    drop((gate, writer));
    let prepared = prepare(child);
    // Told in either case: a child that waits for the end of the pipe may wait for others that have it by accident.
    let opened = rustix::io::write(&opener, &[u8::from(prepared.is_ok())]);
    let prepared = prepared.and(opened.step(|| "start the helper".to_owned()).map(|_| ()));
    drop(opener);
    let mut text = Vec::new();
    let read = fs::File::from(answer).read_to_end(&mut text).step(|| "hear the helper".to_owned());
    // A process whose children the kernel reaps cannot wait for them.
    let _ = kernel::wait_for(child);
    prepared.and(read)?;
    serde_json::from_slice::<Result<T, Failure>>(&text)
        .map_err(|_| Failure::new("the helper in the user namespace died"))?
}

/// The child's life: without a word at the gate there is nothing to do.
fn speak<T: Serialize>(
    gate: &OwnedFd,
    writer: &OwnedFd,
    body: impl FnOnce() -> Result<T, Failure>,
) -> io::Result<()> {
    end_with_parent()?;
    let mut word = [0];
    rustix::io::read(gate, &mut word)?;
    if word != [1] {
        return Ok(());
    }
    let mut text = serde_json::to_vec(&body())?;
    while !text.is_empty() {
        let written = rustix::io::write(writer, &text)?;
        text.drain(..written);
    }
    Ok(())
}

/// One of the two programs, which must be more powerful than this process.
fn find(name: &'static str) -> Result<(&'static str, PathBuf), NoSubIds> {
    let paths = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    let found = paths.filter_map(|path| Some((fs::metadata(&path).ok()?, path))).collect::<Vec<_>>();
    let Some((_, first)) = found.first() else { return Err(NoSubIds::NoProgram(name)) };
    let set_id = |status: &fs::Metadata| status.uid() == 0 && status.mode() & 0o4000 != 0;
    let capable = |path: &Path| rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    match found.iter().find(|(status, path)| status.is_file() && (set_id(status) || capable(path))) {
        Some((_, path)) => Ok((name, path.clone())),
        None => Err(NoSubIds::Powerless(first.clone())),
    }
}

/// A process that only waits in a new user namespace until it is killed or this process is gone. This process may have
/// threads, so the child does nothing but that.
fn hold() -> Result<(Pid, OwnedFd), Failure> {
    let parent = rustix::process::getpid();
    let cloned = kernel::clone(libc::CLONE_NEWUSER as u64, None);
    match cloned.step(|| "create a user namespace".to_owned())? {
        Cloned::Parent(pid, pidfd) => Ok((pid, pidfd)),
        Cloned::Child => {
            // Whose parent is another one by now came too late for the signal.
            while end_with_parent().is_ok() && rustix::process::getppid() == Some(parent) {
                // SAFETY: waiting touches no memory.
                unsafe { libc::pause() };
            }
            kernel::exit_now(0)
        }
    }
}

/// Has both maps written, at the same time, and believes nobody: the kernel is asked what they are.
fn fill(holder: Pid, programs: &[(&'static str, PathBuf); 2], ids: SubIds) -> Result<OwnedFd, NoSubIds> {
    let pid = holder.as_raw_nonzero();
    let maps = [("uid_map", ids.users.lobby_map(ids.uid)), ("gid_map", ids.groups.lobby_map(ids.gid))];
    let started: Vec<_> =
        programs.iter().zip(&maps).map(|((_, path), (_, map))| start(path, holder, map)).collect();
    for (((program, _), (file, map)), child) in programs.iter().zip(&maps).zip(started) {
        let says = child.map_or_else(|error| error.to_string(), listen);
        let found = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let numbers: Vec<u32> = found.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if numbers != map.concat() {
            return Err(NoSubIds::Refused { program, says });
        }
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{pid}/ns/user"), flags, Mode::empty())
        .step(|| "open the lobby".to_owned())
        .map_err(NoSubIds::Failed)
}

fn start(program: &Path, holder: Pid, map: &[Line]) -> io::Result<std::process::Child> {
    Command::new(program)
        .arg(holder.as_raw_nonzero().to_string())
        .args(map.iter().flatten().map(u32::to_string))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

/// Waits for a program's end and gives its last words.
fn listen(mut program: std::process::Child) -> String {
    let mut words = Vec::new();
    if let Some(stderr) = program.stderr.take() {
        let _ = stderr.take(WORDS).read_to_end(&mut words);
    }
    // Where the kernel reaps there is no status, and none is needed.
    let _ = program.wait();
    String::from_utf8_lossy(&words).split_whitespace().collect::<Vec<_>>().join(" ")
}

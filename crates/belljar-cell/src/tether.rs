//! Ties programs of the host to us: when this process is gone, however it went, so are they.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_current_process_group, pidfd_open,
    set_parent_process_death_signal,
};

use crate::kernel::{self, Cloned};

/// Makes the kernel kill the command's own process when the calling thread is gone.
///
/// For programs whose helpers end by themselves when it does.
pub fn tether(command: &mut Command) -> &mut Command {
    let parent = getpid();
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(move || tie_to(parent)) }
}

fn tie_to(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the tie was made; then nothing will ever be signalled.
    if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// Puts the command in a process group of its own that is killed whole when this process is gone.
///
/// For programs whose helpers would live on, such as a transfer over the network. A process between us and the program
/// watches both; it ends as the program ends.
pub fn leash(command: &mut Command) -> &mut Command {
    let parent = getpid();
    command.process_group(0);
    // SAFETY: in the forked child only system calls are made and nothing is allocated, in both of its branches.
    unsafe { command.pre_exec(move || split(parent)) }
}

/// Forks once more: the child goes on to become the program, the other one stays and watches.
fn split(parent: Pid) -> io::Result<()> {
    let watcher = getpid();
    match kernel::clone(0, None)? {
        Cloned::Child => tie_to(watcher),
        Cloned::Parent(program, pidfd) => {
            // Also the pipe on which the parent waits for the exec, and the program's streams: they are not ours.
            let program_fd = rustix::io::fcntl_dupfd_cloexec(&pidfd, 0)?;
            kernel::close_all_but(&[&program_fd]);
            watch(parent, program, &program_fd)
        }
    }
}

fn watch(parent: Pid, program: Pid, program_fd: &std::os::fd::OwnedFd) -> ! {
    let Ok(parent_fd) = pidfd_open(parent, PidfdFlags::empty()) else { end_group() };
    loop {
        let mut watched = [PollFd::new(program_fd, PollFlags::IN), PollFd::new(&parent_fd, PollFlags::IN)];
        let answered = poll(&mut watched, None);
        let [ended, orphaned] = watched.map(|fd| !fd.revents().is_empty());
        match answered {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => end_group(),
            Ok(_) if orphaned => end_group(),
            Ok(_) if ended => kernel::end_like(program),
            Ok(_) => {}
        }
    }
}

/// Kills the whole group, this process included.
fn end_group() -> ! {
    let _ = kill_current_process_group(Signal::KILL);
    kernel::exit_now(127)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    #[test]
    fn the_program_ends_with_the_thread_that_started_it() {
        let start = || tether(Command::new("sleep").arg("1000").stdin(Stdio::null())).spawn().unwrap();
        let mut child = std::thread::spawn(start).join().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9));
    }

    #[test]
    fn a_leash_ends_as_its_program_ends_and_passes_streams_through() {
        let run = |script: &str| leash(Command::new("sh").args(["-c", script])).output().unwrap();
        let output = run("echo out; exit 7");
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), b"out\n".as_slice()));
        assert_eq!(run("kill -TERM $$").status.signal(), Some(15));
        let missing = leash(&mut Command::new("/no/such/program")).output();
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// A process that starts a leashed program with a helper, says the helper's id and is then shot.
    #[test]
    fn a_leash_takes_the_helpers_along() {
        match kernel::clone(0, None).unwrap() {
            Cloned::Child => {
                let script = "sleep 1000 & echo $! > \"$0\"; mv \"$0\" \"$0.done\"; wait";
                let path = std::env::temp_dir().join(format!("belljar-leash-{}", std::process::id()));
                let _ = leash(Command::new("sh").args(["-c", script]).arg(&path)).spawn();
                std::thread::sleep(std::time::Duration::from_secs(100));
                kernel::exit_now(0)
            }
            Cloned::Parent(pid, _) => {
                let number = pid.as_raw_nonzero();
                let path = std::env::temp_dir().join(format!("belljar-leash-{number}.done"));
                wait_until(|| path.exists());
                let helper = std::fs::read_to_string(&path).unwrap();
                rustix::process::kill_process(pid, Signal::KILL).unwrap();
                kernel::wait_for(pid).unwrap();
                wait_until(|| !is_alive(helper.trim()));
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    fn is_alive(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn wait_until(mut done: impl FnMut() -> bool) {
        for _ in 0..4000 {
            if done() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("it did not happen");
    }
}

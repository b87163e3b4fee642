//! The cheap check in every cell: a process as weak as guest code tries what it must not be able to do.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use crate::door::GUEST_OOM_SCORE;
use crate::kernel;

/// One thing that was tried.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The control's name.
    pub control: String,
    /// Whether it holds.
    pub holds: bool,
    /// What was seen.
    pub proof: String,
}

/// Tries each forbidden thing; runs after the cage is entered.
pub(crate) fn examine(expected_uid: u32) -> Vec<Finding> {
    vec![
        user(expected_uid),
        capabilities(),
        no_new_privileges(),
        filter(),
        mounting(),
        namespaces(),
        kernel_settings(),
        memory_order(),
        processes(),
    ]
}

fn finding(control: &str, holds: bool, proof: String) -> Finding {
    Finding { control: control.to_owned(), holds, proof }
}

fn user(expected: u32) -> Finding {
    let uid = rustix::process::geteuid().as_raw();
    finding("user", uid == expected && uid != 0, format!("geteuid is {uid}"))
}

fn capabilities() -> Finding {
    let set = kernel::permitted_capabilities();
    finding("capabilities", matches!(set, Ok(0)), format!("capget: permitted {:#x}", set.unwrap_or(u64::MAX)))
}

fn no_new_privileges() -> Finding {
    let value = kernel::prctl(libc::PR_GET_NO_NEW_PRIVS, 0);
    finding("no_new_privs", matches!(value, Ok(1)), format!("prctl: {}", value.unwrap_or(-1)))
}

fn filter() -> Finding {
    let value = kernel::prctl(libc::PR_GET_SECCOMP, 0);
    finding("syscall_filter", matches!(value, Ok(2)), format!("prctl: mode {}", value.unwrap_or(-1)))
}

fn refused<T>(control: &str, what: &str, result: io::Result<T>) -> Finding {
    match result {
        Ok(_) => finding(control, false, format!("{what} succeeded")),
        Err(error) => finding(control, true, format!("{what}: {error}")),
    }
}

fn mounting() -> Finding {
    let flags = rustix::mount::MountFlags::empty();
    let result = rustix::mount::mount("none", "/tmp", "tmpfs", flags, None::<&std::ffi::CStr>);
    refused("mounts", "mount", result.map_err(io::Error::from))
}

fn namespaces() -> Finding {
    // SAFETY: in a process that is about to end, a new namespace that should not be had endangers no other thread.
    let result = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER) };
    refused("namespaces", "unshare", result.map_err(io::Error::from))
}

fn kernel_settings() -> Finding {
    let result = fs::OpenOptions::new().write(true).open("/proc/sys/kernel/hostname");
    refused("proc_read_only", "open /proc/sys/kernel/hostname for writing", result)
}

/// When memory runs out the kernel must take guests before the processes that hold the cell.
fn memory_order() -> Finding {
    let score = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let score = score.trim();
    finding("memory_order", score == GUEST_OOM_SCORE, format!("oom_score_adj is {score}"))
}

/// The cell's init is the only process a fresh cell shows beside this one.
fn processes() -> Finding {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let count = names.filter(|name| name.to_string_lossy().parse::<i32>().is_ok()).count();
    finding("processes", count == 2, format!("/proc shows {count} processes: init and this probe"))
}

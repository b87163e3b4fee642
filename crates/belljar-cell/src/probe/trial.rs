//! Processes to try things in, for tests: as weak as anybody, in namespaces of their own or not.

use std::fs;
use std::io::{Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guest::become_user;
use crate::kernel::{self, Cloned};

/// Who the tests are when they have powers to give up.
pub(crate) const NOBODY: u32 = 65_534;

/// Runs something in a process of its own that is an ordinary user's, and hands back what it found.
pub(crate) fn as_anybody<T: Serialize + DeserializeOwned>(body: impl FnOnce() -> T) -> T {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the C library makes its locks whole in the child, and the child uses nothing else of other threads.
    match unsafe { libc::fork() } {
        0 => {
            let body = std::panic::AssertUnwindSafe(|| {
                if rustix::process::geteuid().is_root() {
                    kernel::clear_groups().unwrap();
                    become_user(NOBODY, NOBODY).unwrap();
                    kernel::prctl(libc::PR_SET_DUMPABLE, 1).unwrap();
                }
                let found = serde_json::to_vec(&body()).unwrap();
                writer.write_all(&found).unwrap();
            });
            let ended = std::panic::catch_unwind(body);
            kernel::exit_now(i32::from(ended.is_err()))
        }
        child => {
            assert!(child > 0);
            drop(writer);
            let mut found = Vec::new();
            reader.read_to_end(&mut found).unwrap();
            kernel::wait_for(rustix::process::Pid::from_raw(child).unwrap()).unwrap();
            serde_json::from_slice(&found).unwrap()
        }
    }
}

const ALL: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// The same in namespaces of its own, as the user `inside` with all powers over them; the second process there.
pub(crate) fn in_namespaces<T: Serialize + DeserializeOwned>(inside: u32, body: impl FnOnce() -> T) -> T {
    as_anybody(|| {
        let (mut go, gone) = std::io::pipe().unwrap();
        match kernel::clone(ALL, None).unwrap() {
            Cloned::Parent(pid, _) => {
                let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                let put = |file: &str, text: String| {
                    fs::write(format!("/proc/{}/{file}", pid.as_raw_nonzero()), text).unwrap();
                };
                put("setgroups", "deny".to_owned());
                put("uid_map", format!("{inside} {uid} 1"));
                put("gid_map", format!("{inside} {gid} 1"));
                drop(gone);
                kernel::end_like(pid)
            }
            Cloned::Child => {
                drop(gone);
                let _ = go.read(&mut [0]);
                match kernel::clone(0, None).unwrap() {
                    Cloned::Parent(pid, _) => kernel::end_like(pid),
                    Cloned::Child => body(),
                }
            }
        }
    })
}

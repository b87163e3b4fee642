//! A copy of our own program in memory that nobody can change any more.
//!
//! Keepers run from it: whatever happens to the file on disk, a living cell is kept by the program that made it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// How often it is tried, and how long is waited in between; the kernel itself waits, too.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);

/// Copies a program and seals the copy.
pub(crate) fn copy(program: &Path) -> io::Result<File> {
    let mut source = File::open(program)?;
    let memory = rustix::fs::memfd_create("belljar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut memory = File::from(memory);
    io::copy(&mut source, &mut memory)?;
    seal(&memory)?;
    Ok(memory)
}

/// The kernel refuses while somebody holds a page of it, as its own housekeeping does now and then.
fn seal(memory: &File) -> io::Result<()> {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    for _ in 0..ATTEMPTS {
        match rustix::fs::fcntl_add_seals(memory, seals) {
            Err(Errno::BUSY) => std::thread::sleep(PAUSE),
            other => return Ok(other?),
        }
    }
    Ok(rustix::fs::fcntl_add_seals(memory, seals)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn the_copy_is_whole_and_cannot_be_changed() {
        let mut copy = copy(Path::new("/proc/self/exe")).unwrap();
        let mut bytes = Vec::new();
        copy.rewind().unwrap();
        copy.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, std::fs::read("/proc/self/exe").unwrap());
        copy.rewind().unwrap();
        assert!(copy.write(b"x").is_err());
        assert!(copy.set_len(1).is_err());
    }
}

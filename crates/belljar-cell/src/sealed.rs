//! A copy of our own program in memory that nobody can change any more.
//!
//! Keepers run from it: whatever happens to the file on disk, a living cell is kept by the program that made it.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags};

/// Copies a program and seals the copy.
pub(crate) fn copy(program: &Path) -> io::Result<File> {
    let mut source = File::open(program)?;
    let memory = rustix::fs::memfd_create("belljar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut memory = File::from(memory);
    io::copy(&mut source, &mut memory)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    Ok(memory)
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

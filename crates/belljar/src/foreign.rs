//! Files that anybody may have put where they are: opened without following links or waiting for pipes.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// Opens a plain file to read.
pub(crate) fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    plain(File::from(openat(CWD, path, flags, Mode::empty())?))
}

/// Opens a plain file to read that must lie in the folder, with no link anywhere on the way.
pub(crate) fn open_beneath(folder: &Path, relative: &str) -> io::Result<File> {
    let folder = openat(CWD, folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    plain(File::from(openat2(&folder, relative, flags, Mode::empty(), resolve)?))
}

fn plain(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "not a plain file")),
    }
}

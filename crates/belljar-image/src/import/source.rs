//! Where the files of an image are read from: a folder, or an archive.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use super::tar::{Section, Table};
use crate::digest::Digest;
use crate::store::DOCUMENT_LIMIT;

/// A folder or an archive with files of images in it.
#[derive(Debug)]
pub(super) enum Source {
    Folder(OwnedFd),
    Archive(Table),
}

/// The bytes of one file.
#[derive(Debug)]
pub(super) enum Opened {
    File(io::Take<File>),
    Section(Section),
}

impl Read for Opened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Opened::File(file) => file.read(buffer),
            Opened::Section(section) => section.read(buffer),
        }
    }
}

impl Source {
    pub(super) fn has(&self, path: &str) -> bool {
        match self {
            Source::Folder(folder) => open_file(folder, path).is_ok(),
            Source::Archive(table) => table.has(path),
        }
    }

    /// The bytes of a file from an offset on, and its whole length.
    pub(super) fn open(&self, path: &str, offset: u64) -> io::Result<(Opened, u64)> {
        match self {
            Source::Folder(folder) => {
                let mut file = open_file(folder, path)?;
                let length = file.metadata()?.len();
                file.seek(SeekFrom::Start(offset))?;
                Ok((Opened::File(file.take(length.saturating_sub(offset))), length))
            }
            Source::Archive(table) => {
                let (section, length) = table.open(path, offset).ok_or(io::ErrorKind::NotFound)?;
                Ok((Opened::Section(section), length))
            }
        }
    }

    /// A small file as a whole.
    pub(super) fn document(&self, path: &str) -> io::Result<Vec<u8>> {
        let (file, length) = self.open(path, 0)?;
        if length > DOCUMENT_LIMIT {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the document is too large"));
        }
        let mut bytes = Vec::new();
        file.take(DOCUMENT_LIMIT).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Where a layout keeps a blob.
pub(super) fn blob_path(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// A stranger made the folder: no link is followed, and nothing but a file is opened.
fn open_file(folder: &OwnedFd, path: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    Ok(File::from(file))
}

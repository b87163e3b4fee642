//! The bytes of a file: written where they belong, and named as they pass.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{fstat, ftruncate};
use rustix::io::{Errno, pwrite, write};

use super::archive::{Archive, Entry};
use super::disk::Doing;
use super::seen::{Seen, attributes_of};
use super::sparse::Piece;
use super::{UnpackError, shown};
use crate::digest::Hashed;

/// Writes the bytes of an entry, and gives their name.
pub(super) fn fill(
    file: &OwnedFd,
    entry: &Entry,
    archive: &mut Archive<'_>,
    path: &[u8],
) -> Result<String, UnpackError> {
    let mut hash = Hashed::new(io::sink());
    let mut pass = |bytes: &[u8]| hash.write_all(bytes).map_err(UnpackError::from);
    match &entry.map {
        None => archive.body(entry.size, |piece| {
            pass(piece)?;
            write_all(file, piece).doing("write", path)
        })?,
        Some(map) => fill_pieces(file, map, entry.size, archive, path, &mut pass)?,
    }
    Ok(hash.finish().0.hex())
}

/// What an open file is like now; what is in it is known.
pub(super) fn see(file: &OwnedFd, content: String, path: &[u8]) -> Result<Rc<Seen>, UnpackError> {
    Ok(Rc::new(Seen::new(&fstat(file).doing("look at", path)?, content)))
}

/// The attributes of an open file, as they come after what is in it.
pub(super) fn attributes(file: &OwnedFd, path: &[u8]) -> Result<String, UnpackError> {
    let failed = |source| UnpackError::Place { operation: "look at", path: shown(path), source };
    attributes_of(file).map_err(failed)
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(file, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes the pieces of a file where they belong; what is between them stays a hole.
fn fill_pieces(
    file: &OwnedFd,
    map: &[Piece],
    size: u64,
    archive: &mut Archive<'_>,
    path: &[u8],
    mut pass: impl FnMut(&[u8]) -> Result<(), UnpackError>,
) -> Result<(), UnpackError> {
    ftruncate(file, size).doing("lengthen", path)?;
    let mut passed = 0;
    for piece in map {
        pass_hole(piece.offset - passed, &mut pass)?;
        passed = piece.offset + piece.length;
        let mut offset = piece.offset;
        archive.body(piece.length, |mut bytes| {
            pass(bytes)?;
            while !bytes.is_empty() {
                match pwrite(file, bytes, offset) {
                    Ok(count) => {
                        offset += count as u64;
                        bytes = &bytes[count..];
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno).doing("write", path),
                }
            }
            Ok(())
        })?;
    }
    pass_hole(size - passed, &mut pass)
}

/// A hole reads as zeros.
fn pass_hole(
    mut length: u64,
    mut pass: impl FnMut(&[u8]) -> Result<(), UnpackError>,
) -> Result<(), UnpackError> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while length > 0 {
        let step = usize::try_from(length).unwrap_or(usize::MAX).min(ZEROS.len());
        pass(&ZEROS[..step])?;
        length -= step as u64;
    }
    Ok(())
}

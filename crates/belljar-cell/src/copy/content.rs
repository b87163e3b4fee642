//! The data of a file: shared with the original where the file system can, holes kept where it cannot.

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, Stat, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::{Errno, pread, pwrite};

use super::{Budget, Trouble};

/// How many bytes are read and written at once; files up to this size are not worth asking the kernel to copy.
const PIECE: usize = 64 << 10;
/// How many bytes the kernel copies in one call: few enough that a limit is noticed soon after it is passed.
const LONGEST_RANGE: usize = 16 << 20;

/// Copies data in the quickest way that works here.
#[derive(Debug)]
pub(super) struct Content {
    sharing: Works,
    ranges: Works,
    buffer: Vec<u8>,
}

/// Whether a way to copy works between these file systems; one that failed is not tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Works {
    Perhaps,
    No,
}

impl Default for Content {
    fn default() -> Content {
        Content { sharing: Works::Perhaps, ranges: Works::Perhaps, buffer: Vec::new() }
    }
}

#[cfg(test)]
impl Content {
    pub(super) fn without_sharing() -> Content {
        Content { sharing: Works::No, ..Content::default() }
    }

    pub(super) fn without_the_kernel() -> Content {
        Content { sharing: Works::No, ranges: Works::No, ..Content::default() }
    }
}

impl Content {
    /// Copies a file, as long as it was when it was looked at, to a new and empty one.
    pub(super) fn copy(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        stat: &Stat,
        budget: &mut Budget,
    ) -> Result<(), Trouble> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let stored = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        if size == 0 {
            return Ok(());
        }
        if self.sharing == Works::Perhaps {
            if ioctl_ficlone(to, from).is_ok() {
                return budget.spend(stored.min(size)).map_err(Trouble::from);
            }
            self.sharing = Works::No;
        }
        let reached = match size <= stored && size <= PIECE as u64 {
            true => self.pieces(from, to, 0, size, budget)?,
            false => self.data(from, to, size, budget)?,
        };
        if reached < size {
            ftruncate(to, size)?;
        }
        Ok(())
    }

    /// Copies what is not a hole; says where the last data ended.
    fn data(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        size: u64,
        budget: &mut Budget,
    ) -> Result<u64, Trouble> {
        let (mut at, mut reached) = (0, 0);
        while at < size {
            let start = match seek(from, SeekFrom::Data(at)) {
                Ok(start) if start < size => start,
                // No data from here on.
                Ok(_) | Err(Errno::NXIO) => break,
                // A file system without holes.
                Err(Errno::INVAL) => at,
                Err(error) => return Err(error.into()),
            };
            let end = seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
            reached = self.range(from, to, start, end, budget)?;
            at = end.max(start + 1);
        }
        Ok(reached)
    }

    fn range(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        start: u64,
        end: u64,
        budget: &mut Budget,
    ) -> Result<u64, Trouble> {
        let mut at = start;
        while self.ranges == Works::Perhaps && at < end {
            let (mut source, mut target) = (at, at);
            let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(LONGEST_RANGE);
            match copy_file_range(from, Some(&mut source), to, Some(&mut target), length) {
                // The original ends here now.
                Ok(0) => return Ok(at),
                Ok(count) => {
                    budget.spend(count as u64)?;
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                    self.ranges = Works::No;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.pieces(from, to, at, end, budget)
    }

    fn pieces(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        start: u64,
        end: u64,
        budget: &mut Budget,
    ) -> Result<u64, Trouble> {
        self.buffer.resize(PIECE, 0);
        let mut at = start;
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            let count = match pread(from, &mut self.buffer[..length], at) {
                Ok(0) => break,
                Err(Errno::INTR) => continue,
                other => other?,
            };
            budget.spend(count as u64)?;
            write_at(to, &self.buffer[..count], at)?;
            at += count as u64;
        }
        Ok(at)
    }
}

fn write_at(to: BorrowedFd<'_>, mut piece: &[u8], mut at: u64) -> rustix::io::Result<()> {
    while !piece.is_empty() {
        match pwrite(to, piece, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                piece = &piece[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

//! Extended attributes of files and folders.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

use super::{Budget, Trouble};

/// The most bytes in a list of names, or in one value: the kernel's own limit.
const MOST: usize = 64 << 10;

/// Copies the attributes that belong to users. An overlay keeps there what it knows about deleted and moved folders.
#[derive(Debug)]
pub(super) struct Attributes {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { names: Vec::with_capacity(MOST), value: Vec::with_capacity(MOST) }
    }
}

impl Attributes {
    /// Copies all from one open file or folder to another.
    pub(super) fn copy(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        budget: &mut Budget,
    ) -> Result<(), Trouble> {
        self.names.clear();
        match flistxattr(from, spare_capacity(&mut self.names)) {
            Ok(_) => {}
            Err(Errno::NOTSUP) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let names = self.names.split_inclusive(|byte| *byte == 0);
        for name in names.filter(|name| name.starts_with(b"user.")) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            self.value.clear();
            match fgetxattr(from, name, spare_capacity(&mut self.value)) {
                Ok(_) => {}
                // Gone since it was listed.
                Err(Errno::NODATA) => continue,
                Err(error) => return Err(error.into()),
            }
            budget.spend((name.count_bytes() + self.value.len()) as u64)?;
            fsetxattr(to, name, &self.value, XattrFlags::empty())?;
        }
        Ok(())
    }
}

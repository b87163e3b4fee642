//! Extended attributes of what is packed: those that a layer keeps, and what overlays noted in the others.

use std::os::fd::OwnedFd;

use rustix::fs::{fgetxattr, flistxattr, flistxattr_query};
use rustix::io::Errno;

use crate::unpack::xattr::{self, Xattr};

/// The most that the kernel gives of one attribute, or of all their names.
const LARGEST: usize = 64 << 10;

/// What the attributes of one file say.
#[derive(Default)]
pub(super) struct Attributes {
    /// To be written, by name.
    pub(super) kept: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many are not.
    pub(super) left_out: u64,
    /// Whether it is a folder that hides what is below it.
    pub(super) opaque: bool,
    /// What makes it more than it seems, if something does.
    pub(super) unfit: Option<&'static str>,
}

/// Reads all attributes of a file.
pub(super) fn read(file: &OwnedFd) -> Result<Attributes, Errno> {
    let mut attributes = Attributes::default();
    for name in names(file)? {
        attributes.take(file, name)?;
    }
    attributes.kept.sort();
    Ok(attributes)
}

fn names(file: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    // Most files have none, and asking how many is quick.
    match flistxattr_query(file) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(errno) => return Err(errno),
    }
    let mut list = vec![0; LARGEST];
    let count = flistxattr(file, &mut list[..])?;
    let names = list[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn value(file: &OwnedFd, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; LARGEST];
    let count = fgetxattr(file, name, &mut value[..])?;
    value.truncate(count);
    Ok(value)
}

impl Attributes {
    fn take(&mut self, file: &OwnedFd, name: Vec<u8>) -> Result<(), Errno> {
        let noted = name.strip_prefix(b"user.overlay.").or_else(|| name.strip_prefix(b"trusted.overlay."));
        if let Some(note) = noted {
            return self.take_note(file, &name, note);
        }
        // A record's key ends at the first `=`.
        if xattr::read(&name) == Xattr::LeaveOut || name.contains(&b'=') {
            self.left_out += 1;
            return Ok(());
        }
        let value = value(file, &name)?;
        self.kept.push((name, value));
        Ok(())
    }

    fn take_note(&mut self, file: &OwnedFd, name: &[u8], note: &[u8]) -> Result<(), Errno> {
        match note {
            b"opaque" => match &value(file, name)?[..] {
                b"y" => self.opaque = true,
                b"x" => self.unfit = Some("the overlay keeps whiteouts in it as attributes"),
                _ => {}
            },
            b"redirect" => self.unfit = Some("the overlay only notes where it was moved from"),
            b"metacopy" => self.unfit = Some("the overlay has its bytes in a lower layer"),
            b"whiteout" => self.unfit = Some("the overlay keeps a whiteout as an attribute"),
            _ => {}
        }
        Ok(())
    }
}

//! Whether a file is an archive that ADD would unpack.

use std::fs::File;
use std::io::{self, Read};

/// A tar header with a checksum that fits, behind any compression that is known.
pub(super) fn is_archive(file: File) -> io::Result<bool> {
    let mut block = [0u8; 512];
    let mut filled = 0;
    // What cannot be opened as one is no archive.
    let Ok(mut reader) = crate::compression::open(file) else { return Ok(false) };
    while filled < block.len() {
        match reader.read(&mut block[filled..]) {
            Ok(0) | Err(_) => return Ok(false),
            Ok(count) => filled += count,
        }
    }
    let header = tar::Header::from_byte_slice(&block);
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
        .sum();
    Ok(block[0] != 0 && header.cksum().is_ok_and(|told| told == sum))
}

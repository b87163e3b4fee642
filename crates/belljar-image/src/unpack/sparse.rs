//! Files with holes: where the bytes that are stored belong.

use super::header::number;
use super::pax::decimal;

/// Some bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Offsets and lengths by turns as pieces, if they are in order, within the file, and as long as what is stored.
pub(super) fn pieces(numbers: &[u64], real_size: u64, stored: u64) -> Result<Vec<Piece>, &'static str> {
    if real_size > i64::MAX.unsigned_abs() || !numbers.len().is_multiple_of(2) {
        return Err("the map of a file with holes is malformed");
    }
    let mut pieces = Vec::with_capacity(numbers.len() / 2);
    let (mut end, mut total) = (0_u64, 0_u64);
    for pair in numbers.chunks_exact(2) {
        let (offset, length) = (pair[0], pair[1]);
        let next = offset.checked_add(length).filter(|next| *next <= real_size && offset >= end);
        end = next.ok_or("the map of a file with holes is not in order")?;
        total += length;
        pieces.push(Piece { offset, length });
    }
    if total == stored {
        Ok(pieces)
    } else {
        Err("the map of a file with holes has another length than its bytes")
    }
}

/// Reads pieces as GNU's old headers hold them: 12 bytes of offset, 12 of length, up to the first empty one.
pub(super) fn read_old(field: &[u8], numbers: &mut Vec<u64>) -> Result<(), &'static str> {
    for piece in field.chunks_exact(24) {
        if piece[0] == 0 {
            break;
        }
        for half in [&piece[..12], &piece[12..]] {
            numbers.push(u64::try_from(number(half)?).map_err(|_| "a size is negative")?);
        }
    }
    Ok(())
}

/// Longer than any number.
const LONGEST_LINE: usize = 24;

/// Numbers on lines of their own, of which the first says how many pairs follow.
#[derive(Default)]
pub(super) struct Lines {
    read: usize,
    pairs: Option<u64>,
    numbers: Vec<u64>,
}

impl Lines {
    /// Reads the lines that have become whole.
    pub(super) fn read(&mut self, text: &[u8]) -> Result<(), &'static str> {
        while !self.done() {
            let line = &text[self.read..];
            let Some(length) = line.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') else {
                return if line.len() < LONGEST_LINE { Ok(()) } else { Err("a number is too large") };
            };
            let value = decimal(&text[self.read..self.read + length])?;
            self.read += length + 1;
            match self.pairs {
                None => self.pairs = Some(value),
                Some(_) => self.numbers.push(value),
            }
        }
        Ok(())
    }

    /// Whether all that was announced is there.
    pub(super) fn done(&self) -> bool {
        self.pairs.is_some_and(|pairs| self.numbers.len() as u64 / 2 >= pairs)
    }

    pub(super) fn numbers(self) -> Vec<u64> {
        self.numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_must_be_in_order_and_as_long_as_their_bytes() {
        assert_eq!(pieces(&[2, 3, 10, 0], 10, 3).unwrap().len(), 2);
        assert!(pieces(&[2, 3], 4, 3).is_err());
        assert!(pieces(&[2, 3, 4, 1], 10, 4).is_err());
        assert!(pieces(&[2, 3], 10, 4).is_err());
        assert!(pieces(&[2], 10, 2).is_err());
        assert!(pieces(&[u64::MAX, 2], 10, 2).is_err());
        assert!(pieces(&[], u64::MAX, 0).is_err());
    }
}

//! When a file was last written.

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_OMIT};

/// A time of modification: seconds since 1970, which may be negative, and nanoseconds after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mtime {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

impl Mtime {
    /// The time of modification of a file.
    pub(crate) fn of(stat: &Stat) -> Mtime {
        let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Mtime { seconds: stat.st_mtime, nanoseconds }
    }

    /// For a call that sets times; the time of access stays.
    pub(crate) fn to_timestamps(self) -> Timestamps {
        Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.seconds, tv_nsec: i64::from(self.nanoseconds) },
        }
    }

    /// As a PAX record has it: a decimal number.
    pub(super) fn to_decimal(self) -> String {
        match (self.seconds, self.nanoseconds) {
            (seconds, 0) => seconds.to_string(),
            (seconds, nanoseconds) if seconds >= 0 => format!("{seconds}.{nanoseconds:09}"),
            // -1.25 is two seconds back and then 0.75 forward.
            (seconds, nanoseconds) => {
                format!("-{}.{:09}", seconds.unsigned_abs() - 1, 1_000_000_000 - nanoseconds)
            }
        }
    }

    /// Reads a decimal number; digits beyond nanoseconds are dropped.
    pub(super) fn from_decimal(text: &[u8]) -> Option<Mtime> {
        let (negative, digits) = match text.strip_prefix(b"-") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut parts = digits.splitn(2, |byte| *byte == b'.');
        let whole = i64::try_from(decimal(parts.next()?)?).ok()?;
        let nanoseconds = fraction(parts.next().unwrap_or(b""))?;
        Some(match (negative, nanoseconds) {
            (false, _) => Mtime { seconds: whole, nanoseconds },
            (true, 0) => Mtime { seconds: -whole, nanoseconds },
            (true, _) => Mtime { seconds: -whole - 1, nanoseconds: 1_000_000_000 - nanoseconds },
        })
    }
}

/// A number of decimal digits and nothing else.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn fraction(digits: &[u8]) -> Option<u32> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nine = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    Some(nine.fold(0, |value, digit| value * 10 + u32::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_come_back_as_they_were() {
        for (seconds, nanoseconds) in
            [(0, 0), (1, 5), (1_700_000_000, 123_456_789), (-1, 0), (-2, 750_000_000), (-1, 1), (i64::MAX, 9)]
        {
            let time = Mtime { seconds, nanoseconds };
            assert_eq!(
                Mtime::from_decimal(time.to_decimal().as_bytes()),
                Some(time),
                "{}",
                time.to_decimal()
            );
        }
        assert_eq!(Mtime { seconds: -2, nanoseconds: 750_000_000 }.to_decimal(), "-1.250000000");
        assert_eq!(Mtime { seconds: -1, nanoseconds: 1 }.to_decimal(), "-0.999999999");
    }

    #[test]
    fn what_is_no_decimal_is_none() {
        for text in ["", "-", "1.x", "x", "--1", "1e3", " 1", "9223372036854775808", "1.2.3"] {
            assert_eq!(Mtime::from_decimal(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Mtime::from_decimal(b"1."), Some(Mtime { seconds: 1, nanoseconds: 0 }));
        let expected = Some(Mtime { seconds: 7, nanoseconds: 123_456_789 });
        assert_eq!(Mtime::from_decimal(b"7.1234567899"), expected);
    }
}

//! Times as HTTP and people write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `2026-11-15T12:00:00Z`.
pub(super) fn written(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs());
    let (year, month, day) = date(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// How long `Retry-After` asks to wait: seconds, or a date.
pub(super) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let at = UNIX_EPOCH + Duration::from_secs(http_date(text.trim())?);
    Some(at.duration_since(now).unwrap_or_default())
}

/// `Sun, 15 Nov 2026 12:00:00 GMT`, the only form that servers still send.
fn http_date(text: &str) -> Option<u64> {
    let rest = text.split_once(", ")?.1.strip_suffix(" GMT")?;
    let mut parts = rest.split(' ');
    let day: u64 = parts.next()?.parse().ok()?;
    let name = parts.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as u64 + 1;
    let year: u64 = parts.next()?.parse().ok()?;
    let mut time = parts.next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1970..10000).contains(&year) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second)
}

/// Days since 1970. Years start in March here, so that the odd day is the last one.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let of_era_year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_era_year + of_era_year / 4 - of_era_year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + of_era_year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(written(at(0)), "1970-01-01T00:00:00Z");
        assert_eq!(written(at(951_826_354)), "2000-02-29T12:12:34Z");
        assert_eq!(http_date("Tue, 29 Feb 2000 12:12:34 GMT"), Some(951_826_354));
        assert_eq!(retry_after("7", at(0)), Some(Duration::from_secs(7)));
        assert_eq!(
            retry_after("Tue, 29 Feb 2000 12:12:34 GMT", at(951_826_350)),
            Some(Duration::from_secs(4))
        );
        assert_eq!(retry_after("Tue, 29 Feb 2000 12:12:34 GMT", at(951_826_360)), Some(Duration::ZERO));
        for wrong in ["", "-1", "soon", "Tue, 29 Feb 2000", "Tue, 99 Feb 2000 12:12:34 GMT"] {
            assert_eq!(retry_after(wrong, at(0)), None, "{wrong}");
        }
        for day in (0..100_000).step_by(17) {
            let (year, month, date) = date(day);
            assert_eq!(days(year, month, date), day);
        }
    }
}

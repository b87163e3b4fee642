//! Words of the command line with a meaning of their own: spans of time, users, variables, signals.

use std::str::FromStr;
use std::time::Duration;

use rustix::process::Signal;

/// A span of time as typed: `500ms`, `1.5s`, `30m`, `12h`, `7d`, `4w`; a number alone counts seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period(pub(crate) Duration);

/// The longest span: ten years.
const LONGEST: u64 = 10 * 365 * 86_400_000;

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Period, String> {
        let wrong =
            || format!("{text:?} is not a time; write a number with a unit: 500ms, 1.5s, 30m, 12h, 7d");
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let factor: u64 = match unit {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return Err(wrong()),
        };
        let thousandths: belljar::limits::Seconds = number.parse().map_err(|_| wrong())?;
        let millis =
            thousandths.millis().checked_mul(factor).map(|product| product / 1000).ok_or_else(wrong)?;
        match millis {
            0 => Err("it must be longer than nothing".to_owned()),
            1..=LONGEST => Ok(Period(Duration::from_millis(millis))),
            _ => Err("it must be at most ten years".to_owned()),
        }
    }
}

/// A user as typed: `1000` or `1000:1000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Identity, String> {
        let wrong = |_| format!("{text:?} is not a user; write numbers: 1000 or 1000:1000");
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        let (uid, gid) = (uid.parse().map_err(wrong)?, gid.parse().map_err(wrong)?);
        match (uid, gid) {
            (0, _) | (_, 0) => Err("no guest is root; choose another number than 0".to_owned()),
            (uid, gid) => Ok(Identity { uid, gid }),
        }
    }
}

/// A variable as typed: `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Assignment, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(Assignment { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err(format!("{text:?} is not NAME=VALUE")),
        }
    }
}

/// A signal as typed: `TERM`, `SIGTERM` or `15`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignalNumber(pub(crate) i32);

const SIGNALS: [(&str, Signal); 30] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ILL", Signal::ILL),
    ("TRAP", Signal::TRAP),
    ("ABRT", Signal::ABORT),
    ("BUS", Signal::BUS),
    ("FPE", Signal::FPE),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("SEGV", Signal::SEGV),
    ("USR2", Signal::USR2),
    ("PIPE", Signal::PIPE),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("CHLD", Signal::CHILD),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
    ("URG", Signal::URG),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("WINCH", Signal::WINCH),
    ("IO", Signal::IO),
    ("PWR", Signal::POWER),
    ("SYS", Signal::SYS),
];

impl SignalNumber {
    /// The signal that cannot be caught.
    pub(crate) const KILL: SignalNumber = SignalNumber(Signal::KILL.as_raw());

    /// Its name, or its number where it has none.
    pub(crate) fn name(self) -> String {
        let named = SIGNALS.iter().find(|(_, signal)| signal.as_raw() == self.0);
        named.map_or_else(|| self.0.to_string(), |(name, _)| (*name).to_owned())
    }
}

impl FromStr for SignalNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<SignalNumber, String> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let same = |(other, signal): &&(&str, Signal)| *other == name || signal.as_raw().to_string() == text;
        let found = SIGNALS.iter().find(same).map(|(_, signal)| SignalNumber(signal.as_raw()));
        found.ok_or_else(|| format!("{text:?} is not a signal; write a name or a number: TERM, SIGTERM, 15"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time_have_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("1.5s", 1500),
            ("30", 30_000),
            ("0.25m", 15_000),
            ("12h", 43_200_000),
            ("1w", 604_800_000),
        ] {
            assert_eq!(text.parse(), Ok(Period(Duration::from_millis(millis))), "{text}");
        }
        for wrong in ["", "s", "0", "0.0001s", "-1s", "1 s", "1µs", "1.2345s", "99999999999w", "1h30m", "inf"]
        {
            assert!(wrong.parse::<Period>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn users_are_numbers() {
        assert_eq!("7".parse(), Ok(Identity { uid: 7, gid: 7 }));
        assert_eq!("7:8".parse(), Ok(Identity { uid: 7, gid: 8 }));
        for wrong in ["", "root", "7:", ":8", "7:8:9", "-1", "4294967296", "0", "7:0", "0:7"] {
            assert!(wrong.parse::<Identity>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn variables_have_a_name() {
        let expected = Assignment { name: "A".to_owned(), value: "b=c".to_owned() };
        assert_eq!("A=b=c".parse(), Ok(expected));
        assert!("A".parse::<Assignment>().is_err() && "=b".parse::<Assignment>().is_err());
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "term", "SIGTERM", "15"] {
            assert_eq!(text.parse(), Ok(SignalNumber(15)), "{text}");
        }
        assert_eq!((SignalNumber::KILL.0, SignalNumber(9).name()), (9, "KILL".to_owned()));
        for wrong in ["", "SIG", "NOPE", "0", "99", "-9"] {
            assert!(wrong.parse::<SignalNumber>().is_err(), "{wrong}");
        }
    }
}

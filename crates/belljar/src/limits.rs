//! What a sandbox may use at most: sizes, processors, processes and time as exact types.
//!
//! No type here holds a floating point number, so a plan hashes the same on every machine.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The limits of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory of everything in the sandbox together, its page cache and tmpfs files included.
    pub memory: Bytes,
    /// Processors' worth of time, in thousandths: `1.5` is one and a half.
    pub cpus: Cpus,
    /// Processes and threads alive at the same time.
    #[schemars(range(min = 1, max = 4_194_302))]
    pub pids: u32,
    /// Bytes kept of each output stream of a command; what comes after is counted and dropped.
    pub output: Bytes,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: Bytes(2 << 30), cpus: Cpus(2000), pids: 512, output: Bytes(64 << 20) }
    }
}

/// Why a written amount was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// The text is not a size.
    #[error(
        "`{0}` is not a size; write bytes as a whole number, or a number with a unit: 512m, 512MiB, 512MB"
    )]
    Size(String),
    /// The text is not a number of processors.
    #[error("`{0}` is not a number of processors; write one with at most three decimals, such as 2 or 0.5")]
    Cpus(String),
    /// The text is not a time in seconds.
    #[error("`{0}` is not a number of seconds; write one with at most three decimals, such as 300 or 0.5")]
    Seconds(String),
}

/// A size in bytes.
///
/// `512k`, `512m`, `512g`, `512t` and `KiB` to `TiB` count in 1024s (as Docker does); `kB` to `TB` in 1000s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

impl FromStr for Bytes {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Bytes, AmountError> {
        let wrong = || AmountError::Size(text.to_owned());
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
        let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(factor).map(Bytes).ok_or_else(wrong)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        Amount::deserialize(deserializer)?.read()
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A size: whole bytes, or a number with a unit. k, m, g, t and KiB to TiB count in 1024s, kB to TB in 1000s.",
            "anyOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "string", "pattern": "^[0-9]+ ?([bB]|[kKmMgGtT]([iI]?[bB])?)?$" },
            ],
        })
    }
}

/// A share of processor time in thousandths of one processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus(u32);

impl Cpus {
    /// So many thousandths of a processor.
    pub const fn from_millis(millis: u32) -> Cpus {
        Cpus(millis)
    }

    /// The share in thousandths of a processor.
    pub const fn millis(self) -> u32 {
        self.0
    }
}

impl FromStr for Cpus {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Cpus, AmountError> {
        let wrong = || AmountError::Cpus(text.to_owned());
        let millis = thousandths(text).ok_or_else(wrong)?;
        u32::try_from(millis).map(Cpus).map_err(|_| wrong())
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thousandths(f, u64::from(self.0))
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 1000 {
            0 => serializer.serialize_u32(self.0 / 1000),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cpus, D::Error> {
        Amount::deserialize(deserializer)?.read()
    }
}

impl JsonSchema for Cpus {
    fn schema_name() -> Cow<'static, str> {
        "Cpus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of processors with at most three decimals; 0.5 is half of one.",
            "anyOf": [
                { "type": "number", "minimum": 0.01, "maximum": 1024 },
                { "type": "string", "pattern": "^[0-9]+(\\.[0-9]{1,3})?$" },
            ],
        })
    }
}

/// A time limit in seconds, exact to the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(u64);

impl Seconds {
    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Seconds {
        Seconds(millis)
    }

    /// The time in milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }
}

impl FromStr for Seconds {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Seconds, AmountError> {
        thousandths(text).map(Seconds).ok_or_else(|| AmountError::Seconds(text.to_owned()))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thousandths(f, self.0)
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 1000 {
            0 => serializer.serialize_u64(self.0 / 1000),
            _ => serializer.serialize_f64(self.0 as f64 / 1000.0),
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seconds, D::Error> {
        Amount::deserialize(deserializer)?.read()
    }
}

impl JsonSchema for Seconds {
    fn schema_name() -> Cow<'static, str> {
        "Seconds".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A time in seconds with at most three decimals, at most 30 days.",
            "type": "number",
            "minimum": 0.001,
            "maximum": 2_592_000,
        })
    }
}

/// An amount as it may stand in a data file, before it is read.
#[derive(Deserialize)]
#[serde(untagged)]
enum Amount {
    Whole(u64),
    Decimal(f64),
    Text(String),
}

impl Amount {
    fn read<T: FromStr<Err = AmountError>, E: serde::de::Error>(self) -> Result<T, E> {
        let text = match self {
            Amount::Whole(number) => number.to_string(),
            Amount::Decimal(number) => number.to_string(),
            Amount::Text(text) => text,
        };
        text.parse().map_err(E::custom)
    }
}

/// Reads `12`, `12.5` or `12.345` exactly, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 3 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let rest: u64 = format!("{decimals:0<3}").parse().ok()?;
    whole.checked_mul(1000)?.checked_add(rest)
}

fn write_thousandths(f: &mut fmt::Formatter<'_>, amount: u64) -> fmt::Result {
    let (whole, rest) = (amount / 1000, amount % 1000);
    match rest {
        0 => write!(f, "{whole}"),
        _ => write!(f, "{whole}.{}", format!("{rest:03}").trim_end_matches('0')),
    }
}

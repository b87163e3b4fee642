//! Points in time and spans of it, in the one form every record uses.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time: UTC, to the microsecond, always written with six decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Timestamp);

impl Moment {
    /// Now, by the wall clock.
    pub fn now() -> Moment {
        Moment::from_timestamp(Timestamp::now())
    }

    /// The microsecond that holds this timestamp.
    pub fn from_timestamp(at: Timestamp) -> Moment {
        Moment(Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at))
    }

    /// Microseconds since 1970, negative before it.
    pub fn as_microsecond(self) -> i64 {
        self.0.as_microsecond()
    }

    /// The time that has passed since an earlier moment; nothing if it is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        let micros = self.as_microsecond().saturating_sub(earlier.as_microsecond());
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// The form used in folder names: `YYYYmmddTHHMMSSZ`.
    pub fn compact(self) -> String {
        self.0.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ").to_string()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

impl FromStr for Moment {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Moment, jiff::Error> {
        text.parse().map(Moment::from_timestamp)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Moment {
    fn schema_name() -> Cow<'static, str> {
        "Moment".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A point in time: UTC, six decimals of a second.",
            "type": "string",
            "format": "date-time",
            "pattern": r"^-?[0-9]{4,6}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$"
        })
    }
}

/// A span of time, kept in whole microseconds and written as milliseconds with decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(u64);

/// Nearly nine years: its microseconds survive the way through a JSON number.
const MAX_MICROS: u64 = 1 << 48;

impl Millis {
    /// A span of this many microseconds.
    pub fn from_micros(micros: u64) -> Millis {
        Millis(micros.min(MAX_MICROS))
    }

    /// The span in microseconds.
    pub fn as_micros(self) -> u64 {
        self.0
    }
}

impl From<Duration> for Millis {
    fn from(span: Duration) -> Millis {
        Millis::from_micros(u64::try_from(span.as_micros()).unwrap_or(MAX_MICROS))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..10_000 => write!(f, "{}.{} ms", self.0 / 1000, self.0 / 100 % 10),
            10_000..1_000_000 => write!(f, "{} ms", self.0 / 1000),
            _ => write!(f, "{}.{} s", self.0 / 1_000_000, self.0 / 100_000 % 10),
        }
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            return serializer.serialize_u64(self.0 / 1000);
        }
        serializer.serialize_f64(self.0 as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Millis, D::Error> {
        let millis = f64::deserialize(deserializer)?;
        if !(0.0..=(MAX_MICROS as f64 / 1000.0)).contains(&millis) {
            return Err(D::Error::custom("a span of time must be a number of milliseconds, zero or more"));
        }
        Ok(Millis::from_micros((millis * 1000.0).round() as u64))
    }
}

impl JsonSchema for Millis {
    fn schema_name() -> Cow<'static, str> {
        "Millis".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A span of time in milliseconds, decimals down to the microsecond.",
            "type": "number",
            "minimum": 0
        })
    }
}

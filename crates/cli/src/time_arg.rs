//! Parses time arguments: a duration with a unit, a date, or a timestamp. A duration is subtracted from the current
//! time.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use sapwood::core::TimestampMs;
use sapwood::core::port::clock::Clock;

const UNITS_MS: &[(&str, i64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

/// Parse a duration with a unit, such as `30d`.
pub fn duration_ms(text: &str) -> Result<i64, String> {
    let wrong = || "expected a number with a unit: 30d, 12h, 45m, 10s".to_owned();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let (_, unit_ms) = UNITS_MS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    number.checked_mul(*unit_ms).ok_or_else(wrong)
}

/// A point in time given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeArg(TimestampMs);

impl TimeArg {
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_at(text, sapwood::SystemClock.now(), TimeZone::system())
    }

    fn parse_at(text: &str, now: TimestampMs, zone: TimeZone) -> Result<Self, String> {
        if let Ok(span_ms) = duration_ms(text) {
            return Ok(Self(TimestampMs(now.0.saturating_sub(span_ms))));
        }
        let day = text.parse::<Date>().ok().and_then(|day| day.to_zoned(zone).ok());
        let moment = day.map(|day| day.timestamp()).or_else(|| text.parse::<jiff::Timestamp>().ok());
        let wrong = || {
            "expected 30d, 12h or 45m, a date like 2026-01-31, or a time like 2026-01-31T12:00:00Z".to_owned()
        };
        moment.map(|at| Self(TimestampMs(at.as_millisecond()))).ok_or_else(wrong)
    }

    pub fn at(self) -> TimestampMs {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_durations_dates_and_timestamps() {
        let now = TimestampMs(1_000_000_000_000);
        let parse = |text: &str| TimeArg::parse_at(text, now, TimeZone::UTC).map(|moment| moment.at().0);
        assert_eq!(parse("2d"), Ok(now.0 - 2 * 86_400_000));
        assert_eq!(parse("2001-09-09"), Ok(999_993_600_000));
        assert_eq!(parse("2001-09-09T01:46:40Z"), Ok(now.0));
        for wrong in ["", "2", "d", "yesterday", "2001-13-01", "99999999999999999999d"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}

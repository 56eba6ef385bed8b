//! A schedule given as a cron pattern in a named time zone. Daylight saving changes follow cron's rules: for example, a
//! fixed time that occurs twice in autumn fires only the first time.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sapwood_core::TimestampMs;
use sapwood_core::port::trigger::Calendar;

/// Maximum length of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 200;

#[derive(Debug)]
pub struct Cron {
    pattern: String,
    cron: croner::Cron,
    zone: TimeZone,
    zone_name: String,
}

impl Cron {
    /// Parse a pattern with five fields, or with six fields, the first of which is seconds. The zone is a name such as
    /// `Europe/Berlin` or `UTC`.
    pub fn parse(pattern: &str, zone: &str) -> Result<Self, String> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("the pattern exceeds {PATTERN_BYTES_MAX} bytes"));
        }
        let cron = croner::parser::CronParser::new().parse(pattern);
        let cron = cron.map_err(|error| format!("{pattern:?} is not a valid cron pattern: {error}"))?;
        let found = TimeZone::get(zone).map_err(|_| format!("no time zone {zone:.64?}"))?;
        Ok(Self { pattern: pattern.to_owned(), cron, zone: found, zone_name: zone.to_owned() })
    }
}

impl Calendar for Cron {
    fn next_after(&self, at: TimestampMs) -> Option<TimestampMs> {
        let at = Timestamp::from_millisecond(at.0).ok()?.to_zoned(self.zone.clone());
        let next = self.cron.find_next_occurrence(&at, false).ok()?;
        Some(TimestampMs(next.timestamp().as_millisecond()))
    }

    fn describe(&self) -> String {
        format!("{} {}", self.pattern, self.zone_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pattern: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let cron = Cron::parse(pattern, zone).unwrap();
        let mut at = TimestampMs(from.parse::<Timestamp>().unwrap().as_millisecond());
        let mut found = Vec::new();
        for _ in 0..count {
            at = cron.next_after(at).unwrap();
            found.push(Timestamp::from_millisecond(at.0).unwrap().to_string());
        }
        found
    }

    #[test]
    fn times_are_local_to_the_time_zone() {
        let from = "2026-01-10T00:00:00Z";
        assert_eq!(times("0 3 * * *", "UTC", from, 1), ["2026-01-10T03:00:00Z"]);
        assert_eq!(times("0 3 * * *", "Europe/Berlin", from, 1), ["2026-01-10T02:00:00Z"]);
        assert_eq!(times("*/20 * * * * *", "UTC", from, 2), ["2026-01-10T00:00:20Z", "2026-01-10T00:00:40Z"]);
    }

    #[test]
    fn follows_local_time_across_daylight_saving_changes() {
        let found = times("0 9 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 2);
        assert_eq!(found, ["2026-03-28T08:00:00Z", "2026-03-29T07:00:00Z"]);
        // 02:30 occurs twice on 25 October. The job runs only the first time.
        let found = times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2);
        assert_eq!(found, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    }

    #[test]
    fn an_invalid_pattern_or_zone_is_reported() {
        assert!(Cron::parse("every day", "UTC").unwrap_err().contains("every day"));
        assert!(Cron::parse("0 3 * * *", "Mars/Olympus").unwrap_err().contains("Mars"));
        let never = Cron::parse("0 0 30 2 *", "UTC").unwrap();
        assert_eq!(never.next_after(TimestampMs(0)), None);
    }
}

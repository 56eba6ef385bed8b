//! The system clock and random numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use sapwood_core::TimestampMs;
use sapwood_core::port::clock::Clock;

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> TimestampMs {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        TimestampMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn random(&self) -> u128 {
        uuid::Uuid::new_v4().as_u128()
    }
}

//! The clock port: time and randomness are injected, so that tests can control them.

use crate::id::TimestampMs;

pub trait Clock: Send + Sync {
    fn now(&self) -> TimestampMs;
    /// 128 random bits, for ids.
    fn random(&self) -> u128;
}

//! Time and chance come from outside, so that tests can hold them still.

use crate::id::TimestampMs;

pub trait Clock: Send + Sync {
    fn now(&self) -> TimestampMs;
    /// 128 random bits, for ids.
    fn random(&self) -> u128;
}

//! The seams to what sets triggers off: a calendar, and files that are watched.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::id::TimestampMs;

/// Times that come again. Pure, but it knows time zones, which core does not.
pub trait Calendar: Send + Sync {
    /// The first time after this one; none if there is none any more.
    fn next_after(&self, at: TimestampMs) -> Option<TimestampMs>;
    /// For people.
    fn describe(&self) -> String;
}

/// Looks at files.
#[async_trait]
pub trait Watcher: Send + Sync {
    /// What each of them looks like now: another text means another content.
    async fn look(&self) -> Result<BTreeMap<String, String>, String>;
    /// For people.
    fn describe(&self) -> String;
}

//! The ports of trigger sources: a calendar and watched files.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::id::TimestampMs;

/// A recurring schedule. Pure, but implemented outside core because it needs time zone data.
pub trait Calendar: Send + Sync {
    /// The first scheduled time after `at`; `None` if the schedule has no later time.
    fn next_after(&self, at: TimestampMs) -> Option<TimestampMs>;
    /// A description for display.
    fn describe(&self) -> String;
}

/// Watches files.
#[async_trait]
pub trait Watcher: Send + Sync {
    /// The current fingerprint of each file. A different fingerprint means different content.
    async fn fingerprints(&self) -> Result<BTreeMap<String, String>, String>;
    /// A description for display.
    fn describe(&self) -> String;
}

//! What a store reports about itself: its version, its checksums, and the problems that were found in it.

use serde::Serialize;

use crate::entry::LOG_VERSION;

/// A problem that `doctor` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The violated invariant, such as `I1`, or another kind of problem, such as `cache`.
    pub rule: &'static str,
    /// Where the problem is.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// How a store detects data that has changed on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Checksums {
    /// A checksum in each page of the file, verified when the page is read.
    Pages,
    /// The message authentication codes of an encrypted file.
    Encrypted,
    /// None: an earlier version wrote the file. `sapwood doctor --seal` adds them.
    Unproven,
}

/// Whether a check repairs what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// Only report.
    No,
    /// Rebuild derived data. The log itself is never changed.
    Yes,
}

/// The result of [`Upkeep::seal_entries`](crate::port::store::Upkeep::seal_entries).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SealReport {
    /// Entries that were hashed.
    pub entries: u64,
    /// Lines of files that got a checksum.
    pub lines: u64,
    /// What could not be sealed, because it is damaged.
    pub findings: Vec<Finding>,
}

/// The kind, location and versions of a store, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoreStatus {
    /// The kind of store, such as `sqlite`.
    pub kind: &'static str,
    /// The location of the store, without a password.
    pub store: String,
    /// The layout of the database. `None` for a store without numbered layouts.
    pub layout: Option<u32>,
    /// The newest layout that this version of Sapwood supports.
    pub layout_newest: Option<u32>,
    /// The log format version that the store writes now.
    pub log_format: u32,
    /// The newest log format that this version of Sapwood can write.
    pub log_format_newest: u32,
    /// Connections of servers that cannot read the newest log format.
    pub older_connections: u32,
}

impl StoreStatus {
    /// The status of a store that is always current.
    pub fn current(kind: &'static str, store: String) -> Self {
        Self {
            kind,
            store,
            layout: None,
            layout_newest: None,
            log_format: LOG_VERSION,
            log_format_newest: LOG_VERSION,
            older_connections: 0,
        }
    }

    /// Whether [`Upkeep::upgrade`](crate::port::store::Upkeep::upgrade) would change the store.
    pub fn is_upgrade_pending(&self) -> bool {
        self.log_format < self.log_format_newest || self.layout < self.layout_newest
    }
}

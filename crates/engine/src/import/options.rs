//! The options of an import.

use std::sync::Arc;

use sapwood_core::TimestampMs;
use tokio::sync::Semaphore;

use super::siblings::SiblingSessions;

/// Records per page when reading the store's log.
pub(super) const PAGE_RECORDS: usize = 1_000;
/// Number of batches that are read ahead while the previous batch is written.
const QUEUED_BATCHES: usize = 8;

/// Whether an import writes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Write,
    /// Only report what would be added.
    DryRun,
}

#[derive(Clone)]
pub struct ImportOptions {
    pub mode: Mode,
    /// When the file was last modified, for sources without timestamps.
    pub file_time: Option<TimestampMs>,
    /// Store lookups shared by the imports of several files.
    pub siblings: Option<SiblingSessions>,
    /// Limits the number of threads that read documents and long lines.
    pub threads: Option<Arc<Semaphore>>,
    /// Maximum number of batches that are read ahead.
    pub queued_batches: usize,
}

impl ImportOptions {
    pub fn new(mode: Mode) -> Self {
        Self { mode, file_time: None, siblings: None, threads: None, queued_batches: QUEUED_BATCHES }
    }
}

//! The options of an import.

use std::sync::Arc;

use sapwood_core::TimestampMs;
use sapwood_core::agent::Agent;
use sapwood_core::content::Json;
use sapwood_core::entry::{Body, Configured, ContextChanged, ContextSet};
use sapwood_core::port::tool::FsScope;
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

/// The directories and agents in a file that an import keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingsFilter {
    KeepAll,
    /// Keep directories, and agents without access to the whole file system.
    WithoutFullAccess,
    /// Remove all directories and agents.
    RemoveAll,
}

impl SettingsFilter {
    pub(super) fn restrict_cwd(self, cwd: &mut Option<String>) {
        cwd.take_if(|_| self == SettingsFilter::RemoveAll);
    }

    pub(super) fn restrict(self, body: &mut Body) {
        match body {
            Body::ContextChanged(ContextChanged { cwd, agent, .. }) => {
                self.restrict_cwd(cwd);
                agent.take_if(|agent| self.removes(agent));
            }
            Body::Configured(Configured { agent, context, .. }) => {
                self.restrict_cwd(&mut context.working_dir);
                if self.removes(agent) {
                    *agent = Json::from_value(&serde_json::json!({}));
                }
            }
            Body::ContextSet(ContextSet { context }) => self.restrict_cwd(&mut context.working_dir),
            _ => {}
        }
    }

    fn removes(self, agent: &Json) -> bool {
        match self {
            SettingsFilter::KeepAll => false,
            SettingsFilter::WithoutFullAccess => {
                Agent::from_frozen(agent).map_or(true, |agent| agent.fs_scope == FsScope::Full)
            }
            SettingsFilter::RemoveAll => true,
        }
    }
}

#[derive(Clone)]
pub struct ImportOptions {
    pub mode: Mode,
    pub filter: SettingsFilter,
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
        Self {
            mode,
            filter: SettingsFilter::KeepAll,
            file_time: None,
            siblings: None,
            threads: None,
            queued_batches: QUEUED_BATCHES,
        }
    }
}

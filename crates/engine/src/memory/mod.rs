//! Memories: facts learned from sessions and provided to later sessions. [`learn`] extracts them when a session
//! ends, [`write`] stores and deletes them, [`recall`] searches them and briefs new sessions.
//! `sapwood_core::memory` decides without I/O what is worth remembering.
//!
//! A memory belongs to its session's owner. It reaches other users only when it is explicitly shared with the
//! tenant, and it is never added to a session that other users can read: see [`Engine::allowed_memories`](Engine).

mod learn;
mod recall;
mod write;

use std::sync::Arc;

use sapwood_core::Scope;
use sapwood_core::port::embedder::Embedder;
use sapwood_core::port::memory::{MEMORIES_MAX, Memory, MemoryFilter, Standing, Whose};
use sapwood_core::port::store::PAGE_ROWS_MAX;

pub use learn::{IdleWindow, Learning};
pub use recall::{MemoryView, RecalledMemory, Recollection};
pub use write::{MemoryEdit, MemoryOutcome, StoredMemory, UserMemory};

use crate::{Engine, Result};

/// Whether to learn from sessions when they are closed or archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtEnd {
    /// Extract memories.
    #[default]
    Learn,
    /// Do nothing.
    Leave,
}

/// How memories are extracted and searched.
#[derive(Clone, Default)]
pub struct MemoryConfig {
    /// The model that extracts memories, `PROVIDER/NAME`; rules if `None`.
    pub model: Option<String>,
    /// Finds memories by meaning. If `None`, only memories with matching words are found.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// What to do when a session is closed or archived.
    pub at_end: AtEnd,
}

/// Maximum number of pages read: the pages of an owner's memories and of the tenant's.
const PAGES_MAX: usize = 2 * MEMORIES_MAX.div_ceil(PAGE_ROWS_MAX) + 1;

impl Engine {
    /// All memories that match, newest first.
    async fn all_memories(&self, scope: &Scope, whose: Whose, standing: Standing) -> Result<Vec<Memory>> {
        let mut filter = MemoryFilter { whose, standing, limit: PAGE_ROWS_MAX, ..MemoryFilter::default() };
        let mut memories = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = self.store.list_memories(scope, &filter).await?;
            memories.extend(page.items);
            filter.cursor = page.next;
            if filter.cursor.is_none() {
                break;
            }
        }
        Ok(memories)
    }
}

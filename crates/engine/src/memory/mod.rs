//! Memories: facts learned from sessions and provided to later sessions. [`learn`] extracts them from sessions,
//! [`write`] stores and deletes them, [`recall`] searches them and briefs new sessions.
//! `sapwood_core::memory` decides without I/O what is worth remembering.
//!
//! A learned memory belongs to its session's owner. It is visible to other users only if it is explicitly shared with the
//! tenant. Only shared memories are recalled into a session that other users can read: see
//! [`Memories::allowed_memories`](Memories).

mod config;
mod learn;
mod recall;
mod write;

pub use config::{AtEnd, MemoryConfig};
pub use learn::{IdleWindow, Learning};
pub use recall::{MemoryView, RecalledMemory, Recollection};
pub use write::{MemoryEdit, MemoryOutcome, StoredMemory, UserMemory};

use sapwood_core::Scope;
use sapwood_core::port::memory::{MEMORIES_MAX, Memory, MemoryFilter, Standing, Whose};
use sapwood_core::port::store::PAGE_ROWS_MAX;

use crate::{Result, service};

/// Maximum number of pages read: the pages of an owner's memories and of the tenant's.
const PAGES_MAX: usize = 2 * MEMORIES_MAX.div_ceil(PAGE_ROWS_MAX) + 1;

service! {
    /// Facts learned from sessions.
    pub struct Memories;
    memories
}

impl Memories<'_> {
    /// All memories that match, newest first.
    async fn all(self, scope: &Scope, whose: Whose, standing: Standing) -> Result<Vec<Memory>> {
        let mut filter = MemoryFilter { whose, standing, limit: PAGE_ROWS_MAX, ..MemoryFilter::default() };
        let mut memories = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = self.engine.store.list_memories(scope, &filter).await?;
            memories.extend(page.items);
            filter.cursor = page.next;
            if filter.cursor.is_none() {
                break;
            }
        }
        Ok(memories)
    }
}

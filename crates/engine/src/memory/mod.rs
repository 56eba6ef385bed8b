//! What sessions teach and later ones are told: learning when a session ends ([`learn`]), writing and forgetting
//! ([`write`]), answering questions and telling new sessions ([`recall`]). What is worth remembering is decided without
//! any effect, in `sapwood_core::memory`.
//!
//! A memory belongs to its session's owner. It reaches other users only when somebody makes it the tenant's, and it is
//! put into no session that others read: see [`Engine::tellable`](Engine).

mod learn;
mod recall;
mod write;

use std::sync::Arc;

use sapwood_core::Scope;
use sapwood_core::port::embedder::Embedder;
use sapwood_core::port::memory::{MEMORIES_MAX, Memory, MemoryFilter, Standing, Whose};
use sapwood_core::port::store::PAGE_ROWS_MAX;

pub use learn::{IdleWindow, Learning};
pub use recall::{RecalledMemory, Recollection, Shown};
pub use write::{Edit, Kept, Outcome, Written};

use crate::{Engine, Result};

/// Whether sessions are learned from when they are closed or archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtEnd {
    #[default]
    Learn,
    Leave,
}

/// How memories are made and found.
#[derive(Clone, Default)]
pub struct MemoryCare {
    /// The model that puts memories into words, `PROVIDER/NAME`; rules if none.
    pub model: Option<String>,
    /// Finds what is asked in other words; words alone if none.
    pub embedder: Option<Arc<dyn Embedder>>,
    pub at_end: AtEnd,
}

/// Pages that are read at most: an owner's memories and the tenant's.
const PAGES_MAX: usize = 2 * MEMORIES_MAX.div_ceil(PAGE_ROWS_MAX) + 1;

impl Engine {
    /// Every memory of these, the newest first.
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

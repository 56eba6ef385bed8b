//! Memories of the in-memory store. They are lost when the process ends.

use async_trait::async_trait;
use sapwood_core::id::MemoryId;
use sapwood_core::port::memory::{Memories, Memory, MemoryFilter};
use sapwood_core::port::store::{Page, Result};
use sapwood_core::{Scope, TimestampMs};

use super::MemoryStore;

#[async_trait]
impl Memories for MemoryStore {
    async fn put_memory(
        &self,
        scope: &Scope,
        memory: Memory,
        expected: u64,
        now: TimestampMs,
    ) -> Result<Memory> {
        let mut state = self.lock();
        let tenant = state.tenant(scope);
        let (stored, note) = tenant.memories.put(scope, memory, expected, now)?;
        tenant.write_audit(scope, note, now);
        Ok(stored)
    }

    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        self.lock().tenant(scope).memories.get(scope, id)
    }

    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        self.lock().tenant(scope).memories.list(scope, filter)
    }

    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
        let mut state = self.lock();
        let tenant = state.tenant(scope);
        let note = tenant.memories.forget(scope, id)?;
        tenant.write_audit(scope, note, now);
        Ok(())
    }
}

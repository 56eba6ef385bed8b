//! Memories: `memories.jsonl` in the tenant's directory, one memory per line, oldest first. Every
//! change rewrites the file under the store's lock, so that nothing is left of changed or deleted
//! memories.

use async_trait::async_trait;
use sapwood_core::id::MemoryId;
use sapwood_core::port::memory::{Memories, Memory, MemoryFilter};
use sapwood_core::port::store::{AuditNote, Page, Result};
use sapwood_core::{Scope, SessionId, TimestampMs};

use super::JsonlStore;
use super::audit;
use super::disk::{self, LockKind};
use super::layout::Layout;
use super::tenant::TenantDir;
use crate::Durability;
use crate::memories::MemoryShelf;
use crate::validate::damaged;

#[async_trait]
impl Memories for JsonlStore {
    async fn put_memory(
        &self,
        scope: &Scope,
        memory: Memory,
        expected: u64,
        now: TimestampMs,
    ) -> Result<Memory> {
        self.with(scope, |tenant| {
            tenant.change_memories(scope, now, |shelf| shelf.put(scope, memory, expected, now))
        })
    }

    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        self.with(scope, |tenant| read_shelf(&tenant.layout)?.get(scope, id))
    }

    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        self.with(scope, |tenant| read_shelf(&tenant.layout)?.list(scope, filter))
    }

    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
        self.with(scope, |tenant| {
            tenant.change_memories(scope, now, |shelf| Ok(((), shelf.forget(scope, id)?)))
        })
    }
}

impl TenantDir {
    fn change_memories<T>(
        &mut self,
        scope: &Scope,
        now: TimestampMs,
        change: impl FnOnce(&mut MemoryShelf) -> Result<(T, AuditNote)>,
    ) -> Result<T> {
        let lock_file = self.lock_file()?;
        let _still = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        let mut shelf = read_shelf(&self.layout)?;
        let (answer, note) = change(&mut shelf)?;
        write_shelf(&self.layout, &shelf, self.options.durability)?;
        let line = audit::line(scope.principal.clone(), note, now);
        audit::write_lines(&self.layout, vec![line], self.options.durability)?;
        Ok(answer)
    }

    /// Removes the memories that only this session supports. The caller holds the store's lock.
    pub fn erase_memories(&self, session: &SessionId) -> Result<()> {
        let mut shelf = read_shelf(&self.layout)?;
        match shelf.erase_session(session) {
            true => write_shelf(&self.layout, &shelf, self.options.durability),
            false => Ok(()),
        }
    }
}

fn read_shelf(layout: &Layout) -> Result<MemoryShelf> {
    let path = layout.memories();
    let bytes = disk::read_if_there(&path)?.unwrap_or_default();
    let mut shelf = MemoryShelf::default();
    let lines = bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    for (index, line) in lines {
        let place = || format!("{}:{}", path.display(), index + 1);
        shelf.add(serde_json::from_slice(line).map_err(|error| damaged(place(), error))?);
    }
    Ok(shelf)
}

fn write_shelf(layout: &Layout, shelf: &MemoryShelf, durability: Durability) -> Result<()> {
    let mut out = Vec::new();
    for memory in shelf.iter() {
        serde_json::to_writer(&mut out, memory).expect("a memory contains only strings and numbers");
        out.push(b'\n');
    }
    disk::replace(&layout.memories(), &out, durability)
}

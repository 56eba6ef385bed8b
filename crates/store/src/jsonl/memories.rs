//! Memories: `memories.jsonl` in the tenant's directory, one memory per line, oldest first. Every
//! change rewrites the file under the store's lock, so that no trace of a changed or deleted
//! memory remains.

use async_trait::async_trait;
use sapwood_core::id::MemoryId;
use sapwood_core::port::memory::{Memories, Memory, MemoryFilter};
use sapwood_core::port::store::{AuditNote, Finding, Page, Repair, Result};
use sapwood_core::{Scope, SessionId, StoreError, TimestampMs};
use serde::Deserialize;

use super::JsonlStore;
use super::audit::PendingAuditLine;
use super::disk::{self, LockKind};
use super::layout::Layout;
use super::line_sum::LineState;
use super::sealed_lines;
use super::tenant::TenantDir;
use crate::Durability;
use crate::memories::MemoryTable;
use crate::validate::damaged;

const LOST_END: &str = "its end is missing: it has fewer memories than were written";

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
            tenant.change_memories(scope, now, |memories| memories.put(scope, memory, expected, now))
        })
    }

    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        self.with(scope, |tenant| read_memories(&tenant.layout)?.get(scope, id))
    }

    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        self.with(scope, |tenant| read_memories(&tenant.layout)?.list(scope, filter))
    }

    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
        self.with(scope, |tenant| {
            tenant.change_memories(scope, now, |memories| Ok(((), memories.forget(scope, id)?)))
        })
    }
}

impl TenantDir {
    fn change_memories<T>(
        &mut self,
        scope: &Scope,
        now: TimestampMs,
        change: impl FnOnce(&mut MemoryTable) -> Result<(T, AuditNote)>,
    ) -> Result<T> {
        let lock_file = self.lock_file()?;
        let _store_lock = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        let mut memories = read_memories(&self.layout)?;
        let (answer, note) = change(&mut memories)?;
        write_memories(&self.layout, &memories, self.options.durability)?;
        let line = PendingAuditLine::of(scope, note, now);
        self.write_audit_lines(vec![line])?;
        Ok(answer)
    }

    /// Removes the session from the sources of its memories, and deletes memories without other
    /// sources. The caller holds the store's lock.
    pub fn erase_memories(&self, session: &SessionId) -> Result<()> {
        let mut memories = read_memories(&self.layout)?;
        match memories.erase_session(session) {
            true => write_memories(&self.layout, &memories, self.options.durability),
            false => Ok(()),
        }
    }
}

fn read_memories(layout: &Layout) -> Result<MemoryTable> {
    let (memories, is_whole) = read_lines(layout)?;
    match is_whole {
        true => Ok(memories),
        false => Err(damaged(layout.memories().display(), LOST_END)),
    }
}

/// Checks the file. A repair accepts a lost end after it is reported.
pub fn check(layout: &Layout, repair: Repair, durability: Durability) -> Result<Option<Finding>> {
    let (memories, is_whole) = match read_lines(layout) {
        Err(StoreError::Damaged { .. }) => return Ok(None),
        read => read?,
    };
    if is_whole {
        return Ok(None);
    }
    if repair == Repair::Yes {
        write_memories(layout, &memories, durability)?;
    }
    let place = layout.memories().display().to_string();
    Ok(Some(Finding { rule: "damaged", place, what: LOST_END.to_owned(), repaired: false }))
}

/// Reads all lines. Also returns whether none is missing at the end.
fn read_lines(layout: &Layout) -> Result<(MemoryTable, bool)> {
    let path = layout.memories();
    let bytes = disk::read_if_exists(&path)?.unwrap_or_default();
    let mut memories = MemoryTable::default();
    let (mut count, mut is_sealed, mut end) = (0, false, None);
    let lines = bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    for (index, line) in lines {
        let (read, state) = sealed_lines::parse(&path, index + 1, line)?;
        is_sealed |= state == LineState::Proven;
        match read {
            MemoryLine::Memory(memory) => {
                count += 1;
                memories.add(*memory);
            }
            MemoryLine::End { memories } => end = Some(memories),
        }
    }
    Ok((memories, !is_sealed || end == Some(count)))
}

/// Returns the last line of a file with this many memories.
pub fn end_line(count: usize) -> Vec<u8> {
    sealed_lines::to_line(&serde_json::json!({ "memories": count }))
}

/// A line of the file. The last line has the number of memories, because a file that lost lines could end with a complete
/// line.
#[derive(Deserialize)]
#[serde(untagged)]
enum MemoryLine {
    Memory(Box<Memory>),
    End { memories: usize },
}

fn write_memories(layout: &Layout, memories: &MemoryTable, durability: Durability) -> Result<()> {
    let mut out = Vec::new();
    let mut count = 0;
    for memory in memories.iter() {
        out.extend(sealed_lines::to_line(memory));
        count += 1;
    }
    out.extend(end_line(count));
    disk::replace(&layout.memories(), &out, durability)
}

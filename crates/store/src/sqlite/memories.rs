//! Memories. Each memory is one row. A second table lists the sessions that support it, so that
//! erasing a session finds its memories. Deleted rows are overwritten (`secure_delete`), and the
//! write-ahead log is checkpointed afterwards.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use sapwood_core::id::MemoryId;
use sapwood_core::port::memory::{Memories, Memory, MemoryFilter};
use sapwood_core::port::store::{Page, Result};
use sapwood_core::{Scope, SessionId, StoreError, TimestampMs};

use super::SqliteStore;
use super::audit::write_line;
use super::connection::StoreConnection;
use super::error::AtPath;
use crate::database::NamedDatabase;
use crate::memories::{MemoryQuery, check_change, check_count, note, owners, plan_put, without_session};
use crate::validate::print_json;

#[async_trait]
impl Memories for SqliteStore {
    async fn put_memory(
        &self,
        scope: &Scope,
        memory: Memory,
        expected: u64,
        now: TimestampMs,
    ) -> Result<Memory> {
        let scope = scope.clone();
        self.writer.write(move |db| put(db, &scope, memory, expected, now)).await
    }

    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        self.readers.read(|db| {
            let found = find(db, scope, id)?.map(|(_, memory)| memory);
            found.filter(|memory| memory.is_visible_to(scope)).ok_or(StoreError::NoMemory { memory: id })
        })
    }

    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        self.readers.read(|db| list(db, scope, filter))
    }

    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |db| forget(db, &scope, id, now)).await?;
        self.checkpoint_wal()
    }
}

fn read(db: &StoreConnection, row: &Row<'_>) -> Result<Memory> {
    db.parse("a memory", row.get_ref(1).at(&db.path)?.as_str().unwrap_or_default())
}

/// Finds a memory. The caller checks whether it is visible.
fn find(db: &StoreConnection, scope: &Scope, id: MemoryId) -> Result<Option<(i64, Memory)>> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(None) };
    let mut select = db.prepare("SELECT pk, row FROM memories WHERE tenant = ?1 AND id = ?2")?;
    let mut rows = select.query(params![tenant, id.as_bytes().as_slice()]).at(&db.path)?;
    let Some(row) = rows.next().at(&db.path)? else { return Ok(None) };
    Ok(Some((row.get(0).at(&db.path)?, read(db, row)?)))
}

fn put(
    db: &StoreConnection,
    scope: &Scope,
    memory: Memory,
    expected: u64,
    now: TimestampMs,
) -> Result<Memory> {
    let current = find(db, scope, memory.id)?;
    let (stored, note) =
        plan_put(scope, current.as_ref().map(|(_, current)| current), memory, expected, now)?;
    let tenant = db.tenant_or_new(&scope.tenant)?;
    let owner = stored.belongs.to_string();
    if current.as_ref().is_none_or(|(_, current)| current.belongs != stored.belongs) {
        let count: i64 = db.query_value(
            "SELECT count(*) FROM memories WHERE tenant = ?1 AND owner = ?2",
            params![tenant, owner],
        )?;
        check_count(usize::try_from(count).unwrap_or(usize::MAX))?;
    }
    let pk = match current {
        Some((pk, _)) => pk,
        None => {
            let sql = "INSERT INTO memories (tenant, id, owner, row) VALUES (?1, ?2, ?3, '')";
            db.execute(sql, params![tenant, stored.id.as_bytes().as_slice(), owner])?;
            db.conn.last_insert_rowid()
        }
    };
    write(db, tenant, pk, &stored)?;
    write_line(db, scope, note, now)?;
    Ok(stored)
}

/// Writes a memory's row and the sessions that support it.
fn write(db: &StoreConnection, tenant: i64, pk: i64, memory: &Memory) -> Result<()> {
    let superseded_by = memory.superseded_by.map(|id| id.as_bytes().to_vec());
    let sql = "UPDATE memories SET owner = ?2, superseded_by = ?3, row = ?4 WHERE pk = ?1";
    db.execute(sql, params![pk, memory.belongs.to_string(), superseded_by, print_json(memory)])?;
    db.execute("DELETE FROM memory_sources WHERE memory = ?1", [pk])?;
    for source in &memory.sources {
        let sql = "INSERT OR IGNORE INTO memory_sources (tenant, session, memory) VALUES (?1, ?2, ?3)";
        db.execute(sql, params![tenant, source.session.as_str(), pk])?;
    }
    Ok(())
}

fn list(db: &StoreConnection, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
    let query = MemoryQuery::read(filter)?;
    let Some(tenant) = db.tenant(&scope.tenant)? else {
        return Ok(Page { items: Vec::new(), next: None });
    };
    let owners = owners(scope, filter).unwrap_or_default();
    let before = query.before.map_or_else(|| vec![u8::MAX; 17], |id| id.as_bytes().to_vec());
    let sql = "SELECT pk, row FROM memories
               WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2 OR owner = ?3) AND id < ?4 ORDER BY id DESC";
    let mut select = db.prepare(sql)?;
    let mut rows = select.query(params![tenant, owners.first(), owners.get(1), before]).at(&db.path)?;
    let memories = std::iter::from_fn(|| match rows.next().at(&db.path) {
        Ok(row) => row.map(|row| read(db, row)),
        Err(error) => Some(Err(error)),
    });
    query.page(scope, memories)
}

fn forget(db: &StoreConnection, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
    let (pk, memory) = find(db, scope, id)?.ok_or(StoreError::NoMemory { memory: id })?;
    check_change(scope, &memory)?;
    let tenant = db.tenant_or_new(&scope.tenant)?;
    delete(db, tenant, pk, &memory)?;
    write_line(db, scope, note("forgot", &memory), now)
}

/// Deletes a memory. Memories that it superseded become current again.
fn delete(db: &StoreConnection, tenant: i64, pk: i64, memory: &Memory) -> Result<()> {
    for sql in ["DELETE FROM memory_sources WHERE memory = ?1", "DELETE FROM memories WHERE pk = ?1"] {
        db.execute(sql, [pk])?;
    }
    let sql = "UPDATE memories SET superseded_by = NULL, row = json_remove(row, '$.superseded_by')
               WHERE superseded_by = ?1 AND tenant = ?2";
    db.execute(sql, params![memory.id.as_bytes().as_slice(), tenant])?;
    Ok(())
}

/// Removes the session from the sources of all memories. Deletes the memories that have no other
/// source.
pub(super) fn erase_session(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<()> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(()) };
    let sql = "SELECT memory, row FROM memory_sources JOIN memories ON pk = memory
               WHERE memory_sources.tenant = ?1 AND session = ?2 ORDER BY memory LIMIT 1";
    // Each iteration removes the session from one memory's sources, so the loop terminates.
    loop {
        let mut select = db.prepare(sql)?;
        let found = select
            .query_row(params![tenant, session.as_str()], |row| Ok((row.get::<_, i64>(0)?, read(db, row))));
        let Some((pk, memory)) = found.optional().at(&db.path)? else { return Ok(()) };
        let memory = memory?;
        match without_session(memory.clone(), session) {
            Some(remaining) => write(db, tenant, pk, &remaining)?,
            None => delete(db, tenant, pk, &memory)?,
        }
    }
}

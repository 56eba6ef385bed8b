//! Memories. Each memory is one row. A second table lists its source sessions, so that erasing a
//! session finds its memories.

use async_trait::async_trait;
use sapwood_core::id::MemoryId;
use sapwood_core::port::memory::{Memories, Memory, MemoryFilter};
use sapwood_core::port::store::{Page, Result};
use sapwood_core::{Scope, SessionId, StoreError, TimestampMs};
use tokio_postgres::Row;
use uuid::Uuid;

use super::audit::{lock_tenant, write_line};
use super::connection::StoreConnection;
use super::{PgStore, reading, writing};
use crate::database::NamedDatabase;
use crate::memories::{MemoryQuery, check_change, check_count, note, owners, plan_put, without_session};
use crate::validate::print_json;

/// Rows read at a time, before filtering.
const CHUNK_ROWS: i64 = 1_000;

#[async_trait]
impl Memories for PgStore {
    async fn put_memory(
        &self,
        scope: &Scope,
        memory: Memory,
        expected: u64,
        now: TimestampMs,
    ) -> Result<Memory> {
        writing!(self, scope, db => put(&db, scope, memory.clone(), expected, now).await)
    }

    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        reading!(self, scope, db => {
            let found = find(&db, id).await?;
            found.filter(|memory| memory.is_visible_to(scope)).ok_or(StoreError::NoMemory { memory: id })
        })
    }

    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        reading!(self, scope, db => list(&db, scope, filter).await)
    }

    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
        writing!(self, scope, db => forget(&db, scope, id, now).await)
    }
}

fn uuid_of(id: MemoryId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

fn read(db: &StoreConnection, row: &Row) -> Result<Memory> {
    db.parse("a memory", row.get(0))
}

/// Finds a memory. The caller checks whether it is visible.
async fn find(db: &StoreConnection, id: MemoryId) -> Result<Option<Memory>> {
    let sql = "SELECT row FROM memories WHERE tenant = $1 AND id = $2";
    let row = db.query_opt(sql, &[&db.tenant.as_str(), &uuid_of(id)]).await?;
    row.map(|row| read(db, &row)).transpose()
}

async fn put(
    db: &StoreConnection,
    scope: &Scope,
    memory: Memory,
    expected: u64,
    now: TimestampMs,
) -> Result<Memory> {
    // Serialize writers of a tenant's memories, so that the rows read here do not change.
    lock_tenant(db).await?;
    let existing = find(db, memory.id).await?;
    let (stored, note) = plan_put(scope, existing.as_ref(), memory, expected, now)?;
    if existing.as_ref().is_none_or(|existing| existing.belongs != stored.belongs) {
        let sql = "SELECT count(*) FROM memories WHERE tenant = $1 AND owner = $2";
        let row = db.query_one(sql, &[&db.tenant.as_str(), &stored.belongs.to_string()]).await?;
        check_count(usize::try_from(row.get::<_, i64>(0)).unwrap_or(usize::MAX))?;
    }
    store(db, &stored).await?;
    write_line(db, scope, note, now).await?;
    Ok(stored)
}

/// Writes a memory's row and its source sessions.
async fn store(db: &StoreConnection, memory: &Memory) -> Result<()> {
    let (tenant, id) = (db.tenant.as_str(), uuid_of(memory.id));
    let sql = "INSERT INTO memories (tenant, id, owner, superseded_by, row) VALUES ($1, $2, $3, $4, $5)
               ON CONFLICT (tenant, id) DO UPDATE SET owner = $3, superseded_by = $4, row = $5";
    let superseded_by = memory.superseded_by.map(uuid_of);
    db.execute(sql, &[&tenant, &id, &memory.belongs.to_string(), &superseded_by, &print_json(memory)])
        .await?;
    db.execute("DELETE FROM memory_sources WHERE tenant = $1 AND memory = $2", &[&tenant, &id]).await?;
    let sessions: Vec<&str> = memory.sources.iter().map(|source| source.session.as_str()).collect();
    let sql = "INSERT INTO memory_sources (tenant, session, memory)
               SELECT DISTINCT $1, session, $2::uuid FROM unnest($3::text[]) AS session";
    db.execute(sql, &[&tenant, &id, &sessions]).await?;
    Ok(())
}

async fn list(db: &StoreConnection, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
    let wanted = MemoryQuery::read(filter)?;
    let owners = owners(scope, filter);
    let mut before = wanted.before.map_or(Uuid::max(), uuid_of);
    let sql = "SELECT row, id FROM memories
               WHERE tenant = $1 AND ($2::text[] IS NULL OR owner = ANY ($2)) AND id < $3 ORDER BY id DESC LIMIT $4";
    let mut memories: Vec<Memory> = Vec::new();
    loop {
        let rows = db.query(sql, &[&db.tenant.as_str(), &owners, &before, &CHUNK_ROWS]).await?;
        for row in &rows {
            before = row.get(1);
            memories.push(read(db, row)?);
        }
        let page = wanted.page(scope, memories.iter().cloned().map(Ok))?;
        if page.next.is_some() || rows.len() < CHUNK_ROWS as usize {
            return Ok(page);
        }
    }
}

async fn forget(db: &StoreConnection, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
    lock_tenant(db).await?;
    let memory = find(db, id).await?.ok_or(StoreError::NoMemory { memory: id })?;
    check_change(scope, &memory)?;
    delete(db, id).await?;
    write_line(db, scope, note("forgot", &memory), now).await
}

/// Deletes a memory. Memories that it superseded become current again.
async fn delete(db: &StoreConnection, id: MemoryId) -> Result<()> {
    let (tenant, id) = (db.tenant.as_str(), uuid_of(id));
    db.execute("DELETE FROM memory_sources WHERE tenant = $1 AND memory = $2", &[&tenant, &id]).await?;
    db.execute("DELETE FROM memories WHERE tenant = $1 AND id = $2", &[&tenant, &id]).await?;
    let sql =
        "SELECT row FROM memories WHERE tenant = $1 AND superseded_by = $2 AND superseded_by IS NOT NULL";
    for row in db.query(sql, &[&tenant, &id]).await? {
        store(db, &Memory { superseded_by: None, ..read(db, &row)? }).await?;
    }
    Ok(())
}

/// Removes the session from the sources of its memories, and deletes memories without other sources.
pub(super) async fn erase_session(db: &StoreConnection, session: &SessionId) -> Result<()> {
    let sql = "SELECT m.row FROM memory_sources s JOIN memories m ON m.tenant = $1 AND m.id = s.memory
               WHERE s.tenant = $1 AND s.session = $2";
    for row in db.query(sql, &[&db.tenant.as_str(), &session.as_str()]).await? {
        let memory = read(db, &row)?;
        let id = memory.id;
        match without_session(memory, session) {
            Some(remaining) => store(db, &remaining).await?,
            None => delete(db, id).await?,
        }
    }
    Ok(())
}

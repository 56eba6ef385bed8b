//! What sessions taught. A memory is one row; beside it is written which sessions support it, so that erasing one finds
//! them. Pages are wiped when a row goes (`secure_delete`), and the write-ahead log is folded in behind it.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use sapwood_core::id::MemoryId;
use sapwood_core::port::memory::{Belongs, Memories, Memory, MemoryFilter, Whose};
use sapwood_core::port::store::{AuditNote, Page, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{Scope, SessionId, StoreError, TimestampMs};

use super::SqliteStore;
use super::audit::write_line;
use super::desk::Desk;
use super::fault::Fault;
use crate::memories::{Wanted, check_change, check_count, note, plan_put, without_session};

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
        self.writer.write(move |desk| put(desk, &scope, memory, expected, now)).await
    }

    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        self.readers.read(|desk| {
            let found = find(desk, scope, id)?.map(|(_, memory)| memory);
            found.filter(|memory| memory.shows_to(scope)).ok_or(StoreError::NoMemory { memory: id })
        })
    }

    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        self.readers.read(|desk| list(desk, scope, filter))
    }

    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |desk| forget(desk, &scope, id, now)).await?;
        self.fold_log()
    }
}

fn read(desk: &Desk, row: &Row<'_>) -> Result<Memory> {
    let json: String = row.get(1).at(&desk.path)?;
    serde_json::from_str(&json).map_err(|error| desk.damaged(format!("a memory: {error}")))
}

/// Whoever asks looks whether it shows.
fn find(desk: &Desk, scope: &Scope, id: MemoryId) -> Result<Option<(i64, Memory)>> {
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Ok(None) };
    let mut select = desk.prepare("SELECT pk, row FROM memories WHERE tenant = ?1 AND id = ?2")?;
    let mut rows = select.query(params![tenant, id.as_bytes().as_slice()]).at(&desk.path)?;
    let Some(row) = rows.next().at(&desk.path)? else { return Ok(None) };
    Ok(Some((row.get(0).at(&desk.path)?, read(desk, row)?)))
}

fn put(desk: &Desk, scope: &Scope, memory: Memory, expected: u64, now: TimestampMs) -> Result<Memory> {
    let known = find(desk, scope, memory.id)?;
    let (kept, note) = plan_put(scope, known.as_ref().map(|(_, known)| known), memory, expected, now)?;
    let tenant = desk.tenant_or_new(&scope.tenant)?;
    let owner = kept.belongs.to_string();
    if known.as_ref().is_none_or(|(_, known)| known.belongs != kept.belongs) {
        let mut select = desk.prepare("SELECT count(*) FROM memories WHERE tenant = ?1 AND owner = ?2")?;
        let count: i64 = select.query_row(params![tenant, owner], |row| row.get(0)).at(&desk.path)?;
        check_count(usize::try_from(count).unwrap_or(usize::MAX))?;
    }
    let pk = match known {
        Some((pk, _)) => pk,
        None => {
            let sql = "INSERT INTO memories (tenant, id, owner, row) VALUES (?1, ?2, ?3, '')";
            desk.prepare(sql)?
                .execute(params![tenant, kept.id.as_bytes().as_slice(), owner])
                .at(&desk.path)?;
            desk.conn.last_insert_rowid()
        }
    };
    write(desk, tenant, pk, &kept)?;
    write_line(desk, scope, note, now)?;
    Ok(kept)
}

/// Writes a memory's row, and which sessions support it.
fn write(desk: &Desk, tenant: i64, pk: i64, memory: &Memory) -> Result<()> {
    let path = &desk.path;
    let json = serde_json::to_string(memory).expect("a memory holds strings and numbers only");
    let superseded_by = memory.superseded_by.map(|id| id.as_bytes().to_vec());
    let sql = "UPDATE memories SET owner = ?2, superseded_by = ?3, row = ?4 WHERE pk = ?1";
    desk.prepare(sql)?.execute(params![pk, memory.belongs.to_string(), superseded_by, json]).at(path)?;
    desk.prepare("DELETE FROM memory_sources WHERE memory = ?1")?.execute([pk]).at(path)?;
    for source in &memory.sources {
        let sql = "INSERT OR IGNORE INTO memory_sources (tenant, session, memory) VALUES (?1, ?2, ?3)";
        desk.prepare(sql)?.execute(params![tenant, source.session.as_str(), pk]).at(path)?;
    }
    Ok(())
}

fn list(desk: &Desk, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
    let wanted = Wanted::read(filter)?;
    let Some(tenant) = desk.tenant(&scope.tenant)? else {
        return Ok(Page { items: Vec::new(), next: None });
    };
    let (first, second) = owners(scope, filter);
    let before = wanted.before.map_or_else(|| vec![u8::MAX; 17], |id| id.as_bytes().to_vec());
    let sql = "SELECT pk, row FROM memories
               WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2 OR owner = ?3) AND id < ?4 ORDER BY id DESC";
    let mut select = desk.prepare(sql)?;
    let mut rows = select.query(params![tenant, first, second, before]).at(&desk.path)?;
    let memories = std::iter::from_fn(|| match rows.next().at(&desk.path) {
        Ok(row) => row.map(|row| read(desk, row)),
        Err(error) => Some(Err(error)),
    });
    wanted.page(scope, memories)
}

/// The owners whose memories can be on the list; none if it can be anybody's.
fn owners(scope: &Scope, filter: &MemoryFilter) -> (Option<String>, Option<String>) {
    let mine = |principal: &sapwood_core::Principal| {
        (Some(Belongs::To(principal.clone()).to_string()), Some(Belongs::Tenant.to_string()))
    };
    match &filter.whose {
        Whose::Only(belongs) => (Some(belongs.to_string()), None),
        Whose::For(principal) => mine(principal),
        Whose::Any if scope.reach == Reach::Own => mine(&scope.principal),
        Whose::Any => (None, None),
    }
}

fn forget(desk: &Desk, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
    let (pk, memory) = find(desk, scope, id)?.ok_or(StoreError::NoMemory { memory: id })?;
    check_change(scope, &memory)?;
    let line: AuditNote = note("forgot", &memory);
    let tenant = desk.tenant_or_new(&scope.tenant)?;
    delete(desk, tenant, pk, &memory)?;
    write_line(desk, scope, line, now)
}

/// Deletes a row. What it stood in for is current again.
fn delete(desk: &Desk, tenant: i64, pk: i64, memory: &Memory) -> Result<()> {
    let path = &desk.path;
    for sql in ["DELETE FROM memory_sources WHERE memory = ?1", "DELETE FROM memories WHERE pk = ?1"] {
        desk.prepare(sql)?.execute([pk]).at(path)?;
    }
    let sql = "UPDATE memories SET superseded_by = NULL, row = json_remove(row, '$.superseded_by')
               WHERE superseded_by = ?1 AND tenant = ?2";
    desk.prepare(sql)?.execute(params![memory.id.as_bytes().as_slice(), tenant]).at(path)?;
    Ok(())
}

/// Takes out what only this session supports.
pub(super) fn erase_session(desk: &Desk, scope: &Scope, session: &SessionId) -> Result<()> {
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Ok(()) };
    let sql = "SELECT memory, row FROM memory_sources JOIN memories ON pk = memory
               WHERE memory_sources.tenant = ?1 AND session = ?2 ORDER BY memory LIMIT 1";
    // Each round takes the session out of one memory's sources, so this ends.
    loop {
        let mut select = desk.prepare(sql)?;
        let found = select
            .query_row(params![tenant, session.as_str()], |row| Ok((row.get::<_, i64>(0)?, read(desk, row))));
        let Some((pk, memory)) = found.optional().at(&desk.path)? else { return Ok(()) };
        let memory = memory?;
        match without_session(memory.clone(), session) {
            Some(left) => write(desk, tenant, pk, &left)?,
            None => delete(desk, tenant, pk, &memory)?,
        }
    }
}

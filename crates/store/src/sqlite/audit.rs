//! The audit log: append-only, with one hash chain per tenant.

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{AuditLine, AuditNote, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{Right, Scope, SessionId, TimestampMs};

use super::connection::{StoreConnection, int};
use super::error::AtPath;
use super::session::find;
use crate::validate;

/// The number of low bits of a line's key that contain its number; the high bits contain the
/// tenant. Part of the file format: never change it.
const NUMBER_BITS: u32 = 40;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;
/// Batch size of the index from sessions to audit lines. A batch is indexed whenever a line's
/// number is a multiple of it. Fewer than this many lines are unindexed, and a read scans them.
/// Part of the file format: never change it.
const LINES_PER_INDEX_BATCH: u64 = 4_096;

/// The last line of a tenant's hash chain.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLine {
    number: u64,
    hash: String,
}

fn key_of(tenant: i64, number: u64) -> i64 {
    tenant << NUMBER_BITS | int(number)
}

pub(super) fn write_line(
    db: &StoreConnection,
    scope: &Scope,
    note: AuditNote,
    now: TimestampMs,
) -> Result<()> {
    let tenant = db.tenant_or_new(&scope.tenant)?;
    let last = match db.append_cache.take_last_line(tenant) {
        Some(last) => last,
        None => read_last(db, tenant)?,
    };
    let number = last.number + 1;
    let line = AuditLine::chained(number, now, scope.principal.clone(), note, &last.hash);
    let json = validate::print_json(&line);
    let session = line.session.as_ref().map(SessionId::as_str);
    let key = key_of(tenant, number);
    db.prepare("INSERT INTO audit (key, session, line) VALUES (?1, ?2, ?3)")?
        .execute(params![key, session, json])
        .at(&db.path)?;
    if number.is_multiple_of(LINES_PER_INDEX_BATCH) {
        let sql = "INSERT INTO session_audit SELECT session, key FROM audit
                   WHERE key > ?1 AND key <= ?2 AND session NOT NULL ORDER BY session, key";
        db.prepare(sql)?.execute([key - int(LINES_PER_INDEX_BATCH), key]).at(&db.path)?;
    }
    db.append_cache.insert_last_line(tenant, LastLine { number, hash: line.hash });
    Ok(())
}

fn read_last(db: &StoreConnection, tenant: i64) -> Result<LastLine> {
    let mut select = db.prepare(LAST)?;
    let keys = [key_of(tenant, 0), key_of(tenant + 1, 0)];
    let json: Option<String> = select.query_row(keys, |row| row.get(0)).optional().at(&db.path)?;
    let line = json.map(|json| read_line(db, &json)).transpose()?;
    Ok(line.map_or_else(LastLine::default, |line| LastLine { number: line.number, hash: line.hash }))
}

fn read_line(db: &StoreConnection, json: &str) -> Result<AuditLine> {
    serde_json::from_str(json).map_err(|error| db.damaged(format!("an audit line: {error}")))
}

/// Selects the last line between two keys.
pub(super) const LAST: &str = "SELECT line FROM audit WHERE key > ?1 AND key < ?2 ORDER BY key DESC LIMIT 1";

/// Selects the lines about a session between two keys: the indexed lines, and the lines after the
/// last indexed batch.
pub(super) const OF_SESSION: &str = "
    SELECT line, s.key FROM session_audit s CROSS JOIN audit a ON a.key = s.key
    WHERE s.session = ?3 AND s.key > ?1 AND s.key < ?2
    UNION ALL
    SELECT line, key FROM audit
    WHERE key > max(?1, (SELECT max(key) FROM audit WHERE key < ?2) / 4096 * 4096) AND key < ?2 AND session = ?3
    ORDER BY 2";

/// Like [`OF_SESSION`], in reverse order.
pub(super) const OF_SESSION_BACK: &str = "
    SELECT line, s.key FROM session_audit s CROSS JOIN audit a ON a.key = s.key
    WHERE s.session = ?3 AND s.key > ?1 AND s.key < ?2
    UNION ALL
    SELECT line, key FROM audit
    WHERE key > max(?1, (SELECT max(key) FROM audit WHERE key < ?2) / 4096 * 4096) AND key < ?2 AND session = ?3
    ORDER BY 2 DESC";

/// Returns the lines about a session since a time, newest first.
pub(super) fn read_since(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
    since: TimestampMs,
    limit: usize,
) -> Result<Vec<AuditLine>> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let mut select = db.prepare(OF_SESSION_BACK)?;
    let (first, end) = (key_of(tenant, 0), key_of(tenant + 1, 0));
    let mut rows = select.query(params![first, end, session.as_str()]).at(&db.path)?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next().at(&db.path)? {
        let line = read_line(db, &row.get::<_, String>(0).at(&db.path)?)?;
        if line.at < since || lines.len() == validate::page_limit(limit) {
            break;
        }
        if is_visible(db, scope, &line)? {
            lines.push(line);
        }
    }
    Ok(lines)
}

/// Returns the lines after a number that the caller may see, oldest first.
pub(super) fn read_lines(
    db: &StoreConnection,
    scope: &Scope,
    session: Option<&SessionId>,
    after: u64,
    limit: usize,
) -> Result<Vec<AuditLine>> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let sql = match session {
        Some(_) => OF_SESSION,
        None => "SELECT line FROM audit WHERE key > ?1 AND key < ?2 AND ?3 IS NULL ORDER BY key",
    };
    let mut select = db.prepare(sql)?;
    let session = session.map(SessionId::as_str);
    let (after, end) = (key_of(tenant, after.min(NUMBER_MAX)), key_of(tenant + 1, 0));
    let mut rows = select.query(params![after, end, session]).at(&db.path)?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next().at(&db.path)? {
        let line = read_line(db, &row.get::<_, String>(0).at(&db.path)?)?;
        if is_visible(db, scope, &line)? {
            lines.push(line);
        }
        if lines.len() == validate::page_limit(limit) {
            break;
        }
    }
    Ok(lines)
}

fn is_visible(db: &StoreConnection, scope: &Scope, line: &AuditLine) -> Result<bool> {
    if scope.reach == Reach::Tenant {
        return Ok(true);
    }
    let session = match &line.session {
        Some(session) => find(db, scope, session, Right::Read).ok().map(|row| row.summary),
        None => None,
    };
    Ok(validate::may_see_line(scope, line, session.as_ref()))
}

//! The audit log: append-only, with one hash chain per tenant.

use rusqlite::{Rows, params};
use sapwood_core::port::store::{AuditLine, AuditNote, Result};
use sapwood_core::{Right, Scope, SessionId, TimestampMs};

use super::connection::{StoreConnection, int};
use super::error::AtPath;
use super::session_table::find;
use crate::audit_chain::AuditChain;
use crate::database::NamedDatabase;
use crate::database::audit::AuditPage;
use crate::validate::print_json;

/// The number of low bits of a line's key that contain its number; the high bits contain the
/// tenant. Part of the file format: never change it.
const NUMBER_BITS: u32 = 40;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;
/// Batch size of the index from sessions to audit lines. A batch is indexed whenever a line's
/// number is a multiple of it. Fewer than this many lines are unindexed, and a read scans them.
/// Part of the file format: never change it.
const LINES_PER_INDEX_BATCH: u64 = 4_096;

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
    let mut chain = match db.append_cache.take_chain(tenant) {
        Some(chain) => chain,
        None => read_chain(db, tenant)?,
    };
    let line = chain.add(scope.principal.clone(), note, now);
    let json = print_json(&line);
    let session = line.session.as_ref().map(SessionId::as_str);
    let key = key_of(tenant, chain.number);
    db.execute("INSERT INTO audit (key, session, line) VALUES (?1, ?2, ?3)", params![key, session, json])?;
    if chain.number.is_multiple_of(LINES_PER_INDEX_BATCH) {
        let sql = "INSERT INTO session_audit SELECT session, key FROM audit
                   WHERE key > ?1 AND key <= ?2 AND session NOT NULL ORDER BY session, key";
        db.execute(sql, [key - int(LINES_PER_INDEX_BATCH), key])?;
    }
    db.append_cache.insert_chain(tenant, chain);
    Ok(())
}

fn read_chain(db: &StoreConnection, tenant: i64) -> Result<AuditChain> {
    let keys = [key_of(tenant, 0), key_of(tenant + 1, 0)];
    let json: Option<String> = db.query_opt(LAST, keys)?;
    let line = json.map(|json| db.parse("an audit line", &json)).transpose()?;
    Ok(AuditChain::after(line.as_ref()))
}

/// Selects the last line between two keys.
pub(super) const LAST: &str = "SELECT line FROM audit WHERE key > ?1 AND key < ?2 ORDER BY key DESC LIMIT 1";

macro_rules! lines_of_session {
    () => {
        "SELECT line, s.key FROM session_audit s CROSS JOIN audit a ON a.key = s.key
         WHERE s.session = ?3 AND s.key > ?1 AND s.key < ?2
         UNION ALL
         SELECT line, key FROM audit
         WHERE key > max(?1, (SELECT max(key) FROM audit WHERE key < ?2) / 4096 * 4096) AND key < ?2 AND session = ?3
         ORDER BY 2"
    };
}
/// Selects the lines about a session between two keys: the indexed lines, and the lines after the
/// last indexed batch.
pub(super) const OF_SESSION: &str = lines_of_session!();
/// Like [`OF_SESSION`], in reverse order.
pub(super) const OF_SESSION_BACK: &str = concat!(lines_of_session!(), " DESC");

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
    read_page(db, AuditPage::new(scope, limit), &mut rows, since)
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
    read_page(db, AuditPage::new(scope, limit), &mut rows, TimestampMs(i64::MIN))
}

/// Fills a page with rows up to the first line that is older than `since`.
fn read_page(
    db: &StoreConnection,
    mut page: AuditPage<'_>,
    rows: &mut Rows<'_>,
    since: TimestampMs,
) -> Result<Vec<AuditLine>> {
    while !page.is_full()
        && let Some(row) = rows.next().at(&db.path)?
    {
        let json = row.get_ref(0).at(&db.path)?.as_str().unwrap_or_default();
        let line: AuditLine = db.parse("an audit line", json)?;
        if line.at < since {
            break;
        }
        let session = page.session_to_check(&line);
        let row = session.and_then(|session| find(db, page.scope, session, Right::Read).ok());
        page.add(line, row.map(|row| row.summary).as_ref());
    }
    Ok(page.lines)
}

//! The audit log: append-only and hash-chained per tenant. A writer locks the tenant's row, so that
//! two writers never chain to the same line. The tenant lock is acquired last, after the lock of any
//! session's row.

use sapwood_core::port::store::{AuditLine, AuditNote, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{Principal, Right, Scope, SessionId, TimestampMs};

use super::connection::StoreConnection;
use super::session::{RowLock, find};
use crate::validate;

/// Rows read at a time.
const CHUNK_ROWS: i64 = 1_000;

pub(super) async fn write_line(
    db: &StoreConnection,
    scope: &Scope,
    note: AuditNote,
    now: TimestampMs,
) -> Result<()> {
    write_lines(db, vec![(scope.principal.clone(), note, now)]).await
}

/// Locks the tenant's audit log until the transaction ends. Returns the number and hash of its last
/// line.
pub(super) async fn lock_tenant(db: &StoreConnection) -> Result<(i64, String)> {
    let lock_sql = "SELECT audit_number, audit_hash FROM tenants WHERE tenant = $1 FOR NO KEY UPDATE";
    let insert_sql =
        "INSERT INTO tenants (tenant) VALUES ($1) ON CONFLICT (tenant) DO UPDATE SET tenant = excluded.tenant
                RETURNING audit_number, audit_hash";
    let row = match db.query_opt(lock_sql, &[&db.tenant.as_str()]).await? {
        Some(row) => row,
        // The tenant has no row yet, or another transaction is inserting it. The insert waits for
        // that transaction.
        None => db.query_one(insert_sql, &[&db.tenant.as_str()]).await?,
    };
    Ok((row.get(0), row.get(1)))
}

pub(super) async fn write_lines(
    db: &StoreConnection,
    notes: Vec<(Principal, AuditNote, TimestampMs)>,
) -> Result<()> {
    let tenant = db.tenant.as_str();
    let (mut number, mut hash) = lock_tenant(db).await?;
    let (mut numbers, mut sessions, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for (by, note, now) in notes {
        number += 1;
        let line = AuditLine::chained(u64::try_from(number).unwrap_or(0), now, by, note, &hash);
        numbers.push(number);
        sessions.push(line.session.as_ref().map(SessionId::to_string));
        lines.push(validate::print_json(&line));
        hash = line.hash;
    }
    let sql = "WITH written AS (
                 INSERT INTO audit (tenant, number, session, line)
                 SELECT $1, l.number, l.session, l.line FROM unnest($2::bigint[], $3::text[], $4::text[])
                   AS l (number, session, line)
               ) UPDATE tenants SET audit_number = $5, audit_hash = $6 WHERE tenant = $1";
    db.execute(sql, &[&tenant, &numbers, &sessions, &lines, &number, &hash]).await?;
    Ok(())
}

/// Returns the lines after a number that the caller may see, oldest first.
pub(super) async fn read_lines(
    db: &StoreConnection,
    scope: &Scope,
    session: Option<&SessionId>,
    after: u64,
    limit: usize,
) -> Result<Vec<AuditLine>> {
    let sql = match session {
        Some(_) => {
            "SELECT number, line FROM audit WHERE tenant = $1 AND session = $3::text AND session IS NOT NULL
             AND number > $2 ORDER BY number LIMIT $4"
        }
        None => {
            "SELECT number, line FROM audit WHERE tenant = $1 AND number > $2 AND $3::text IS NULL
             ORDER BY number LIMIT $4"
        }
    };
    let mut after = i64::try_from(after).unwrap_or(i64::MAX);
    let session = session.map(SessionId::as_str);
    let mut lines = Vec::new();
    loop {
        let rows = db.query(sql, &[&db.tenant.as_str(), &after, &session, &CHUNK_ROWS]).await?;
        for row in &rows {
            after = row.get(0);
            let line = read_line(db, row.get(1))?;
            if is_visible(db, scope, &line).await? {
                lines.push(line);
            }
            if lines.len() == validate::page_limit(limit) {
                return Ok(lines);
            }
        }
        if rows.len() < CHUNK_ROWS as usize {
            return Ok(lines);
        }
    }
}

/// Returns the lines about a session since a time, newest first.
pub(super) async fn read_since(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
    since: TimestampMs,
    limit: usize,
) -> Result<Vec<AuditLine>> {
    let sql = "SELECT line FROM audit WHERE tenant = $1 AND session = $2::text AND session IS NOT NULL
               ORDER BY number DESC LIMIT $3";
    let limit = i64::try_from(validate::page_limit(limit)).unwrap_or(i64::MAX);
    let rows = db.query(sql, &[&db.tenant.as_str(), &session.as_str(), &limit]).await?;
    let mut lines = Vec::new();
    for row in &rows {
        let line = read_line(db, row.get(0))?;
        if line.at < since {
            break;
        }
        if is_visible(db, scope, &line).await? {
            lines.push(line);
        }
    }
    Ok(lines)
}

fn read_line(db: &StoreConnection, json: &str) -> Result<AuditLine> {
    serde_json::from_str(json).map_err(|error| db.damaged(format!("an audit line: {error}")))
}

async fn is_visible(db: &StoreConnection, scope: &Scope, line: &AuditLine) -> Result<bool> {
    if scope.reach == Reach::Tenant {
        return Ok(true);
    }
    let about = match &line.session {
        Some(session) => find(db, scope, session, Right::Read, RowLock::No).await.ok().map(|row| row.summary),
        None => None,
    };
    Ok(validate::may_see_line(scope, line, about.as_ref()))
}

//! The audit log: append-only and hash-chained per tenant. A writer locks the tenant's row, so that
//! two writers never chain to the same line. The tenant lock is acquired last, after the lock of any
//! session's row.

use sapwood_core::port::store::{AuditLine, AuditNote, Result};
use sapwood_core::{Principal, Right, Scope, SessionId, TimestampMs};

use super::connection::StoreConnection;
use super::session_table::{RowLock, find};
use crate::audit_chain::AuditChain;
use crate::database::NamedDatabase;
use crate::database::audit::AuditPage;
use crate::validate::print_json;

/// Rows read at a time.
const CHUNK_ROWS: i64 = 1_000;

/// Converts a number to the database's integer type.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) async fn write_line(
    db: &StoreConnection,
    scope: &Scope,
    note: AuditNote,
    now: TimestampMs,
) -> Result<()> {
    write_lines(db, vec![(scope.principal.clone(), note, now)]).await
}

/// Locks the tenant's row until the transaction ends. Returns the end of the audit chain.
pub(super) async fn lock_tenant(db: &StoreConnection) -> Result<AuditChain> {
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
    Ok(AuditChain { number: u64::try_from(row.get::<_, i64>(0)).unwrap_or(0), hash: row.get(1) })
}

pub(super) async fn write_lines(
    db: &StoreConnection,
    notes: Vec<(Principal, AuditNote, TimestampMs)>,
) -> Result<()> {
    let tenant = db.tenant.as_str();
    let mut chain = lock_tenant(db).await?;
    let (mut numbers, mut sessions, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for (by, note, now) in notes {
        let line = chain.add(by, note, now);
        numbers.push(int(line.number));
        sessions.push(line.session.as_ref().map(SessionId::to_string));
        lines.push(print_json(&line));
    }
    let sql = "WITH written AS (
                 INSERT INTO audit (tenant, number, session, line)
                 SELECT $1, l.number, l.session, l.line FROM unnest($2::bigint[], $3::text[], $4::text[])
                   AS l (number, session, line)
               ) UPDATE tenants SET audit_number = $5, audit_hash = $6 WHERE tenant = $1";
    db.execute(sql, &[&tenant, &numbers, &sessions, &lines, &int(chain.number), &chain.hash]).await?;
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
    let mut after = int(after);
    let session = session.map(SessionId::as_str);
    let mut page = AuditPage::new(scope, limit);
    loop {
        let rows = db.query(sql, &[&db.tenant.as_str(), &after, &session, &CHUNK_ROWS]).await?;
        for row in &rows {
            after = row.get(0);
            add_line(db, &mut page, db.parse("an audit line", row.get(1))?).await;
            if page.is_full() {
                return Ok(page.lines);
            }
        }
        if rows.len() < CHUNK_ROWS as usize {
            return Ok(page.lines);
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
    let mut page = AuditPage::new(scope, limit);
    let rows = db.query(sql, &[&db.tenant.as_str(), &session.as_str(), &int(page.limit as u64)]).await?;
    for row in &rows {
        let line: AuditLine = db.parse("an audit line", row.get(0))?;
        if line.at < since {
            break;
        }
        add_line(db, &mut page, line).await;
    }
    Ok(page.lines)
}

async fn add_line(db: &StoreConnection, page: &mut AuditPage<'_>, line: AuditLine) {
    let row = match page.session_to_check(&line) {
        Some(session) => find(db, page.scope, session, Right::Read, RowLock::No).await.ok(),
        None => None,
    };
    page.add(line, row.map(|row| row.summary).as_ref());
}

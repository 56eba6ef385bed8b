//! The authority record of each session: which entries this store wrote itself. It is stored in a
//! column next to the summary. A server of the previous version on the same database neither reads
//! nor writes the column. Its sessions have no record until a server of this version derives it from
//! the audit log.

use sapwood_core::authority::OriginTrace;
use sapwood_core::port::store::{PAGE_ROWS_MAX, Result};
use sapwood_core::{Authority, Principal, Right, Scope, SessionId, Source};

use super::audit::read_lines;
use super::connection::StoreConnection;
use super::rebuild_summary::store_summary;
use super::session::{RowLock, SessionRow, find};
use crate::validate;

/// Parses the `authority` column. It is NULL for a session that an earlier version created.
pub(super) fn read(db: &StoreConnection, column: Option<&str>) -> Result<Option<Authority>> {
    let parsed = column.map(validate::parse_authority).transpose();
    parsed.map_err(|error| db.damaged(format!("a session's authority record: {error}")))
}

/// Writes the record of a session whose row the caller has locked.
pub(super) async fn store(db: &StoreConnection, pk: i64, record: &str) -> Result<()> {
    let sql = "UPDATE sessions SET authority = $3 WHERE tenant = $1 AND pk = $2";
    db.execute(sql, &[&db.tenant.as_str(), &pk, &record]).await?;
    Ok(())
}

/// Returns the origin of a session according to the audit log.
pub(super) async fn trace(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Source> {
    let whole_tenant = Scope::operator(scope.tenant.clone(), Principal::System);
    let mut trace = OriginTrace::of(session.clone());
    while let Some(wanted) = trace.wanted().cloned() {
        let (mut lines, mut after) = (Vec::new(), 0);
        loop {
            let page = read_lines(db, &whole_tenant, Some(&wanted), after, PAGE_ROWS_MAX).await?;
            let is_last = page.len() < PAGE_ROWS_MAX;
            after = page.last().map_or(after, |line| line.number);
            lines.extend(page.into_iter().filter(OriginTrace::is_about_origin));
            if is_last {
                break;
            }
        }
        trace.feed(&lines);
    }
    Ok(trace.source())
}

/// Returns the session's record. For a session of an earlier version, also creates the record.
pub(super) async fn settle(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Authority> {
    let mut row = find(db, scope, session, Right::Read, RowLock::Yes).await?;
    store_settled(db, scope, &mut row).await?;
    Ok(row.summary.authority.unwrap_or_default())
}

async fn store_settled(db: &StoreConnection, scope: &Scope, row: &mut SessionRow) -> Result<()> {
    if row.summary.authority.is_some() {
        return Ok(());
    }
    let source = trace(db, scope, &row.summary.id).await?;
    validate::settle_summary(&mut row.summary, source);
    store_summary(db, row.pk, &row.summary).await?;
    store(db, row.pk, &print(&row.summary.authority)).await
}

/// Records a file-backed model that was specified on the local command line.
pub(super) async fn grant_model(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
    model: &str,
) -> Result<()> {
    let mut row = find(db, scope, session, Right::Write, RowLock::Yes).await?;
    store_settled(db, scope, &mut row).await?;
    row.summary.authority.get_or_insert_default().grant_model(model.to_owned());
    // Appends that were prepared on the old row are prepared again.
    let sql = "UPDATE sessions SET version = version + 1 WHERE tenant = $1 AND pk = $2";
    db.execute(sql, &[&db.tenant.as_str(), &row.pk]).await?;
    store(db, row.pk, &print(&row.summary.authority)).await
}

fn print(record: &Option<Authority>) -> String {
    record.as_ref().map(validate::print_json).unwrap_or_default()
}

//! The authority record of each session: which entries this store wrote itself. It is stored in a
//! column next to the summary. A server of the previous version on the same database neither reads
//! nor writes the column. Its sessions have no record until a server of this version derives it from
//! the audit log.

use sapwood_core::port::store::{PAGE_ROWS_MAX, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Authority, Right, Scope, SessionId};

use super::audit::read_lines;
use super::connection::StoreConnection;
use super::session_table::{RowLock, SessionRow, find, store_summary};
use crate::database::audit::OriginReader;
use crate::validate::print_json;

/// Writes a session's record, which is JSON. The caller has locked the session's row.
pub(super) async fn store(db: &StoreConnection, pk: i64, record: &str) -> Result<()> {
    let sql = "UPDATE sessions SET authority = $3 WHERE tenant = $1 AND pk = $2";
    db.execute(sql, &[&db.tenant.as_str(), &pk, &record]).await?;
    Ok(())
}

/// Sets the authority record of a summary to the session's origin according to the audit log.
pub(super) async fn derive(db: &StoreConnection, scope: &Scope, summary: &mut Summary) -> Result<()> {
    let mut origin = OriginReader::of(scope, &summary.id);
    while let Some((session, after)) = origin.next_page() {
        let page = read_lines(db, &origin.scope, Some(session), after, PAGE_ROWS_MAX).await?;
        origin.add_page(page);
    }
    origin.settle(summary);
    Ok(())
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
    derive(db, scope, &mut row.summary).await?;
    store_summary(db, row.pk, &row.summary).await?;
    store(db, row.pk, &print_json(&row.summary.authority)).await
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
    store(db, row.pk, &print_json(&row.summary.authority)).await
}

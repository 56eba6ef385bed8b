//! The authority record of each session: which entries this store wrote itself. It is a column next
//! to the summary.

use rusqlite::params;
use sapwood_core::authority::OriginTrace;
use sapwood_core::port::store::{PAGE_ROWS_MAX, Result};
use sapwood_core::{Authority, Principal, Right, Scope, SessionId, Source};

use super::audit::read_lines;
use super::connection::StoreConnection;
use super::error::AtPath;
use super::session::{ListPosition, SessionRow, find, store_summary};
use crate::validate;

/// Parses the column `authority`. It is NULL for a session that an earlier version created.
pub(super) fn read(db: &StoreConnection, column: Option<&str>) -> Result<Option<Authority>> {
    let parsed = column.map(validate::parse_authority).transpose();
    parsed.map_err(|error| db.damaged(format!("a session's authority record: {error}")))
}

/// Writes the authority record of a summary to its column.
pub(super) fn store(db: &StoreConnection, row: &SessionRow) -> Result<()> {
    let json = row.summary.authority.as_ref().map(validate::print_json);
    let mut update = db.prepare("UPDATE sessions SET authority = ?2 WHERE pk = ?1")?;
    update.execute(params![row.pk, json]).at(&db.path)?;
    Ok(())
}

/// Adds the authority record to a session that an earlier version created.
pub(super) fn settle(db: &StoreConnection, scope: &Scope, row: &mut SessionRow) -> Result<()> {
    if row.summary.authority.is_some() {
        return Ok(());
    }
    let source = trace(db, scope, &row.summary.id)?;
    validate::settle_summary(&mut row.summary, source);
    store_summary(db, row, ListPosition::Kept)?;
    store(db, row)
}

/// Returns the origin of a session according to the audit.
pub(super) fn trace(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Source> {
    let whole_tenant = Scope::operator(scope.tenant.clone(), Principal::System);
    let mut trace = OriginTrace::of(session.clone());
    while let Some(wanted) = trace.wanted().cloned() {
        let (mut lines, mut after) = (Vec::new(), 0);
        loop {
            let page = read_lines(db, &whole_tenant, Some(&wanted), after, PAGE_ROWS_MAX)?;
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

/// Records a file-backed model that was specified on the local command line.
pub(super) fn grant_model(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
    model: String,
) -> Result<()> {
    let mut row = find(db, scope, session, Right::Write)?;
    db.append_cache.evict(row.pk);
    settle(db, scope, &mut row)?;
    row.summary.authority.get_or_insert_default().grant_model(model);
    store(db, &row)
}

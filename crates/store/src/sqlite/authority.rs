//! The authority record of each session: which entries this store wrote itself. It is a column next
//! to the summary.

use rusqlite::params;
use sapwood_core::port::store::{PAGE_ROWS_MAX, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, SessionId};

use super::append_cache::{ListPosition, SessionRow};
use super::audit::read_lines;
use super::connection::StoreConnection;
use super::session_table::{find, store_summary};
use crate::database::audit::OriginReader;
use crate::validate::print_json;

/// Writes the authority record of a summary to its column.
pub(super) fn store(db: &StoreConnection, row: &SessionRow) -> Result<()> {
    let json = row.summary.authority.as_ref().map(print_json);
    db.execute("UPDATE sessions SET authority = ?2 WHERE pk = ?1", params![row.pk, json])?;
    Ok(())
}

/// Adds the authority record to a session that an earlier version created.
pub(super) fn settle(db: &StoreConnection, scope: &Scope, row: &mut SessionRow) -> Result<()> {
    if row.summary.authority.is_some() {
        return Ok(());
    }
    derive(db, scope, &mut row.summary)?;
    store_summary(db, row, ListPosition::Kept)?;
    store(db, row)
}

/// Sets the authority record of a summary to the session's origin according to the audit log.
pub(super) fn derive(db: &StoreConnection, scope: &Scope, summary: &mut Summary) -> Result<()> {
    let mut origin = OriginReader::of(scope, &summary.id);
    while let Some((session, after)) = origin.next_page() {
        let page = read_lines(db, &origin.scope, Some(session), after, PAGE_ROWS_MAX)?;
        origin.add_page(page);
    }
    origin.settle(summary);
    Ok(())
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

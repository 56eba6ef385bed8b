//! The table of sessions: finding, inserting and updating rows.

use rusqlite::{Row, params};
use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, Seq, SessionId, StoreError, TimestampMs};

use super::append_cache::{ListPosition, SessionRow};
use super::connection::StoreConnection;
use super::error::AtPath;
use crate::authorize::authorize;
use crate::database::session::{no_session, read_with_authority};
use crate::validate::print_json;

/// Finds a session of the scope's tenant and checks the caller's right to it.
pub(super) fn find(db: &StoreConnection, scope: &Scope, id: &SessionId, needed: Right) -> Result<SessionRow> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Err(no_session(id)) };
    let mut select =
        db.prepare("SELECT pk, listed_at, summary, authority FROM sessions WHERE tenant = ?1 AND id = ?2")?;
    let mut rows = select.query(params![tenant, id.as_str()]).at(&db.path)?;
    let Some(row) = rows.next().at(&db.path)? else { return Err(no_session(id)) };
    let (pk, listed_at) = (row.get(0).at(&db.path)?, TimestampMs(row.get(1).at(&db.path)?));
    let summary = summary_and_authority(db, row)?;
    authorize(scope, &summary, needed)?;
    Ok(SessionRow { pk, tenant, listed_at, summary })
}

/// Returns the session with this id in the tenant, regardless of its owner.
pub(super) fn find_by_id(db: &StoreConnection, scope: &Scope, id: &SessionId) -> Result<Option<SessionRow>> {
    let whole_tenant = Scope::operator(scope.tenant.clone(), scope.principal.clone());
    match find(db, &whole_tenant, id, Right::Read) {
        Ok(row) => Ok(Some(row)),
        Err(StoreError::NoSession { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses the summary and the authority record, which are the third and fourth column.
pub(super) fn summary_and_authority(db: &StoreConnection, row: &Row<'_>) -> Result<Summary> {
    let json = row.get_ref(2).at(&db.path)?.as_str().unwrap_or_default();
    let authority = row.get_ref(3).and_then(|column| Ok(column.as_str_or_null()?)).at(&db.path)?;
    read_with_authority(db, json, authority)
}

pub(super) fn insert(
    db: &StoreConnection,
    scope: &Scope,
    summary: &Summary,
    base: Option<(i64, Seq)>,
) -> Result<i64> {
    let tenant = db.tenant_or_new(&scope.tenant)?;
    let sql =
        "INSERT INTO sessions (tenant, id, listed_at, parent, base, base_seq, inherited, summary, authority)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let parent = summary.parent.as_ref().map(|lineage| lineage.session.as_str());
    db.execute(
        sql,
        params![
            tenant,
            summary.id.as_str(),
            summary.updated_at.0,
            parent,
            base.map(|(pk, _)| pk),
            base.map(|(_, seq)| seq.0),
            summary.inherited,
            print_json(summary),
            summary.authority.as_ref().map(print_json),
        ],
    )?;
    Ok(db.conn.last_insert_rowid())
}

/// Writes a summary. [`ListPosition::Kept`] leaves the index by time unchanged.
pub(super) fn store_summary(
    db: &StoreConnection,
    row: &mut SessionRow,
    position: ListPosition,
) -> Result<()> {
    let json = print_json(&row.summary);
    match position {
        ListPosition::Kept => {
            db.execute("UPDATE sessions SET summary = ?2 WHERE pk = ?1", params![row.pk, json])?;
        }
        ListPosition::Changed => {
            row.listed_at = row.summary.updated_at;
            db.execute(
                "UPDATE sessions SET listed_at = ?2, summary = ?3 WHERE pk = ?1",
                params![row.pk, row.listed_at.0, json],
            )?;
        }
    }
    Ok(())
}

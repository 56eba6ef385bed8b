//! Creates and lists sessions, and lists the children of a session.

use rusqlite::params;
use sapwood_core::port::store::{AuditAction, Created, ListFilter, ListOrder, NewSession, Page, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, SessionId, StoreError};

use super::append_cache::LISTED_BEHIND_MS_MAX;
use super::audit::write_line;
use super::connection::StoreConnection;
use super::error::AtPath;
use super::session_table::{find, find_by_id, insert, summary_and_authority};
use crate::authorize::authorize;
use crate::database::session::{SessionPage, list_operators, read_summary};
use crate::validate::{ListSpan, session_note};

/// Maximum number of sessions that one page of a filtered list inspects. The next page continues
/// from there.
const SCANNED_ROWS_MAX: usize = 20_000;

pub(super) fn create(db: &StoreConnection, scope: &Scope, new: &NewSession) -> Result<Created> {
    if let Some(row) = find_by_id(db, scope, &new.id)? {
        // A caller that may not read the session only learns that the id is taken.
        let taken = |_| StoreError::Exists { session: new.id.clone() };
        return authorize(scope, &row.summary, Right::Read).map(|()| Created::Existed).map_err(taken);
    }
    insert(db, scope, &Summary::new(new, scope.principal.clone()), None)?;
    write_line(db, scope, session_note(AuditAction::Create, &new.id), new.now)?;
    Ok(Created::New)
}

pub(super) fn children(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
    find(db, scope, session, Right::Read)?;
    let tenant = db.tenant(&scope.tenant)?;
    let sql = "SELECT summary FROM sessions WHERE tenant = ?1 AND parent = ?2 AND id NOT NULL ORDER BY pk";
    let mut children = Vec::new();
    for json in db.query_all::<String>(sql, params![tenant, session.as_str()])? {
        let summary = read_summary(db, &json)?;
        if authorize(scope, &summary, Right::Read).is_ok() {
            children.push(summary.id);
        }
    }
    Ok(children)
}

pub(super) fn list(db: &StoreConnection, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
    list_scanning(db, scope, filter, SCANNED_ROWS_MAX)
}

/// Returns a page after inspecting at most `scanned_max` sessions.
fn list_scanning(
    db: &StoreConnection,
    scope: &Scope,
    filter: &ListFilter,
    scanned_max: usize,
) -> Result<Page<Summary>> {
    let ListSpan { after, end } = ListSpan::of(filter, LISTED_BEHIND_MS_MAX)?;
    let mut page = SessionPage::new(scope, filter, after);
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(page.into_last()) };
    let prefix = filter.id_prefix.as_deref().unwrap_or("");
    let mut select = db.prepare(&list_sql(filter.order, prefix))?;
    let mut rows = if prefix.is_empty() {
        select.query(params![tenant, after.0, after.1, end.0, end.1]).at(&db.path)?
    } else {
        select.query(params![tenant, after.0, after.1, end.0, end.1, prefix]).at(&db.path)?
    };
    for scanned in 0.. {
        let Some(row) = rows.next().at(&db.path)? else { break };
        if scanned == scanned_max {
            return Ok(page.into_page());
        }
        let position = (row.get(0).at(&db.path)?, row.get(1).at(&db.path)?);
        if page.add(position, summary_and_authority(db, row)?).is_break() {
            return Ok(page.into_page());
        }
    }
    Ok(page.into_last())
}

fn list_sql(order: ListOrder, prefix: &str) -> String {
    let (after_op, end_op, direction) = list_operators(order);
    // Ids are ASCII, so every id with a prefix sorts before the prefix followed by DEL.
    let ids = if prefix.is_empty() { "id NOT NULL" } else { "id >= ?6 AND id < ?6 || char(127)" };
    format!(
        "SELECT listed_at, pk, summary, authority FROM sessions WHERE tenant = ?1 AND {ids}
         AND (listed_at, pk) {after_op} (?2, ?3) AND (listed_at, pk) {end_op} (?4, ?5)
         ORDER BY listed_at {direction}, pk {direction}"
    )
}

#[cfg(test)]
mod tests {
    use sapwood_core::{Principal, TimestampMs};

    use super::super::connection::Mode;
    use super::super::schema::migrate;
    use super::*;

    const SESSIONS: usize = 50;
    const SCANNED_MAX: usize = 7;

    /// Every fifth session has the agent that the test filters for.
    fn filled(dir: &tempfile::TempDir, scope: &Scope) -> StoreConnection {
        let db = StoreConnection::open(&dir.path().join("x.db"), Mode::Write, None).unwrap();
        migrate(&db.conn, &db.path).unwrap();
        for number in 0..SESSIONS {
            let id = format!("s{number:02}").parse().unwrap();
            let agent = (number % 5 == 1).then(|| "rare".to_owned());
            let new = NewSession { agent, ..NewSession::new(id, TimestampMs(number as i64)) };
            create(&db, scope, &new).unwrap();
        }
        db
    }

    #[test]
    fn a_page_that_reaches_its_scan_limit_returns_a_cursor() {
        let dir = tempfile::tempdir().unwrap();
        let scope = Scope::operator("acme".parse().unwrap(), Principal::System);
        let db = filled(&dir, &scope);
        for order in [ListOrder::NewestFirst, ListOrder::OldestFirst] {
            let mut filter =
                ListFilter { agent: Some("rare".to_owned()), limit: 4, order, ..ListFilter::default() };
            let (mut seen, mut pages) = (Vec::new(), 0);
            loop {
                let page = list_scanning(&db, &scope, &filter, SCANNED_MAX).unwrap();
                assert!(page.items.len() <= SCANNED_MAX.div_ceil(5));
                seen.extend(page.items.into_iter().map(|summary| summary.created_at.0));
                pages += 1;
                filter.cursor = page.next;
                if filter.cursor.is_none() {
                    break;
                }
            }
            if order == ListOrder::NewestFirst {
                seen.reverse();
            }
            assert_eq!(seen, (0..SESSIONS as i64).filter(|at| at % 5 == 1).collect::<Vec<_>>());
            assert_eq!(pages, SESSIONS.div_ceil(SCANNED_MAX), "no session is inspected twice");
        }
    }
}

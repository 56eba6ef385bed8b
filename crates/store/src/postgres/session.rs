//! Creates and lists sessions, and reads their children and heads.

use sapwood_core::port::store::{AuditAction, Created, ListFilter, NewSession, Page, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::scope::Reach;
use sapwood_core::{Right, Scope, Seq, SessionId, StoreError};
use tokio_postgres::Row;

use super::audit::write_line;
use super::connection::StoreConnection;
use super::log::seq_of;
use super::session_table::{RowLock, SLOT_MS, find, insert, look_up};
use crate::authorize::authorize;
use crate::database::session::{SessionPage, list_operators, read_summary, read_with_authority};
use crate::validate::{ListSpan, session_note};

/// Rows of a list read at a time, including rows that the caller may not see.
const LIST_ROWS: i64 = 500;
/// Maximum number of queries for one page of a filtered list. The next page continues after the
/// last row read.
const LIST_QUERIES_MAX: usize = 40;

pub(super) async fn create(db: &StoreConnection, scope: &Scope, new: &NewSession) -> Result<Created> {
    if insert(db, &Summary::new(new, scope.principal.clone()), None).await?.is_none() {
        // A caller that may not read the session only learns that the id is taken.
        let taken = || StoreError::Exists { session: new.id.clone() };
        let row = look_up(db, &new.id, RowLock::No).await?.ok_or_else(taken)?;
        return authorize(scope, &row.summary, Right::Read).map(|()| Created::Existed).map_err(|_| taken());
    }
    write_line(db, scope, session_note(AuditAction::Create, &new.id), new.now).await?;
    Ok(Created::New)
}

pub(super) async fn children(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
) -> Result<Vec<SessionId>> {
    find(db, scope, session, Right::Read, RowLock::No).await?;
    let sql = "SELECT summary FROM sessions WHERE tenant = $1 AND parent = $2 AND id IS NOT NULL ORDER BY pk";
    let mut children = Vec::new();
    for row in db.query(sql, &[&db.tenant.as_str(), &session.as_str()]).await? {
        let summary = read_summary(db, row.get(0))?;
        if authorize(scope, &summary, Right::Read).is_ok() {
            children.push(summary.id);
        }
    }
    Ok(children)
}

/// Returns the head of each session's log, in the order of `sessions`.
pub(super) async fn heads(
    db: &StoreConnection,
    scope: &Scope,
    sessions: &[SessionId],
) -> Result<Vec<Option<Seq>>> {
    let ids: Vec<&str> = sessions.iter().map(SessionId::as_str).collect();
    let column = if scope.reach == Reach::Tenant { "NULL::text" } else { "summary" };
    let sql = format!(
        "SELECT asked.number, s.* FROM unnest($2::text[]) WITH ORDINALITY AS asked (id, number)
         CROSS JOIN LATERAL (SELECT head, {column} FROM sessions
                             WHERE tenant = $1 AND id = asked.id AND id IS NOT NULL LIMIT 1) s"
    );
    let mut heads = vec![None; sessions.len()];
    for row in db.query(&sql, &[&db.tenant.as_str(), &ids]).await? {
        if let Some(json) = row.get::<_, Option<&str>>(2)
            && authorize(scope, &read_summary(db, json)?, Right::Read).is_err()
        {
            continue;
        }
        let number = usize::try_from(row.get::<_, i64>(0)).unwrap_or(0);
        if let Some(head) = number.checked_sub(1).and_then(|at| heads.get_mut(at)) {
            *head = Some(seq_of(row.get(1)));
        }
    }
    Ok(heads)
}

pub(super) async fn list(db: &StoreConnection, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
    let mut span = ListSpan::of(filter, 0)?;
    let mut page = SessionPage::new(scope, filter, span.after);
    for _ in 0..LIST_QUERIES_MAX {
        let rows = list_rows(db, filter, span).await?;
        for row in &rows {
            let summary = read_with_authority(db, row.get(2), row.get(3))?;
            if page.add((row.get(0), row.get(1)), summary).is_break() {
                return Ok(page.into_page());
            }
        }
        if rows.len() < LIST_ROWS as usize {
            return Ok(page.into_last());
        }
        span.after = page.last;
    }
    Ok(page.into_page())
}

/// Reads the next rows of a list. The index orders rows by minute; the query sorts the rows of each
/// minute.
async fn list_rows(db: &StoreConnection, filter: &ListFilter, span: ListSpan) -> Result<Vec<Row>> {
    let (after_op, before_op, direction) = list_operators(filter.order);
    let tenant = db.tenant.as_str();
    let (after, end) = (span.after, span.end);
    let prefix = filter.id_prefix.as_deref().unwrap_or("");
    if prefix.is_empty() {
        let slots = (after.0.div_euclid(SLOT_MS), end.0.div_euclid(SLOT_MS));
        let sql = format!(
            "SELECT listed_at, pk, summary, authority FROM sessions
             WHERE tenant = $1 AND id IS NOT NULL AND listed_slot {after_op}= $2 AND listed_slot {before_op}= $3
               AND (listed_at, pk) {after_op} ($4, $5) AND (listed_at, pk) {before_op} ($6, $7)
             ORDER BY listed_slot {direction}, listed_at {direction}, pk {direction} LIMIT $8"
        );
        return db
            .query(&sql, &[&tenant, &slots.0, &slots.1, &after.0, &after.1, &end.0, &end.1, &LIST_ROWS])
            .await;
    }
    // The database does not accept text with a NUL character, and no id contains one.
    let prefix = if prefix.contains('\0') { "~" } else { prefix };
    // Ids are ASCII, so every id with the prefix sorts before the prefix followed by DEL.
    let sql = format!(
        "SELECT listed_at, pk, summary, authority FROM sessions
         WHERE tenant = $1 AND id IS NOT NULL AND id >= $2 AND id < $2 || chr(127)
           AND (listed_at, pk) {after_op} ($3, $4) AND (listed_at, pk) {before_op} ($5, $6)
         ORDER BY listed_at {direction}, pk {direction} LIMIT $7"
    );
    db.query(&sql, &[&tenant, &prefix, &after.0, &after.1, &end.0, &end.1, &LIST_ROWS]).await
}

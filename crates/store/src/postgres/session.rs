//! Session rows: finding, creating, forking, listing.

use sapwood_core::authority::fork_detail;
use sapwood_core::entry::Body;
use sapwood_core::port::store::{
    AuditAction, AuditNote, Created, Fork, ListFilter, ListOrder, NewSession, Page, Result,
};
use sapwood_core::project::session_filter::SessionFilter;
use sapwood_core::project::summary::{ForkPoint, Summary};
use sapwood_core::scope::Reach;
use sapwood_core::tree::{Head, Lookup, settings_at};
use sapwood_core::{Draft, Right, Scope, Seq, SessionId, StoreError};
use tokio_postgres::Row;

use super::append::write_first;
use super::audit::write_line;
use super::authority;
use super::connection::StoreConnection;
use super::lease::{NOW_MS, PgLease};
use super::log::{LogRows, int, seq_of};
use super::path::read_in_tree;
use super::prefetch::{Prefetched, is_on_path};
use crate::authorize::authorize;
use crate::validate::{ListSpan, page_limit, print_json, print_list_cursor};

/// Rows of a list read at a time, including rows that the caller may not see.
const LIST_ROWS: i64 = 500;
/// Maximum number of queries for one page of a filtered list. The next page continues after the
/// last row read.
const LIST_QUERIES_MAX: usize = 40;
pub(super) const SLOT_MS: i64 = 60_000;

/// The columns of a session's row, and the time at which it is read.
fn columns() -> String {
    format!("pk, version, lease_holder, lease_fence, lease_until, summary, {NOW_MS} AS now_ms, authority")
}

/// A session that the caller may access.
#[derive(Debug)]
pub(super) struct SessionRow {
    pub pk: i64,
    /// Incremented by every change to the row.
    pub version: i64,
    /// The last lease, expired or not.
    pub lease: Option<PgLease>,
    pub summary: Summary,
}

pub(super) fn no_session(session: &SessionId) -> StoreError {
    StoreError::NoSession { session: session.clone() }
}

/// Whether to lock the row until the transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowLock {
    No,
    Yes,
}

/// Finds a session of the scope's tenant and checks the caller's right to it.
pub(super) async fn find(
    db: &StoreConnection,
    scope: &Scope,
    id: &SessionId,
    needed: Right,
    row_lock: RowLock,
) -> Result<SessionRow> {
    let row = look_up(db, id, row_lock).await?.ok_or_else(|| no_session(id))?;
    authorize(scope, &row.summary, needed)?;
    Ok(row)
}

/// Returns the session with this id in the tenant, regardless of its owner.
async fn look_up(db: &StoreConnection, id: &SessionId, row_lock: RowLock) -> Result<Option<SessionRow>> {
    let lock = if row_lock == RowLock::Yes { "FOR NO KEY UPDATE" } else { "" };
    let columns = columns();
    let sql =
        format!("SELECT {columns} FROM sessions WHERE tenant = $1 AND id = $2 AND id IS NOT NULL {lock}");
    let row = db.query_opt(&sql, &[&db.tenant.as_str(), &id.as_str()]).await?;
    row.map(|row| read_row(db, &row)).transpose()
}

/// Returns a session by its pk, or `None` for an erased session whose rows are retained for forks.
pub(super) async fn by_pk(db: &StoreConnection, pk: i64) -> Result<Option<SessionRow>> {
    let columns = columns();
    let sql = format!("SELECT {columns} FROM sessions WHERE tenant = $1 AND pk = $2 AND id IS NOT NULL");
    let row = db.query_opt(&sql, &[&db.tenant.as_str(), &pk]).await?;
    row.map(|row| read_row(db, &row)).transpose()
}

fn read_row(db: &StoreConnection, row: &Row) -> Result<SessionRow> {
    let mut summary = read_summary(db, row.get(5))?;
    summary.authority = authority::read(db, row.get(7))?;
    let lease = row.get::<_, Option<String>>(2).map(|holder| {
        let fence = u64::try_from(row.get::<_, i64>(3)).unwrap_or(0);
        PgLease::read(holder, fence, row.get(4), row.get(6))
    });
    Ok(SessionRow { pk: row.get(0), version: row.get(1), lease, summary })
}

pub(super) fn read_summary(db: &StoreConnection, json: &str) -> Result<Summary> {
    serde_json::from_str(json).map_err(|error| db.damaged(format!("a session's summary: {error}")))
}

/// Inserts a session row. Returns `None` if the id is taken.
async fn insert(
    db: &StoreConnection,
    summary: &Summary,
    base: Option<(i64, Seq)>,
) -> Result<Option<SessionRow>> {
    let sql = "INSERT INTO sessions (tenant, id, parent, base, base_seq, inherited, head, listed_slot, listed_at, indexed,
                                     summary, authority)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $6, $10, $11)
               ON CONFLICT (tenant, id) WHERE id IS NOT NULL DO NOTHING RETURNING pk, version";
    let parent = summary.parent.as_ref().map(|lineage| lineage.session.as_str());
    let row = db
        .query_opt(
            sql,
            &[
                &db.tenant.as_str(),
                &summary.id.as_str(),
                &parent,
                &base.map(|(pk, _)| pk),
                &base.map(|(_, seq)| int(seq.0)),
                &int(summary.inherited),
                &int(summary.head.seq.0),
                &(summary.updated_at.0.div_euclid(SLOT_MS)),
                &summary.updated_at.0,
                &print_json(summary),
                &summary.authority.as_ref().map(print_json),
            ],
        )
        .await?;
    Ok(row.map(|row| SessionRow {
        pk: row.get(0),
        version: row.get(1),
        lease: None,
        summary: summary.clone(),
    }))
}

pub(super) async fn create(db: &StoreConnection, scope: &Scope, new: &NewSession) -> Result<Created> {
    if insert(db, &Summary::new(new, scope.principal.clone()), None).await?.is_none() {
        // A caller that may not read the session only learns that the id is taken.
        let taken = || StoreError::Exists { session: new.id.clone() };
        let row = look_up(db, &new.id, RowLock::No).await?.ok_or_else(taken)?;
        return authorize(scope, &row.summary, Right::Read).map(|()| Created::Existed).map_err(|_| taken());
    }
    let note = AuditNote { action: AuditAction::Create, session: Some(new.id.clone()), detail: None };
    write_line(db, scope, note, new.now).await?;
    Ok(Created::New)
}

pub(super) async fn fork(db: &StoreConnection, scope: &Scope, fork: &Fork) -> Result<Head> {
    // Lock the source, so that the entries that the fork will share are not erased concurrently.
    let source = find(db, scope, &fork.source, Right::Write, RowLock::Yes).await?;
    let log = LogRows::open(db, source.pk, source.summary.inherited).await?;
    let at = fork.at.or(source.summary.head.leaf).filter(|at| *at > Seq::ZERO);
    let (point, base) = match at {
        Some(at) => (Some(fork_point(&log, &source.summary, at).await?), Some(log.home_of(at).await?)),
        None => (None, None),
    };
    let drafts = shared_drafts(&log, fork, at).await?;
    let summary = Summary::forked(&fork.new, scope.principal.clone(), &source.summary, point);
    let exists = || StoreError::Exists { session: fork.new.id.clone() };
    let row = insert(db, &summary, base).await?.ok_or_else(exists)?;
    let head = match drafts.is_empty() {
        true => summary.head,
        false => write_first(db, scope, row, drafts).await?,
    };
    let detail = Some(fork_detail(&fork.source));
    let note = AuditNote { action: AuditAction::Fork, session: Some(fork.new.id.clone()), detail };
    write_line(db, scope, note, fork.new.now).await?;
    Ok(head)
}

/// Returns a fork's drafts without the labels of entries that it does not share.
async fn shared_drafts(log: &LogRows<'_>, fork: &Fork, at: Option<Seq>) -> Result<Vec<Draft>> {
    let mut drafts = Vec::new();
    for draft in &fork.drafts {
        let Body::Label(label) = &draft.body else {
            drafts.push(draft.clone());
            continue;
        };
        if let Some((seq, _)) = log.find(label.target).await?
            && is_on_path(log, seq, at).await?
        {
            drafts.push(draft.clone());
        }
    }
    Ok(drafts)
}

async fn fork_point(log: &LogRows<'_>, source: &Summary, at: Seq) -> Result<ForkPoint> {
    let record = read_in_tree(log, &source.id, at).await?;
    let mut prefetched = Prefetched::new(log.inherited());
    let links = prefetched.run_with_fetches(log, |prefetched| prefetched.node(at)).await?.links;
    let model = prefetched.run_with_fetches(log, |prefetched| settings_at(at, prefetched)).await?.model;
    let authority = match &source.authority {
        Some(authority) => {
            Some(prefetched.run_with_fetches(log, |prefetched| authority.forked(at, prefetched)).await?)
        }
        None => None,
    };
    Ok(ForkPoint { id: record.meta.id, links, model, authority })
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
    let mut page = Page { items: Vec::new(), next: None };
    let mut span = ListSpan::of(filter, 0)?;
    let (wanted, limit) = (SessionFilter::of(filter), page_limit(filter.limit));
    for _ in 0..LIST_QUERIES_MAX {
        let rows = list_rows(db, filter, span).await?;
        for row in &rows {
            let mut summary = read_summary(db, row.get(2))?;
            summary.authority = authority::read(db, row.get(3))?;
            let is_visible = wanted.includes(&summary) && authorize(scope, &summary, Right::Read).is_ok();
            if is_visible && page.items.len() == limit {
                page.next = Some(print_list_cursor(span.after));
                return Ok(page);
            }
            span.after = (row.get(0), row.get(1));
            page.items.extend(is_visible.then_some(summary));
        }
        if rows.len() < LIST_ROWS as usize {
            return Ok(page);
        }
    }
    page.next = Some(print_list_cursor(span.after));
    Ok(page)
}

/// Reads the next rows of a list. The index orders rows by minute; the query sorts the rows of each
/// minute.
async fn list_rows(db: &StoreConnection, filter: &ListFilter, span: ListSpan) -> Result<Vec<Row>> {
    let (after_op, before_op, direction) = match filter.order {
        ListOrder::NewestFirst => ("<", ">", "DESC"),
        ListOrder::OldestFirst => (">", "<", "ASC"),
    };
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

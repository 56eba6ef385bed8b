//! Session rows: finding, creating, forking, listing, checking.

use rusqlite::params;
use sapwood_core::authority::fork_detail;
use sapwood_core::entry::{Body, SessionState, Stance};
use sapwood_core::port::store::{
    AuditAction, AuditNote, Created, Finding, Fork, ListFilter, ListOrder, NewSession, Page, Repair, Result,
};
use sapwood_core::project::session_filter::SessionFilter;
use sapwood_core::project::summary::{ForkPoint, Summary};
use sapwood_core::tree::{Head, Lookup, is_on_path, settings_at};
use sapwood_core::{Right, Scope, Seq, SessionId, StoreError, TimestampMs};

use super::append::{Batch, write_batch};
use super::append_cache::{LISTED_BEHIND_MS_MAX, Nodes};
use super::audit::write_line;
use super::authority;
use super::connection::StoreConnection;
use super::error::AtPath;
use super::log::LogRows;
use super::path::check_in_tree;
use crate::authorize::authorize;
use crate::validate::{ListSpan, no_entry, page_limit, print_json, print_list_cursor};

/// Number of rows that the check reads at a time.
const CHECK_ROWS: usize = 500;
/// Maximum number of sessions that one page of a filtered list inspects. The next page continues
/// from there.
const SCANNED_ROWS_MAX: usize = 20_000;

/// A session that the caller may access.
pub(super) struct SessionRow {
    pub pk: i64,
    pub tenant: i64,
    /// The time that orders the list: the time of the last update, or slightly before it (see
    /// [`ListPosition`]).
    pub listed_at: TimestampMs,
    pub summary: Summary,
}

pub(super) fn no_session(session: &SessionId) -> StoreError {
    StoreError::NoSession { session: session.clone() }
}

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

/// Parses the summary and the authority record, which are the third and fourth column.
fn summary_and_authority(db: &StoreConnection, row: &rusqlite::Row<'_>) -> Result<Summary> {
    let mut summary = read_summary(db, row.get_ref(2).at(&db.path)?.as_str().unwrap_or_default())?;
    let column = row.get_ref(3).and_then(|column| Ok(column.as_str_or_null()?)).at(&db.path)?;
    summary.authority = authority::read(db, column)?;
    Ok(summary)
}

pub(super) fn read_summary(db: &StoreConnection, json: &str) -> Result<Summary> {
    serde_json::from_str(json).map_err(|error| db.damaged(format!("a session's summary: {error}")))
}

fn insert(db: &StoreConnection, scope: &Scope, summary: &Summary, base: Option<(i64, Seq)>) -> Result<i64> {
    let tenant = db.tenant_or_new(&scope.tenant)?;
    let sql =
        "INSERT INTO sessions (tenant, id, listed_at, parent, base, base_seq, inherited, summary, authority)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let parent = summary.parent.as_ref().map(|lineage| lineage.session.as_str());
    db.prepare(sql)?
        .execute(params![
            tenant,
            summary.id.as_str(),
            summary.updated_at.0,
            parent,
            base.map(|(pk, _)| pk),
            base.map(|(_, seq)| seq.0),
            summary.inherited,
            print_json(summary),
            summary.authority.as_ref().map(print_json),
        ])
        .at(&db.path)?;
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
            let mut update = db.prepare("UPDATE sessions SET summary = ?2 WHERE pk = ?1")?;
            update.execute(params![row.pk, json]).at(&db.path)?;
        }
        ListPosition::Changed => {
            row.listed_at = row.summary.updated_at;
            let mut update = db.prepare("UPDATE sessions SET listed_at = ?2, summary = ?3 WHERE pk = ?1")?;
            update.execute(params![row.pk, row.listed_at.0, json]).at(&db.path)?;
        }
    }
    Ok(())
}

/// Whether an append changes a session's position in the list. A session that receives consecutive
/// appends keeps its position, and its list time may lag slightly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListPosition {
    Kept,
    Changed,
}

pub(super) fn create(db: &StoreConnection, scope: &Scope, new: &NewSession) -> Result<Created> {
    if let Some(row) = find_by_id(db, scope, &new.id)? {
        // The session belongs to another owner; the caller only learns that the id is taken.
        let taken = |_| StoreError::Exists { session: new.id.clone() };
        return authorize(scope, &row.summary, Right::Read).map(|()| Created::Existed).map_err(taken);
    }
    insert(db, scope, &Summary::new(new, scope.principal.clone()), None)?;
    let note = AuditNote { action: AuditAction::Create, session: Some(new.id.clone()), detail: None };
    write_line(db, scope, note, new.now)?;
    Ok(Created::New)
}

/// Returns the session with this id in the tenant, regardless of its owner.
fn find_by_id(db: &StoreConnection, scope: &Scope, id: &SessionId) -> Result<Option<SessionRow>> {
    let whole_tenant = Scope::operator(scope.tenant.clone(), scope.principal.clone());
    match find(db, &whole_tenant, id, Right::Read) {
        Ok(row) => Ok(Some(row)),
        Err(StoreError::NoSession { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn fork(db: &StoreConnection, scope: &Scope, mut fork: Fork) -> Result<Head> {
    let source = find(db, scope, &fork.source, Right::Write)?;
    if find_by_id(db, scope, &fork.new.id)?.is_some() {
        return Err(StoreError::Exists { session: fork.new.id });
    }
    let mut log = LogRows::open(db, source.pk)?;
    let at = fork.at.or(source.summary.head.leaf).filter(|at| *at > Seq::ZERO);
    let point = at.map(|at| fork_point(&mut log, &source.summary, at)).transpose()?;
    let base = at.map(|at| log.locate(at)).transpose()?;
    let mut drafts = Vec::new();
    for draft in fork.drafts.drain(..) {
        let is_shared = match &draft.body {
            Body::Label(label) => match log.find(label.target)? {
                Some((seq, _)) => is_on_path(seq, at, &mut log)?,
                None => false,
            },
            _ => true,
        };
        drafts.extend(is_shared.then_some(draft));
    }
    let summary = Summary::forked(&fork.new, scope.principal.clone(), &source.summary, point);
    let pk = insert(db, scope, &summary, base)?;
    let note = AuditNote {
        action: AuditAction::Fork,
        session: Some(fork.new.id.clone()),
        detail: Some(fork_detail(&fork.source)),
    };
    write_line(db, scope, note, fork.new.now)?;
    let listed_at = summary.updated_at;
    let mut row = SessionRow { pk, tenant: source.tenant, listed_at, summary };
    if !drafts.is_empty() {
        write_batch(db, scope, &mut row, Batch::pack(drafts)?, &mut Nodes::default())?;
    }
    Ok(row.summary.head)
}

fn fork_point(log: &mut LogRows<'_>, source: &Summary, at: Seq) -> Result<ForkPoint> {
    check_in_tree(log, &source.id, at)?;
    let record = log.record(at)?.ok_or_else(|| no_entry(&source.id, at))?;
    let model = settings_at(at, log)?.model;
    let authority = source.authority.as_ref().map(|authority| authority.forked(at, log)).transpose()?;
    Ok(ForkPoint { id: record.meta.id, links: log.node(at)?.links, model, authority })
}

pub(super) fn children(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
    find(db, scope, session, Right::Read)?;
    let tenant = db.tenant(&scope.tenant)?;
    let sql = "SELECT summary FROM sessions WHERE tenant = ?1 AND parent = ?2 AND id NOT NULL ORDER BY pk";
    let mut select = db.prepare(sql)?;
    let rows =
        select.query_map(params![tenant, session.as_str()], |row| row.get::<_, String>(0)).at(&db.path)?;
    let mut children = Vec::new();
    for json in rows {
        let summary = read_summary(db, &json.at(&db.path)?)?;
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
    let span = ListSpan::of(filter, LISTED_BEHIND_MS_MAX)?;
    let mut page = Page { items: Vec::new(), next: None };
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(page) };
    let (wanted, limit) = (SessionFilter::of(filter), page_limit(filter.limit));
    let prefix = filter.id_prefix.as_deref().unwrap_or("");
    let mut select = db.prepare(list_sql(filter.order, prefix))?;
    let (after, end) = (span.after, span.end);
    let mut rows = if prefix.is_empty() {
        select.query(params![tenant, after.0, after.1, end.0, end.1]).at(&db.path)?
    } else {
        select.query(params![tenant, after.0, after.1, end.0, end.1, prefix]).at(&db.path)?
    };
    let mut last = after;
    for scanned in 0.. {
        let Some(row) = rows.next().at(&db.path)? else { break };
        if scanned == scanned_max {
            page.next = Some(print_list_cursor(last));
            break;
        }
        let summary = summary_and_authority(db, row)?;
        let shows = wanted.includes(&summary) && authorize(scope, &summary, Right::Read).is_ok();
        if shows && page.items.len() == limit {
            page.next = Some(print_list_cursor(last));
            break;
        }
        last = (row.get(0).at(&db.path)?, row.get(1).at(&db.path)?);
        page.items.extend(shows.then_some(summary));
    }
    Ok(page)
}

/// Ids are ASCII, so every id with a prefix sorts before the prefix followed by DEL.
fn list_sql(order: ListOrder, prefix: &str) -> &'static str {
    match (order, prefix.is_empty()) {
        (ListOrder::NewestFirst, true) => {
            "SELECT listed_at, pk, summary, authority FROM sessions WHERE tenant = ?1 AND id NOT NULL
             AND (listed_at, pk) < (?2, ?3) AND (listed_at, pk) > (?4, ?5) ORDER BY listed_at DESC, pk DESC"
        }
        (ListOrder::OldestFirst, true) => {
            "SELECT listed_at, pk, summary, authority FROM sessions WHERE tenant = ?1 AND id NOT NULL
             AND (listed_at, pk) > (?2, ?3) AND (listed_at, pk) < (?4, ?5) ORDER BY listed_at, pk"
        }
        (ListOrder::NewestFirst, false) => {
            "SELECT listed_at, pk, summary, authority FROM sessions WHERE tenant = ?1 AND id >= ?6 AND id < ?6 || char(127)
             AND (listed_at, pk) < (?2, ?3) AND (listed_at, pk) > (?4, ?5) ORDER BY listed_at DESC, pk DESC"
        }
        (ListOrder::OldestFirst, false) => {
            "SELECT listed_at, pk, summary, authority FROM sessions WHERE tenant = ?1 AND id >= ?6 AND id < ?6 || char(127)
             AND (listed_at, pk) > (?2, ?3) AND (listed_at, pk) < (?4, ?5) ORDER BY listed_at, pk"
        }
    }
}

/// Recomputes each session's summary from its log, and stores it if it differs. Only runs for a
/// repair.
pub(super) fn check_summaries(db: &StoreConnection, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if repair == Repair::No {
        // Without a repair there is nothing to do: `sapwood doctor` compares summaries through the
        // port.
        return Ok(findings);
    }
    let mut filter = ListFilter { limit: CHECK_ROWS, ..ListFilter::default() };
    loop {
        let page = list(db, scope, &filter)?;
        for summary in page.items {
            let mut row = find(db, scope, &summary.id, Right::Read)?;
            row.summary = rebuild_summary(db, row.pk, &summary)?;
            if row.summary != summary {
                db.append_cache.evict(row.pk);
                store_summary(db, &mut row, ListPosition::Changed)?;
                let what = format!("the summary of session {} did not match its log", summary.id);
                let place = db.path.display().to_string();
                findings.push(Finding { rule: "cache", place, what, repaired: true });
            }
        }
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return Ok(findings),
        }
    }
}

fn rebuild_summary(db: &StoreConnection, pk: i64, stored: &Summary) -> Result<Summary> {
    let mut log = LogRows::open(db, pk)?;
    let mut summary = stored.unfolded();
    let (mut leaf, mut after) =
        ((stored.inherited > 0).then_some(Seq(stored.inherited)), Seq(stored.inherited));
    if let Some(shared) = leaf {
        summary.head = Head { seq: shared, leaf };
        if log.node(shared)?.links.messages > 0 {
            summary.state = SessionState::Active;
        }
    }
    loop {
        let records = log.read_after(after, CHECK_ROWS)?;
        let Some(last) = records.last() else { break };
        after = last.meta.seq;
        for record in records {
            let entry = record.into_entry().map_err(|error| db.damaged(error.to_string()))?;
            leaf = match &entry.body {
                Body::LeafMoved(moved) => match moved.to {
                    Some(id) => log.find(id)?.map(|(seq, _)| seq),
                    None => None,
                },
                _ if entry.meta.kind.stance() == Stance::InTree => Some(entry.meta.seq),
                _ => leaf,
            };
            summary.apply(&entry);
        }
    }
    summary.head.leaf = leaf;
    summary.messages = leaf.map(|leaf| log.node(leaf)).transpose()?.map_or(0, |node| node.links.messages);
    summary.model =
        leaf.map(|leaf| settings_at(leaf, &mut log)).transpose()?.and_then(|settings| settings.model);
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use sapwood_core::Principal;

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

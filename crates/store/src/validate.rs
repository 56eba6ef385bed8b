//! The rules that every store follows, as pure functions of the data that the store has read: which
//! appends are allowed, and how lists are split into pages. The databases call these functions inside
//! a transaction.

use std::borrow::{Borrow, BorrowMut};
use std::cmp::{Ordering, Reverse};

use sapwood_core::authority::fork_detail;
use sapwood_core::entry::{Kind, Meta, SessionState, Stance};
use sapwood_core::port::keys::ApiKey;
use sapwood_core::port::store::{
    APPEND_ENTRIES_MAX, Append, Appended, AuditAction, AuditLine, AuditNote, Expect, Finding, Fork, Hit,
    ListFilter, ListOrder, PAGE_ROWS_MAX, Page, Result, SearchQuery,
};
use sapwood_core::project::session_filter::SessionFilter;
use sapwood_core::project::summary::{ForkPoint, Summary};
use sapwood_core::scope::Reach;
use sapwood_core::tree::{Head, Links, Lookup, Placed, Tip, is_on_path, settings_at};
use sapwood_core::{
    Authority, Body, Draft, EntryId, Principal, Right, Scope, Seq, SessionId, Source, StoreError, TimestampMs,
};
use serde::Serialize;

use crate::authorize::authorize;
use crate::lease::LastLease;
use crate::match_text::TextQuery;

/// Maximum length of an idempotency key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Maximum length of a search query, in bytes.
pub const QUERY_BYTES_MAX: usize = 4 << 10;
/// Default page size, in rows.
const PAGE_ROWS_DEFAULT: usize = 100;

/// Returns 128 random bits for ids.
pub fn random_bits() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

/// Returns the right that an append needs. Only the owner may share, archive and reopen a session.
pub fn right_needed(summary: &Summary, drafts: &[Draft]) -> Right {
    let mut state = summary.state;
    for draft in drafts {
        match &draft.body {
            Body::MemberChanged(_) => return Right::Own,
            Body::StateChanged(changed) => {
                if SessionState::Archived == state || SessionState::Archived == changed.state {
                    return Right::Own;
                }
                state = changed.state;
            }
            _ => {}
        }
    }
    Right::Write
}

pub fn parse_authority(json: &str) -> serde_json::Result<Authority> {
    match json {
        "{}" => Ok(Authority::default()),
        json => serde_json::from_str(json),
    }
}

/// Adds the authority record to the summary of a session that an earlier version created. `source`
/// is the session's origin according to the audit log. An open turn of an imported session is closed
/// here, because no process will end it.
pub fn settle_summary(summary: &mut Summary, source: Source) {
    summary.authority = Some(match source {
        Source::Own => Authority::default(),
        Source::Imported => {
            (summary.open_turn, summary.open_turn_seq) = (None, None);
            summary.queued = Some(Vec::new());
            Authority::imported_up_to(summary.head.seq)
        }
    });
}

/// Checks that a reused idempotency key belongs to the same request. If either the stored answer or
/// this append has no request, any request matches.
pub fn check_request(append: &Append, stored: Option<&str>) -> Result<()> {
    match (&append.idempotency_key, append.request.as_deref(), stored) {
        (Some(key), Some(sent), Some(stored)) if sent != stored => {
            Err(StoreError::KeyReused { key: key.chars().take(64).collect() })
        }
        _ => Ok(()),
    }
}

/// Checks all conditions of an append that do not depend on the positions of its entries: rights,
/// limits, archive, head (I5), fence. A store looks up the idempotency key between [`authorize`]
/// and this check, so that a retry is answered even if the head has moved since.
pub fn check_append(
    scope: &Scope,
    summary: &Summary,
    append: &Append,
    lease: Option<LastLease<'_>>,
) -> Result<()> {
    authorize(scope, summary, right_needed(summary, &append.drafts))?;
    check_size(append)?;
    check_archived(summary, &append.drafts)?;
    check_expected(summary, append.expect)?;
    check_fence(append, lease)
}

fn check_size(append: &Append) -> Result<()> {
    if append.drafts.is_empty() {
        return Err(StoreError::Invalid { what: "an append", why: "it has no entries".to_owned() });
    }
    if append.drafts.len() > APPEND_ENTRIES_MAX {
        return Err(StoreError::TooLarge {
            what: "the number of entries in one append",
            limit: APPEND_ENTRIES_MAX,
        });
    }
    if append.idempotency_key.as_ref().is_some_and(|key| key.len() > KEY_BYTES_MAX) {
        let what = "the length of an idempotency key, in bytes,";
        return Err(StoreError::TooLarge { what, limit: KEY_BYTES_MAX });
    }
    Ok(())
}

/// Checks that a batch does not write to an archived session. An archived session can only be
/// reopened, shared and exported. Entries after a reopening in the same batch are allowed.
fn check_archived(summary: &Summary, drafts: &[Draft]) -> Result<()> {
    let mut state = summary.state;
    for draft in drafts {
        match &draft.body {
            Body::StateChanged(changed) => state = changed.state,
            Body::Exported(_) | Body::MemberChanged(_) => {}
            _ if state == SessionState::Archived => {
                return Err(StoreError::Archived { session: summary.id.clone() });
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_expected(summary: &Summary, expect: Expect) -> Result<()> {
    match expect {
        Expect::Head(expected) if expected != summary.head.seq => {
            Err(StoreError::Conflict { expected, actual: summary.head.seq })
        }
        Expect::Any | Expect::Head(_) => Ok(()),
    }
}

/// The fence must be the latest fence, but its lease may have expired: as long as no other caller
/// has acquired a lease, no other caller has moved the leaf. Without a fence, a live lease blocks
/// appends that move the leaf.
fn check_fence(append: &Append, lease: Option<LastLease<'_>>) -> Result<()> {
    if let Some(given) = append.fence {
        let current = lease.map_or(0, |lease| lease.fence);
        return if given == current { Ok(()) } else { Err(StoreError::StaleFence { given, current }) };
    }
    let moves_leaf = |kind: Kind| kind.stance() == Stance::InTree || kind == Kind::LeafMoved;
    match lease {
        Some(lease) if lease.is_live() && append.drafts.iter().any(|draft| moves_leaf(draft.body.kind())) => {
            Err(lease.refuse())
        }
        _ => Ok(()),
    }
}

pub fn session_note(action: AuditAction, session: &SessionId) -> AuditNote {
    AuditNote { action, session: Some(session.clone()), detail: None }
}

pub fn fork_note(fork: &Fork) -> AuditNote {
    let detail = Some(fork_detail(&fork.source));
    AuditNote { detail, ..session_note(AuditAction::Fork, &fork.new.id) }
}

/// Returns the initial state of the summary of a fork at the entry with this seq and id.
pub fn fork_point<L: Lookup>(
    source: Option<&Authority>,
    (at, id): (Seq, EntryId),
    log: &mut L,
) -> Result<ForkPoint, L::Error> {
    let links = log.node(at)?.links;
    let model = settings_at(at, log)?.model;
    let authority = source.map(|authority| authority.forked(at, log)).transpose()?;
    Ok(ForkPoint { id, links, model, authority })
}

/// Returns whether a fork at `at` can contain this draft: a label needs an entry that the fork
/// shares.
pub fn is_shared<L: Lookup>(draft: &Draft, at: Option<Seq>, log: &mut L) -> Result<bool, L::Error> {
    let Body::Label(label) = &draft.body else { return Ok(true) };
    match log.find(label.target)? {
        Some((seq, _)) => is_on_path(seq, at, log),
        None => Ok(false),
    }
}

/// Returns the links of the leaf after a batch.
pub fn links_of_leaf<L: Lookup>(tip: &Tip, batch: &[Placed], log: &mut L) -> Result<Option<Links>, L::Error> {
    let Some(leaf) = tip.head.leaf else { return Ok(None) };
    match batch.iter().rev().find(|placed| placed.entry.meta.seq == leaf) {
        Some(placed) => Ok(placed.links),
        None => log.node(leaf).map(|node| Some(node.links)),
    }
}

pub fn answer_of(placed: &[Placed], head: Head) -> Appended {
    let entries = placed.iter().map(|placed| (placed.entry.meta.seq, placed.entry.meta.id)).collect();
    Appended { head, entries }
}

/// Returns the error for a path or a fork at an entry that is not in the tree.
pub fn beside_tree(seq: Seq, kind: Kind) -> StoreError {
    let why = format!("entry {seq} ({}) is not part of the tree", kind.as_str());
    StoreError::Invalid { what: "the entry", why }
}

pub fn damaged(place: impl ToString, what: impl ToString) -> StoreError {
    StoreError::Damaged { place: place.to_string(), what: what.to_string() }
}

pub fn no_entry(session: &SessionId, entry: impl ToString) -> StoreError {
    StoreError::NoEntry { session: session.clone(), entry: entry.to_string() }
}

/// Returns whether the caller may see an audit line. Operators see all lines of the tenant; other
/// callers see their own actions and actions on sessions they own. `session` is the line's session,
/// if it still exists.
pub fn may_see_line(scope: &Scope, line: &AuditLine, session: Option<&Summary>) -> bool {
    scope.reach == Reach::Tenant
        || line.by == scope.principal
        || session.is_some_and(|summary| authorize(scope, summary, Right::Own).is_ok())
}

/// Returns the error for a cursor that this store did not issue.
pub fn bad_cursor(text: &str) -> StoreError {
    let why = format!("{text:?} was not issued by this store");
    StoreError::Invalid { what: "the cursor", why }
}

/// Parses the cursor of a database list: time and number of the last session on the previous page.
fn read_list_cursor(text: &str) -> Result<(i64, i64)> {
    let parsed = text.split_once('.').and_then(|(time, pk)| Some((time.parse().ok()?, pk.parse().ok()?)));
    parsed.ok_or_else(|| bad_cursor(text))
}

pub fn print_list_cursor((time, number): (i64, i64)) -> String {
    format!("{time}.{number}")
}

/// Typical size of a summary or an audit line, in bytes.
const ROW_BYTES: usize = 1_024;

/// Serializes a stored row, such as a summary or an audit line, as JSON.
pub fn print_json(row: &impl Serialize) -> String {
    let mut json = Vec::with_capacity(ROW_BYTES);
    serde_json::to_writer(&mut json, row).expect("rows contain only strings and numbers");
    String::from_utf8(json).expect("serde_json writes valid UTF-8")
}

pub fn hit_of(summary: &Summary, meta: &Meta, words: &TextQuery, text: &str) -> Hit {
    Hit {
        session: summary.id.clone(),
        title: summary.title.clone().or_else(|| summary.preview.clone()),
        seq: meta.seq,
        id: meta.id,
        kind: meta.kind.as_str(),
        at: meta.at,
        snippet: words.snippet(text),
    }
}

pub fn page_limit(limit: usize) -> usize {
    match limit {
        0 => PAGE_ROWS_DEFAULT,
        limit => limit.min(PAGE_ROWS_MAX),
    }
}

/// A list cursor: the list continues after the session `id`, last updated at `at`. Newest-first
/// lists are ordered by descending `updated_at`, then by id. Oldest-first lists are the reverse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListCursor {
    pub at: TimestampMs,
    pub id: SessionId,
}

impl ListCursor {
    pub fn of(summary: &Summary) -> Self {
        Self { at: summary.updated_at, id: summary.id.clone() }
    }

    pub fn parse(text: &str) -> Result<Self> {
        let parsed = text
            .split_once('~')
            .and_then(|(at, id)| Some(Self { at: TimestampMs(at.parse().ok()?), id: id.parse().ok()? }));
        parsed.ok_or_else(|| bad_cursor(text))
    }

    pub fn print(&self) -> String {
        format!("{}~{}", self.at.0, self.id)
    }

    fn compare(&self, other: &Self, order: ListOrder) -> Ordering {
        let newest_first = other.at.cmp(&self.at).then_with(|| self.id.cmp(&other.id));
        if order == ListOrder::NewestFirst { newest_first } else { newest_first.reverse() }
    }
}

/// A search cursor. Hits are ordered by time, newest first, then by session, then by seq, newest
/// first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HitCursor {
    pub at: TimestampMs,
    pub session: SessionId,
    pub seq: Seq,
}

impl HitCursor {
    pub fn of(hit: &Hit) -> Self {
        Self { at: hit.at, session: hit.session.clone(), seq: hit.seq }
    }

    pub fn parse(text: &str) -> Result<Self> {
        let mut parts = text.splitn(3, '~');
        let mut parse = || {
            let at = TimestampMs(parts.next()?.parse().ok()?);
            let seq = Seq(parts.next()?.parse().ok()?);
            Some(Self { at, seq, session: parts.next()?.parse().ok()? })
        };
        parse().ok_or_else(|| bad_cursor(text))
    }

    pub fn print(&self) -> String {
        format!("{}~{}~{}", self.at.0, self.seq, self.session)
    }

    pub fn key(&self) -> (Reverse<TimestampMs>, &SessionId, Reverse<Seq>) {
        (Reverse(self.at), &self.session, Reverse(self.seq))
    }
}

/// Returns one page of the sessions that this caller may see, out of all sessions of a tenant.
pub fn page_of_sessions<S: Borrow<Summary>>(
    scope: &Scope,
    filter: &ListFilter,
    sessions: impl Iterator<Item = S>,
) -> Result<Page<Summary>> {
    let after = filter.cursor.as_deref().map(ListCursor::parse).transpose()?;
    let (wanted, order) = (SessionFilter::of(filter), filter.order);
    let shows = |session: &S| {
        let summary: &Summary = session.borrow();
        after.as_ref().is_none_or(|after| ListCursor::of(summary).compare(after, order).is_gt())
            && wanted.includes(summary)
            && authorize(scope, summary, Right::Read).is_ok()
    };
    let mut found: Vec<S> = sessions.filter(shows).collect();
    found.sort_by(|a, b| ListCursor::of(a.borrow()).compare(&ListCursor::of(b.borrow()), order));
    let limit = page_limit(filter.limit);
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|last| ListCursor::of(last.borrow()).print());
    Ok(Page { items: found.iter().map(|summary| summary.borrow().clone()).collect(), next })
}

/// The range of rows that the next page of a list can contain, for databases. Rows are ordered by
/// time and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListSpan {
    /// The span begins after this row, in list order.
    pub after: (i64, i64),
    /// The span ends before this row.
    pub end: (i64, i64),
}

impl ListSpan {
    /// Computes the span for a filter. The list time of a session may lag behind its last update by
    /// up to `behind_ms`.
    pub fn of(filter: &ListFilter, behind_ms: i64) -> Result<Self> {
        // Saturate, because a client may send any number as a time. The minimum excludes no
        // session.
        let oldest =
            filter.since.map_or((i64::MIN, i64::MIN), |since| (since.0.saturating_sub(behind_ms), i64::MIN));
        let newest = filter.until.map_or((i64::MAX, i64::MAX), |until| (until.0, i64::MIN));
        let cursor = filter.cursor.as_deref().map(read_list_cursor).transpose()?;
        Ok(match filter.order {
            ListOrder::NewestFirst => Self { after: cursor.map_or(newest, |at| at.min(newest)), end: oldest },
            ListOrder::OldestFirst => Self { after: cursor.map_or(oldest, |at| at.max(oldest)), end: newest },
        })
    }
}

pub fn check_query(query: &SearchQuery) -> Result<()> {
    if query.text.len() > QUERY_BYTES_MAX {
        return Err(StoreError::TooLarge {
            what: "the length of a query, in bytes,",
            limit: QUERY_BYTES_MAX,
        });
    }
    Ok(())
}

/// Validates a search. Returns its limit and its cursor.
pub fn check_search(query: &SearchQuery) -> Result<(usize, Option<HitCursor>)> {
    check_query(query)?;
    Ok((page_limit(query.limit), query.cursor.as_deref().map(HitCursor::parse).transpose()?))
}

pub fn page_of_hits(mut hits: Vec<Hit>, limit: usize, after: Option<&HitCursor>) -> Page<Hit> {
    keep_newest(&mut hits, limit + 1, after);
    let more = hits.len() > limit;
    hits.truncate(limit);
    let next = hits.last().filter(|_| more).map(|last| HitCursor::of(last).print());
    Page { items: hits, next }
}

/// Sorts hits in page order and retains the first `limit` hits after the cursor.
pub fn keep_newest(hits: &mut Vec<Hit>, limit: usize, after: Option<&HitCursor>) {
    hits.retain(|hit| after.is_none_or(|after| HitCursor::of(hit).key() > after.key()));
    hits.sort_by(|a, b| HitCursor::of(a).key().cmp(&HitCursor::of(b).key()));
    hits.truncate(limit);
}

/// Returns the forks of a session that this caller may see, oldest first.
pub fn children_of<'a>(
    scope: &Scope,
    session: &SessionId,
    sessions: impl Iterator<Item = &'a Summary>,
) -> Vec<SessionId> {
    let is_child = |summary: &&Summary| {
        summary.parent.as_ref().is_some_and(|parent| parent.session == *session)
            && authorize(scope, summary, Right::Read).is_ok()
    };
    let mut children: Vec<(TimestampMs, &SessionId)> =
        sessions.filter(is_child).map(|summary| (summary.created_at, &summary.id)).collect();
    children.sort();
    children.into_iter().map(|(_, id)| id.clone()).collect()
}

/// Returns whether the caller may see a key: operators see all keys of the tenant, other callers
/// their own.
/// Returns what a caller learns of sessions that cannot be read. Their owners are unknown, so only an operator learns their
/// names (I9).
pub fn unreadable_for(scope: &Scope, store: &str, found: Vec<Finding>) -> Vec<Finding> {
    if scope.reach == Reach::Tenant || found.is_empty() {
        return found;
    }
    let what =
        format!("{} of its sessions cannot be read; an operator can run `sapwood doctor`", found.len());
    vec![Finding { rule: "damaged", place: store.to_owned(), what, repaired: false }]
}

pub fn shows_key(scope: &Scope, key: &ApiKey) -> bool {
    let is_own = scope.reach == Reach::Tenant || scope.principal == Principal::User(key.user.clone());
    key.tenant == scope.tenant && is_own
}

/// Finds the key to revoke among keys that the caller may see, and marks it as revoked.
pub fn revoke_key<K: BorrowMut<ApiKey>>(
    mut keys: impl Iterator<Item = K>,
    id: &str,
    now: TimestampMs,
) -> Result<K> {
    let found = keys.find(|key| key.borrow().id == id);
    let mut key = found.ok_or_else(|| StoreError::NoKey { key: id.chars().take(64).collect() })?;
    key.borrow_mut().revoked_at.get_or_insert(now);
    Ok(key)
}

pub fn key_note(what: &str, key: &ApiKey) -> AuditNote {
    let detail = Some(format!("{what} key {} of user:{}", key.id, key.user));
    AuditNote { action: AuditAction::KeyChange, session: None, detail }
}

pub fn tenant_note() -> AuditNote {
    let detail = Some("created the tenant".to_owned());
    AuditNote { action: AuditAction::TenantChange, session: None, detail }
}

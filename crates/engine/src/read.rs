//! The read-only operations: projections of a session's log.

use std::collections::HashSet;

use sapwood_core::entry::{Body, Compaction, Entry, SessionState};
use sapwood_core::port::store::{
    AuditAction, AuditLine, AuditNote, Hit, ListFilter, Page, SearchQuery, StoreError, Until, is_full_page,
};
use sapwood_core::project::artifacts::Artifacts;
use sapwood_core::project::context::Context;
use sapwood_core::project::feed::{Feed, FeedItem};
use sapwood_core::project::ledger::{Ledger, LedgerLine};
use sapwood_core::project::outline::Outline;
use sapwood_core::project::summary::Summary;
use sapwood_core::project::timeline::{Timeline, TimelinePoint};
use sapwood_core::project::usage::{Spend, Total};
use sapwood_core::{EntryId, Kind, Principal, Right, Scope, Seq, SessionId, TimestampMs};
use serde::Serialize;

use crate::{Engine, EngineError, Result};

/// Records per page when a whole log is folded.
const PAGE_RECORDS: usize = 1_000;
/// Maximum length of a fork chain. A longer chain is cut off, like a cycle.
const ANCESTRY_MAX: usize = 1_000;
/// Maximum number of list pages read to find the first sessions: enough for over a million sessions.
const LIST_PAGES_MAX: usize = 1_000;

/// Within this time, one audit line covers all reads of a session by the same principal.
pub const READ_AUDIT_WINDOW_MS: i64 = 600_000;
/// Maximum number of audit lines searched for an earlier read, newest first. If none is found, the read is noted again.
const AUDIT_LINES_SEARCHED_MAX: usize = 1_000;

/// A session's position among its forks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ancestry {
    /// The session.
    pub id: SessionId,
    /// The session that this one was forked from.
    pub parent: Option<SessionId>,
    /// The sessions that were forked from this one.
    pub children: Vec<SessionId>,
    /// The first session of the chain.
    pub root: SessionId,
    /// From the session to its root.
    pub chain: Vec<SessionId>,
}

/// A compaction and the messages it replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Archive {
    pub seq: Seq,
    pub id: EntryId,
    pub at: TimestampMs,
    #[serde(flatten)]
    pub compaction: Compaction,
    /// Whether the compaction is on the active path.
    pub on_path: bool,
}

/// A session's spend, in total and per model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UsageReport {
    pub total: Total,
    pub models: Spend,
}

/// A read-only copy of a session's current state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// The session's summary.
    pub summary: Summary,
    /// What a model would receive.
    pub context: Context,
}

impl Engine {
    pub async fn exists(&self, scope: &Scope, session: &SessionId) -> Result<bool> {
        match self.store.summary(scope, session).await {
            Ok(_) => Ok(true),
            Err(StoreError::NoSession { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        Ok(self.store.summary(scope, session).await?)
    }

    /// Check in advance that the caller has this right on a session.
    pub async fn check_right(&self, scope: &Scope, session: &SessionId, needed: Right) -> Result<()> {
        check_role(scope, &self.store.summary(scope, session).await?, needed)
    }

    /// Number of messages in the session's context.
    pub async fn length(&self, scope: &Scope, session: &SessionId) -> Result<usize> {
        Ok(self.context(scope, session, None).await?.messages.len())
    }

    /// A snapshot of the session; `None` for an unknown id.
    pub async fn snapshot(&self, scope: &Scope, session: &SessionId) -> Result<Option<Snapshot>> {
        if !self.exists(scope, session).await? {
            return Ok(None);
        }
        let summary = self.summary(scope, session).await?;
        let context = self.context(scope, session, None).await?;
        Ok(Some(Snapshot { summary, context }))
    }

    /// The context that a model would receive at the leaf, or at another entry.
    pub async fn context(&self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Context> {
        let slice = self.store.read_path(scope, session, at, Until::ContextStart).await?;
        self.context_with_grafts(scope, slice).await
    }

    /// The entries on the path to the leaf or to another entry, oldest first.
    pub async fn path(&self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Vec<Entry>> {
        Ok(self.store.read_path(scope, session, at, Until::Root).await?.entries)
    }

    pub async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        Ok(self.store.list(scope, filter).await?)
    }

    /// The first sessions of a list, up to the filter's limit, even if they are many pages apart.
    pub async fn first_listed(&self, scope: &Scope, mut filter: ListFilter) -> Result<Vec<Summary>> {
        let (wanted, mut found) = (filter.limit, Vec::new());
        for _ in 0..LIST_PAGES_MAX {
            let page = self.store.list(scope, &filter).await?;
            found.extend(page.items);
            filter.limit = wanted.saturating_sub(found.len());
            filter.cursor = page.next;
            if filter.limit == 0 || filter.cursor.is_none() {
                break;
            }
        }
        Ok(found)
    }

    pub async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        Ok(self.store.search(scope, query).await?)
    }

    pub async fn audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        Ok(self.store.read_audit(scope, session, after, limit).await?)
    }

    /// Write an audit line for a read of another principal's session, unless a recent line covers it. Meant for
    /// short-lived processes, because it searches the audit log instead of a cache.
    pub async fn note_read(&self, scope: &Scope, session: &SessionId) -> Result<()> {
        if self.summary(scope, session).await?.owner == scope.principal {
            return Ok(());
        }
        if self.is_read_audited(scope, session).await? {
            return Ok(());
        }
        let note = AuditNote { action: AuditAction::Read, session: Some(session.clone()), detail: None };
        self.write_audit(scope, note).await
    }

    async fn is_read_audited(&self, scope: &Scope, session: &SessionId) -> Result<bool> {
        // Search as the operator: a principal who may read the session may lack access to its audit log.
        let operator = Scope::operator(scope.tenant.clone(), Principal::System);
        let since = TimestampMs(self.clock.now().0 - READ_AUDIT_WINDOW_MS);
        let lines = self.store.read_audit_since(&operator, session, since, AUDIT_LINES_SEARCHED_MAX).await?;
        let is_read_line = |line: &AuditLine| line.action == AuditAction::Read && line.by == scope.principal;
        Ok(lines.iter().any(is_read_line))
    }

    pub async fn tree(&self, scope: &Scope, session: &SessionId) -> Result<Outline> {
        let leaf = self.store.summary(scope, session).await?.head.leaf;
        let mut entries = Vec::new();
        self.each_entry(scope, session, Seq::ZERO, |entry| entries.push(entry)).await?;
        Ok(Outline::fold(&entries, leaf))
    }

    pub async fn feed(&self, scope: &Scope, session: &SessionId) -> Result<Vec<FeedItem>> {
        let mut feed = Feed::default();
        self.each_entry(scope, session, Seq::ZERO, |entry| feed.apply(&entry)).await?;
        Ok(feed.items)
    }

    pub async fn ledger(&self, scope: &Scope, session: &SessionId) -> Result<Vec<LedgerLine>> {
        let mut ledger = Ledger::default();
        self.each_of_kinds(scope, session, &[Kind::Round], |entry| ledger.apply(&entry)).await?;
        Ok(ledger.lines)
    }

    pub async fn timeline(&self, scope: &Scope, session: &SessionId) -> Result<Vec<TimelinePoint>> {
        let mut timeline = Timeline::default();
        let kinds = [Kind::AssistantMessage, Kind::Compaction];
        self.each_of_kinds(scope, session, &kinds, |entry| timeline.apply(&entry)).await?;
        Ok(timeline.points)
    }

    pub async fn artifacts(&self, scope: &Scope, session: &SessionId) -> Result<Artifacts> {
        let mut artifacts = Artifacts::default();
        self.each_of_kinds(scope, session, &[Kind::ArtifactPut], |entry| artifacts.apply(&entry)).await?;
        Ok(artifacts)
    }

    pub async fn usage(&self, scope: &Scope, session: &SessionId) -> Result<UsageReport> {
        let models = self.store.summary(scope, session).await?.spend;
        Ok(UsageReport { total: models.total(), models })
    }

    pub async fn archives(&self, scope: &Scope, session: &SessionId) -> Result<Vec<Archive>> {
        let mut archives = Vec::new();
        self.each_of_kinds(scope, session, &[Kind::Compaction], |entry| {
            let Body::Compaction(compaction) = entry.body else { return };
            let meta = entry.meta;
            archives.push(Archive { seq: meta.seq, id: meta.id, at: meta.at, compaction, on_path: false });
        })
        .await?;
        if !archives.is_empty() {
            let path = self.store.read_path(scope, session, None, Until::Root).await?;
            let on_path: HashSet<Seq> = path.entries.iter().map(|entry| entry.meta.seq).collect();
            archives.iter_mut().for_each(|archive| archive.on_path = on_path.contains(&archive.seq));
        }
        Ok(archives)
    }

    /// The session's position among its forks; `None` for an unknown id. Tolerates missing parents and cycles from
    /// a damaged import.
    pub async fn ancestry(&self, scope: &Scope, session: &SessionId) -> Result<Option<Ancestry>> {
        let mut chain = vec![session.clone()];
        let mut parent = match self.store.summary(scope, session).await {
            Ok(summary) => summary.parent.map(|lineage| lineage.session),
            Err(StoreError::NoSession { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let direct_parent = parent.clone();
        while let Some(next) =
            parent.take().filter(|next| !chain.contains(next) && chain.len() < ANCESTRY_MAX)
        {
            let next_summary = self.store.summary(scope, &next).await;
            chain.push(next);
            parent = match next_summary {
                Ok(summary) => summary.parent.map(|lineage| lineage.session),
                Err(StoreError::NoSession { .. }) => None,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(Some(Ancestry {
            id: session.clone(),
            parent: direct_parent,
            children: self.store.children(scope, session).await?,
            root: chain.last().unwrap_or(session).clone(),
            chain,
        }))
    }

    /// Visit every entry after a seq in order, page by page, with constant memory.
    pub async fn each_entry(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        visit: impl FnMut(Entry),
    ) -> Result<()> {
        self.each(scope, session, None, after, visit).await
    }

    pub(crate) async fn each_of_kinds(
        &self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        visit: impl FnMut(Entry),
    ) -> Result<()> {
        self.each(scope, session, Some(kinds), Seq::ZERO, visit).await
    }

    pub(crate) async fn each_of_kinds_after(
        &self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        after: Seq,
        visit: impl FnMut(Entry),
    ) -> Result<()> {
        self.each(scope, session, Some(kinds), after, visit).await
    }

    /// Page through a log, or through its entries of the given kinds.
    async fn each(
        &self,
        scope: &Scope,
        session: &SessionId,
        kinds: Option<&[Kind]>,
        mut after: Seq,
        mut visit: impl FnMut(Entry),
    ) -> Result<()> {
        loop {
            let records = match kinds {
                Some(kinds) => self.store.read_kinds(scope, session, kinds, after, PAGE_RECORDS).await?,
                None => self.store.read_after(scope, session, after, PAGE_RECORDS).await?,
            };
            let is_full = match kinds {
                Some(_) => records.len() == PAGE_RECORDS,
                None => is_full_page(&records, PAGE_RECORDS),
            };
            for record in records {
                after = record.meta.seq;
                let unreadable = |source| EngineError::Unreadable { session: session.clone(), source };
                visit(record.into_entry().map_err(unreadable)?);
            }
            if !is_full {
                return Ok(());
            }
        }
    }
}

/// Check the caller's right on a session whose summary was already read.
pub(crate) fn check_role(scope: &Scope, summary: &Summary, needed: Right) -> Result<()> {
    match scope.role_in(&summary.owner, &summary.members) {
        Some(role) if role.allows(needed) => Ok(()),
        _ => {
            let (session, principal) = (summary.id.clone(), scope.principal.clone());
            Err(StoreError::Denied { session, principal, needed }.into())
        }
    }
}

/// Parse the state filter of a session list.
pub fn parse_state(name: &str) -> Result<SessionState> {
    SessionState::from_name(name).ok_or_else(|| EngineError::Invalid {
        what: "the state",
        why: format!("{name:?} is not one of created, active, closed, archived"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_send(_: impl Send) {}

    /// Projections must be `Send`, because a server runs them on any thread. This test only needs to compile.
    #[test]
    fn projections_can_move_between_threads() {
        let _ = |engine: Engine, scope: Scope, session: SessionId| {
            is_send(engine.feed(&scope, &session));
            is_send(engine.tree(&scope, &session));
            is_send(engine.context(&scope, &session, None));
        };
    }
}

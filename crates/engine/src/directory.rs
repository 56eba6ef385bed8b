//! Find sessions and entries by the names that users type, list and search sessions, and read the audit log. A session
//! is named by its id, a unique id prefix or `@last`; an entry by its seq, its id, a unique prefix of its id, or a label.

use sapwood_core::entry::{Body, SessionState, Stance};
use sapwood_core::port::store::{
    AuditAction, AuditLine, AuditNote, Finding, Hit, ListFilter, Page, SearchQuery, StoreError, Until,
};
use sapwood_core::project::context_state::ContextState;
use sapwood_core::project::summary::Summary;
use sapwood_core::settings::Labels;
use sapwood_core::{EntryId, Principal, Record, Right, Scope, Seq, SessionId, TimestampMs};

use crate::{EngineError, Result, service};

/// Shortest accepted id prefix. A shorter prefix could match because of a typo.
const PREFIX_CHARS_MIN: usize = 4;

/// Maximum number of list pages read to find the first sessions.
const LIST_PAGES_MAX: usize = 1_000;

/// Default number of rows of a page that is filtered by the state of the context, and the maximum number of store pages
/// read for it.
const CONTEXT_ROWS: usize = 50;
const CONTEXT_PAGES_MAX: usize = 20;

/// Within this time, one audit line covers all reads of a session by the same principal.
pub const READ_AUDIT_WINDOW_MS: i64 = 600_000;

/// Maximum number of audit lines searched for an earlier read, newest first. If none is found, the read is noted again.
const AUDIT_LINES_SEARCHED_MAX: usize = 1_000;

service! {
    /// Finding sessions and entries: by name, list, search, audit.
    pub struct Directory;
    directory
}

impl Directory<'_> {
    pub async fn find_session(self, scope: &Scope, given: &str) -> Result<SessionId> {
        if given == "@last" {
            let newest = ListFilter { limit: 1, ..ListFilter::default() };
            let found = self.first_listed(scope, newest).await?;
            return found.into_iter().next().map(|found| found.id).ok_or(EngineError::NoSessions);
        }
        let id: SessionId = given.parse()?;
        match self.engine.store.summary(scope, &id).await {
            Ok(_) => return Ok(id),
            Err(StoreError::NoSession { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.find_by_prefix(scope, given).await
    }

    async fn find_by_prefix(self, scope: &Scope, given: &str) -> Result<SessionId> {
        let missing = || EngineError::NoSuchSession { given: given.to_owned() };
        if given.len() < PREFIX_CHARS_MIN {
            return Err(missing());
        }
        let filter = ListFilter { id_prefix: Some(given.to_owned()), limit: 2, ..ListFilter::default() };
        let mut found = self.first_listed(scope, filter).await?.into_iter().map(|summary| summary.id);
        match (found.next(), found.next()) {
            (None, _) => Err(missing()),
            (Some(only), None) => Ok(only),
            (Some(first), Some(second)) => Err(ambiguous("session", given, first, second)),
        }
    }

    /// Find an entry in the session's tree.
    pub async fn find_entry(self, scope: &Scope, session: &SessionId, given: &str) -> Result<Record> {
        if let Ok(seq) = given.parse::<u32>() {
            // A label or an id may consist only of digits. A seq takes precedence because users type it most
            // often.
            match self.engine.store.read_entry(scope, session, Seq(seq)).await {
                Ok(record) => return in_tree(record, session),
                Err(StoreError::NoEntry { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(id) = self.labelled(scope, session, given).await? {
            return self.by_id_prefix(scope, session, given, &id.to_string()).await;
        }
        if given.len() < PREFIX_CHARS_MIN || EntryId::prefix_range(given).is_none() {
            return Err(no_entry(session, given));
        }
        self.by_id_prefix(scope, session, given, given).await
    }

    async fn labelled(self, scope: &Scope, session: &SessionId, text: &str) -> Result<Option<EntryId>> {
        let labels = self.labels(scope, session).await?;
        let mut found = labels.find(text);
        match (found.next(), found.next()) {
            (Some(first), Some(second)) => Err(ambiguous("label", text, first, second)),
            (first, _) => Ok(first),
        }
    }

    async fn by_id_prefix(
        self,
        scope: &Scope,
        session: &SessionId,
        given: &str,
        prefix: &str,
    ) -> Result<Record> {
        let mut found = self.engine.store.find_entries(scope, session, prefix).await?.into_iter();
        match (found.next(), found.next()) {
            (None, _) => Err(no_entry(session, given)),
            (Some(only), None) => in_tree(only, session),
            (Some(first), Some(second)) => Err(ambiguous("entry", given, first.meta.id, second.meta.id)),
        }
    }

    /// The labels of the session's entries.
    pub async fn labels(self, scope: &Scope, session: &SessionId) -> Result<Labels> {
        let mut labels = Labels::default();
        self.engine
            .log()
            .each_of_kinds(scope, session, &[sapwood_core::Kind::Label], |entry| labels.apply(&entry.body))
            .await?;
        Ok(labels)
    }

    /// Write an audit line for an action that leaves no entry.
    pub async fn write_audit(self, scope: &Scope, note: AuditNote) -> Result<()> {
        Ok(self.engine.store.write_audit(scope, note, self.engine.clock.now()).await?)
    }

    pub async fn exists(self, scope: &Scope, session: &SessionId) -> Result<bool> {
        match self.engine.store.summary(scope, session).await {
            Ok(_) => Ok(true),
            Err(StoreError::NoSession { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn summary(self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        Ok(self.engine.store.summary(scope, session).await?)
    }

    /// Check in advance that the caller has this right on a session.
    pub async fn check_right(self, scope: &Scope, session: &SessionId, needed: Right) -> Result<()> {
        check_role(scope, &self.engine.store.summary(scope, session).await?, needed)
    }

    pub async fn list(self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        let Some(wanted) = filter.context else { return Ok(self.engine.store.list(scope, filter).await?) };
        let (mut filter, mut items) = (filter.clone(), Vec::new());
        let limit = if filter.limit == 0 { CONTEXT_ROWS } else { filter.limit };
        for _ in 0..CONTEXT_PAGES_MAX {
            filter.limit = limit - items.len();
            let page = self.engine.store.list(scope, &filter).await?;
            for summary in page.items {
                if self.context_state(scope, &summary).await? == Some(wanted) {
                    items.push(summary);
                }
            }
            filter.cursor = page.next;
            if items.len() == limit || filter.cursor.is_none() {
                break;
            }
        }
        Ok(Page { items, next: filter.cursor })
    }

    /// Whether a session's context is in the state that the filter asks for, if any.
    pub async fn is_in_context_state(
        self,
        scope: &Scope,
        summary: &Summary,
        filter: &ListFilter,
    ) -> Result<bool> {
        match filter.context {
            None => Ok(true),
            wanted => Ok(self.context_state(scope, summary).await? == wanted),
        }
    }

    /// What the latest compaction on a session's path did to its context. `None` if the context is the whole path, or if
    /// the session was erased in the meantime.
    pub async fn context_state(self, scope: &Scope, summary: &Summary) -> Result<Option<ContextState>> {
        if summary.compactions == 0 && summary.inherited == 0 {
            return Ok(None);
        }
        let slice = match self.engine.store.read_path(scope, &summary.id, None, Until::ContextStart).await {
            Err(StoreError::NoSession { .. }) => return Ok(None),
            slice => slice?,
        };
        Ok(slice.entries.iter().rev().find_map(|entry| match &entry.body {
            Body::Compaction(compaction) => Some(ContextState::of(compaction.strategy)),
            _ => None,
        }))
    }

    /// The first sessions of a list, up to the filter's limit, even if they are many pages apart.
    pub async fn first_listed(self, scope: &Scope, mut filter: ListFilter) -> Result<Vec<Summary>> {
        let (wanted, mut found) = (filter.limit, Vec::new());
        for _ in 0..LIST_PAGES_MAX {
            let page = self.list(scope, &filter).await?;
            found.extend(page.items);
            filter.limit = wanted.saturating_sub(found.len());
            filter.cursor = page.next;
            if filter.limit == 0 || filter.cursor.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// The sessions that the last list or search left out because they cannot be read.
    pub async fn left_out(self, scope: &Scope) -> Result<Vec<Finding>> {
        Ok(self.engine.store.unreadable(scope).await?)
    }

    pub async fn search(self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        Ok(self.engine.store.search(scope, query).await?)
    }

    pub async fn audit(
        self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        Ok(self.engine.store.read_audit(scope, session, after, limit).await?)
    }

    /// Write an audit line for a read of another principal's session, unless a recent line covers it. Meant for
    /// short-lived processes, because it searches the audit log instead of a cache.
    pub async fn note_read(self, scope: &Scope, session: &SessionId) -> Result<()> {
        if self.summary(scope, session).await?.owner == scope.principal {
            return Ok(());
        }
        if self.is_read_audited(scope, session).await? {
            return Ok(());
        }
        let note = AuditNote { action: AuditAction::Read, session: Some(session.clone()), detail: None };
        self.write_audit(scope, note).await
    }

    async fn is_read_audited(self, scope: &Scope, session: &SessionId) -> Result<bool> {
        // Search as the operator: a principal who may read the session may lack access to its audit log.
        let operator = Scope::operator(scope.tenant.clone(), Principal::System);
        let since = TimestampMs(self.engine.clock.now().0 - READ_AUDIT_WINDOW_MS);
        let lines =
            self.engine.store.read_audit_since(&operator, session, since, AUDIT_LINES_SEARCHED_MAX).await?;
        let is_read_line = |line: &AuditLine| line.action == AuditAction::Read && line.by == scope.principal;
        Ok(lines.iter().any(is_read_line))
    }
}

fn in_tree(record: Record, session: &SessionId) -> Result<Record> {
    match record.meta.kind.stance() {
        Stance::InTree => Ok(record),
        Stance::OutsideTree => {
            let why = format!(
                "entry {} of session {session} is a {}, which is not part of the tree",
                record.meta.seq,
                record.meta.kind.as_str()
            );
            Err(EngineError::Invalid { what: "the entry", why })
        }
    }
}

fn no_entry(session: &SessionId, given: &str) -> EngineError {
    let entry = given.chars().take(64).collect();
    StoreError::NoEntry { session: session.clone(), entry }.into()
}

fn ambiguous(what: &'static str, given: &str, first: impl ToString, second: impl ToString) -> EngineError {
    EngineError::Ambiguous {
        what,
        given: given.to_owned(),
        first: first.to_string(),
        second: second.to_string(),
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

/// Parse the state filter of a session list: a state of the session, or of its context.
pub fn parse_state_filter(name: &str) -> Result<(Option<SessionState>, Option<ContextState>)> {
    match (SessionState::from_name(name), ContextState::from_name(name)) {
        (None, None) => Err(EngineError::Invalid {
            what: "the state",
            why: format!(
                "{name:?} is not one of created, active, closed, archived, compacted, trimmed, pruned"
            ),
        }),
        states => Ok(states),
    }
}

/// Parse a state of a session.
pub fn parse_state(name: &str) -> Result<SessionState> {
    SessionState::from_name(name).ok_or_else(|| EngineError::Invalid {
        what: "the state",
        why: format!("{name:?} is not one of created, active, closed, archived"),
    })
}

//! Read and append entries. The services append through [`Log::append`], which wakes the followers of the session.

use std::future::Future;

use sapwood_core::entry::{Body, Draft, Entry};
use sapwood_core::port::store::{Append, Appended, AuditAction, AuditNote, Expect, StoreError, is_full_page};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Kind, Scope, Seq, SessionId};

use crate::{Engine, EngineError, Result, service};

/// Maximum number of attempts under concurrent writes.
pub(crate) const TRIES_MAX: u32 = 64;

/// Records per page when a log is read.
const PAGE_RECORDS: usize = 1_000;

service! {
    /// Reading and appending entries, for the other services.
    pub struct Log;
    log
}

impl Log<'_> {
    pub(crate) async fn append_one(
        self,
        scope: &Scope,
        session: &SessionId,
        body: impl Into<Body>,
        audit: Option<AuditNote>,
    ) -> Result<Appended> {
        let now = self.engine.clock.now();
        let append = Append { audit, ..Append::new(session.clone(), now, vec![Draft::new(now, body)]) };
        self.append(scope, append).await
    }

    pub(crate) async fn append(self, scope: &Scope, append: Append) -> Result<Appended> {
        let session = append.session.clone();
        let appended = self.engine.store.append(scope, append).await?;
        self.engine.wakeups.wake(&scope.tenant, &session);
        Ok(appended)
    }

    /// Read a session, let `decide` choose the entries, and append them; retry on a conflict. `what` names
    /// the operation in the audit log.
    pub(crate) async fn decide<F, D>(
        self,
        scope: &Scope,
        session: &SessionId,
        what: &'static str,
        mut decide: F,
    ) -> Result<Appended>
    where
        F: FnMut(Engine, Summary) -> D,
        D: Future<Output = Result<Vec<Body>>>,
    {
        for _ in 0..TRIES_MAX {
            let current = self.engine.store.summary(scope, session).await?;
            let head = current.head;
            let bodies = decide(self.engine.clone(), current).await?;
            if bodies.is_empty() {
                return Ok(Appended { head, entries: Vec::new() });
            }
            let now = self.engine.clock.now();
            let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
            let append = Append {
                expect: Expect::Head(head.seq),
                audit: Some(edit(session, what)),
                ..Append::new(session.clone(), now, drafts)
            };
            match self.append(scope, append).await {
                Err(EngineError::Store(StoreError::Conflict { .. })) => {}
                answer => return answer,
            }
        }
        Err(EngineError::Contended { session: session.clone(), tries: TRIES_MAX })
    }

    /// Visit every entry after a seq in order, page by page, with constant memory.
    pub async fn each_entry(
        self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        visit: impl FnMut(Entry),
    ) -> Result<()> {
        self.each(scope, session, None, after, visit).await
    }

    pub(crate) async fn each_of_kinds(
        self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        visit: impl FnMut(Entry),
    ) -> Result<()> {
        self.each(scope, session, Some(kinds), Seq::ZERO, visit).await
    }

    pub(crate) async fn each_of_kinds_after(
        self,
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
        self,
        scope: &Scope,
        session: &SessionId,
        kinds: Option<&[Kind]>,
        mut after: Seq,
        mut visit: impl FnMut(Entry),
    ) -> Result<()> {
        loop {
            let records = match kinds {
                Some(kinds) => {
                    self.engine.store.read_kinds(scope, session, kinds, after, PAGE_RECORDS).await?
                }
                None => self.engine.store.read_after(scope, session, after, PAGE_RECORDS).await?,
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

pub(crate) fn note(action: AuditAction, session: &SessionId, detail: Option<String>) -> AuditNote {
    AuditNote { action, session: Some(session.clone()), detail }
}

/// An audit note that names the operation, but never its content.
pub(crate) fn edit(session: &SessionId, what: &'static str) -> AuditNote {
    note(AuditAction::Edit, session, Some(what.to_owned()))
}

/// Like [`edit`], but only if the caller is not the session's owner: the owner's edits are too frequent to audit.
pub(crate) fn edit_by_other(scope: &Scope, summary: &Summary, what: &'static str) -> Option<AuditNote> {
    (summary.owner != scope.principal).then(|| edit(&summary.id, what))
}

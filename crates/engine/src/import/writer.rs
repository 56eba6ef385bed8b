//! Write imported drafts in batches. Entries keep their ids and times. Only an operator's import also keeps entries of
//! other users under their names.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use sapwood_core::content::Part;
use sapwood_core::entry::Draft;
use sapwood_core::port::store::{Append, Appended, AuditAction, Created, Expect, NewSession};
use sapwood_core::scope::Reach;
use sapwood_core::trigger::TRIGGER_PREFIX;
use sapwood_core::{Body, Principal, Right, Scope, Seq, SessionId, Source, StoreError};

use crate::directory::check_role;
use crate::log::note;
use crate::{Engine, EngineError, Result};

/// Entries per append of an import.
pub const BATCH_ENTRIES: usize = 1_000;
/// Number of text bytes after which a batch is appended.
pub const BATCH_BYTES: usize = 4 << 20;

/// A session that is being imported.
pub struct ImportWriter {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    /// The session to create with the first batch or in [`ImportWriter::finish`]; `None` if it exists.
    new: Option<NewSession>,
    /// Whether this import created the session.
    created: Created,
    /// The end of the log: the last existing entry, or the last entry written by this import.
    head: Seq,
    pending: Vec<Draft>,
    pending_bytes: usize,
    /// The batch that the store is writing while the next one is collected.
    writing: Option<PendingAppend>,
    pub added: u64,
}

type PendingAppend = MaybeDone<BoxFuture<'static, Result<Appended>>>;

impl ImportWriter {
    /// Start an import. An existing session is extended if the caller owns it and its head matches `expect`.
    pub(super) async fn begin(
        engine: &Engine,
        scope: &Scope,
        new: NewSession,
        expect: Expect,
    ) -> Result<Self> {
        let session = new.id.clone();
        check_imported_id(scope, &session)?;
        let (new, head) = match engine.store.summary(scope, &session).await {
            Ok(summary) => {
                check_role(scope, &summary, Right::Own)?;
                (None, summary.head.seq)
            }
            Err(StoreError::NoSession { .. }) => (Some(new), Seq::ZERO),
            Err(error) => return Err(error.into()),
        };
        if let Expect::Head(expected) = expect
            && expected != head
        {
            return Err(StoreError::Conflict { expected, actual: head }.into());
        }
        Ok(Self {
            engine: engine.clone(),
            scope: scope.clone(),
            session,
            new,
            created: Created::Existed,
            head,
            pending: Vec::with_capacity(BATCH_ENTRIES),
            pending_bytes: 0,
            writing: None,
            added: 0,
        })
    }

    pub async fn push(&mut self, mut draft: Draft) -> Result<()> {
        self.sanitize(&mut draft);
        self.pending_bytes += text_bytes(&draft.body);
        self.pending.push(draft);
        if self.pending.len() >= BATCH_ENTRIES || self.pending_bytes >= BATCH_BYTES {
            let written = self.write().await;
            self.erase_if_failed(written).await?;
        }
        Ok(())
    }

    /// Write the remaining entries.
    pub async fn finish(mut self) -> Result<u64> {
        let written = match self.create_session().await {
            Ok(()) => self.write().await,
            failed => failed,
        };
        let written = if written.is_ok() { self.await_append().await } else { written };
        self.erase_if_failed(written).await?;
        Ok(self.added)
    }

    /// Neutralize the file's data about other users. Only the session's owner can grant a membership, and only an
    /// operator can write entries in another user's name.
    fn sanitize(&self, draft: &mut Draft) {
        if let Body::MemberChanged(changed) = &mut draft.body {
            changed.elsewhere = true;
        }
        let is_anothers = |by: &Principal| matches!(by, Principal::User(_)) && *by != self.scope.principal;
        if self.scope.reach != Reach::Tenant {
            draft.by.take_if(|by| is_anothers(by));
        }
    }

    /// Create the session if necessary.
    async fn create_session(&mut self) -> Result<()> {
        let Some(mut new) = self.new.take() else { return Ok(()) };
        new.now = self.engine.clock.now();
        new.source = Source::Imported;
        self.created = self.engine.store.create(&self.scope, new).await?;
        if self.created == Created::Existed {
            // Another process created the session and may have shared it.
            self.engine.directory().check_right(&self.scope, &self.session, Right::Own).await?;
        }
        Ok(())
    }

    /// After a failure, erase a session that this import created if it is still empty.
    async fn erase_if_failed(&mut self, written: Result<()>) -> Result<()> {
        if written.is_ok() || self.created == Created::Existed {
            return written;
        }
        let summary = self.engine.store.summary(&self.scope, &self.session).await;
        if summary.is_ok_and(|summary| summary.head.seq == Seq::ZERO) {
            let now = self.engine.clock.now();
            // Report the original error, not one from the cleanup.
            let _ = self.engine.store.erase(&self.scope, &self.session, now).await;
        }
        written
    }

    /// Write the pending entries. If the store keeps the order of appends, the next batch starts before the
    /// previous one is done, with at most two in flight. If the previous batch fails, the next one also fails,
    /// because the head does not match.
    async fn write(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.create_session().await?;
        let drafts = std::mem::replace(&mut self.pending, Vec::with_capacity(BATCH_ENTRIES));
        self.pending_bytes = 0;
        let now = self.engine.clock.now();
        let expect = Expect::Head(self.head);
        // The audit line is part of the first append, so every import that adds entries has one.
        let import_note =
            || note(AuditAction::Import, &self.session, Some(format!("from entry {} on", self.head.next())));
        let audit = (self.added == 0).then(import_note);
        self.added += drafts.len() as u64;
        self.head = Seq(self.head.0.saturating_add(u32::try_from(drafts.len()).unwrap_or(u32::MAX)));
        let source = Source::Imported;
        let append = Append { expect, audit, source, ..Append::new(self.session.clone(), now, drafts) };
        let (engine, scope) = (self.engine.clone(), self.scope.clone());
        let mut next = maybe_done(async move { engine.log().append(&scope, append).await }.boxed());
        if !self.engine.store.keeps_order() {
            self.writing = Some(next);
            return self.await_append().await;
        }
        if let Some(last) = &mut self.writing {
            poll_once(last).await;
        }
        poll_once(&mut next).await;
        self.await_append().await?;
        self.writing = Some(next);
        Ok(())
    }

    /// Wait for the batch that is being written.
    async fn await_append(&mut self) -> Result<()> {
        let Some(mut writing) = self.writing.take() else { return Ok(()) };
        (&mut writing).await;
        Pin::new(&mut writing).take_output().map_or(Ok(()), |appended| appended.map(|_| ()))
    }
}

/// Only an operator may import the log of a trigger: otherwise a user could occupy the id of another user's
/// trigger log.
fn check_imported_id(scope: &Scope, id: &SessionId) -> Result<()> {
    if scope.reach != Reach::Tenant && id.as_str().starts_with(TRIGGER_PREFIX) {
        return Err(EngineError::ReservedId { id: id.clone(), prefix: TRIGGER_PREFIX });
    }
    Ok(())
}

/// Poll the write once without waiting.
async fn poll_once(writing: &mut PendingAppend) {
    let _ = poll_fn(|context| Poll::Ready(Pin::new(&mut *writing).poll(context))).await;
}

/// Estimated size of a body.
fn text_bytes(body: &Body) -> usize {
    let of_part = |part: &Part| match part {
        Part::Text(text) => text.text.len(),
        Part::Reasoning(reasoning) => reasoning.text.len(),
        Part::ToolCall(call) => call.input.get().len(),
        Part::Media(_) => 256,
    };
    let beside = match body {
        Body::CustomInfo(info) => info.data.get().len(),
        _ => 64,
    };
    beside + body.parts().iter().map(of_part).sum::<usize>()
}

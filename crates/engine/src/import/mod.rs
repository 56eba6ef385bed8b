//! Import sessions: entries keep their ids, times and authors, and are appended in batches like other entries.
//!
//! A file is only as trustworthy as the importing user. Only an owner may extend an existing session, memberships
//! in the file are not granted, and only an operator may write entries of other users (ADR 0030).
//!
//! [`Import`] writes drafts. [`OwnIntake`] reads Sapwood's own files, [`Intake`] foreign files. Both compare the
//! file with the stored session and append the new entries. If the log grows in the meantime, the import fails with
//! a conflict.

mod own;

pub use own::{OwnIntake, OwnIntakeResult};

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use sapwood_core::content::Part;
use sapwood_core::entry::{Draft, Entry};
use sapwood_core::port::store::{
    Append, Appended, AuditAction, Created, Expect, ListFilter, ListOrder, NewSession,
};
use sapwood_core::project::summary::{Origin, Summary};
use sapwood_core::scope::Reach;
use sapwood_core::trigger::TRIGGER_PREFIX;
use sapwood_core::{
    BlobHash, Body, Kind, Principal, Right, Scope, Seq, SessionId, Source, StoreError, TimestampMs,
};
use sapwood_formats::import::reconcile::Reconciler;
use sapwood_formats::import::steps::StepBatch;
use sapwood_formats::import::{Format, Problem, ProblemKind};

use crate::directory::check_role;
use crate::log::note;
use crate::{Engine, EngineError, Result, service};

/// Entries per append of an import.
pub const BATCH_ENTRIES: usize = 1_000;
/// Text bytes per append, unless a single entry is larger.
pub const BATCH_BYTES: usize = 4 << 20;
/// Records per page when reading the store's log.
const PAGE_RECORDS: usize = 1_000;
/// Maximum number of stored sessions checked for records that a new session repeats.
const SIBLINGS_CHECKED_MAX: usize = 100;

/// A session that is being imported.
pub struct Import {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    /// Created with the first batch, so that an empty file creates no session.
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

service! {
    /// Imports of sessions.
    pub struct Imports;
    imports
}

impl Imports<'_> {
    /// Start an import. An existing session is extended if the caller owns it and its head matches `expect`.
    pub async fn begin(self, scope: &Scope, new: NewSession, expect: Expect) -> Result<Import> {
        let session = new.id.clone();
        check_imported_id(scope, &session)?;
        let (new, head) = match self.engine.store.summary(scope, &session).await {
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
        Ok(Import {
            engine: self.engine.clone(),
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

    pub fn begin_intake(self, scope: &Scope, format: Format, mode: Mode) -> Intake {
        Intake {
            engine: self.engine.clone(),
            scope: scope.clone(),
            format,
            mode,
            reconciler: Reconciler::new(format.agent()),
            target: Target::Unknown,
            drafts: Vec::new(),
            read_upto: Seq::ZERO,
            siblings: None,
        }
    }
}

impl Import {
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
        // The audit line is part of the first append, so every import has one.
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

/// Whether an intake writes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Write,
    /// Only report what would be added.
    DryRun,
}

/// A foreign session that is being imported.
pub struct Intake {
    engine: Engine,
    scope: Scope,
    format: Format,
    mode: Mode,
    reconciler: Reconciler,
    target: Target,
    drafts: Vec<Draft>,
    /// The end of the log when it was last read.
    read_upto: Seq,
    siblings: Option<SiblingSessions>,
}

/// An index of the store's sessions by start time, read once and shared by the imports of a batch. A single import
/// instead lists only sessions that were updated soon after the imported session's start.
#[derive(Clone, Default)]
pub struct SiblingSessions(Arc<Mutex<Option<SessionsByStart>>>);

type SessionsByStart = HashMap<TimestampMs, Vec<SessionId>>;

impl SiblingSessions {
    /// The other sessions with the same start time.
    async fn others_started_at(
        &self,
        engine: &Engine,
        scope: &Scope,
        new: &NewSession,
    ) -> Result<Vec<SessionId>> {
        let is_listed = self.lock().is_some();
        if !is_listed {
            let listed = list_by_start(engine, scope, new).await?;
            self.lock().get_or_insert(listed);
        }
        let by_start = self.lock();
        let others = by_start.as_ref().and_then(|by_start| by_start.get(&new.at));
        Ok(others.into_iter().flatten().filter(|other| **other != new.id).cloned().collect())
    }

    /// Add a session that was just created.
    fn add(&self, new: &NewSession) {
        if let Some(by_start) = self.lock().as_mut() {
            by_start.entry(new.at).or_default().push(new.id.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<SessionsByStart>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All sessions of the importing user from the same program, by start time.
async fn list_by_start(engine: &Engine, scope: &Scope, new: &NewSession) -> Result<SessionsByStart> {
    let mut by_start = SessionsByStart::new();
    let mut filter = ListFilter { since: None, limit: PAGE_RECORDS, ..sibling_filter(scope, new) };
    loop {
        let page = engine.store.list(scope, &filter).await?;
        for other in page.items.into_iter().filter(|other| is_sibling(other, new)) {
            by_start.entry(other.created_at).or_default().push(other.id);
        }
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            return Ok(by_start);
        }
    }
}

/// A filter for sessions updated after the start of a new session, oldest first.
fn sibling_filter(scope: &Scope, new: &NewSession) -> ListFilter {
    ListFilter {
        since: Some(new.at),
        owner: Some(scope.principal.clone()),
        order: ListOrder::OldestFirst,
        limit: SIBLINGS_CHECKED_MAX,
        ..ListFilter::default()
    }
}

fn is_sibling(other: &Summary, new: &NewSession) -> bool {
    let format = |origin: &Origin| origin.format.clone();
    other.origin.as_ref().map(format) == new.origin.as_ref().map(format)
}

enum Target {
    /// The session's id is not known yet.
    Unknown,
    /// The stored entries were compared, and no new entry was found yet. The first write creates the session.
    Ready {
        new: Box<NewSession>,
        is_known: bool,
    },
    Import(Box<Import>),
    Counted {
        is_known: bool,
        /// The existing session, if the caller's right to extend it has not been checked yet.
        unchecked: Option<SessionId>,
    },
    /// The store has a different session under this id.
    Refused,
}

/// The result of an intake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntakeResult {
    pub added: u64,
    /// Records that the store already had.
    pub skipped: u64,
    /// Whether the session is now stored, except for unreadable parts of its source.
    pub is_stored: bool,
}

impl Intake {
    /// Share the session index with the other imports of a batch.
    pub fn with_siblings(mut self, siblings: &SiblingSessions) -> Self {
        self.siblings = Some(siblings.clone());
        self
    }

    /// Import the steps read so far. Does nothing until the session's id is known.
    pub async fn take(&mut self, batch: &mut StepBatch) -> Result<()> {
        if matches!(self.target, Target::Unknown) {
            let Some(mut session) = batch.session.clone() else { return Ok(()) };
            if session.at == TimestampMs::default() {
                // Neither the source nor its file has a time, so use the time of the import.
                session.at = self.engine.clock.now();
            }
            self.target = self.open(session, batch).await?;
        } else {
            self.refresh().await?;
        }
        for step in batch.steps.drain(..) {
            self.reconciler.take(step, &mut self.drafts, &mut batch.problems);
        }
        self.write(std::mem::take(&mut batch.blobs)).await
    }

    pub async fn finish(mut self, batch: &mut StepBatch) -> Result<IntakeResult> {
        self.take(batch).await?;
        self.reconciler.finish(&mut self.drafts);
        self.write(Vec::new()).await?;
        let (added, skipped) = (self.reconciler.added, self.reconciler.skipped);
        Ok(match self.target {
            Target::Import(import) => {
                IntakeResult { added: import.finish().await?, skipped, is_stored: true }
            }
            Target::Ready { is_known, .. } => IntakeResult { added: 0, skipped, is_stored: is_known },
            Target::Counted { is_known, .. } => {
                IntakeResult { added, skipped, is_stored: is_known || added > 0 }
            }
            Target::Refused | Target::Unknown => IntakeResult { added: 0, skipped: 0, is_stored: false },
        })
    }

    async fn open(&mut self, new: NewSession, batch: &mut StepBatch) -> Result<Target> {
        self.reconciler.begin_at(new.at);
        let is_known = match self.engine.store.summary(&self.scope, &new.id).await {
            Err(StoreError::NoSession { .. }) => false,
            Err(error) => return Err(error.into()),
            Ok(summary) if summary.origin != new.origin && summary.head.seq > Seq::ZERO => {
                batch.problems.push(Problem { line: batch.line, what: ProblemKind::Differs });
                return Ok(Target::Refused);
            }
            Ok(_) => {
                self.read_stored(&new.id).await?;
                true
            }
        };
        if !is_known && self.format.repeats() {
            self.read_siblings(&new).await?;
        }
        Ok(match self.mode {
            Mode::DryRun => Target::Counted { is_known, unchecked: is_known.then_some(new.id) },
            Mode::Write => Target::Ready { new: Box::new(new), is_known },
        })
    }

    /// Read sessions that began at the same time, because they may repeat the same records. Records in both
    /// sessions count only in the session that was imported first.
    async fn read_siblings(&mut self, new: &NewSession) -> Result<()> {
        let others = match &self.siblings {
            Some(siblings) => siblings.others_started_at(&self.engine, &self.scope, new).await?,
            None => {
                let page = self.engine.store.list(&self.scope, &sibling_filter(&self.scope, new)).await?;
                let siblings =
                    page.items.iter().filter(|other| other.created_at == new.at && is_sibling(other, new));
                siblings.map(|other| other.id.clone()).collect()
            }
        };
        for other in others {
            self.read_sibling(&other).await?;
        }
        Ok(())
    }

    async fn read_sibling(&mut self, other: &SessionId) -> Result<()> {
        let kinds = [Kind::AssistantMessage, Kind::CustomInfo];
        let reconciler = &mut self.reconciler;
        let learn = |entry: Entry| reconciler.register_elsewhere(entry.meta.id, &entry.body);
        match self.engine.log().each_of_kinds(&self.scope, other, &kinds, learn).await {
            // The session was never written, or was erased since it was listed.
            Err(error) if error.code() == "session.not_found" => Ok(()),
            read => read,
        }
    }

    /// Read entries that other callers appended since the previous call. They may append until this import writes its
    /// first batch, and reading the file may be slow.
    async fn refresh(&mut self) -> Result<()> {
        if let Target::Ready { new, is_known: true } = &self.target {
            let session = new.id.clone();
            self.read_stored(&session).await?;
        }
        Ok(())
    }

    /// Read the entries added to the session since the previous call.
    async fn read_stored(&mut self, session: &SessionId) -> Result<()> {
        let before = self.read_upto;
        loop {
            let records =
                self.engine.store.read_after(&self.scope, session, self.read_upto, PAGE_RECORDS).await?;
            let Some(last) = records.last() else { break };
            self.read_upto = last.meta.seq;
            for record in &records {
                let meta = &record.meta;
                self.reconciler.register(meta.id, meta.parent.map(|parent| parent.0), meta.kind.stance());
                // Unreadable bodies are not compared.
                if self.format.rewrites()
                    && let Ok(body) = record.decode()
                {
                    self.reconciler.register_body(&body);
                }
            }
        }
        if self.read_upto == before {
            // No new entries, so the leaf has not moved.
            return Ok(());
        }
        let head = self.engine.store.summary(&self.scope, session).await?.head;
        if head.seq == self.read_upto {
            self.reconciler.register_leaf(head.leaf.map(|leaf| leaf.0));
        }
        // Otherwise there is a concurrent writer, and the append will fail with a conflict.
        Ok(())
    }

    /// In a dry run, check the caller's right to extend the session, so that a dry run fails in the same cases as an
    /// import.
    async fn check_extend_right(&mut self) -> Result<()> {
        if let Target::Counted { unchecked, .. } = &mut self.target
            && !self.drafts.is_empty()
            && let Some(session) = unchecked.take()
        {
            self.engine.directory().check_right(&self.scope, &session, Right::Own).await?;
        }
        Ok(())
    }

    async fn write(&mut self, blobs: Vec<Vec<u8>>) -> Result<()> {
        if let Target::Ready { new, is_known } = &self.target
            && !self.drafts.is_empty()
        {
            if let Some(siblings) = self.siblings.as_ref().filter(|_| !is_known) {
                siblings.add(new);
            }
            let expect = Expect::Head(self.read_upto);
            let import = self.engine.imports().begin(&self.scope, (**new).clone(), expect).await?;
            self.target = Target::Import(Box::new(import));
        }
        self.check_extend_right().await?;
        let Target::Import(import) = &mut self.target else {
            self.drafts.clear();
            return Ok(());
        };
        // Blobs that no draft references belong to steps that the store already has.
        let wanted: HashSet<BlobHash> = self.drafts.iter().flat_map(|draft| draft.body.blobs()).collect();
        // Blobs must be stored before the entries that reference them.
        for bytes in blobs {
            if wanted.contains(&BlobHash::of(&bytes)) {
                self.engine.store.put_blob(&self.scope, bytes).await?;
            }
        }
        for draft in self.drafts.drain(..) {
            import.push(draft).await?;
        }
        Ok(())
    }
}

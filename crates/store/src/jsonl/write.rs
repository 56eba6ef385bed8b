//! Appending to, creating and forking sessions: all operations that write a session's file.

use std::collections::HashSet;
use std::sync::Arc;

use sapwood_core::port::store::{Append, Appended, AuditAction, Created, Fork, NewSession, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::Head;
use sapwood_core::{BlobHash, Draft, Kind, Right, Scope, Seq, SessionId, StoreError};

use super::PersistFrom;
use super::audit::PendingAuditLine;
use super::authority;
use super::authority_file;
use super::disk::{self, LockKind, replace};
use super::file::BodyHandle;
use super::header::BaseRef;
use super::lease;
use super::session_log::SessionLog;
use super::tenant::{FORK_DEPTH_MAX, TenantDir};
use crate::authorize::authorize;
use crate::lease::StoredLease;
use crate::mem_log::{AppendPlan, InMemoryLog, LogRow, PlannedBatch, RowStore, place_shared, row_of};
use crate::validate::{damaged, fork_note, session_note};

impl TenantDir {
    pub fn create(&mut self, scope: &Scope, new: NewSession) -> Result<Created> {
        if let Some(existed) = self.find_created(scope, &new.id)? {
            return Ok(existed);
        }
        let summary = Summary::new(&new, scope.principal.clone());
        let mut session_log = SessionLog::pending(InMemoryLog::new(summary, Arc::new(RowStore::whole(0))));
        let note = session_note(AuditAction::Create, &new.id);
        session_log.deferred.push(PendingAuditLine::of(scope, note, new.now));
        let id = session_log.log.summary.id.clone();
        self.insert_pending(session_log);
        if self.options.persist_from != PersistFrom::Creation {
            return Ok(Created::New);
        }
        match self.persist(&id, None, None) {
            Ok(()) => Ok(Created::New),
            Err(error) => {
                // A session that could not be written must not hide a session that another process
                // wrote in the meantime.
                self.open_logs.remove(&id);
                match error {
                    StoreError::Exists { .. } => self.find_created(scope, &id)?.ok_or(error),
                    error => Err(error),
                }
            }
        }
    }

    /// Returns `Created::Existed` if the session already exists. Fails if the caller may not read it.
    fn find_created(&mut self, scope: &Scope, session: &SessionId) -> Result<Option<Created>> {
        match self.open(session) {
            Ok(session_log) => {
                let exists = |_| StoreError::Exists { session: session.clone() };
                authorize(scope, &session_log.log.summary, Right::Read).map_err(exists)?;
                Ok(Some(Created::Existed))
            }
            Err(StoreError::NoSession { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn append(&mut self, scope: &Scope, append: Append) -> Result<Appended> {
        let is_pending = self.open_for(scope, &append.session, Right::Read)?.disk.is_none();
        let usable = self.usable_blobs(scope, &append.drafts)?;
        if is_pending {
            self.append_pending(scope, append, &usable)
        } else {
            self.append_on_disk(scope, append, &usable)
        }
    }

    fn usable_blobs(&mut self, scope: &Scope, drafts: &[Draft]) -> Result<HashSet<BlobHash>> {
        let blobs: HashSet<BlobHash> = drafts.iter().flat_map(|draft| draft.body.blobs()).collect();
        let mut usable = HashSet::new();
        for blob in blobs {
            if self.may_use(scope, &blob)? {
                usable.insert(blob);
            }
        }
        Ok(usable)
    }

    fn append_on_disk(
        &mut self,
        scope: &Scope,
        append: Append,
        usable: &HashSet<BlobHash>,
    ) -> Result<Appended> {
        let lock_file = self.lock_file()?;
        let _store_lock = disk::lock(&lock_file, LockKind::Shared, &self.layout.lock())?;
        let missing = || StoreError::NoSession { session: append.session.clone() };
        let mut session_log = self.take(&append.session)?;
        let file = session_log.disk.as_ref().map(|disk| Arc::clone(&disk.file)).ok_or_else(missing)?;
        let handle = file.handle()?;
        let _locked = disk::lock(&handle, LockKind::Exclusive, &file.path)?;
        file.length_if_current()?.ok_or_else(missing)?;
        self.cut_torn(&mut session_log)?;
        session_log.log.lease = lease::read(&self.layout, &file.stem)?;
        let plan = session_log.log.plan(scope, &append, &*self.lease_clock, |blob| usable.contains(blob));
        let appended = match plan {
            Ok(AppendPlan::Write(planned)) => {
                self.prepare_authority(&mut session_log, &planned)?;
                // A log whose write failed is dropped from the cache, so that it is read from disk
                // again.
                let appended = session_log.append(planned, self.options.durability)?;
                let lines = append.audit.map(|note| PendingAuditLine::of(scope, note, append.now));
                self.open_logs.insert(append.session, session_log);
                self.write_audit_lines(lines.into_iter().collect())?;
                return Ok(appended);
            }
            Ok(AppendPlan::Answered(first)) => Ok(first),
            Err(error) => Err(error),
        };
        self.open_logs.insert(append.session, session_log);
        appended
    }

    /// Takes an up-to-date session out of the cache. The caller puts it back.
    fn take(&mut self, session: &SessionId) -> Result<SessionLog> {
        self.open(session)?;
        self.open_logs.remove(session).ok_or_else(|| StoreError::NoSession { session: session.clone() })
    }

    fn append_pending(
        &mut self,
        scope: &Scope,
        append: Append,
        usable: &HashSet<BlobHash>,
    ) -> Result<Appended> {
        let (persist_from, clock) = (self.options.persist_from, self.lease_clock.clone());
        let session_log = self.open(&append.session)?;
        let planned = match session_log.log.plan(scope, &append, &*clock, |blob| usable.contains(blob))? {
            AppendPlan::Answered(first) => return Ok(first),
            AppendPlan::Write(planned) => planned,
        };
        let line = append.audit.map(|note| PendingAuditLine::of(scope, note, append.now));
        if !should_persist(session_log, &planned, persist_from) {
            session_log.deferred.extend(line);
            return Ok(session_log.commit_pending(planned));
        }
        let appended = planned.appended();
        self.persist(&append.session, Some(&planned), line)?;
        Ok(appended)
    }

    /// Writes the whole file of a session that was only in memory, including a new batch, if any.
    fn persist(
        &mut self,
        session: &SessionId,
        planned: Option<&PlannedBatch>,
        line: Option<PendingAuditLine>,
    ) -> Result<()> {
        let lock_file = self.lock_file()?;
        let _store_lock = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        self.persist_locked(session, planned, line)
    }

    fn persist_locked(
        &mut self,
        session: &SessionId,
        planned: Option<&PlannedBatch>,
        line: Option<PendingAuditLine>,
    ) -> Result<()> {
        let exists = StoreError::Exists { session: session.clone() };
        let is_taken =
            self.scan()?.iter().any(|(stem, _)| super::layout::id_of_stem(stem).as_ref() == Some(session));
        let Some(session_log) = self.open_logs.get_mut(session).filter(|_| !is_taken) else {
            return Err(exists);
        };
        let stem = self.layout.new_stem(session_log.header.timestamp, session);
        let durability = self.options.durability;
        if let Some(lease) = &session_log.log.lease {
            lease::write(&self.layout, &stem, lease, durability)?;
        }
        let record = authority::with_planned(session_log, planned);
        authority_file::write(&self.layout.authority(&stem), &record, durability)?;
        replace(&self.layout.log(&stem), &session_log.to_file(planned)?, durability)?;
        let mut lines = std::mem::take(&mut session_log.deferred);
        lines.extend(line);
        self.open_logs.remove(session);
        self.write_audit_lines(lines)?;
        if let Some(disk) = &mut self.open(session)?.disk {
            disk.is_head_due = true;
        }
        Ok(())
    }

    pub fn fork(&mut self, scope: &Scope, fork: Fork) -> Result<Head> {
        self.open_for(scope, &fork.source, Right::Read)?;
        let usable = self.usable_blobs(scope, &fork.drafts)?;
        let lock_file = self.lock_file()?;
        let _store_lock = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        let source = self.open(&fork.source)?;
        let (mut log, is_on_disk) = (source.log.fork(scope, &fork)?, source.disk.is_some());
        if self.exists(&fork.new.id)? {
            return Err(StoreError::Exists { session: fork.new.id });
        }
        let is_written = is_on_disk && log.summary.messages > 0;
        let base = base_ref(&log).filter(|_| is_written && fork_depth(&log) < FORK_DEPTH_MAX);
        if base.is_none() {
            log = with_copies(log)?;
        }
        let note = fork_note(&fork);
        let first = log.place_first(fork.drafts, &scope.principal, |blob| usable.contains(blob))?;
        let head = first.as_ref().map_or(log.summary.head, |first| first.appended().head);
        let mut session_log = SessionLog::pending(log);
        session_log.header.base = base;
        session_log.deferred.push(PendingAuditLine::of(scope, note, fork.new.now));
        if is_written {
            self.insert_pending(session_log);
            let written = self.persist_locked(&fork.new.id, first.as_ref(), None);
            if written.is_err() {
                self.open_logs.remove(&fork.new.id);
            }
            written?;
            return Ok(head);
        }
        if let Some(first) = first {
            session_log.commit_pending(first);
        }
        self.insert_pending(session_log);
        if self.options.persist_from == PersistFrom::Creation {
            self.persist_locked(&fork.new.id, None, None)?;
        }
        Ok(head)
    }

    /// Changes a session's lease. `change` receives the current lease, and returns the new lease, if
    /// it changes, and an answer.
    pub fn change_lease<T>(
        &mut self,
        scope: &Scope,
        session: &SessionId,
        change: impl FnOnce(Option<&StoredLease>) -> Result<(Option<StoredLease>, T)>,
    ) -> Result<T> {
        let (durability, layout) = (self.options.durability, self.layout.clone());
        let session_log = self.open_for(scope, session, Right::Write)?;
        let Some(file) = session_log.disk.as_ref().map(|disk| Arc::clone(&disk.file)) else {
            let (lease, answer) = change(session_log.log.lease.as_ref())?;
            session_log.log.lease = lease.or(session_log.log.lease.take());
            return Ok(answer);
        };
        let handle = file.handle()?;
        let _locked = disk::lock(&handle, LockKind::Exclusive, &file.path)?;
        file.length_if_current()?.ok_or_else(|| StoreError::NoSession { session: session.clone() })?;
        let (lease, answer) = change(lease::read(&layout, &file.stem)?.as_ref())?;
        if let Some(lease) = lease {
            lease::write(&layout, &file.stem, &lease, durability)?;
        }
        Ok(answer)
    }
}

fn should_persist(session_log: &SessionLog, planned: &PlannedBatch, persist_from: PersistFrom) -> bool {
    let mut kinds = planned.batch.iter().map(|placed| placed.entry.meta.kind);
    match persist_from {
        PersistFrom::Message => session_log.has_message || kinds.any(Kind::is_message),
        PersistFrom::Creation => true,
        PersistFrom::Assistant => session_log.has_answer || kinds.any(|kind| kind == Kind::AssistantMessage),
    }
}

/// Returns how many files contain the shared entries of a fork.
fn fork_depth(log: &InMemoryLog<BodyHandle>) -> usize {
    std::iter::successors(log.rows().base(), |base| base.rows.base()).count()
}

/// Returns the fork point of a fork whose source is on disk.
fn base_ref(log: &InMemoryLog<BodyHandle>) -> Option<BaseRef> {
    let base = log.rows().base()?;
    let row = crate::mem_log::row_at(&base.rows, base.at)?;
    Some(BaseRef { file: row.body.file()?.stem.clone(), seq: base.at })
}

/// Returns the same fork with copies of its shared entries. Used if the source is not on disk, the
/// fork has no messages, or forks are nested too deep.
fn with_copies(log: InMemoryLog<BodyHandle>) -> Result<InMemoryLog<BodyHandle>> {
    let inherited = log.summary.inherited;
    let rows = Arc::new(RowStore::whole(inherited));
    for seq in (1..=inherited).map(Seq) {
        let record = log.read_entry(seq)?;
        let bytes: Arc<[u8]> = record.body.clone().into();
        let parent = record.meta.parent;
        let entry = record.into_entry().map_err(|error| damaged(format!("entry {seq}"), error))?;
        let draft = Draft {
            id: Some(entry.meta.id),
            at: entry.meta.at,
            by: Some(entry.meta.by),
            turn: entry.meta.turn,
            body: entry.body,
        };
        let copy = row_of(place_shared(&rows, draft, seq, parent)?, BodyHandle::Memory(bytes));
        rows.push(LogRow { proof: log.proof_at(seq), ..copy });
    }
    Ok(InMemoryLog::new(log.summary.clone(), rows))
}

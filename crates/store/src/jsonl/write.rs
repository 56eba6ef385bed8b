//! Appending to, creating and forking sessions: all operations that write a session's file.

use std::collections::HashSet;
use std::sync::Arc;

use sapwood_core::authority::fork_detail;
use sapwood_core::port::store::{
    Append, Appended, AuditAction, AuditNote, Created, Fork, NewSession, Result,
};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::Head;
use sapwood_core::{BlobHash, Draft, Kind, Right, Scope, Seq, SessionId, StoreError};

use super::PersistFrom;
use super::audit;
use super::authority;
use super::disk::{self, LockKind, replace};
use super::file::Handle;
use super::header::BaseRef;
use super::lease;
use super::session_log::{Deferred, SessionLog};
use super::tenant::{FORKS_DEEP_MAX, TenantDir};
use crate::authorize::authorize;
use crate::lease::StoredLease;
use crate::mem_log::{InMemoryLog, Plan, Planned, RowStore, place_kept, row_of};
use crate::validate::damaged;

impl TenantDir {
    pub fn create(&mut self, scope: &Scope, new: NewSession) -> Result<Created> {
        if let Some(existed) = self.find_created(scope, &new.id)? {
            return Ok(existed);
        }
        let summary = Summary::new(&new, scope.principal.clone());
        let mut book = SessionLog::pending(InMemoryLog::new(summary, Arc::new(RowStore::whole(0))));
        let note = AuditNote { action: AuditAction::Create, session: Some(new.id), detail: None };
        book.deferred.push(audit::line(scope.principal.clone(), note, new.now));
        let id = book.log.summary.id.clone();
        self.insert_pending(book);
        if self.options.persist_from != PersistFrom::Creation {
            return Ok(Created::New);
        }
        match self.persist(&id, None, None) {
            Ok(()) => Ok(Created::New),
            Err(error) => {
                // A session that could not be written must not hide a session that another process
                // wrote in the meantime.
                self.books.remove(&id);
                match error {
                    StoreError::Exists { .. } => self.find_created(scope, &id)?.ok_or(error),
                    error => Err(error),
                }
            }
        }
    }

    /// Answers the creation of a session that already exists, for a caller that may read it.
    fn find_created(&mut self, scope: &Scope, session: &SessionId) -> Result<Option<Created>> {
        match self.open(session) {
            Ok(book) => {
                let exists = |_| StoreError::Exists { session: session.clone() };
                authorize(scope, &book.log.summary, Right::Read).map_err(exists)?;
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
        let _still = disk::lock(&lock_file, LockKind::Shared, &self.layout.lock())?;
        let missing = || StoreError::NoSession { session: append.session.clone() };
        let mut book = self.take(&append.session)?;
        let file = book.disk.as_ref().map(|disk| Arc::clone(&disk.file)).ok_or_else(missing)?;
        let handle = file.handle()?;
        let _locked = disk::lock(&handle, LockKind::Exclusive, &file.path)?;
        file.length_if_current()?.ok_or_else(missing)?;
        self.cut_torn(&mut book)?;
        book.log.lease = lease::read(&self.layout, &file.stem)?;
        let plan = book.log.plan(scope, &append, &*self.lease_clock, |blob| usable.contains(blob));
        let appended = match plan {
            Ok(Plan::Write(planned)) => {
                self.prepare_authority(&mut book, &planned)?;
                // A log whose write failed is dropped from the cache, so that it is read from disk
                // again.
                let appended = book.append(planned, self.options.durability)?;
                let lines = append.audit.map(|note| audit::line(scope.principal.clone(), note, append.now));
                self.books.insert(append.session, book);
                audit::write_lines(&self.layout, lines.into_iter().collect(), self.options.durability)?;
                return Ok(appended);
            }
            Ok(Plan::Answered(first)) => Ok(first),
            Err(error) => Err(error),
        };
        self.books.insert(append.session, book);
        appended
    }

    /// Takes an up-to-date session out of the cache. The caller puts it back.
    fn take(&mut self, session: &SessionId) -> Result<SessionLog> {
        self.open(session)?;
        self.books.remove(session).ok_or_else(|| StoreError::NoSession { session: session.clone() })
    }

    fn append_pending(
        &mut self,
        scope: &Scope,
        append: Append,
        usable: &HashSet<BlobHash>,
    ) -> Result<Appended> {
        let (persist_from, clock) = (self.options.persist_from, self.lease_clock.clone());
        let book = self.open(&append.session)?;
        let planned = match book.log.plan(scope, &append, &*clock, |blob| usable.contains(blob))? {
            Plan::Answered(first) => return Ok(first),
            Plan::Write(planned) => planned,
        };
        let line = append.audit.map(|note| audit::line(scope.principal.clone(), note, append.now));
        if !is_worth_writing(book, &planned, persist_from) {
            book.deferred.extend(line);
            return Ok(book.commit_pending(planned));
        }
        let appended = planned.appended();
        self.persist(&append.session, Some(&planned), line)?;
        Ok(appended)
    }

    /// Writes the whole file of a session that was only in memory, including a new batch.
    fn persist(
        &mut self,
        session: &SessionId,
        planned: Option<&Planned>,
        line: Option<Deferred>,
    ) -> Result<()> {
        let lock_file = self.lock_file()?;
        let _still = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        self.persist_locked(session, planned, line)
    }

    fn persist_locked(
        &mut self,
        session: &SessionId,
        planned: Option<&Planned>,
        line: Option<Deferred>,
    ) -> Result<()> {
        let exists = StoreError::Exists { session: session.clone() };
        let is_taken =
            self.scan()?.iter().any(|(stem, _)| super::layout::id_of_stem(stem).as_ref() == Some(session));
        let Some(book) = self.books.get_mut(session).filter(|_| !is_taken) else { return Err(exists) };
        let stem = self.layout.new_stem(book.header.timestamp, session);
        let durability = self.options.durability;
        if let Some(lease) = &book.log.lease {
            lease::write(&self.layout, &stem, lease, durability)?;
        }
        let record = authority::with_planned(book, planned);
        authority::write(&self.layout.authority(&stem), &record, durability)?;
        replace(&self.layout.log(&stem), &book.to_file(planned)?, durability)?;
        let mut lines = std::mem::take(&mut book.deferred);
        lines.extend(line);
        self.books.remove(session);
        audit::write_lines(&self.layout, lines, durability)?;
        self.open(session).map(|_| ())
    }

    pub fn fork(&mut self, scope: &Scope, fork: Fork) -> Result<Head> {
        self.open_for(scope, &fork.source, Right::Read)?;
        let usable = self.usable_blobs(scope, &fork.drafts)?;
        let lock_file = self.lock_file()?;
        let _still = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        let source = self.open(&fork.source)?;
        let (mut log, is_on_disk) = (source.log.fork(scope, &fork)?, source.disk.is_some());
        if self.exists(&fork.new.id)? {
            return Err(StoreError::Exists { session: fork.new.id });
        }
        let is_written = is_on_disk && log.summary.messages > 0;
        let base = base_ref(&log).filter(|_| is_written && forks_deep(&log) < FORKS_DEEP_MAX);
        if base.is_none() {
            log = with_copies(log)?;
        }
        let first = log.place_first(fork.drafts, &scope.principal, |blob| usable.contains(blob))?;
        let head = first.as_ref().map_or(log.summary.head, |first| first.appended().head);
        let mut book = SessionLog::pending(log);
        book.header.base = base;
        let detail = Some(fork_detail(&fork.source));
        let note = AuditNote { action: AuditAction::Fork, session: Some(fork.new.id.clone()), detail };
        book.deferred.push(audit::line(scope.principal.clone(), note, fork.new.now));
        if is_written {
            self.insert_pending(book);
            let written = self.persist_locked(&fork.new.id, first.as_ref(), None);
            if written.is_err() {
                self.books.remove(&fork.new.id);
            }
            written?;
            return Ok(head);
        }
        if let Some(first) = first {
            book.commit_pending(first);
        }
        self.insert_pending(book);
        if self.options.persist_from == PersistFrom::Creation {
            self.persist_locked(&fork.new.id, None, None)?;
        }
        Ok(head)
    }

    /// Changes a session's lease. `change` gets the current lease, and returns the new lease, if it
    /// changes, and an answer.
    pub fn change_lease<T>(
        &mut self,
        scope: &Scope,
        session: &SessionId,
        change: impl FnOnce(Option<&StoredLease>) -> Result<(Option<StoredLease>, T)>,
    ) -> Result<T> {
        let (durability, layout) = (self.options.durability, self.layout.clone());
        let book = self.open_for(scope, session, Right::Write)?;
        let Some(file) = book.disk.as_ref().map(|disk| Arc::clone(&disk.file)) else {
            let (lease, answer) = change(book.log.lease.as_ref())?;
            book.log.lease = lease.or(book.log.lease.take());
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

fn is_worth_writing(book: &SessionLog, planned: &Planned, persist_from: PersistFrom) -> bool {
    let mut kinds = planned.batch.iter().map(|placed| placed.entry.meta.kind);
    match persist_from {
        PersistFrom::Message => book.holds_message || kinds.any(Kind::is_message),
        PersistFrom::Creation => true,
        PersistFrom::Assistant => book.holds_answer || kinds.any(|kind| kind == Kind::AssistantMessage),
    }
}

/// Returns how many files the shared part of a fork is spread over.
fn forks_deep(log: &InMemoryLog<Handle>) -> usize {
    std::iter::successors(log.shelf().base(), |base| base.shelf.base()).count()
}

/// Returns the file and seq that a fork begins with.
fn base_ref(log: &InMemoryLog<Handle>) -> Option<BaseRef> {
    let base = log.shelf().base()?;
    let row = crate::mem_log::row_at(&base.shelf, base.at)?;
    Some(BaseRef { file: row.body.file()?.stem.clone(), seq: base.at })
}

/// Returns the same fork with copies of its shared entries. Used if the source is not on disk, the
/// fork has no messages, or forks are nested too deep.
fn with_copies(log: InMemoryLog<Handle>) -> Result<InMemoryLog<Handle>> {
    let inherited = log.summary.inherited;
    let shelf = Arc::new(RowStore::whole(inherited));
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
        shelf.push(row_of(place_kept(&shelf, draft, seq, parent)?, Handle::Memory(bytes)));
    }
    Ok(InMemoryLog::new(log.summary.clone(), shelf))
}

//! A store that keeps sessions in memory, with the same semantics as the stores on disk. For tests
//! and one-shot use.
//!
//! The number of sessions is limited (128 by default): creating one more evicts the least recently
//! used session. Entries that a fork shares with its source are retained when the source is evicted
//! or erased. One lock guards all state and is never held across an await.

mod keys;
mod memories;
mod records;
mod tenant;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sapwood_core::port::keys::ApiKey;
use sapwood_core::port::store::{
    Append, Appended, Audit, AuditAction, AuditLine, AuditNote, Authorities, BlobSink, Blobs, Created,
    Finding, Fork, Hit, Lease, Leases, ListFilter, NewSession, Page, Repair, Result, Search, SearchQuery,
    Sessions, StoreStatus, Upkeep,
};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::Head;
use sapwood_core::{Authority, BlobHash, Right, Scope, SessionId, StoreError, TenantId, TimestampMs};

use crate::authorize::authorize;
use crate::blob_chunks::{BlobEnd, slice};
use crate::blob_upload::{BlobUpload, UploadTarget};
use crate::lease::{self, BootClock, LeaseClock, StoredLease};
use crate::mem_log::{
    InMemoryLog, LogSearch, RandomBits, check_session_readable, impl_log, locate, row_store_key,
};
use crate::validate;
use tenant::{Bytes, Tenant};

/// Default limit on the number of sessions.
pub const SESSIONS_MAX_DEFAULT: usize = 128;

pub struct MemoryStore {
    sessions_max: usize,
    random_bits: Option<RandomBits>,
    lease_clock: Arc<dyn LeaseClock>,
    state: Mutex<StoreState>,
}

#[derive(Default)]
struct StoreState {
    tenants: BTreeMap<TenantId, Tenant>,
    keys: Vec<ApiKey>,
    /// The number of session uses so far, to find the least recently used session.
    uses: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_cap(SESSIONS_MAX_DEFAULT)
    }
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a store that keeps at most `sessions_max` sessions across all tenants.
    pub fn with_cap(sessions_max: usize) -> Self {
        Self {
            sessions_max: sessions_max.max(1),
            random_bits: None,
            lease_clock: Arc::new(BootClock::default()),
            state: Mutex::default(),
        }
    }

    /// Replaces the lease clock, for tests that need to move it.
    pub fn with_lease_clock(self, lease_clock: Arc<dyn LeaseClock>) -> Self {
        Self { lease_clock, ..self }
    }

    /// Sets the source of the random bits of entry ids, so that a simulation can reproduce a log.
    pub fn with_random_bits(self, random_bits: impl Fn() -> u128 + Send + Sync + 'static) -> Self {
        Self { random_bits: Some(Arc::new(random_bits)), ..self }
    }

    /// Evicts a session that the caller owns.
    pub fn evict(&self, scope: &Scope, session: &SessionId) -> Result<()> {
        let mut state = self.lock();
        let tenant = state.tenant(scope);
        authorize(scope, &tenant.log(session)?.summary, Right::Own)?;
        tenant.remove(session);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append_batch(&self, scope: &Scope, append: Append) -> Result<Appended> {
        let mut state = self.lock();
        let used = state.next_use();
        state.tenant(scope).append(scope, append, used, &*self.lease_clock)
    }

    /// Runs `work` on a session for which the caller has the given right, and marks the session as
    /// used.
    fn with_log<T>(
        &self,
        scope: &Scope,
        session: &SessionId,
        right: Right,
        work: impl FnOnce(&mut InMemoryLog<Bytes>) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.lock();
        let used = state.next_use();
        let stored = state.tenant(scope).session_mut(session)?;
        authorize(scope, &stored.log.summary, right)?;
        stored.used = used;
        work(&mut stored.log)
    }
}

impl StoreState {
    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn tenant(&mut self, scope: &Scope) -> &mut Tenant {
        self.tenants.entry(scope.tenant.clone()).or_default()
    }

    /// Evicts the least recently used sessions until at most `sessions_max` are left.
    fn shrink(&mut self, sessions_max: usize) {
        while self.tenants.values().map(Tenant::len).sum::<usize>() > sessions_max {
            let oldest = self.tenants.values_mut().filter_map(|tenant| {
                let (used, id) = tenant.least_recently_used()?;
                Some((used, id, tenant))
            });
            let Some((_, id, tenant)) = oldest.min_by_key(|(used, ..)| *used) else { return };
            tenant.remove(&id);
        }
    }
}

#[async_trait]
impl Sessions for MemoryStore {
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created> {
        let mut state = self.lock();
        let used = state.next_use();
        let tenant = state.tenant(scope);
        if let Ok(stored) = tenant.session_mut(&new.id) {
            // Ids are unique within a tenant, so a caller without read access learns that the id is
            // taken, but nothing else.
            authorize(scope, &stored.log.summary, Right::Read).map_err(|_| already_exists(&new.id))?;
            stored.used = used;
            return Ok(Created::Existed);
        }
        let summary = Summary::new(&new, scope.principal.clone());
        let mut log = InMemoryLog::new(summary, tenant::empty_rows());
        log.random_bits.clone_from(&self.random_bits);
        tenant.insert(log, used);
        tenant.write_audit(scope, validate::session_note(AuditAction::Create, &new.id), new.now);
        state.shrink(self.sessions_max);
        Ok(Created::New)
    }

    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head> {
        let mut state = self.lock();
        let (source_used, used) = (state.next_use(), state.next_use());
        let tenant = state.tenant(scope);
        let source = tenant.session_mut(&fork.source)?;
        let mut log = source.log.fork(scope, &fork)?;
        log.random_bits.clone_from(&self.random_bits);
        source.used = source_used;
        if tenant.session_mut(&fork.new.id).is_ok() {
            return Err(already_exists(&fork.new.id));
        }
        let note = validate::fork_note(&fork);
        let first = log.place_first(fork.drafts, &scope.principal, |blob| tenant.may_use(scope, blob))?;
        if let Some(first) = first {
            tenant::commit(&mut log, first);
        }
        let head = log.summary.head;
        tenant.insert(log, used);
        tenant.write_audit(scope, note, fork.new.now);
        state.shrink(self.sessions_max);
        Ok(head)
    }

    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        self.with_log(scope, session, Right::Read, |log| Ok(log.summary.clone()))
    }

    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        let mut state = self.lock();
        let summaries = state.tenant(scope).logs().map(|log| &log.summary);
        validate::page_of_sessions(scope, filter, summaries)
    }

    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
        let mut state = self.lock();
        let tenant = state.tenant(scope);
        authorize(scope, &tenant.log(session)?.summary, Right::Read)?;
        Ok(validate::children_of(scope, session, tenant.logs().map(|log| &log.summary)))
    }

    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
        let mut state = self.lock();
        let tenant = state.tenant(scope);
        authorize(scope, &tenant.log(session)?.summary, Right::Own)?;
        tenant.remove(session);
        tenant.memories.erase_session(session);
        tenant.write_audit(scope, validate::session_note(AuditAction::Erase, session), now);
        Ok(())
    }
}

impl_log!(MemoryStore);

#[async_trait]
impl Leases for MemoryStore {
    async fn take_lease(
        &self,
        scope: &Scope,
        session: &SessionId,
        holder: &str,
        ttl_ms: i64,
    ) -> Result<Lease> {
        self.with_log(scope, session, Right::Write, |log| {
            let now = self.lease_clock.read();
            let last = log.lease.as_ref().map(|last| last.at(&now));
            let lease = lease::next_lease(last, session, holder, ttl_ms)?;
            log.lease = Some(StoredLease::taken(&lease, &now));
            Ok(lease)
        })
    }

    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()> {
        self.with_log(scope, &lease.session, Right::Write, |log| {
            let now = self.lease_clock.read();
            if log.lease.as_ref().is_some_and(|last| last.at(&now).is(lease)) {
                log.lease = Some(StoredLease::released(lease));
            }
            Ok(())
        })
    }
}

#[async_trait]
impl Authorities for MemoryStore {
    /// Returns the stored record. Every session has one, because no session was created by an
    /// earlier version.
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority> {
        let record = |log: &mut InMemoryLog<Bytes>| Ok(log.summary.authority.clone().unwrap_or_default());
        self.with_log(scope, session, Right::Read, record)
    }

    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
        self.with_log(scope, session, Right::Write, |log| {
            log.summary.authority.get_or_insert_default().grant_model(model.to_owned());
            Ok(())
        })
    }
}

#[async_trait]
impl Search for MemoryStore {
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        let mut state = self.lock();
        let tenant = state.tenant(scope);
        if let Some(only) = &query.session {
            check_session_readable(scope, only, tenant.log(only).ok())?;
        }
        let mut search = LogSearch::new(scope, query)?;
        let visible = tenant.logs().filter(|log| authorize(scope, &log.summary, Right::Read).is_ok());
        let visible_rows: HashSet<usize> = visible.map(|log| row_store_key(log.rows())).collect();
        for log in tenant.logs() {
            let owner = |seq| locate(log.rows(), seq).map(|(owner, _)| row_store_key(owner));
            search.visit(log, |seq| owner(seq).is_some_and(|owner| !visible_rows.contains(&owner)))?;
        }
        Ok(search.finish())
    }
}

#[async_trait]
impl Blobs for MemoryStore {
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>> {
        let target = MemoryUpload { store: self, scope: scope.clone(), bytes: Vec::new() };
        Ok(Box::new(BlobUpload::new(target)))
    }

    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64> {
        self.lock().tenant(scope).blob(scope, &blob).map(|bytes| bytes.len() as u64)
    }

    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>> {
        self.lock().tenant(scope).blob(scope, &blob).map(|bytes| slice(bytes, from, limit).to_vec())
    }
}

/// A blob upload that is buffered in memory.
struct MemoryUpload<'s> {
    store: &'s MemoryStore,
    scope: Scope,
    bytes: Vec<u8>,
}

#[async_trait]
impl UploadTarget for MemoryUpload<'_> {
    async fn put(&mut self, hash: BlobHash, bytes: Vec<u8>) -> Result<()> {
        self.store.lock().tenant(&self.scope).put_blob(&self.scope, hash, bytes);
        Ok(())
    }

    async fn add_chunk(&mut self, _: u32, chunk: Vec<u8>) -> Result<()> {
        self.bytes.extend(chunk);
        Ok(())
    }

    async fn finish(&mut self, _: u32, end: BlobEnd) -> Result<()> {
        self.bytes.extend(end.rest);
        let bytes = std::mem::take(&mut self.bytes);
        self.put(end.hash, bytes).await
    }
}

#[async_trait]
impl Audit for MemoryStore {
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
        self.lock().tenant(scope).write_audit(scope, note, now);
        Ok(())
    }

    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        Ok(self.lock().tenant(scope).read_audit(scope, session, after, limit))
    }

    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        Ok(self.lock().tenant(scope).read_audit_since(scope, session, since, limit))
    }
}

#[async_trait]
impl Upkeep for MemoryStore {
    /// No checks are needed: data is validated when it is created, and no other process can change
    /// it.
    async fn check(&self, _scope: &Scope, _repair: Repair) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn status(&self) -> Result<StoreStatus> {
        Ok(StoreStatus::current("memory", "memory:".to_owned()))
    }

    fn describe(&self) -> String {
        format!("memory, at most {} sessions", self.sessions_max)
    }
}

fn already_exists(session: &SessionId) -> StoreError {
    StoreError::Exists { session: session.clone() }
}

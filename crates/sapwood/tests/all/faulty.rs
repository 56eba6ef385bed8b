//! A store with fault injection for the simulation: it delays and refuses calls, loses answers,
//! freezes and dies, driven by its seed. It wraps a real store that all processes share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sapwood::core::entry::proof::StoredEntry;
use sapwood::core::id::MemoryId;
use sapwood::core::port::keys::{ApiKey, Keys};
use sapwood::core::port::memory::{Memories, Memory, MemoryFilter};
use sapwood::core::port::records::{RecordKind, Records, Spent, TenantRecord};
use sapwood::core::port::store::{
    Append, Appended, Audit, AuditLine, AuditNote, Authorities, BlobSink, Blobs, Created, Finding, Fork, Hit,
    Lease, Leases, ListFilter, Log, NewSession, Page, PathSlice, Repair, Result, Search, SearchQuery,
    Sessions, Store, StoreError, Until, Upkeep,
};
use sapwood::core::project::summary::Summary;
use sapwood::core::tree::Head;
use sapwood::core::{Authority, BlobHash, EntryId, Kind, Record, TimestampMs};
use sapwood::{Scope, Seq, SessionId, TenantId};
use tokio::sync::Notify;

use super::sabotage::Sabotage;

/// A random number generator: the same seed produces the same numbers.
#[derive(Debug, Clone)]
pub struct SeededRng(Arc<Mutex<u64>>);

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed ^ 0x9e37_79b9_7f4a_7c15)))
    }

    pub fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 31
    }

    /// Random bits for ids.
    pub fn bits(&self) -> u128 {
        u128::from(self.next()) << 96 | u128::from(self.next()) << 64 | u128::from(self.next())
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The health of a simulated process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// Store calls wait until the process is healthy again.
    Frozen,
    /// Store calls never return.
    Dead,
}

/// A process's health and the tasks that wait for a change, woken in order of arrival. A `watch` channel
/// wakes in random order.
struct ProcessState {
    health: Mutex<Health>,
    changed: Notify,
}

/// Fault injection for one process: each of its store calls may be delayed, fail, or never return.
#[derive(Clone)]
pub struct FaultInjector {
    pub rng: SeededRng,
    process: Arc<ProcessState>,
    /// Percentage of calls that fail.
    pub faults: u64,
}

impl FaultInjector {
    pub fn new(rng: SeededRng, faults: u64) -> Self {
        let process = ProcessState { health: Mutex::new(Health::Healthy), changed: Notify::new() };
        Self { rng, process: Arc::new(process), faults }
    }

    /// Change the health of the process. A dead process stays dead.
    pub fn set_health(&self, next: Health) {
        let mut health = self.process.health.lock().unwrap();
        if *health != Health::Dead {
            *health = next;
        }
        self.process.changed.notify_waiters();
    }

    /// Wait a random time, then until the process is healthy. Never returns for a dead process.
    pub async fn delay(&self) {
        tokio::time::sleep(Duration::from_millis(self.rng.below(20))).await;
        loop {
            let changed = self.process.changed.notified();
            if *self.process.health.lock().unwrap() == Health::Healthy {
                return;
            }
            changed.await;
        }
    }

    fn should_fail(&self) -> bool {
        self.rng.below(100) < self.faults
    }
}

/// A store that injects the faults of one process.
pub struct FaultyStore {
    pub inner: Arc<dyn Store>,
    pub injector: FaultInjector,
    /// The fence of every entry written, over all processes.
    pub written: Arc<Mutex<Vec<(SessionId, Seq, u64)>>>,
    /// A deliberate defect of the store, to test whether the checks detect it.
    pub sabotage: Option<Arc<Sabotage>>,
}

fn injected_error() -> StoreError {
    StoreError::Unreachable { place: "the simulation".to_owned(), why: "injected fault".to_owned() }
}

impl FaultyStore {
    /// Maybe fail before the operation, so that it has no effect.
    async fn before(&self) -> Result<()> {
        self.injector.delay().await;
        if self.injector.should_fail() { Err(injected_error()) } else { Ok(()) }
    }

    /// Maybe fail after the operation: it has taken effect, but its answer is lost.
    async fn after<T>(&self, answer: Result<T>) -> Result<T> {
        self.injector.delay().await;
        if self.injector.should_fail() { Err(injected_error()) } else { answer }
    }
}

macro_rules! forward {
    ($self:ident, $call:expr) => {{
        $self.before().await?;
        let answer = $call.await;
        $self.after(answer).await
    }};
}

#[async_trait::async_trait]
impl Sessions for FaultyStore {
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created> {
        forward!(self, self.inner.create(scope, new))
    }
    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head> {
        forward!(self, self.inner.fork(scope, fork))
    }
    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        forward!(self, self.inner.summary(scope, session))
    }
    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        forward!(self, self.inner.list(scope, filter))
    }
    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
        forward!(self, self.inner.children(scope, session))
    }
    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
        forward!(self, self.inner.erase(scope, session, now))
    }
}

#[async_trait::async_trait]
impl Log for FaultyStore {
    async fn append(&self, scope: &Scope, append: Append) -> Result<Appended> {
        self.before().await?;
        let fence = append.fence;
        let session = append.session.clone();
        let answer = match &self.sabotage {
            Some(sabotage) => sabotage.append(&*self.inner, scope, append).await,
            None => self.inner.append(scope, append).await,
        };
        if let (Ok(done), Some(fence)) = (&answer, fence) {
            let mut written = self.written.lock().unwrap();
            written.extend(done.entries.iter().map(|(seq, _)| (session.clone(), *seq, fence)));
        }
        // A real multi-server store retries an append until it has the result: answers are late, but never
        // lost.
        self.injector.delay().await;
        answer
    }
    async fn read_after(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>> {
        forward!(self, self.inner.read_after(scope, session, after, limit))
    }
    async fn read_proofs(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<StoredEntry>> {
        forward!(self, self.inner.read_proofs(scope, session, after, limit))
    }
    async fn read_kinds(
        &self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>> {
        forward!(self, self.inner.read_kinds(scope, session, kinds, after, limit))
    }
    async fn read_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
        until: Until,
    ) -> Result<PathSlice> {
        forward!(self, self.inner.read_path(scope, session, at, until))
    }
    async fn nth_message(
        &self,
        scope: &Scope,
        session: &SessionId,
        leaf: Seq,
        count: u32,
    ) -> Result<Option<Seq>> {
        forward!(self, self.inner.nth_message(scope, session, leaf, count))
    }
    async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record> {
        forward!(self, self.inner.read_entry(scope, session, seq))
    }
    async fn find_entries(&self, scope: &Scope, session: &SessionId, id_prefix: &str) -> Result<Vec<Record>> {
        forward!(self, self.inner.find_entries(scope, session, id_prefix))
    }
    async fn first_at_or_after(&self, scope: &Scope, session: &SessionId, id: EntryId) -> Result<Seq> {
        forward!(self, self.inner.first_at_or_after(scope, session, id))
    }
}

#[async_trait::async_trait]
impl Leases for FaultyStore {
    async fn take_lease(
        &self,
        scope: &Scope,
        session: &SessionId,
        holder: &str,
        ttl_ms: i64,
    ) -> Result<Lease> {
        self.before().await?;
        let answer = self.inner.take_lease(scope, session, holder, ttl_ms).await;
        if let (Ok(lease), Some(sabotage)) = (&answer, &self.sabotage) {
            sabotage.note_lease(lease);
        }
        self.after(answer).await
    }
    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()> {
        forward!(self, self.inner.release_lease(scope, lease))
    }
}

#[async_trait::async_trait]
impl Authorities for FaultyStore {
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority> {
        forward!(self, self.inner.settle_authority(scope, session))
    }
    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
        forward!(self, self.inner.grant_model(scope, session, model))
    }
}

#[async_trait::async_trait]
impl Search for FaultyStore {
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        forward!(self, self.inner.search(scope, query))
    }
}

#[async_trait::async_trait]
impl Blobs for FaultyStore {
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>> {
        forward!(self, self.inner.begin_blob(scope))
    }
    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64> {
        forward!(self, self.inner.blob_size(scope, blob))
    }
    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>> {
        forward!(self, self.inner.read_blob(scope, blob, from, limit))
    }
    async fn put_blob(&self, scope: &Scope, bytes: Vec<u8>) -> Result<BlobHash> {
        forward!(self, self.inner.put_blob(scope, bytes))
    }
    async fn get_blob(&self, scope: &Scope, blob: BlobHash) -> Result<Vec<u8>> {
        forward!(self, self.inner.get_blob(scope, blob))
    }
}

#[async_trait::async_trait]
impl Audit for FaultyStore {
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
        forward!(self, self.inner.write_audit(scope, note, now))
    }
    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        forward!(self, self.inner.read_audit(scope, session, after, limit))
    }
    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        forward!(self, self.inner.read_audit_since(scope, session, since, limit))
    }
}

#[async_trait::async_trait]
impl Keys for FaultyStore {
    async fn put_key(&self, scope: &Scope, key: ApiKey) -> Result<()> {
        forward!(self, self.inner.put_key(scope, key))
    }
    async fn list_keys(&self, scope: &Scope) -> Result<Vec<ApiKey>> {
        forward!(self, self.inner.list_keys(scope))
    }
    async fn revoke_key(&self, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
        forward!(self, self.inner.revoke_key(scope, id, now))
    }
    async fn find_key(&self, hash: BlobHash) -> Result<Option<ApiKey>> {
        forward!(self, self.inner.find_key(hash))
    }
    async fn has_keys(&self) -> Result<bool> {
        forward!(self, self.inner.has_keys())
    }
    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()> {
        forward!(self, self.inner.put_tenant(scope, now))
    }
    async fn list_tenants(&self) -> Result<Vec<TenantId>> {
        forward!(self, self.inner.list_tenants())
    }
}

#[async_trait::async_trait]
impl Memories for FaultyStore {
    async fn put_memory(
        &self,
        scope: &Scope,
        memory: Memory,
        expected: u64,
        now: TimestampMs,
    ) -> Result<Memory> {
        forward!(self, self.inner.put_memory(scope, memory, expected, now))
    }
    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        forward!(self, self.inner.get_memory(scope, id))
    }
    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        forward!(self, self.inner.list_memories(scope, filter))
    }
    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()> {
        forward!(self, self.inner.forget_memory(scope, id, now))
    }
}

#[async_trait::async_trait]
impl Records for FaultyStore {
    async fn put_record(
        &self,
        scope: &Scope,
        kind: RecordKind,
        name: &str,
        value: Option<String>,
        audit: AuditNote,
        now: TimestampMs,
    ) -> Result<()> {
        forward!(self, self.inner.put_record(scope, kind, name, value, audit, now))
    }
    async fn list_records(&self, scope: &Scope, kind: RecordKind) -> Result<Vec<TenantRecord>> {
        forward!(self, self.inner.list_records(scope, kind))
    }
    async fn add_spent(&self, scope: &Scope, day: u32, holders: &[String], spent: Spent) -> Result<()> {
        forward!(self, self.inner.add_spent(scope, day, holders, spent))
    }
    async fn spent(&self, scope: &Scope, day: u32, holder: &str) -> Result<Spent> {
        forward!(self, self.inner.spent(scope, day, holder))
    }
}

#[async_trait::async_trait]
impl Upkeep for FaultyStore {
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
        self.inner.check(scope, repair).await
    }
    async fn flush(&self) -> Result<()> {
        self.inner.flush().await
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

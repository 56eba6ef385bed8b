//! Sessions as files for `grep`, `tail` and text editors: a directory, one file per session, one
//! line per entry. [`layout`] defines the file names, `sapwood_core::entry::jsonl` the format of a
//! line.
//!
//! For tools and single users, not for servers: methods do blocking file I/O on the caller's
//! thread, a store handles one call at a time, and search reads all logs. Several processes may use
//! one directory:
//!
//! - By default, a session is not written until it contains a message ([`PersistFrom`]). After that, an
//!   append is one write at the end of the session's file, under the file's lock and, with full
//!   durability, synced (I3). Before it appends, a process reads the entries that other processes have
//!   appended.
//! - All lines of a batch except the last have `"more":true`, so that an incomplete batch is detected
//!   (I4). It is moved to a `.torn` file and reported.
//! - Every line has a checksum ([`line_sum`]), which is verified whenever the line is read. A bad line is
//!   an error with file and line, and the file is not changed. A lost end is found through the file's
//!   head ([`head_file`]).
//! - Bodies stay in the file. All other data of a session that has been read is cached in memory.

mod audit;
mod authority;
mod authority_file;
mod blob;
mod check;
mod cwd_sessions;
mod disk;
mod erase;
mod file;
mod head_file;
mod header;
mod index;
mod keys;
pub mod layout;
mod lease;
mod line_sum;
mod memories;
mod records;
mod repair;
mod seal;
mod sealed_lines;
mod session_log;
mod tenant;
mod write;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sapwood_core::port::store::{
    Append, Appended, Audit, AuditLine, AuditNote, Authorities, BlobSink, Blobs, Created, Finding, Fork, Hit,
    Lease, Leases, ListFilter, NewSession, Page, Repair, Result, SealReport, Search, SearchQuery, Sessions,
    StoreStatus, Upkeep,
};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::Head;
use sapwood_core::{Authority, BlobHash, Right, Scope, Seq, SessionId, StoreError, TenantId, TimestampMs};

use crate::authorize::authorize;
use crate::blob_upload::BlobUpload;
use crate::lease::{BootClock, LeaseClock, StoredLease, next_lease};
use crate::mem_log::{InMemoryLog, LogSearch, check_session_readable, impl_log, row_at};
use crate::path_health::PathHealth;
use crate::{Durability, validate};
use disk::LockKind;
use file::BodyHandle;
use layout::{Layout, id_of_stem};
use session_log::SessionLog;
use tenant::TenantDir;

/// When a session is first written to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PersistFrom {
    /// With the first message.
    #[default]
    Message,
    /// With the first assistant message.
    Assistant,
    /// When it is created. For callers that continue the session in another process.
    Creation,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct JsonlOptions {
    pub durability: Durability,
    pub persist_from: PersistFrom,
}

pub struct JsonlStore {
    root: PathBuf,
    place: PathHealth,
    options: JsonlOptions,
    lease_clock: Arc<dyn LeaseClock>,
    /// Serializes all calls; never held across an await.
    tenants: Mutex<HashMap<TenantId, TenantDir>>,
}

impl JsonlStore {
    /// Opens a store in this directory. The directory is created with the first write.
    pub fn open(root: impl Into<PathBuf>, options: JsonlOptions) -> Result<Self> {
        let root = root.into();
        if root.exists() && !root.is_dir() {
            let why = format!("{} is not a directory", root.display());
            return Err(StoreError::Invalid { what: "the store's path", why });
        }
        let lease_clock = Arc::new(BootClock::default());
        Ok(Self { place: PathHealth::new(&root), root, options, lease_clock, tenants: Mutex::default() })
    }

    /// Replaces the lease clock, for tests that need to move it.
    pub fn with_lease_clock(mut self, lease_clock: Arc<dyn LeaseClock>) -> Self {
        self.lease_clock = lease_clock;
        self
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the problems found so far: torn batches that were cut off, unreadable logs.
    pub fn warnings(&self, scope: &Scope) -> Vec<Finding> {
        self.with(scope, |tenant| tenant.warnings.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, TenantDir>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, scope: &Scope, run: impl FnOnce(&mut TenantDir) -> T) -> T {
        let mut tenants = self.lock();
        let new = || {
            let layout = Layout::of(&self.root, &scope.tenant);
            TenantDir::new(layout, self.options, self.lease_clock.clone())
        };
        run(tenants.entry(scope.tenant.clone()).or_insert_with(new))
    }

    fn append_batch(&self, scope: &Scope, append: Append) -> Result<Appended> {
        self.with(scope, |tenant| tenant.append(scope, append))
    }

    /// Runs `work` on a session for which the caller has the given right.
    fn with_log<T>(
        &self,
        scope: &Scope,
        session: &SessionId,
        right: Right,
        work: impl FnOnce(&InMemoryLog<BodyHandle>) -> Result<T>,
    ) -> Result<T> {
        self.with(scope, |tenant| work(&tenant.open_for(scope, session, right)?.log))
    }
}

impl Drop for JsonlStore {
    fn drop(&mut self) {
        self.lock().values_mut().for_each(TenantDir::write_heads);
    }
}

#[async_trait]
impl Sessions for JsonlStore {
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created> {
        self.with(scope, |tenant| tenant.create(scope, new))
    }

    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head> {
        self.with(scope, |tenant| tenant.fork(scope, fork))
    }

    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        self.with_log(scope, session, Right::Read, |log| Ok(log.summary.clone()))
    }

    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        let summaries = self.with(scope, TenantDir::summaries)?;
        validate::page_of_sessions(scope, filter, summaries.into_iter())
    }

    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
        self.with(scope, |tenant| {
            tenant.open_for(scope, session, Right::Read)?;
            Ok(validate::children_of(scope, session, tenant.summaries()?.iter()))
        })
    }

    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
        self.with(scope, |tenant| tenant.erase(scope, session, now))
    }
}

impl_log!(JsonlStore);

#[async_trait]
impl Leases for JsonlStore {
    async fn take_lease(
        &self,
        scope: &Scope,
        session: &SessionId,
        holder: &str,
        ttl_ms: i64,
    ) -> Result<Lease> {
        let take = |last: Option<&StoredLease>| {
            let now = self.lease_clock.read();
            let lease = next_lease(last.map(|last| last.at(&now)), session, holder, ttl_ms)?;
            Ok((Some(StoredLease::taken(&lease, &now)), lease))
        };
        self.with(scope, |tenant| tenant.change_lease(scope, session, take))
    }

    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()> {
        let release = |last: Option<&StoredLease>| {
            let is_held = last.is_some_and(|last| last.at(&self.lease_clock.read()).is(lease));
            Ok((is_held.then(|| StoredLease::released(lease)), ()))
        };
        self.with(scope, |tenant| tenant.change_lease(scope, &lease.session, release))
    }
}

#[async_trait]
impl Authorities for JsonlStore {
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority> {
        self.with(scope, |tenant| tenant.settle_authority(scope, session))
    }

    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
        self.with(scope, |tenant| tenant.grant_model(scope, session, model))
    }
}

#[async_trait]
impl Search for JsonlStore {
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        let mut searching = LogSearch::new(scope, query)?;
        self.with(scope, |tenant| match &query.session {
            Some(only) => {
                let session_log = tenant.open(only)?;
                check_session_readable(scope, only, Some(&session_log.log))?;
                searching.visit(&session_log.log, |_| true)
            }
            None => {
                let mut visible = BTreeSet::new();
                tenant.for_each(|session_log: &mut SessionLog| {
                    if authorize(scope, &session_log.log.summary, Right::Read).is_ok() {
                        visible.insert(session_log.log.summary.id.clone());
                    }
                    Ok(())
                })?;
                let visit = |session_log: &mut SessionLog| {
                    searching.visit(&session_log.log, |seq| is_orphan(&session_log.log, seq, &visible))
                };
                tenant.for_each(visit).map(|_| ())
            }
        })?;
        Ok(searching.finish())
    }
}

/// Returns whether the session that a shared entry was written to is erased or not visible to the
/// caller.
fn is_orphan(log: &InMemoryLog<BodyHandle>, seq: Seq, visible: &BTreeSet<SessionId>) -> bool {
    let Some(row) = row_at(log.rows(), seq) else { return false };
    if log.rows().base().is_none() {
        return log.summary.parent.as_ref().is_some_and(|parent| !visible.contains(&parent.session));
    }
    let Some(file) = row.body.file() else { return false };
    let is_erased = file.path.extension() == Some("erased".as_ref());
    let home = file.path.file_stem().and_then(|stem| stem.to_str()).and_then(id_of_stem);
    is_erased || home.is_some_and(|home| !visible.contains(&home))
}

#[async_trait]
impl Blobs for JsonlStore {
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>> {
        Ok(Box::new(BlobUpload::new(blob::JsonlUpload::new(self, scope.clone()))))
    }

    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64> {
        self.with(scope, |tenant| {
            tenant.check_use(scope, &blob)?;
            tenant.verified_blobs.open(&tenant.layout, &blob).map(|(_, size)| size)
        })
    }

    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>> {
        self.with(scope, |tenant| {
            tenant.check_use(scope, &blob)?;
            blob::read(&mut tenant.verified_blobs, &tenant.layout, &blob, from, limit)
        })
    }
}

#[async_trait]
impl Audit for JsonlStore {
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
        self.with(scope, |tenant| {
            let lock_file = tenant.lock_file()?;
            let _store_lock = disk::lock(&lock_file, LockKind::Shared, &tenant.layout.lock())?;
            let line = audit::PendingAuditLine::of(scope, note, now);
            tenant.write_audit_lines(vec![line])
        })
    }

    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        self.with(scope, |tenant| {
            let mut lines = audit::read_whole(&tenant.layout, &self.lease_clock.read().boot)?.lines;
            lines.retain(|line| {
                line.number > after
                    && session.is_none_or(|session| line.session.as_ref() == Some(session))
                    && may_see(tenant, scope, line)
            });
            lines.truncate(validate::page_limit(limit));
            Ok(lines)
        })
    }

    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        self.with(scope, |tenant| {
            let mut lines = audit::read_since(&tenant.layout, since)?;
            lines.retain(|line| line.session.as_ref() == Some(session) && may_see(tenant, scope, line));
            lines.truncate(validate::page_limit(limit));
            Ok(lines)
        })
    }
}

fn may_see(tenant: &mut TenantDir, scope: &Scope, line: &AuditLine) -> bool {
    if validate::may_see_line(scope, line, None) {
        return true;
    }
    let about = line.session.as_ref().and_then(|session| tenant.open(session).ok());
    validate::may_see_line(scope, line, about.map(|session_log| &session_log.log.summary))
}

#[async_trait]
impl Upkeep for JsonlStore {
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
        let mut findings = self.with(scope, |tenant| tenant.check(repair))?;
        self.check_keys(repair, &mut findings)?;
        Ok(findings)
    }

    async fn seal_entries(&self, scope: &Scope) -> Result<SealReport> {
        self.with(scope, TenantDir::seal)
    }

    async fn unreadable(&self, scope: &Scope) -> Result<Vec<Finding>> {
        let found: Vec<Finding> = self.with(scope, |tenant| tenant.unreadable.values().cloned().collect());
        Ok(validate::unreadable_for(scope, &self.describe(), found))
    }

    async fn status(&self) -> Result<StoreStatus> {
        Ok(StoreStatus::current("jsonl", format!("jsonl:{}", self.root.display())))
    }

    async fn check_writable(&self) -> Result<()> {
        self.place.check()
    }

    /// Records the ends of the files. An acknowledged append to a session on disk is already in its file.
    async fn flush(&self) -> Result<()> {
        self.lock().values_mut().for_each(TenantDir::write_heads);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("jsonl files in {}", self.root.display())
    }
}

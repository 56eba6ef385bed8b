//! A store for multiple servers on one PostgreSQL database.
//!
//! [`connect`] opens connections. A [`connection`] is a database connection inside a transaction whose
//! tenant is set. Most other modules are functions of a connection:
//!
//! - [`schema`] — the layout
//! - [`append`], [`append_batch`], [`prefetch`], [`writer`] — appends and their group commit
//! - [`log`] and [`path`] — the entries
//! - [`session`], [`session_table`] and [`fork`] — session rows, lists and forks
//! - [`search`] — full-text search
//! - [`blob`], [`blob_upload`] and [`erase`] — blobs and erasure
//! - [`notify`] — wake-ups for readers in other processes
//! - [`check`] — the checks of `sapwood doctor`
//!
//! Statements on a tenant's data filter by tenant, and row-level security guards against statements
//! that do not (I9). An append without an audit note is usually one round trip. Leases, fences,
//! expected heads and rights are checked by the rules that all stores share, and the session's
//! version guarantees that these checks are still valid when the append is written (I5).

mod append;
mod append_batch;
mod audit;
mod authority;
#[cfg(feature = "bench")]
pub mod baseline;
mod blob;
mod blob_upload;
mod cert_verifier;
mod check;
mod connect;
mod connection;
mod erase;
mod error;
mod fork;
mod format;
mod keys;
mod lease;
mod log;
mod memories;
mod notify;
mod path;
mod prefetch;
mod proofs;
mod rebuild_summary;
mod records;
mod schema;
mod search;
mod session;
mod session_table;
mod tls;
mod upkeep;
mod visibility;
mod writer;

use std::sync::Arc;

use async_trait::async_trait;
use deadpool_postgres::Pool;
use sapwood_core::entry::Meta;
use sapwood_core::entry::proof::StoredEntry;
use sapwood_core::port::store::{
    Append, Appended, Audit, AuditLine, AuditNote, Authorities, BlobSink, Blobs, Created, Fork, Hit, Lease,
    Leases, ListFilter, Log, NewSession, PAGE_ROWS_MAX, Page, PathSlice, Result, Search, SearchQuery,
    Sessions, Until,
};
use sapwood_core::project::summary::{Summary, TurnPositions};
use sapwood_core::tree::Head;
use sapwood_core::{
    Authority, BlobHash, EntryId, Kind, Record, Right, Scope, Seq, SessionId, StoreError, TenantId,
    TimestampMs,
};
use tokio_postgres::Row;

use crate::blob_chunks::{BlobChunk, BlobRead, UPLOAD_IDLE_S_MAX, slice};
use crate::blob_upload::BlobUpload;
use crate::database::NamedDatabase;
use crate::validate;
use append::AppendCache;
use blob_upload::PgUpload;
use connect::{DbRole, Server, StoreRuntime};
use connection::{Mode, Params, StoreConnection};
use error::RetryBudget;
use format::WrittenFormat;
use log::LogRows;
use notify::Notifier;
use session_table::{RowLock, find};
use writer::Writer;

/// Time limit for the final wake-up when a store is closed.
const CLOSE_NOTIFY_MAX: std::time::Duration = std::time::Duration::from_millis(200);

pub struct PgStore {
    server: Server,
    role: DbRole,
    pool: Pool,
    writer: Writer,
    notifier: Notifier,
    append_cache: AppendCache,
    format: Arc<WrittenFormat>,
    /// Dropped last: tasks of the other fields run in this runtime.
    runtime: StoreRuntime,
}

/// Repeats an attempt until it returns `Ok` with an answer, or `Err` with an error that a retry
/// cannot fix.
macro_rules! retrying {
    ($store:expr, $attempt:expr) => {
        $store
            .runtime
            .wrap(async {
                let mut retries = $crate::postgres::error::RetryBudget::new();
                loop {
                    let attempt: Result<Result<_, sapwood_core::StoreError>, _> = async { $attempt }.await;
                    match attempt {
                        Ok(answer) => break answer,
                        Err(error) => retries.wait_for_retry(error).await?,
                    }
                }
            })
            .await
    };
}

/// Reads in one snapshot. Retries if the connection was lost.
macro_rules! reading {
    ($store:expr, $scope:expr, $db:ident => $work:expr) => {
        $crate::postgres::retrying!($store, {
            let $db =
                $store.open_connection(&$scope.tenant, $crate::postgres::connection::Mode::Read).await?;
            match async { $work }.await {
                Err(error @ sapwood_core::StoreError::Unreachable { .. }) => Err(error),
                answer => {
                    $db.end_read();
                    Ok(answer)
                }
            }
        })
    };
}

/// Writes in one transaction. Retries only if it is certain that nothing was written: the
/// connection was lost before the commit, or another transaction conflicted.
macro_rules! writing {
    ($store:expr, $scope:expr, $db:ident => $work:expr) => {
        $crate::postgres::retrying!($store, {
            let $db =
                $store.open_connection(&$scope.tenant, $crate::postgres::connection::Mode::Write).await?;
            match async { $work }.await {
                Ok(answer) => {
                    $db.commit().await.map_err($crate::postgres::connection::outcome_unknown)?;
                    $store.notifier.signal_write();
                    Ok(Ok(answer))
                }
                Err(error) => {
                    $db.roll_back().await;
                    Err(error)
                }
            }
        })
    };
}
pub(crate) use {reading, retrying, writing};

impl PgStore {
    /// Connects, and migrates the database as far as servers of the previous version can still use it.
    /// Blocks the thread.
    pub fn open(url: &str) -> Result<Self> {
        let server = Server::parse(url)?;
        let runtime = StoreRuntime::new()?;
        let (role, format) = runtime.block_on(prepare(&server))?;
        let pool = server.pool(role)?;
        let notifier = Notifier::new(pool.clone(), runtime.handle().clone());
        let writer =
            Writer::new(pool.clone(), server.place.clone(), notifier.clone(), runtime.handle().clone());
        let append_cache = AppendCache::default();
        let format = Arc::new(WrittenFormat::new(format));
        let store = Self { server, role, pool, writer, notifier, append_cache, format, runtime };
        // A failure, for example on a standby, is harmless: abandoned uploads only waste disk space,
        // and the next upload retries.
        let _ = store.runtime.block_on(store.sweep_uploads());
        Ok(store)
    }

    /// Runs a query that is not restricted to one tenant.
    async fn query_all_tenants(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        retrying!(self, {
            let db = StoreConnection::open_for_all_tenants(&self.pool, &self.server.place).await?;
            let rows = db.query(sql, params).await?;
            db.end_read();
            Ok(Ok(rows))
        })
    }

    /// Returns the format to write now. If a check for an upgrade is due, it runs in the background: waiting for it here
    /// would let a later append overtake this one.
    fn format_to_write(&self) -> u32 {
        if self.format.is_check_due() {
            let (format, pool, place) = (self.format.clone(), self.pool.clone(), self.server.place.clone());
            self.runtime.handle().spawn(async move {
                // After a failure, the next check is due in a second.
                let Ok(db) = StoreConnection::open_for_all_tenants(&pool, &place).await else { return };
                if let Ok(rows) = db.query(schema::APPLIED_STEPS, &[]).await {
                    format.set(schema::format_of(rows.first().and_then(|row| row.get(0))));
                    db.end_read();
                }
            });
        }
        self.format.current()
    }

    async fn open_connection(&self, tenant: &TenantId, mode: Mode) -> Result<StoreConnection> {
        StoreConnection::open(&self.pool, &self.server.place, tenant, mode).await
    }

    /// Deletes abandoned uploads of all tenants.
    async fn sweep_uploads(&self) -> Result<()> {
        for row in self.query_all_tenants(blob::IDLE_TENANTS, &[&UPLOAD_IDLE_S_MAX]).await? {
            let tenant: TenantId = row.get::<_, String>(0).parse().map_err(|error| self.damaged(error))?;
            self.runtime
                .wrap(async {
                    let db = self.open_connection(&tenant, Mode::Write).await?;
                    blob::sweep(&db).await?;
                    db.commit().await
                })
                .await?;
        }
        Ok(())
    }

    async fn split_blob(&self, scope: &Scope, blob: BlobHash, bytes: Vec<u8>) -> Result<()> {
        let chunks = BlobChunk::all_of(&bytes);
        writing!(self, scope, db => blob::split_blob(&db, blob, bytes.len(), &chunks).await)
    }

    /// Brings the tenant's search index up to date.
    async fn catch_up(&self, scope: &Scope) -> Result<()> {
        for _ in search::rounds() {
            let behind: bool = reading!(self, scope, db => search::is_behind(&db).await)?;
            if !behind || !writing!(self, scope, db => search::index_some(&db).await)? {
                break;
            }
        }
        Ok(())
    }
}

async fn prepare(server: &Server) -> Result<(DbRole, u32)> {
    let mut retries = RetryBudget::new();
    loop {
        match schema::migrate(server).await {
            Ok(prepared) => return Ok(prepared),
            Err(error) => retries.wait_for_retry(error).await?,
        }
    }
}

impl NamedDatabase for PgStore {
    fn place(&self) -> String {
        self.server.place.to_string()
    }
}

impl Drop for PgStore {
    fn drop(&mut self) {
        if self.notifier.is_due() {
            self.runtime.block_on(async {
                let _ = tokio::time::timeout(CLOSE_NOTIFY_MAX, self.notifier.flush()).await;
            });
        }
    }
}

/// Opens a session's log for a caller that may read it.
async fn open_log<'d>(
    db: &'d StoreConnection,
    scope: &Scope,
    session: &SessionId,
) -> Result<(LogRows<'d>, Summary)> {
    let row = find(db, scope, session, Right::Read, RowLock::No).await?;
    Ok((LogRows::open(db, row.pk, row.summary.inherited).await?, row.summary))
}

#[async_trait]
impl Sessions for PgStore {
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created> {
        writing!(self, scope, db => session::create(&db, scope, &new).await)
    }

    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head> {
        writing!(self, scope, db => fork::fork(&db, scope, &fork, self.format_to_write()).await)
    }

    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        reading!(self, scope, db => {
            Ok(find(&db, scope, session, Right::Read, RowLock::No).await?.summary)
        })
    }

    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        reading!(self, scope, db => session::list(&db, scope, filter).await)
    }

    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
        reading!(self, scope, db => session::children(&db, scope, session).await)
    }

    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
        writing!(self, scope, db => erase::erase(&db, scope, session, now).await)
    }

    async fn heads(&self, scope: &Scope, sessions: &[SessionId]) -> Result<Vec<Option<Seq>>> {
        reading!(self, scope, db => session::heads(&db, scope, sessions).await)
    }

    async fn restore_positions(
        &self,
        scope: &Scope,
        session: &SessionId,
        positions: &TurnPositions,
    ) -> Result<()> {
        writing!(self, scope, db => session::restore_positions(&db, scope, session, positions).await)
    }

    async fn change_mark(&self) -> Result<Option<u64>> {
        Ok(self.notifier.mark(&self.server, self.role))
    }

    async fn changed(&self, mark: u64) {
        self.notifier.changed(mark).await;
    }
}

#[async_trait]
impl Log for PgStore {
    async fn append(&self, scope: &Scope, append: Append) -> Result<Appended> {
        self.runtime.wrap(append::append(self, scope, append)).await
    }

    async fn read_after(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let limit = limit.min(PAGE_ROWS_MAX);
        reading!(self, scope, db => {
            open_log(&db, scope, session).await?.0.read_after(after, limit).await
        })
    }

    async fn read_proofs(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<StoredEntry>> {
        let (format, limit) = (self.format.current(), limit.min(PAGE_ROWS_MAX));
        reading!(self, scope, db => {
            open_log(&db, scope, session).await?.0.read_proofs(format, after, limit).await
        })
    }

    async fn read_kinds(
        &self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let limit = limit.min(PAGE_ROWS_MAX);
        reading!(self, scope, db => {
            open_log(&db, scope, session).await?.0.read_kinds(kinds, after, limit).await
        })
    }

    async fn read_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
        until: Until,
    ) -> Result<PathSlice> {
        reading!(self, scope, db => {
            let (log, summary) = open_log(&db, scope, session).await?;
            path::read_path(&log, &summary, at, until).await
        })
    }

    async fn walk_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        from: Option<Seq>,
        limit: usize,
    ) -> Result<Vec<Meta>> {
        reading!(self, scope, db => {
            let (log, summary) = open_log(&db, scope, session).await?;
            path::walk_path(&log, &summary, from, limit).await
        })
    }

    async fn nth_message(
        &self,
        scope: &Scope,
        session: &SessionId,
        leaf: Seq,
        count: u32,
    ) -> Result<Option<Seq>> {
        reading!(self, scope, db => {
            let (log, summary) = open_log(&db, scope, session).await?;
            path::read_in_tree(&log, &summary.id, leaf).await?;
            log.nth_message(leaf, count).await
        })
    }

    async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record> {
        reading!(self, scope, db => {
            let (log, summary) = open_log(&db, scope, session).await?;
            log.record(seq).await?.ok_or_else(|| validate::no_entry(&summary.id, seq))
        })
    }

    async fn find_entries(&self, scope: &Scope, session: &SessionId, id_prefix: &str) -> Result<Vec<Record>> {
        let range = EntryId::prefix_range(id_prefix);
        reading!(self, scope, db => {
            let (log, _) = open_log(&db, scope, session).await?;
            match range {
                Some((low, high)) => log.records_between(low, high).await,
                None => Ok(Vec::new()),
            }
        })
    }

    async fn first_at_or_after(&self, scope: &Scope, session: &SessionId, id: EntryId) -> Result<Seq> {
        reading!(self, scope, db => {
            let (log, summary) = open_log(&db, scope, session).await?;
            log.first_at_or_after(id, summary.head.seq).await
        })
    }
}

#[async_trait]
impl Leases for PgStore {
    async fn take_lease(
        &self,
        scope: &Scope,
        session: &SessionId,
        holder: &str,
        ttl_ms: i64,
    ) -> Result<Lease> {
        writing!(self, scope, db => lease::take(&db, scope, session, holder, ttl_ms).await)
    }

    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()> {
        writing!(self, scope, db => lease::release(&db, scope, lease).await)
    }
}

#[async_trait]
impl Authorities for PgStore {
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority> {
        match writing!(self, scope, db => authority::settle(&db, scope, session).await) {
            // On a standby, the record is derived from the audit log on every read.
            Err(StoreError::ReadOnly { .. }) => reading!(self, scope, db => {
                let mut summary = find(&db, scope, session, Right::Read, RowLock::No).await?.summary;
                authority::derive(&db, scope, &mut summary).await?;
                Ok(summary.authority.unwrap_or_default())
            }),
            settled => settled,
        }
    }

    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
        writing!(self, scope, db => authority::grant_model(&db, scope, session, model).await)
    }
}

#[async_trait]
impl Search for PgStore {
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        validate::check_query(query)?;
        match self.catch_up(scope).await {
            // On a standby, a search finds the entries that are already indexed.
            Ok(()) | Err(StoreError::ReadOnly { .. }) => {}
            Err(error) => return Err(error),
        }
        reading!(self, scope, db => search::search(&db, scope, query).await)
    }
}

#[async_trait]
impl Blobs for PgStore {
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>> {
        Ok(Box::new(BlobUpload::new(PgUpload::new(self, scope.clone()))))
    }

    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64> {
        reading!(self, scope, db => blob::size(&db, scope, blob).await)
    }

    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>> {
        let found = reading!(self, scope, db => blob::read(&db, scope, blob, from, limit).await)?;
        match found {
            BlobRead::Span(bytes) => Ok(bytes),
            BlobRead::Unsplit(bytes) => {
                let span = slice(&bytes, from, limit).to_vec();
                // Split the blob, so that it is read whole only once. If the database is read-only,
                // the blob stays unsplit.
                let _ = self.split_blob(scope, blob, bytes).await;
                Ok(span)
            }
        }
    }
}

#[async_trait]
impl Audit for PgStore {
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
        writing!(self, scope, db => audit::write_line(&db, scope, note.clone(), now).await)
    }

    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        reading!(self, scope, db => audit::read_lines(&db, scope, session, after, limit).await)
    }

    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        reading!(self, scope, db => audit::read_since(&db, scope, session, since, limit).await)
    }
}

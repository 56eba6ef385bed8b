//! The SQLite store: one file, the embedded default.
//!
//! [`writer`] serializes writes and lets many callers share a transaction. [`reader`] pools read
//! connections. Several processes may use the same file at once. Most other modules contain
//! plain functions that take a [`connection`]:
//!
//! - [`schema`] — the layout
//! - [`append`] and [`log`] — the entries; [`proofs`] — their hashes
//! - [`path`] — reads of a path
//! - [`session`], [`session_table`] and [`fork`] — session rows, lists and forks
//! - [`search`] and [`index`] — full-text search
//! - [`blob`] and [`blob_upload`] — blobs
//! - [`erase`] — erasure
//! - [`sync`] and [`checkpoint`] — the write-ahead log
//! - [`recovery`], [`seal`] and [`head`] — detection of damage
//! - [`check`] — the checks of `sapwood doctor`

mod append;
mod append_cache;
mod audit;
mod authority;
mod blob;
mod blob_upload;
mod check;
mod checkpoint;
mod connection;
pub mod contents;
mod entry_index;
mod erase;
mod error;
mod fork;
mod head;
mod index;
mod keys;
mod lease;
mod log;
mod memories;
mod path;
mod proofs;
mod read_batcher;
mod reader;
mod rebuild_summary;
mod records;
mod recovery;
mod reserve;
mod schema;
mod seal;
mod search;
mod session;
mod session_table;
mod sync;
mod unindexed;
mod visibility;
mod watch;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::config::DbConfig;
use sapwood_core::entry::Meta;
use sapwood_core::entry::proof::StoredEntry;
use sapwood_core::port::store::{
    Append, Appended, Audit, AuditLine, AuditNote, Authorities, BlobSink, Blobs, Checksums, Created, Finding,
    Fork, Hit, Lease, Leases, ListFilter, Log, NewSession, PAGE_ROWS_MAX, Page, PathSlice, Repair, Result,
    SealReport, Search, SearchQuery, Sessions, StoreStatus, Until, Upkeep,
};
use sapwood_core::project::summary::{Summary, TurnPositions};
use sapwood_core::tree::{Head, nth_message};
use sapwood_core::{
    Authority, BlobHash, EntryId, Kind, Record, Right, Scope, Seq, SessionId, StoreError, TimestampMs,
};

use crate::blob_chunks::{BlobChunk, BlobRead, slice};
use crate::blob_upload::BlobUpload;
use crate::lease::{BootClock, LeaseClock};
use crate::path_health::PathHealth;
use crate::{Durability, OpenOptions, permissions, validate};
use blob_upload::SqliteUpload;
use checkpoint::Checkpointer;
use connection::{Mode, StoreConnection};
use error::AtPath;
use head::{HeadOnClose, Position};
use log::LogRows;
use read_batcher::ReadBatcher;
use reader::Readers;
use reserve::SpaceReserve;
use session_table::find;
use watch::Watcher;
use writer::{CommitThread, Writer, blocking};

/// An append of at least this many entries is treated as an import: the writer thread commits it
/// while the caller prepares the next batch.
const IMPORT_DRAFTS_MIN: usize = 64;

/// Maximum number of chunks of abandoned uploads that are deleted when a store is opened. New
/// uploads delete the others.
const SWEPT_CHUNKS_MAX: usize = 64;

pub struct SqliteStore {
    path: PathBuf,
    health: PathHealth,
    durability: Durability,
    reserve: SpaceReserve,
    lease_clock: Arc<dyn LeaseClock>,
    // Dropped in this order: the last connection to close checkpoints the write-ahead log, so that
    // connection must be writable.
    readers: Readers,
    read_batcher: ReadBatcher,
    path_readers: Readers,
    watcher: Watcher,
    _checkpointer: Checkpointer,
    /// What was repaired when the store was opened.
    recovered: Vec<Finding>,
    writer: Arc<Writer>,
    head_on_close: HeadOnClose,
}

/// Reads the newest entry while the store is still open. It is noted after the store was closed.
impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.head_on_close.position = self.readers.with_connection(Position::of).ok();
    }
}

impl SqliteStore {
    /// Opens a file and creates it if it does not exist. Blocks the thread.
    pub fn open(path: PathBuf, options: OpenOptions) -> Result<Self> {
        create_private_file(&path)?;
        let key = options.key;
        // A file that is not a Sapwood store, or is too new, must not be changed. So an existing
        // write-ahead log is not checkpointed if the migration fails.
        let keep_wal = connection::has_wal(&path);
        let (mut db, recovered) = recovery::open_first(&path, key.as_ref(), options.damaged_log)?;
        db.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep_wal).at(&path)?;
        schema::migrate(&db.conn, &path)?;
        sweep_uploads(&db);
        db.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).at(&path)?;
        let readers = Readers::new(Mode::Read, path.clone(), key.clone());
        let path_readers = Readers::new(Mode::ReadMapped, path.clone(), key.clone());
        let watcher = Watcher::new(path.clone(), key.clone());
        let durability = options.durability;
        let head_on_close = HeadOnClose { path: path.clone(), position: None };
        let _checkpointer = Checkpointer::start(&mut db, key)?;
        Ok(Self {
            health: PathHealth::new(&path),
            reserve: SpaceReserve::create(&path),
            path,
            durability,
            lease_clock: Arc::new(BootClock::default()),
            readers,
            read_batcher: ReadBatcher::default(),
            path_readers,
            watcher,
            _checkpointer,
            recovered,
            writer: Arc::new(Writer::start(db, durability)?),
            head_on_close,
        })
    }

    /// Replaces the lease clock, for tests that need to move it.
    pub fn with_lease_clock(mut self, clock: Arc<dyn LeaseClock>) -> Self {
        self.lease_clock = clock;
        self
    }

    /// Checkpoints the write-ahead log, which contains erased data until then.
    fn checkpoint_wal(&self) -> Result<()> {
        self.writer.run_exclusive(|db| db.conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").at(&db.path))
    }

    /// Splits an old blob that is stored in its row although it is larger than a chunk, so that
    /// later reads do not read the whole blob. If the file is read-only, the blob stays unsplit.
    async fn split_into_chunks(&self, scope: &Scope, blob: BlobHash, bytes: Vec<u8>) {
        let (scope, chunks, size) = (scope.clone(), BlobChunk::all_of(&bytes), bytes.len() as u64);
        drop(bytes);
        let _ = self.writer.write(move |db| blob::split_into_chunks(db, &scope, blob, size, &chunks)).await;
    }

    /// Runs `work` on a session that the caller may read.
    fn read_session<T>(
        &self,
        scope: &Scope,
        session: &SessionId,
        work: impl FnOnce(&mut LogRows<'_>, &Summary) -> Result<T>,
    ) -> Result<T> {
        self.readers.read(|db| with_session(db, scope, session, work))
    }
}

fn with_session<T>(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
    work: impl FnOnce(&mut LogRows<'_>, &Summary) -> Result<T>,
) -> Result<T> {
    let row = find(db, scope, session, Right::Read)?;
    work(&mut LogRows::with_inherited(db, row.pk, row.summary.inherited)?, &row.summary)
}

/// Deletes some chunks of abandoned uploads. Errors are ignored, because the file may be read-only.
fn sweep_uploads(db: &StoreConnection) {
    for _ in 0..SWEPT_CHUNKS_MAX {
        if !matches!(blob::find_idle(db), Ok(Some(_))) || db.in_transaction(|| blob::sweep(db)).is_err() {
            return;
        }
    }
}

/// Creates the file so that only its owner can access it. SQLite would create a file that other
/// users can read.
fn create_private_file(path: &Path) -> Result<()> {
    let failed = |source| StoreError::Io { place: path.display().to_string(), source };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        permissions::create_dir(parent).map_err(failed)?;
    }
    match permissions::file_options().write(true).create_new(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

#[async_trait]
impl Sessions for SqliteStore {
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created> {
        let scope = scope.clone();
        self.writer.write(move |db| session::create(db, &scope, &new)).await
    }

    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head> {
        let scope = scope.clone();
        self.writer.write(move |db| fork::fork(db, &scope, fork)).await
    }

    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        self.read_batcher.summary(&self.readers, scope, session).await
    }

    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        self.readers.read(|db| session::list(db, scope, filter))
    }

    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
        self.readers.read(|db| session::children(db, scope, session))
    }

    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
        let erase = || {
            let (scope, session) = (scope.clone(), session.clone());
            self.writer.write(move |db| erase::erase(db, &scope, &session, now))
        };
        match erase().await {
            Err(StoreError::DiskFull { .. }) => {
                // The log's own space can be used as well.
                let _ = self.checkpoint_wal();
                self.reserve.release();
                let erased = erase().await.and_then(|()| self.checkpoint_wal());
                self.reserve.refill();
                erased
            }
            erased => erased.and_then(|()| self.checkpoint_wal()),
        }
    }

    async fn heads(&self, scope: &Scope, sessions: &[SessionId]) -> Result<Vec<Option<Seq>>> {
        self.readers.read(|db| watch::heads(db, scope, sessions))
    }

    async fn restore_positions(
        &self,
        scope: &Scope,
        session: &SessionId,
        positions: &TurnPositions,
    ) -> Result<()> {
        let (scope, session, positions) = (scope.clone(), session.clone(), positions.clone());
        self.writer.write(move |db| session::restore_positions(db, &scope, &session, &positions)).await
    }

    async fn change_mark(&self) -> Result<Option<u64>> {
        self.watcher.change_mark().map(Some)
    }
}

#[async_trait]
impl Log for SqliteStore {
    async fn append(&self, scope: &Scope, append: Append) -> Result<Appended> {
        let scope = scope.clone();
        let packed = append::pack_bodies(&append.drafts, &append.salts)?;
        let thread = if append.drafts.len() >= IMPORT_DRAFTS_MIN {
            CommitThread::Writer
        } else {
            CommitThread::Caller
        };
        let clock = self.lease_clock.clone();
        self.writer.write_in(thread, move |db| append::append(db, &scope, append, packed, &*clock)).await
    }

    /// Appends are packed and queued on their first poll, and the queue is FIFO.
    fn keeps_order(&self) -> bool {
        true
    }

    async fn read_after(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let limit = limit.min(PAGE_ROWS_MAX);
        self.read_session(scope, session, |log, _| log.read_after(after, limit))
    }

    async fn read_proofs(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<StoredEntry>> {
        let limit = limit.min(PAGE_ROWS_MAX);
        self.read_session(scope, session, |log, _| log.read_proofs(after, limit))
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
        self.read_session(scope, session, |log, _| log.read_kinds(kinds, after, limit))
    }

    async fn read_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
        until: Until,
    ) -> Result<PathSlice> {
        self.path_readers.read(|db| {
            with_session(db, scope, session, |log, summary| path::read_path(log, summary, at, until))
        })
    }

    async fn walk_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        from: Option<Seq>,
        limit: usize,
    ) -> Result<Vec<Meta>> {
        self.read_session(scope, session, |log, summary| path::walk_path(log, summary, from, limit))
    }

    async fn nth_message(
        &self,
        scope: &Scope,
        session: &SessionId,
        leaf: Seq,
        count: u32,
    ) -> Result<Option<Seq>> {
        self.read_session(scope, session, |log, summary| {
            path::read_in_tree(log, &summary.id, leaf)?;
            nth_message(leaf, count, log)
        })
    }

    async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record> {
        self.read_session(scope, session, |log, summary| {
            log.record(seq)?.ok_or_else(|| validate::no_entry(&summary.id, seq))
        })
    }

    async fn find_entries(&self, scope: &Scope, session: &SessionId, id_prefix: &str) -> Result<Vec<Record>> {
        let range = EntryId::prefix_range(id_prefix);
        self.read_session(scope, session, |log, _| match range {
            Some((low, high)) => log.records_between(low, high),
            None => Ok(Vec::new()),
        })
    }

    async fn first_at_or_after(&self, scope: &Scope, session: &SessionId, id: EntryId) -> Result<Seq> {
        self.read_session(scope, session, |log, _| log.first_at_or_after(id))
    }
}

#[async_trait]
impl Leases for SqliteStore {
    async fn take_lease(
        &self,
        scope: &Scope,
        session: &SessionId,
        holder: &str,
        ttl_ms: i64,
    ) -> Result<Lease> {
        let (scope, session, holder) = (scope.clone(), session.clone(), holder.to_owned());
        let clock = self.lease_clock.clone();
        self.writer
            .write(move |db| {
                let row = find(db, &scope, &session, Right::Write)?;
                db.append_cache.evict(row.pk);
                lease::take(db, &row, &holder, ttl_ms, &*clock)
            })
            .await
    }

    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()> {
        let (scope, lease, clock) = (scope.clone(), lease.clone(), self.lease_clock.clone());
        self.writer
            .write(move |db| {
                let row = find(db, &scope, &lease.session, Right::Write)?;
                db.append_cache.evict(row.pk);
                lease::release(db, &row, &lease, &*clock)
            })
            .await
    }
}

#[async_trait]
impl Authorities for SqliteStore {
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority> {
        let (owned_scope, id) = (scope.clone(), session.clone());
        let settled = self.writer.write(move |db| {
            let mut row = find(db, &owned_scope, &id, Right::Read)?;
            db.append_cache.evict(row.pk);
            authority::settle(db, &owned_scope, &mut row)?;
            Ok(row.summary.authority.unwrap_or_default())
        });
        match settled.await {
            // In a read-only file the record is derived from the audit log on every read.
            Err(StoreError::ReadOnly { .. }) => self.readers.read(|db| {
                let mut summary = find(db, scope, session, Right::Read)?.summary;
                authority::derive(db, scope, &mut summary)?;
                Ok(summary.authority.unwrap_or_default())
            }),
            settled => settled,
        }
    }

    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
        let (scope, session, model) = (scope.clone(), session.clone(), model.to_owned());
        self.writer.write(move |db| authority::grant_model(db, &scope, &session, model)).await
    }
}

#[async_trait]
impl Search for SqliteStore {
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        validate::check_query(query)?;
        if self.readers.with_connection(search::lag)? > 0 {
            match self.writer.run_exclusive(search::catch_up) {
                // A read-only file can still be searched up to the last indexed entry.
                Ok(()) | Err(StoreError::ReadOnly { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.readers.read(|db| search::search(db, scope, query))
    }
}

#[async_trait]
impl Blobs for SqliteStore {
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>> {
        let target = SqliteUpload::new(Arc::clone(&self.writer), scope.clone());
        Ok(Box::new(BlobUpload::new(target)))
    }

    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64> {
        self.readers.read(|db| blob::size(db, scope, blob))
    }

    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>> {
        match self.readers.read(|db| blob::read(db, scope, blob, from, limit))? {
            BlobRead::Span(bytes) => Ok(bytes),
            BlobRead::Unsplit(bytes) => {
                let span = slice(&bytes, from, limit).to_vec();
                self.split_into_chunks(scope, blob, bytes).await;
                Ok(span)
            }
        }
    }
}

#[async_trait]
impl Audit for SqliteStore {
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |db| audit::write_line(db, &scope, note, now)).await
    }

    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        self.readers.read(|db| audit::read_lines(db, scope, session, after, limit))
    }

    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        self.readers.read(|db| audit::read_since(db, scope, session, since, limit))
    }
}

#[async_trait]
impl Upkeep for SqliteStore {
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
        let mut findings = self.recovered.clone();
        findings.extend(self.writer.run_exclusive(|db| check::check(db, scope, repair))?);
        Ok(findings)
    }

    async fn checksums(&self) -> Result<Option<Checksums>> {
        self.readers.read(|db| Ok(Some(seal::checksums_of(&db.conn))))
    }

    async fn add_checksums(&self) -> Result<Option<Checksums>> {
        self.writer.run_exclusive(seal::seal).map(Some)
    }

    async fn seal_entries(&self, scope: &Scope) -> Result<SealReport> {
        let mut sealer = self.writer.run_exclusive(|db| proofs::Sealer::new(db, scope))?;
        while self.writer.run_exclusive(|db| sealer.seal_some(db))? {}
        Ok(SealReport { entries: sealer.sealed, ..SealReport::default() })
    }

    async fn status(&self) -> Result<StoreStatus> {
        let layout = self.readers.read(|db| schema::version_of(&db.conn).at(&db.path))?;
        let (layout, layout_newest) = (Some(layout), Some(schema::newest()));
        let store = format!("sqlite:{}", self.path.display());
        Ok(StoreStatus { layout, layout_newest, ..StoreStatus::current("sqlite", store) })
    }

    async fn check_writable(&self) -> Result<()> {
        blocking(|| self.health.check())
    }

    async fn flush(&self) -> Result<()> {
        self.writer.run_exclusive(|db| db.conn.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").at(&db.path))
    }

    fn describe(&self) -> String {
        format!("sqlite:{} (durability {:?})", self.path.display(), self.durability)
    }
}

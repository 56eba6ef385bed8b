//! The embedded default: one file, in SQLite.
//!
//! [`writer`] lets one caller write at a time, and many share a transaction; [`reader`] keeps connections that read. What
//! they do is in the other files, as plain functions of a [`desk`] (a connection): [`schema`] the layout, [`append`] and
//! [`log`] the entries, [`path`] what a context needs, [`session`] the rows of lists, [`search`] and [`index`] full text, [`blob`] and [`sink`] bytes beside the log, [`erase`]
//! what erasing means, [`sync`] and [`fold`] see to the write-ahead log, [`check`] is the doctor's part. Several processes may use the same file at once.

mod append;
mod audit;
mod authority;
mod blob;
mod check;
mod desk;
mod erase;
mod fault;
mod fold;
mod gather;
mod hot;
mod index;
mod keys;
mod lease;
mod log;
mod memories;
mod path;
mod places;
mod reader;
mod schema;
mod search;
mod session;
mod sight;
mod sink;
mod sync;
mod watch;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::config::DbConfig;
use sapwood_core::port::store::{
    Append, Appended, Audit, AuditLine, AuditNote, Authorities, BlobSink, Blobs, Created, Finding, Fork, Hit,
    Lease, Leases, ListFilter, Log, NewSession, PAGE_ROWS_MAX, Page, PathSlice, Repair, Result, Search,
    SearchQuery, Sessions, Until, Upkeep,
};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::{Head, nth_message};
use sapwood_core::{
    Authority, BlobHash, EntryId, Kind, Record, Right, Scope, Seq, SessionId, StoreError, TimestampMs,
};

use crate::lease::{BootClock, LeaseClock};
use crate::pieces::{Piece, slice};
use crate::place::Place;
use crate::{Durability, OpenOptions, private, rules};
use blob::Found;
use desk::{Desk, Mode};
use fault::Fault;
use fold::Folder;
use gather::Gathering;
use log::LogRows;
use reader::Readers;
use session::find;
use sink::Sink;
use watch::Watcher;
use writer::{Turn, Writer, blocking};

/// So many entries at once are an import's: the writer's thread commits them, and the caller gets the next ready meanwhile.
const MANY_DRAFTS: usize = 64;

/// Pieces of uploads that nobody goes on with, taken away when a store is opened; the others go when new ones come.
const SWEPT_PIECES_MAX: usize = 64;

pub struct SqliteStore {
    path: PathBuf,
    place: Place,
    durability: Durability,
    lease_clock: Arc<dyn LeaseClock>,
    // Dropped in this order: the last connection to close folds the write-ahead log into the file, so it must be one
    // that can write.
    readers: Readers,
    gathering: Gathering,
    path_readers: Readers,
    watcher: Watcher,
    _folder: Folder,
    writer: Arc<Writer>,
}

impl SqliteStore {
    /// Opens a file, and makes it if there is none. Blocks while it does.
    pub fn open(path: PathBuf, options: OpenOptions) -> Result<Self> {
        make_private_file(&path)?;
        let key = options.key;
        // A file that turns out not to be ours, or too new, is left as it is, with a log that others left beside it.
        let keep_wal = desk::has_wal(&path);
        let mut desk = Desk::open(&path, Mode::Write, key.as_ref())?;
        desk.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep_wal).at(&path)?;
        schema::migrate(&desk.conn, &path)?;
        sweep_uploads(&desk);
        desk.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).at(&path)?;
        let readers = Readers::new(Mode::Read, path.clone(), key.clone());
        let path_readers = Readers::new(Mode::ReadMapped, path.clone(), key.clone());
        let watcher = Watcher::new(path.clone(), key.clone());
        let durability = options.durability;
        let _folder = Folder::start(&mut desk, key)?;
        Ok(Self {
            place: Place::new(&path),
            path,
            durability,
            lease_clock: Arc::new(BootClock::default()),
            readers,
            gathering: Gathering::default(),
            path_readers,
            watcher,
            _folder,
            writer: Arc::new(Writer::start(desk, durability)?),
        })
    }

    /// Lets leases go by another clock, which a test can move.
    pub fn with_lease_clock(mut self, clock: Arc<dyn LeaseClock>) -> Self {
        self.lease_clock = clock;
        self
    }

    /// What was erased is still in the write-ahead log until that is folded into the file.
    fn fold_log(&self) -> Result<()> {
        self.writer.alone(|desk| desk.conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").at(&desk.path))
    }

    /// Cuts up an old blob that lies in its row although it is larger than a piece, so that it is read whole only once. Where
    /// that cannot be written, it is read as it is.
    async fn cut_up(&self, pk: i64, blob: BlobHash, bytes: Vec<u8>) {
        let (pieces, size) = (Piece::all_of(&bytes), bytes.len() as u64);
        drop(bytes);
        let _ = self.writer.write(move |desk| blob::cut_up(desk, pk, blob, size, &pieces)).await;
    }

    /// Runs `work` on a session that the caller may use so.
    fn read_session<T>(
        &self,
        scope: &Scope,
        session: &SessionId,
        work: impl FnOnce(&mut LogRows<'_>, &Summary) -> Result<T>,
    ) -> Result<T> {
        self.readers.read(|desk| with_session(desk, scope, session, work))
    }
}

fn with_session<T>(
    desk: &Desk,
    scope: &Scope,
    session: &SessionId,
    work: impl FnOnce(&mut LogRows<'_>, &Summary) -> Result<T>,
) -> Result<T> {
    let row = find(desk, scope, session, Right::Read)?;
    work(&mut LogRows::with_inherited(desk, row.pk, row.summary.inherited)?, &row.summary)
}

/// Takes away some of what old uploads left that were never finished. A file that cannot be written keeps it.
fn sweep_uploads(desk: &Desk) {
    for _ in 0..SWEPT_PIECES_MAX {
        if !matches!(blob::find_idle(desk), Ok(Some(_))) || desk.in_transaction(|| blob::sweep(desk)).is_err()
        {
            return;
        }
    }
}

/// SQLite would make the file readable for others.
fn make_private_file(path: &Path) -> Result<()> {
    let failed = |source| StoreError::Io { place: path.display().to_string(), source };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        private::create_dir(parent).map_err(failed)?;
    }
    match private::file_options().write(true).create_new(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

#[async_trait]
impl Sessions for SqliteStore {
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created> {
        let scope = scope.clone();
        self.writer.write(move |desk| session::create(desk, &scope, &new)).await
    }

    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head> {
        let scope = scope.clone();
        self.writer.write(move |desk| session::fork(desk, &scope, fork)).await
    }

    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        self.gathering.summary(&self.readers, scope, session).await
    }

    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        self.readers.read(|desk| session::list(desk, scope, filter))
    }

    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
        self.readers.read(|desk| session::children(desk, scope, session))
    }

    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
        let (scope, session) = (scope.clone(), session.clone());
        self.writer.write(move |desk| erase::erase(desk, &scope, &session, now)).await?;
        self.fold_log()
    }

    async fn heads(&self, scope: &Scope, sessions: &[SessionId]) -> Result<Vec<Option<Seq>>> {
        self.readers.read(|desk| watch::heads(desk, scope, sessions))
    }

    async fn change_mark(&self) -> Result<Option<u64>> {
        self.watcher.change_mark().map(Some)
    }
}

#[async_trait]
impl Log for SqliteStore {
    async fn append(&self, scope: &Scope, append: Append) -> Result<Appended> {
        let scope = scope.clone();
        let packed = append::pack_bodies(&append.drafts)?;
        let turn = if append.drafts.len() >= MANY_DRAFTS { Turn::Thread } else { Turn::Caller };
        let clock = self.lease_clock.clone();
        self.writer.write_in(turn, move |desk| append::append(desk, &scope, append, packed, &*clock)).await
    }

    /// They are packed and queued when they are first polled, and the queue has one end.
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
        self.path_readers.read(|desk| {
            with_session(desk, scope, session, |log, summary| path::read_path(log, summary, at, until))
        })
    }

    async fn nth_message(
        &self,
        scope: &Scope,
        session: &SessionId,
        leaf: Seq,
        count: u32,
    ) -> Result<Option<Seq>> {
        self.read_session(scope, session, |log, summary| {
            path::check_in_tree(log, &summary.id, leaf)?;
            nth_message(leaf, count, log)
        })
    }

    async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record> {
        self.read_session(scope, session, |log, summary| {
            log.record(seq)?.ok_or_else(|| rules::no_entry(&summary.id, seq))
        })
    }

    async fn find_entries(&self, scope: &Scope, session: &SessionId, id_prefix: &str) -> Result<Vec<Record>> {
        let range = EntryId::prefix_range(id_prefix);
        self.read_session(scope, session, |log, _| match range {
            Some((low, high)) => log.records_between(low, high),
            None => Ok(Vec::new()),
        })
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
            .write(move |desk| {
                let row = find(desk, &scope, &session, Right::Write)?;
                desk.hot.forget(row.pk);
                lease::take(desk, &row, &holder, ttl_ms, &*clock)
            })
            .await
    }

    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()> {
        let (scope, lease, clock) = (scope.clone(), lease.clone(), self.lease_clock.clone());
        self.writer
            .write(move |desk| {
                let row = find(desk, &scope, &lease.session, Right::Write)?;
                desk.hot.forget(row.pk);
                lease::release(desk, &row, &lease, &*clock)
            })
            .await
    }
}

#[async_trait]
impl Authorities for SqliteStore {
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority> {
        let (owned_scope, id) = (scope.clone(), session.clone());
        let settled = self.writer.write(move |desk| {
            let mut row = find(desk, &owned_scope, &id, Right::Read)?;
            desk.hot.forget(row.pk);
            authority::settle(desk, &owned_scope, &mut row)?;
            Ok(row.summary.authority.unwrap_or_default())
        });
        match settled.await {
            // A file that cannot be written is read as the audit says.
            Err(StoreError::ReadOnly { .. }) => self.readers.read(|desk| {
                let mut summary = find(desk, scope, session, Right::Read)?.summary;
                rules::settle_summary(&mut summary, authority::trace(desk, scope, session)?);
                Ok(summary.authority.unwrap_or_default())
            }),
            settled => settled,
        }
    }

    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
        let (scope, session, model) = (scope.clone(), session.clone(), model.to_owned());
        self.writer.write(move |desk| authority::grant_model(desk, &scope, &session, model)).await
    }
}

#[async_trait]
impl Search for SqliteStore {
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        rules::check_query(query)?;
        if self.readers.glance(search::lag)? > 0 {
            match self.writer.alone(search::catch_up) {
                // A file that cannot be written can still be searched, as far as it is indexed.
                Ok(()) | Err(StoreError::ReadOnly { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.readers.read(|desk| search::search(desk, scope, query))
    }
}

#[async_trait]
impl Blobs for SqliteStore {
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>> {
        Ok(Box::new(Sink::new(Arc::clone(&self.writer), scope.clone())))
    }

    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64> {
        self.readers.read(|desk| blob::size(desk, scope, blob))
    }

    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>> {
        match self.readers.read(|desk| blob::read(desk, scope, blob, from, limit))? {
            Found::Span(bytes) => Ok(bytes),
            Found::Uncut { pk, bytes } => {
                let span = slice(&bytes, from, limit).to_vec();
                self.cut_up(pk, blob, bytes).await;
                Ok(span)
            }
        }
    }
}

#[async_trait]
impl Audit for SqliteStore {
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |desk| audit::write_line(desk, &scope, note, now)).await
    }

    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        self.readers.read(|desk| audit::read_lines(desk, scope, session, after, limit))
    }

    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        self.readers.read(|desk| audit::read_since(desk, scope, session, since, limit))
    }
}

#[async_trait]
impl Upkeep for SqliteStore {
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
        self.writer.alone(|desk| check::check(desk, scope, repair))
    }

    async fn check_writable(&self) -> Result<()> {
        blocking(|| self.place.check())
    }

    async fn flush(&self) -> Result<()> {
        self.writer.alone(|desk| desk.conn.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").at(&desk.path))
    }

    fn describe(&self) -> String {
        format!("sqlite:{} (durability {:?})", self.path.display(), self.durability)
    }
}

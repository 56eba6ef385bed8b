//! Many servers, one database: PostgreSQL.
//!
//! [`connect`] gets there; a [`desk`] is a connection in a transaction that has named its tenant, and what is done at one is
//! in the other files, as plain functions: [`schema`] the layout, [`append`] with its [`job`]s and [`known`] things,
//! [`writer`] the group commit, [`log`] and [`path`] the entries, [`session`] the rows of lists, [`search`] full text,
//! [`blob`] and [`sink`] bytes beside the log, [`erase`] what erasing means, [`ear`] wakes readers elsewhere, [`check`] is the doctor's part.
//!
//! Every statement names the tenant, and the tables' policies fence what one might forget (I9). An append is one round trip
//! on the version of its session that it was prepared on: leases, fences, expected heads and rights are checked by the
//! rules all stores share, and the version makes the check hold when it is written (I5).

mod append;
mod audit;
mod authority;
mod blob;
mod check;
mod connect;
mod desk;
mod ear;
mod erase;
mod fault;
#[cfg(feature = "bench")]
pub mod floor;
mod job;
mod keys;
mod known;
mod lease;
mod log;
mod memories;
mod path;
mod refold;
mod schema;
mod search;
mod session;
mod sight;
mod sink;
mod tls;
mod trust;
mod writer;

use async_trait::async_trait;
use deadpool_postgres::Pool;
use sapwood_core::port::store::{
    Append, Appended, Audit, AuditLine, AuditNote, Authorities, BlobSink, Blobs, Created, Finding, Fork, Hit,
    Lease, Leases, ListFilter, Log, NewSession, PAGE_ROWS_MAX, Page, PathSlice, Repair, Result, Search,
    SearchQuery, Sessions, Until, Upkeep,
};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::Head;
use sapwood_core::{
    Authority, BlobHash, EntryId, Kind, Record, Right, Scope, Seq, SessionId, StoreError, TenantId,
    TimestampMs,
};
use tokio_postgres::Row;

use crate::pieces::{Piece, UPLOAD_IDLE_S_MAX, slice};
use crate::rules;
use append::Hot;
use blob::Found;
use connect::{Acting, Home, Server};
use desk::{Desk, Mode, Params};
use ear::Mouth;
use fault::Patience;
use log::LogRows;
use session::{Hold, find};
use sink::Sink;
use writer::Writer;

/// How long the last wake-up may take when a store is closed.
const LAST_WORDS: std::time::Duration = std::time::Duration::from_millis(200);

pub struct PgStore {
    server: Server,
    acting: Acting,
    pool: Pool,
    writer: Writer,
    mouth: Mouth,
    hot: Hot,
    /// Dropped last: the others live in it.
    home: Home,
}

/// Reads in one snapshot, and again if the connection was lost.
macro_rules! reading {
    ($store:expr, $scope:expr, $desk:ident => $work:expr) => {
        $store
            .home
            .inside(async {
                let mut patience = $crate::postgres::fault::Patience::new();
                loop {
                    let opened = $crate::postgres::desk::Desk::open(
                        &$store.pool,
                        &$store.server.place,
                        &$scope.tenant,
                        $crate::postgres::desk::Mode::Read,
                    )
                    .await;
                    let error = match opened {
                        Ok($desk) => match async { $work }.await {
                            Err(error @ sapwood_core::StoreError::Unreachable { .. }) => error,
                            answer => {
                                $desk.leave();
                                break answer;
                            }
                        },
                        Err(error) => error,
                    };
                    if let Err(error) = patience.bear(error).await {
                        break Err(error);
                    }
                }
            })
            .await
    };
}

/// Writes in one transaction. It is done again if it is certain that nothing was written: the connection was lost before the
/// end, or another transaction was in the way.
macro_rules! writing {
    ($store:expr, $scope:expr, $desk:ident => $work:expr) => {
        $store
            .home
            .inside(async {
                let mut patience = $crate::postgres::fault::Patience::new();
                loop {
                    let opened = $crate::postgres::desk::Desk::open(
                        &$store.pool,
                        &$store.server.place,
                        &$scope.tenant,
                        $crate::postgres::desk::Mode::Write,
                    )
                    .await;
                    let error = match opened {
                        Ok($desk) => match async { $work }.await {
                            Ok(answer) => match $desk.commit().await {
                                Ok(()) => {
                                    $store.mouth.tell_others();
                                    break Ok(answer);
                                }
                                Err(error) => $crate::postgres::desk::not_known(error),
                            },
                            Err(error) => {
                                $desk.roll_back().await;
                                error
                            }
                        },
                        Err(error) => error,
                    };
                    if let Err(error) = patience.bear(error).await {
                        break Err(error);
                    }
                }
            })
            .await
    };
}
pub(crate) use {reading, writing};

impl PgStore {
    /// Connects, and brings the database's layout up to date. Blocks while it does.
    pub fn open(url: &str) -> Result<Self> {
        let server = Server::parse(url)?;
        let home = Home::new()?;
        let acting = home.block_on(prepare(&server))?;
        let pool = server.pool(acting)?;
        let mouth = Mouth::new(pool.clone(), home.handle().clone());
        let writer = Writer::new(pool.clone(), server.place.clone(), mouth.clone(), home.handle().clone());
        let store = Self { server, acting, pool, writer, mouth, hot: Hot::default(), home };
        // Only room is at stake: a standby cannot do it, and the next upload tries again.
        let _ = store.home.block_on(store.sweep_uploads());
        Ok(store)
    }

    fn damaged(&self, what: impl ToString) -> StoreError {
        StoreError::Damaged { place: self.server.place.to_string(), what: what.to_string() }
    }

    /// Asks before a tenant is known.
    async fn ask_at_door(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        self.home
            .inside(async {
                let mut patience = Patience::new();
                loop {
                    let asked = async {
                        let desk = Desk::open_door(&self.pool, &self.server.place).await?;
                        let rows = desk.query(sql, params).await?;
                        desk.leave();
                        Ok(rows)
                    };
                    match asked.await {
                        Ok(rows) => return Ok(rows),
                        Err(error) => patience.bear(error).await?,
                    }
                }
            })
            .await
    }

    /// Takes away uploads, of any tenant, that nobody goes on with.
    async fn sweep_uploads(&self) -> Result<()> {
        for row in self.ask_at_door(blob::IDLE_TENANTS, &[&UPLOAD_IDLE_S_MAX]).await? {
            let tenant: TenantId = row.get::<_, String>(0).parse().map_err(|error| self.damaged(error))?;
            self.home
                .inside(async {
                    let desk = Desk::open(&self.pool, &self.server.place, &tenant, Mode::Write).await?;
                    blob::sweep(&desk).await?;
                    desk.commit().await
                })
                .await?;
        }
        Ok(())
    }

    async fn cut_up(&self, scope: &Scope, blob: BlobHash, bytes: Vec<u8>) -> Result<()> {
        let pieces = Piece::all_of(&bytes);
        writing!(self, scope, desk => blob::cut_up(&desk, blob, bytes.len(), &pieces).await)
    }

    /// Brings the tenant's search index up to date.
    async fn catch_up(&self, scope: &Scope) -> Result<()> {
        for _ in search::rounds() {
            let behind: bool = reading!(self, scope, desk => search::is_behind(&desk).await)?;
            if !behind || !writing!(self, scope, desk => search::index_some(&desk).await)? {
                break;
            }
        }
        Ok(())
    }
}

async fn prepare(server: &Server) -> Result<Acting> {
    let mut patience = Patience::new();
    loop {
        match schema::migrate(server).await {
            Ok(acting) => return Ok(acting),
            Err(error) => patience.bear(error).await?,
        }
    }
}

impl Drop for PgStore {
    fn drop(&mut self) {
        if self.mouth.is_due() {
            self.home.block_on(async {
                let _ = tokio::time::timeout(LAST_WORDS, self.mouth.flush()).await;
            });
        }
    }
}

/// A session's log, for a caller who may read it.
async fn open_log<'d>(desk: &'d Desk, scope: &Scope, session: &SessionId) -> Result<(LogRows<'d>, Summary)> {
    let row = find(desk, scope, session, Right::Read, Hold::No).await?;
    Ok((LogRows::open(desk, row.pk, row.summary.inherited).await?, row.summary))
}

#[async_trait]
impl Sessions for PgStore {
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created> {
        writing!(self, scope, desk => session::create(&desk, scope, &new).await)
    }

    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head> {
        writing!(self, scope, desk => session::fork(&desk, scope, &fork).await)
    }

    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        reading!(self, scope, desk => {
            Ok(find(&desk, scope, session, Right::Read, Hold::No).await?.summary)
        })
    }

    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>> {
        reading!(self, scope, desk => session::list(&desk, scope, filter).await)
    }

    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>> {
        reading!(self, scope, desk => session::children(&desk, scope, session).await)
    }

    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
        writing!(self, scope, desk => erase::erase(&desk, scope, session, now).await)
    }

    async fn heads(&self, scope: &Scope, sessions: &[SessionId]) -> Result<Vec<Option<Seq>>> {
        reading!(self, scope, desk => session::heads(&desk, scope, sessions).await)
    }

    async fn change_mark(&self) -> Result<Option<u64>> {
        Ok(self.mouth.mark(&self.server, self.acting))
    }

    async fn changed(&self, mark: u64) {
        self.mouth.changed(mark).await;
    }
}

#[async_trait]
impl Log for PgStore {
    async fn append(&self, scope: &Scope, append: Append) -> Result<Appended> {
        self.home.inside(append::append(self, scope, append)).await
    }

    async fn read_after(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let limit = limit.min(PAGE_ROWS_MAX);
        reading!(self, scope, desk => {
            open_log(&desk, scope, session).await?.0.read_after(after, limit).await
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
        reading!(self, scope, desk => {
            open_log(&desk, scope, session).await?.0.read_kinds(kinds, after, limit).await
        })
    }

    async fn read_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
        until: Until,
    ) -> Result<PathSlice> {
        reading!(self, scope, desk => {
            let (log, summary) = open_log(&desk, scope, session).await?;
            path::read_path(&log, &summary, at, until).await
        })
    }

    async fn nth_message(
        &self,
        scope: &Scope,
        session: &SessionId,
        leaf: Seq,
        count: u32,
    ) -> Result<Option<Seq>> {
        reading!(self, scope, desk => {
            let (log, summary) = open_log(&desk, scope, session).await?;
            path::read_in_tree(&log, &summary.id, leaf).await?;
            log.nth_message(leaf, count).await
        })
    }

    async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record> {
        reading!(self, scope, desk => {
            let (log, summary) = open_log(&desk, scope, session).await?;
            log.record(seq).await?.ok_or_else(|| rules::no_entry(&summary.id, seq))
        })
    }

    async fn find_entries(&self, scope: &Scope, session: &SessionId, id_prefix: &str) -> Result<Vec<Record>> {
        let range = EntryId::prefix_range(id_prefix);
        reading!(self, scope, desk => {
            let (log, _) = open_log(&desk, scope, session).await?;
            match range {
                Some((low, high)) => log.records_between(low, high).await,
                None => Ok(Vec::new()),
            }
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
        writing!(self, scope, desk => lease::take(&desk, scope, session, holder, ttl_ms).await)
    }

    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()> {
        writing!(self, scope, desk => lease::release(&desk, scope, lease).await)
    }
}

#[async_trait]
impl Authorities for PgStore {
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority> {
        match writing!(self, scope, desk => authority::settle(&desk, scope, session).await) {
            // A standby is read as the audit says.
            Err(StoreError::ReadOnly { .. }) => reading!(self, scope, desk => {
                let mut summary = find(&desk, scope, session, Right::Read, Hold::No).await?.summary;
                rules::settle_summary(&mut summary, authority::trace(&desk, scope, session).await?);
                Ok(summary.authority.unwrap_or_default())
            }),
            settled => settled,
        }
    }

    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
        writing!(self, scope, desk => authority::grant_model(&desk, scope, session, model).await)
    }
}

#[async_trait]
impl Search for PgStore {
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
        rules::check_query(query)?;
        match self.catch_up(scope).await {
            // A standby can still be searched, as far as it is indexed.
            Ok(()) | Err(StoreError::ReadOnly { .. }) => {}
            Err(error) => return Err(error),
        }
        reading!(self, scope, desk => search::search(&desk, scope, query).await)
    }
}

#[async_trait]
impl Blobs for PgStore {
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>> {
        Ok(Box::new(Sink::new(self, scope.clone())))
    }

    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64> {
        reading!(self, scope, desk => blob::size(&desk, scope, blob).await)
    }

    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>> {
        let found = reading!(self, scope, desk => blob::read(&desk, scope, blob, from, limit).await)?;
        match found {
            Found::Span(bytes) => Ok(bytes),
            Found::Uncut(bytes) => {
                let span = slice(&bytes, from, limit).to_vec();
                // So that it is read whole only once. Where that cannot be written, it is read as it is.
                let _ = self.cut_up(scope, blob, bytes).await;
                Ok(span)
            }
        }
    }
}

#[async_trait]
impl Audit for PgStore {
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
        writing!(self, scope, desk => audit::write_line(&desk, scope, note.clone(), now).await)
    }

    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        reading!(self, scope, desk => audit::read_lines(&desk, scope, session, after, limit).await)
    }

    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>> {
        reading!(self, scope, desk => audit::read_since(&desk, scope, session, since, limit).await)
    }
}

#[async_trait]
impl Upkeep for PgStore {
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
        self.catch_up(scope).await?;
        let findings = match repair {
            Repair::No => reading!(self, scope, desk => check::check(&desk, scope, repair).await)?,
            Repair::Yes => writing!(self, scope, desk => check::check(&desk, scope, repair).await)?,
        };
        self.catch_up(scope).await?;
        Ok(findings)
    }

    async fn abandoned_turns(&self, limit: usize) -> Result<Option<Vec<(TenantId, SessionId)>>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.ask_at_door(&lease::abandoned(), &[&limit]).await?;
        let read = |row: &Row| Ok((row.get::<_, &str>(0).parse()?, row.get::<_, &str>(1).parse()?));
        let found: Result<_, sapwood_core::id::IdError> = rows.iter().map(read).collect();
        Ok(Some(found.map_err(|error| self.damaged(error))?))
    }

    async fn check_writable(&self) -> Result<()> {
        let sql = "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool";
        let rows = self.ask_at_door(sql, &[]).await?;
        if rows.first().is_some_and(|row| row.get(0)) {
            let (place, why) = (self.server.place.to_string(), "the server takes no writes".to_owned());
            return Err(StoreError::ReadOnly { place, why });
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.home.inside(self.mouth.flush()).await;
        Ok(())
    }

    fn describe(&self) -> String {
        self.server.place.to_string()
    }
}

//! The table of sessions: finding, inserting and updating rows. A session's lease is part of its row.

use std::time::{Duration, Instant};

use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, Seq, SessionId};
use tokio_postgres::Row;

use super::connection::StoreConnection;
use super::log::int;
use crate::authorize::authorize;
use crate::database::session::{no_session, read_with_authority};
use crate::lease::{LastLease, remaining_of_wall_time};
use crate::validate::print_json;

/// Lists are indexed by slots of this length.
pub(super) const SLOT_MS: i64 = 60_000;

/// The database's current time in milliseconds, not the start time of the transaction.
pub(super) const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The last lease of a session.
#[derive(Debug, Clone)]
pub(super) struct PgLease {
    holder: String,
    fence: u64,
    /// The end of the lease, or slightly later, by this process's clock, so that cached sessions are
    /// checked without a query. A lease that has expired here has also expired in the database. A
    /// lease that still seems live is read again.
    ends: Instant,
}

impl PgLease {
    pub fn read(holder: String, fence: u64, until_ms: i64, now_ms: i64) -> Self {
        let remaining_ms = remaining_of_wall_time(until_ms, now_ms);
        let remaining = Duration::from_millis(u64::try_from(remaining_ms).unwrap_or(0));
        Self { holder, fence, ends: Instant::now() + remaining }
    }

    pub fn now(&self) -> LastLease<'_> {
        let remaining = self.ends.saturating_duration_since(Instant::now());
        // Round up, so that a live lease never has 0 ms left.
        let remaining_ms = i64::try_from(remaining.as_micros().div_ceil(1_000)).unwrap_or(i64::MAX);
        LastLease { holder: &self.holder, fence: self.fence, remaining_ms }
    }
}

/// The columns of a session's row, and the time at which it is read.
fn columns() -> String {
    format!("pk, version, lease_holder, lease_fence, lease_until, summary, {NOW_MS} AS now_ms, authority")
}

/// A session that the caller may access.
#[derive(Debug)]
pub(super) struct SessionRow {
    pub pk: i64,
    /// Incremented by every change to the row, except by indexing.
    pub version: i64,
    /// The last lease, expired or not.
    pub lease: Option<PgLease>,
    pub summary: Summary,
}

/// Whether to lock the row until the transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowLock {
    No,
    Yes,
}

/// Finds a session of the scope's tenant and checks the caller's right to it.
pub(super) async fn find(
    db: &StoreConnection,
    scope: &Scope,
    id: &SessionId,
    needed: Right,
    row_lock: RowLock,
) -> Result<SessionRow> {
    let row = look_up(db, id, row_lock).await?.ok_or_else(|| no_session(id))?;
    authorize(scope, &row.summary, needed)?;
    Ok(row)
}

/// Returns the session with this id in the tenant, regardless of its owner.
pub(super) async fn look_up(
    db: &StoreConnection,
    id: &SessionId,
    row_lock: RowLock,
) -> Result<Option<SessionRow>> {
    let lock = if row_lock == RowLock::Yes { "FOR NO KEY UPDATE" } else { "" };
    let columns = columns();
    let sql =
        format!("SELECT {columns} FROM sessions WHERE tenant = $1 AND id = $2 AND id IS NOT NULL {lock}");
    let row = db.query_opt(&sql, &[&db.tenant.as_str(), &id.as_str()]).await?;
    row.map(|row| read_row(db, &row)).transpose()
}

/// Returns a session by its pk, or `None` for an erased session whose rows are retained for forks.
pub(super) async fn by_pk(db: &StoreConnection, pk: i64) -> Result<Option<SessionRow>> {
    let columns = columns();
    let sql = format!("SELECT {columns} FROM sessions WHERE tenant = $1 AND pk = $2 AND id IS NOT NULL");
    let row = db.query_opt(&sql, &[&db.tenant.as_str(), &pk]).await?;
    row.map(|row| read_row(db, &row)).transpose()
}

fn read_row(db: &StoreConnection, row: &Row) -> Result<SessionRow> {
    let summary = read_with_authority(db, row.get(5), row.get(7))?;
    let lease = row.get::<_, Option<String>>(2).map(|holder| {
        let fence = u64::try_from(row.get::<_, i64>(3)).unwrap_or(0);
        PgLease::read(holder, fence, row.get(4), row.get(6))
    });
    Ok(SessionRow { pk: row.get(0), version: row.get(1), lease, summary })
}

/// Inserts a session row. Returns `None` if the id is taken.
pub(super) async fn insert(
    db: &StoreConnection,
    summary: &Summary,
    base: Option<(i64, Seq)>,
) -> Result<Option<SessionRow>> {
    let sql = "INSERT INTO sessions (tenant, id, parent, base, base_seq, inherited, head, listed_slot, listed_at, indexed,
                                     summary, authority)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $6, $10, $11)
               ON CONFLICT (tenant, id) WHERE id IS NOT NULL DO NOTHING RETURNING pk, version";
    let parent = summary.parent.as_ref().map(|lineage| lineage.session.as_str());
    let row = db
        .query_opt(
            sql,
            &[
                &db.tenant.as_str(),
                &summary.id.as_str(),
                &parent,
                &base.map(|(pk, _)| pk),
                &base.map(|(_, seq)| int(seq.0)),
                &int(summary.inherited),
                &int(summary.head.seq.0),
                &(summary.updated_at.0.div_euclid(SLOT_MS)),
                &summary.updated_at.0,
                &print_json(summary),
                &summary.authority.as_ref().map(print_json),
            ],
        )
        .await?;
    Ok(row.map(|row| SessionRow {
        pk: row.get(0),
        version: row.get(1),
        lease: None,
        summary: summary.clone(),
    }))
}

/// Writes a summary and the columns derived from it.
pub(super) async fn store_summary(db: &StoreConnection, pk: i64, summary: &Summary) -> Result<()> {
    let sql =
        "UPDATE sessions SET version = version + 1, summary = $3, head = $4, listed_at = $5, listed_slot = $6, is_open = $7
               WHERE tenant = $1 AND pk = $2";
    let (at, slot) = (summary.updated_at.0, summary.updated_at.0.div_euclid(SLOT_MS));
    let head = int(summary.head.seq.0);
    db.execute(
        sql,
        &[&db.tenant.as_str(), &pk, &print_json(summary), &head, &at, &slot, &summary.open_turn.is_some()],
    )
    .await?;
    Ok(())
}

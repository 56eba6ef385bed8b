//! Leases, stored in the row of their session. All servers compare them with the database's clock,
//! so a server's own clock has no effect. A server of an earlier build on the same database writes
//! `lease_until` by its own clock; see [`crate::lease`] for how that is handled.

use std::time::{Duration, Instant};

use sapwood_core::port::store::{LEASE_TTL_MS_MAX, Lease, Result};
use sapwood_core::{Right, Scope, SessionId};

use super::connection::StoreConnection;
use super::session::{RowLock, find};
use crate::lease::{LastLease, next_lease, remaining_of_wall_time};

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

/// Acquires a free or expired lease, or renews the holder's own.
pub(super) async fn take(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
    holder: &str,
    ttl_ms: i64,
) -> Result<Lease> {
    let row = find(db, scope, session, Right::Write, RowLock::Yes).await?;
    let lease = next_lease(row.lease.as_ref().map(PgLease::now), &row.summary.id, holder, ttl_ms)?;
    let sql = format!(
        "UPDATE sessions SET version = version + 1, lease_holder = $3, lease_fence = $4, lease_until = {NOW_MS} + $5
         WHERE tenant = $1 AND pk = $2"
    );
    let fence = i64::try_from(lease.fence).unwrap_or(i64::MAX);
    db.execute(&sql, &[&db.tenant.as_str(), &row.pk, &lease.holder, &fence, &ttl_ms]).await?;
    Ok(lease)
}

/// Expires the lease. The row keeps the fence, so that fences never decrease.
pub(super) async fn release(db: &StoreConnection, scope: &Scope, given: &Lease) -> Result<()> {
    let row = find(db, scope, &given.session, Right::Write, RowLock::Yes).await?;
    if row.lease.as_ref().is_some_and(|last| last.now().is(given)) {
        let sql = "UPDATE sessions SET version = version + 1, lease_until = 0 WHERE tenant = $1 AND pk = $2";
        db.execute(sql, &[&db.tenant.as_str(), &row.pk]).await?;
    }
    Ok(())
}

/// Selects sessions of any tenant whose turn is open and whose lease has expired. The parameter is
/// the limit.
pub(super) fn abandoned() -> String {
    format!(
        "SELECT tenant, id FROM sessions, (SELECT {NOW_MS} AS now_ms OFFSET 0) AS clock
         WHERE is_open AND id IS NOT NULL
           AND (lease_until <= now_ms OR lease_until > now_ms + {LEASE_TTL_MS_MAX}) LIMIT $1"
    )
}

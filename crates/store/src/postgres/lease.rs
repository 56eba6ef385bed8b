//! Leases, stored in the row of their session. All servers compare them with the database's clock,
//! so a server's own clock has no effect. A server of an earlier build on the same database writes
//! `lease_until` by its own clock; see [`crate::lease`] for how that is handled.

use sapwood_core::port::store::{LEASE_TTL_MS_MAX, Lease, Result};
use sapwood_core::{Right, Scope, SessionId};

use super::connection::StoreConnection;
use super::session_table::{NOW_MS, PgLease, RowLock, find};
use crate::lease::next_lease;

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

/// Expires the lease if it is still the session's last lease. The row keeps the fence, so that
/// fences never decrease.
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

//! Leases, one row per session. The row is retained when a lease ends, so that fences never
//! decrease.

use rusqlite::{OptionalExtension, Row, params};
use sapwood_core::TimestampMs;
use sapwood_core::port::store::{Lease, Result};

use super::append_cache::SessionRow;
use super::connection::{StoreConnection, int};
use super::error::AtPath;
use crate::lease::{LeaseClock, LeaseTerm, StoredLease, next_lease};

pub(super) fn lease_of(db: &StoreConnection, pk: i64) -> Result<Option<StoredLease>> {
    let mut select = db.prepare(
        "SELECT holder, fence, expires_at, boot, taken_ms, ttl_ms, timed_fence FROM leases WHERE session = ?1",
    )?;
    select.query_row([pk], read).optional().at(&db.path)
}

fn read(row: &Row<'_>) -> rusqlite::Result<StoredLease> {
    let fence: i64 = row.get(1)?;
    // A process of an earlier build updates only the first three columns, including the fence.
    let term = match row.get::<_, Option<i64>>(6)? {
        Some(timed) if timed == fence => {
            Some(LeaseTerm { boot: row.get(3)?, taken_ms: row.get(4)?, ttl_ms: row.get(5)? })
        }
        _ => None,
    };
    Ok(StoredLease {
        holder: row.get(0)?,
        fence: u64::try_from(fence).unwrap_or(0),
        expires_at: TimestampMs(row.get(2)?),
        term,
    })
}

/// Acquires a free or expired lease, or renews the holder's own.
pub(super) fn take(
    db: &StoreConnection,
    row: &SessionRow,
    holder: &str,
    ttl_ms: i64,
    clock: &dyn LeaseClock,
) -> Result<Lease> {
    let (last, now) = (lease_of(db, row.pk)?, clock.read());
    let lease = next_lease(last.as_ref().map(|last| last.at(&now)), &row.summary.id, holder, ttl_ms)?;
    store(db, row.pk, &StoredLease::taken(&lease, &now))?;
    Ok(lease)
}

pub(super) fn release(
    db: &StoreConnection,
    row: &SessionRow,
    given: &Lease,
    clock: &dyn LeaseClock,
) -> Result<()> {
    match lease_of(db, row.pk)? {
        Some(last) if last.at(&clock.read()).is(given) => store(db, row.pk, &StoredLease::released(given)),
        _ => Ok(()),
    }
}

fn store(db: &StoreConnection, pk: i64, lease: &StoredLease) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO leases (session, holder, fence, expires_at, boot, taken_ms, ttl_ms, timed_fence)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let (fence, term) = (int(lease.fence), lease.term.as_ref());
    let values = params![
        pk,
        lease.holder,
        fence,
        lease.expires_at.0,
        term.map(|term| &term.boot),
        term.map(|term| term.taken_ms),
        term.map(|term| term.ttl_ms),
        term.map(|_| fence),
    ];
    db.execute(sql, values)?;
    Ok(())
}

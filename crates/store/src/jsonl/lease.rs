//! A session's lease, in a small file. Every change replaces the whole file. Reads and writes hold
//! the lock on the session's log or, before the log exists, the store's lock.

use sapwood_core::TimestampMs;
use sapwood_core::port::store::Result;
use serde::{Deserialize, Serialize};

use super::disk;
use super::layout::Layout;
use super::sealed_lines;
use crate::Durability;
use crate::lease::{LeaseTerm, StoredLease};

#[derive(Serialize, Deserialize)]
struct LeaseFile {
    holder: String,
    fence: u64,
    expires_at: TimestampMs,
    /// Earlier builds do not write this field, and drop it when they change the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    term: Option<LeaseTerm>,
}

pub fn read(layout: &Layout, stem: &str) -> Result<Option<StoredLease>> {
    let path = layout.lease(stem);
    let Some(bytes) = disk::read_if_exists(&path)? else { return Ok(None) };
    let (lease, _): (LeaseFile, _) = sealed_lines::parse(&path, 1, &bytes)?;
    let LeaseFile { holder, fence, expires_at, term } = lease;
    Ok(Some(StoredLease { holder, fence, expires_at, term }))
}

pub fn write(layout: &Layout, stem: &str, lease: &StoredLease, durability: Durability) -> Result<()> {
    let StoredLease { holder, fence, expires_at, term } = lease.clone();
    let line = sealed_lines::to_line(&LeaseFile { holder, fence, expires_at, term });
    disk::replace(&layout.lease(stem), &line, durability)
}

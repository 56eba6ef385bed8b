//! A session's lease, in a small file. Every change replaces the whole file. Reads and writes hold
//! the lock on the session's log or, before the log exists, the store's lock.

use sapwood_core::TimestampMs;
use sapwood_core::port::store::Result;
use serde::{Deserialize, Serialize};

use super::disk;
use super::layout::Layout;
use crate::Durability;
use crate::lease::{LeaseTerm, StoredLease};
use crate::validate::damaged;

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
    let lease: LeaseFile = serde_json::from_slice(&bytes).map_err(|error| damaged(path.display(), error))?;
    let LeaseFile { holder, fence, expires_at, term } = lease;
    Ok(Some(StoredLease { holder, fence, expires_at, term }))
}

pub fn write(layout: &Layout, stem: &str, lease: &StoredLease, durability: Durability) -> Result<()> {
    let StoredLease { holder, fence, expires_at, term } = lease.clone();
    let bytes = serde_json::to_vec(&LeaseFile { holder, fence, expires_at, term })
        .expect("a lease contains only strings and numbers");
    disk::replace(&layout.lease(stem), &bytes, durability)
}

//! A session's lease, in a small file that is replaced whole. Read and written under the lock on the session's log.

use sapwood_core::port::store::{Lease, Result};
use sapwood_core::{SessionId, TimestampMs};
use serde::{Deserialize, Serialize};

use super::disk;
use super::layout::Layout;
use crate::Durability;
use crate::rules::damaged;

#[derive(Serialize, Deserialize)]
struct LeaseFile {
    holder: String,
    fence: u64,
    expires_at: TimestampMs,
}

pub fn read(layout: &Layout, stem: &str, session: &SessionId) -> Result<Option<Lease>> {
    let path = layout.lease(stem);
    let Some(bytes) = disk::read_if_there(&path)? else { return Ok(None) };
    let lease: LeaseFile = serde_json::from_slice(&bytes).map_err(|error| damaged(path.display(), error))?;
    let LeaseFile { holder, fence, expires_at } = lease;
    Ok(Some(Lease { session: session.clone(), holder, fence, expires_at }))
}

pub fn write(layout: &Layout, stem: &str, lease: &Lease, durability: Durability) -> Result<()> {
    let file = LeaseFile { holder: lease.holder.clone(), fence: lease.fence, expires_at: lease.expires_at };
    let bytes = serde_json::to_vec(&file).expect("a lease holds strings and numbers only");
    disk::replace(&layout.lease(stem), &bytes, durability)
}

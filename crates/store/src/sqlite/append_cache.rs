//! The writer's cache of sessions that are being appended to, so that most appends read no rows: the
//! summary, the lease, and the few nodes and hashes that the next entry's links and hash are computed from.
//!
//! It is valid only while no other connection writes. SQLite's data version of the file changes
//! when another connection commits, and the whole cache is then cleared. A write to a session other
//! than an append also evicts the session.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use sapwood_core::project::summary::Summary;
use sapwood_core::tree::{Placed, TreeNode};
use sapwood_core::{Scope, Seq, SessionId, TenantId, TimestampMs};

use crate::audit_chain::AuditChain;
use crate::lease::StoredLease;
use crate::proving::ParentCache;

/// Maximum number of cached sessions. When it is reached, the cache is cleared, and busy sessions
/// are cached again.
const SESSIONS_MAX: usize = 4_096;
/// Maximum number of tenants whose audit chain is cached. When it is reached, the chains are dropped
/// from the cache.
const TENANTS_MAX: usize = 4_096;
/// Maximum lag of a session's list time behind its last update.
pub(super) const LISTED_BEHIND_MS_MAX: i64 = 1_000;
/// Nodes cached per session: the leaf, and the targets of its jump pointers.
const NODES_MAX: usize = 8;

/// A session that the caller may access.
pub(super) struct SessionRow {
    pub pk: i64,
    pub tenant: i64,
    /// The time that orders the list: the time of the last update, or slightly before it (see
    /// [`ListPosition`]).
    pub listed_at: TimestampMs,
    pub summary: Summary,
}

/// Whether an append changes a session's position in the list. A session that receives consecutive
/// appends keeps its position, and its list time may lag slightly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListPosition {
    Kept,
    Changed,
}

pub(super) struct CachedSession {
    pub row: SessionRow,
    pub lease: Option<StoredLease>,
    pub nodes: Nodes,
    pub parents: ParentCache,
}

#[derive(Default)]
pub(super) struct AppendCache {
    sessions: RefCell<HashMap<(TenantId, SessionId), CachedSession>>,
    data_version: Cell<i64>,
    /// The end of each tenant's audit chain, by the tenant's pk.
    chains: RefCell<HashMap<i64, AuditChain>>,
    /// The pk of the session that received the last append.
    last_session: Cell<Option<i64>>,
}

impl AppendCache {
    /// Clears the cache if another connection has written, which changes the data version. Returns
    /// whether the cache was cleared.
    pub fn refresh(&self, data_version: i64) -> bool {
        let is_outdated = self.data_version.replace(data_version) != data_version;
        if is_outdated {
            self.clear();
        }
        is_outdated
    }

    /// Takes a session out of the cache. After a successful append the caller returns it with
    /// [`AppendCache::insert`]. After a failed append it is not returned, and the next append reads
    /// the session from its rows.
    pub fn take(&self, scope: &Scope, session: &SessionId) -> Option<CachedSession> {
        self.sessions.borrow_mut().remove(&(scope.tenant.clone(), session.clone()))
    }

    pub fn insert(&self, scope: &Scope, cached: CachedSession) {
        let mut sessions = self.sessions.borrow_mut();
        if sessions.len() >= SESSIONS_MAX {
            sessions.clear();
        }
        sessions.insert((scope.tenant.clone(), cached.row.summary.id.clone()), cached);
    }

    /// Returns whether an append moves its session in the list. A session that also received the
    /// previous append is already at the top.
    pub fn list_position_after(&self, row: &SessionRow) -> ListPosition {
        let was_last = self.last_session.replace(Some(row.pk)) == Some(row.pk);
        let behind_ms = row.summary.updated_at.0 - row.listed_at.0;
        if was_last && behind_ms < LISTED_BEHIND_MS_MAX { ListPosition::Kept } else { ListPosition::Changed }
    }

    pub fn take_chain(&self, tenant: i64) -> Option<AuditChain> {
        self.chains.borrow_mut().remove(&tenant)
    }

    pub fn insert_chain(&self, tenant: i64, chain: AuditChain) {
        let mut chains = self.chains.borrow_mut();
        if chains.len() >= TENANTS_MAX {
            chains.clear();
        }
        chains.insert(tenant, chain);
    }

    pub fn evict(&self, pk: i64) {
        self.last_session.set(None);
        self.sessions.borrow_mut().retain(|_, cached| cached.row.pk != pk);
    }

    pub fn clear(&self) {
        self.last_session.set(None);
        self.sessions.borrow_mut().clear();
        self.chains.borrow_mut().clear();
    }
}

/// The most recently added nodes, newest last.
#[derive(Default)]
pub(super) struct Nodes(Vec<TreeNode>);

impl Nodes {
    pub fn get(&self, seq: Seq) -> Option<TreeNode> {
        self.0.iter().rev().find(|node| node.seq == seq).copied()
    }

    pub fn add(&mut self, node: TreeNode) {
        if self.0.len() >= NODES_MAX {
            self.0.remove(0);
        }
        self.0.push(node);
    }

    pub fn add_placed(&mut self, placed: &Placed) {
        let meta = &placed.entry.meta;
        if let Some(links) = placed.links {
            self.add(TreeNode { seq: meta.seq, parent: meta.parent, links });
        }
    }
}

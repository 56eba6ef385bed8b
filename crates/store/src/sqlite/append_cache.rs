//! The writer's cache of sessions that are being appended to, so that an append reads no rows: the
//! summary, the lease, and the few nodes that the links of the next entry are computed from.
//!
//! It is valid only while no other connection writes. SQLite's data version of the file changes
//! when another connection commits, and the whole cache is then cleared. Any operation other than
//! an append also evicts its session.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use sapwood_core::port::store::Result;
use sapwood_core::settings::Settings;
use sapwood_core::tree::{Lookup, Placed, TreeNode};
use sapwood_core::{EntryId, Kind, Right, Scope, Seq, SessionId, StoreError, TenantId};

use super::audit::LastLine;
use super::connection::StoreConnection;
use super::error::AtPath;
use super::lease::lease_of;
use super::log::LogRows;
use super::session::{ListPosition, SessionRow, find};
use crate::lease::StoredLease;

/// Maximum number of cached sessions. When it is reached, the cache is cleared, and busy sessions
/// are cached again.
const SESSIONS_MAX: usize = 4_096;
/// Maximum number of tenants whose last audit line is cached. When it is reached, these lines are
/// dropped from the cache.
const TENANTS_MAX: usize = 4_096;
/// Maximum lag of a session's list time behind its last update.
pub(super) const LISTED_BEHIND_MS_MAX: i64 = 1_000;
/// Nodes cached per session: the leaf, and the targets of its jump pointers.
const NODES_MAX: usize = 8;

pub(super) struct CachedSession {
    pub row: SessionRow,
    pub lease: Option<StoredLease>,
    pub nodes: Nodes,
}

impl CachedSession {
    pub fn load(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Self> {
        let row = find(db, scope, session, Right::Read)?;
        let lease = lease_of(db, row.pk)?;
        Ok(Self { row, lease, nodes: Nodes::default() })
    }
}

#[derive(Default)]
pub(super) struct AppendCache {
    sessions: RefCell<HashMap<(TenantId, SessionId), CachedSession>>,
    data_version: Cell<i64>,
    /// The last audit line of each tenant, by the tenant's pk.
    last_lines: RefCell<HashMap<i64, LastLine>>,
    /// The pk of the session that received the last append.
    last_session: Cell<Option<i64>>,
}

impl AppendCache {
    /// Clears the cache if another connection has written. Also drops the unindexed texts, because
    /// the other connection may have erased some of them. Call it at the start of each transaction.
    pub fn refresh(&self, db: &StoreConnection) -> Result<()> {
        let mut select = db.prepare("PRAGMA data_version")?;
        let version = select.query_row([], |row| row.get(0)).at(&db.path)?;
        if self.data_version.replace(version) != version {
            self.clear();
            db.unindexed.clear();
        }
        Ok(())
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

    pub fn take_last_line(&self, tenant: i64) -> Option<LastLine> {
        self.last_lines.borrow_mut().remove(&tenant)
    }

    pub fn insert_last_line(&self, tenant: i64, line: LastLine) {
        let mut lines = self.last_lines.borrow_mut();
        if lines.len() >= TENANTS_MAX {
            lines.clear();
        }
        lines.insert(tenant, line);
    }

    pub fn evict(&self, pk: i64) {
        self.last_session.set(None);
        self.sessions.borrow_mut().retain(|_, cached| cached.row.pk != pk);
    }

    pub fn clear(&self) {
        self.last_session.set(None);
        self.sessions.borrow_mut().clear();
        self.last_lines.borrow_mut().clear();
    }
}

/// The most recently used nodes, newest last.
#[derive(Default)]
pub(super) struct Nodes(Vec<TreeNode>);

impl Nodes {
    fn get(&self, seq: Seq) -> Option<TreeNode> {
        self.0.iter().rev().find(|node| node.seq == seq).copied()
    }

    fn add(&mut self, node: TreeNode) {
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

/// Looks up nodes in the cache first, then in the rows of the log.
pub(super) struct CachingLookup<'d, 'n> {
    pub rows: LogRows<'d>,
    pub nodes: &'n mut Nodes,
}

impl Lookup for CachingLookup<'_, '_> {
    type Error = StoreError;

    fn node(&mut self, seq: Seq) -> Result<TreeNode> {
        if let Some(node) = self.nodes.get(seq) {
            return Ok(node);
        }
        let node = self.rows.node(seq)?;
        self.nodes.add(node);
        Ok(node)
    }
    fn find(&mut self, id: EntryId) -> Result<Option<(Seq, Kind)>> {
        self.rows.find(id)
    }
    fn settings(&mut self, at: Seq) -> Result<Settings> {
        self.rows.settings(at)
    }
    fn inherited(&self) -> u32 {
        self.rows.inherited
    }
}

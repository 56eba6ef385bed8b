//! The cache of the shapes of trees.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::project::tree_index::TreeIndex;
use sapwood_core::{SessionId, TenantId, TimestampMs};

/// Maximum number of cached trees, and their size.
const TREES_CACHED_MAX: usize = 16;
const CACHED_BYTES_MAX: usize = 32 << 20;

/// The creation time distinguishes a session from an erased one with the same id.
pub(crate) type TreeKey = (TenantId, SessionId, TimestampMs);

/// Shapes of recently read trees, the latest last. The log only grows, so that a shape never becomes wrong. Callers check
/// access before they use it.
#[derive(Default)]
pub(crate) struct TreeCache(Mutex<VecDeque<(TreeKey, Arc<TreeIndex>)>>);

impl TreeCache {
    pub fn take(&self, key: &TreeKey) -> Option<Arc<TreeIndex>> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cached.iter().position(|(cached_key, _)| cached_key == key)?;
        cached.remove(at).map(|(_, index)| index)
    }

    pub fn put(&self, key: TreeKey, index: Arc<TreeIndex>) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.retain(|(cached_key, _)| *cached_key != key);
        cached.push_back((key, index));
        let bytes = |cached: &VecDeque<(TreeKey, Arc<TreeIndex>)>| {
            cached.iter().map(|(_, index)| index.bytes()).sum::<usize>()
        };
        while cached.len() > TREES_CACHED_MAX || bytes(&cached) > CACHED_BYTES_MAX {
            cached.pop_front();
        }
    }

    /// Remove an erased session's tree.
    pub fn evict(&self, tenant: &TenantId, session: &SessionId) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.retain(|((of, id, _), _)| of != tenant || id != session);
    }
}

//! The cache of resolved grafts, and the cached content.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::content::BlobRef;
use sapwood_core::{EntryId, SessionId, TenantId};
use serde::Serialize;

/// Maximum number of resolved grafts in the cache.
const GRAFTS_CACHED_MAX: usize = 64;

/// The content of a graft.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grafted {
    /// The text shown to a model.
    pub text: String,
    /// The file, if the graft is an artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact: Option<BlobRef>,
}

/// Cache key of a resolved graft. The content is pinned, so it never becomes stale; access is checked on every use.
pub(crate) type GraftKey = (TenantId, SessionId, EntryId, String);

/// Cache of resolved grafts, so that building a context does not read the source's path each time.
#[derive(Default)]
pub(crate) struct GraftCache(Mutex<VecDeque<(GraftKey, Arc<Grafted>)>>);

impl GraftCache {
    pub fn get(&self, key: &GraftKey) -> Option<Arc<Grafted>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.iter().find(|(cached_key, _)| cached_key == key).map(|(_, grafted)| Arc::clone(grafted))
    }

    pub fn put(&self, key: GraftKey, grafted: Arc<Grafted>) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= GRAFTS_CACHED_MAX {
            cached.pop_front();
        }
        cached.push_back((key, grafted));
    }

    /// Remove an erased session's content from the cache.
    pub fn evict(&self, tenant: &TenantId, source: &SessionId) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.retain(|((of, session, ..), _)| of != tenant || session != source);
    }
}

//! The verbs of a session, over any store.
//!
//! [`Engine`] is the one door: it takes a [`Scope`](sapwood_core::Scope) with every call, turns a verb into entries, and
//! appends them. [`address`] finds the session or entry that somebody meant; [`read`] has the projections; [`write`] the
//! verbs that append; [`follow`] hands out what is new, as it comes; [`doctor`] checks that a store keeps its promises.

pub mod address;
pub mod doctor;
mod error;
pub mod export;
pub mod follow;
pub mod import;
pub mod read;
mod tail;
pub mod write;

use std::sync::Arc;

use sapwood_core::port::clock::Clock;
use sapwood_core::port::store::Store;

pub use error::{EngineError, Result};
pub use follow::Follower;

use tail::Tail;

/// Sessions of one store. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    tail: Arc<Tail>,
}

impl Engine {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, tail: Arc::default() }
    }

    /// The store itself, for what has no verb.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

//! How memories are extracted and searched.

use std::sync::Arc;

use sapwood_core::port::embedder::Embedder;

/// Whether to learn from sessions when they are closed or archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtEnd {
    /// Extract memories.
    #[default]
    Learn,
    /// Do nothing.
    Leave,
}

/// How memories are extracted and searched.
#[derive(Clone, Default)]
pub struct MemoryConfig {
    /// The model that extracts memories, `PROVIDER/NAME`; rules if `None`.
    pub model: Option<String>,
    /// Finds memories by meaning. If `None`, only memories with matching words are found.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// What to do when a session is closed or archived.
    pub at_end: AtEnd,
}

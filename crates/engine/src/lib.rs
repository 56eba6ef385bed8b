//! The session operations, independent of the store type.
//!
//! [`Engine`] is the only entry point. Every call requires a [`Scope`](sapwood_core::Scope). Operations that change a
//! session append entries to its log. The modules:
//!
//! - [`address`] resolves user-supplied session and entry names.
//! - [`authority`] decides which entries may configure a turn.
//! - [`read`] contains the read operations, [`write`] the operations that append entries.
//! - [`turn`] runs turns, [`flow`] runs flows of turns.
//! - [`compact`] replaces older messages with a summary, [`pressure`] decides when.
//! - [`memory`] stores facts learned from sessions.
//! - [`graft`] includes content of other sessions by reference.
//! - [`hook`] calls the installed hooks.
//! - [`skill`] manages the active skills of a session.
//! - [`trigger`] starts turns on events and schedules.
//! - [`follow`] and [`subscribe`] stream new entries.
//! - [`doctor`] checks the invariants of a store.

pub mod address;
pub mod authority;
mod backends;
pub mod blob;
pub mod compact;
pub mod doctor;
mod error;
pub mod export;
pub mod flow;
pub mod follow;
pub mod fragments;
pub mod graft;
pub mod hook;
pub mod import;
mod inbox;
mod lease;
pub mod memory;
pub mod migrate;
pub mod pressure;
pub mod read;
pub mod skill;
mod spans;
pub mod subscribe;
pub mod summarise;
mod tokens;
pub mod trigger;
pub mod turn;
mod wakeups;
pub mod write;

use std::sync::Arc;

use sapwood_core::Agent;
use sapwood_core::port::clock::Clock;
use sapwood_core::port::store::Store;
use sapwood_core::port::tokens::Tokenizers;
use sapwood_core::pressure::Thresholds;

pub use authority::{FileModels, SessionDefaults};
pub use backends::Backends;
pub use error::{EngineError, Result};
pub use follow::Follower;
pub use fragments::{Fragment, FragmentKind};
pub use spans::SPAN_TARGET;
pub use subscribe::{Listener, SessionEvent, Subscription};

use fragments::FragmentHub;
use tokens::TokenCache;
use wakeups::Wakeups;

/// The trace id of a span, as 32 hexadecimal digits, or `None` for an untraced span.
pub type TraceIds = Arc<dyn Fn(&tracing::Span) -> Option<String> + Send + Sync>;

/// The sessions of one store. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    wakeups: Arc<Wakeups>,
    tokens: Arc<TokenCache>,
    fragments: Arc<FragmentHub>,
    backends: Option<Backends>,
    trace_ids: Option<TraceIds>,
    memory_config: memory::MemoryConfig,
    graft_cache: Arc<graft::GraftCache>,
    /// `None` if no hooks are installed.
    hooks: Option<Arc<hook::Hooks>>,
    skills: Option<Arc<dyn sapwood_core::port::skill::Skills>>,
    /// Nesting depth of the hook calls that led to the current operation. Limited, to stop hook loops.
    depth: u8,
    thresholds: Thresholds,
    defaults: SessionDefaults,
    file_models: FileModels,
}

impl Engine {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            wakeups: Arc::default(),
            tokens: Arc::default(),
            fragments: Arc::default(),
            backends: None,
            trace_ids: None,
            memory_config: memory::MemoryConfig::default(),
            graft_cache: Arc::default(),
            hooks: None,
            skills: None,
            depth: 0,
            thresholds: Thresholds::default(),
            defaults: SessionDefaults { agent: Some(Agent::default_with(None)), cwd: None },
            file_models: FileModels::default(),
        }
    }

    /// Count tokens with the models' tokenizers. The default estimates four bytes per token.
    pub fn with_tokenizers(mut self, tokenizers: Arc<dyn Tokenizers>) -> Self {
        self.tokens = Arc::new(TokenCache::new(tokenizers));
        self
    }

    /// Set the pressure thresholds for sessions whose agent sets no thresholds.
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// Add the models and tools that turns need.
    pub fn with_backends(mut self, backends: Backends) -> Self {
        self.backends = Some(backends);
        self
    }

    /// Write the ids of exported traces into the log. By default each turn generates a trace id.
    pub fn with_trace_ids(mut self, trace_ids: TraceIds) -> Self {
        self.trace_ids = Some(trace_ids);
        self
    }

    /// Configure how memories are extracted and searched.
    pub fn with_memory_config(mut self, config: memory::MemoryConfig) -> Self {
        self.memory_config = config;
        self
    }

    /// Use the models, tools, skills and hooks of another engine.
    pub fn with_backends_of(self, other: &Engine) -> Result<Self> {
        let (trace_ids, hooks, depth) = (other.trace_ids.clone(), other.hooks.clone(), other.depth);
        let (skills, defaults) = (other.skills.clone(), other.defaults.clone());
        let file_models = other.file_models.clone();
        Ok(Self {
            trace_ids,
            hooks,
            skills,
            depth,
            defaults,
            file_models,
            ..self.with_backends(other.backends()?)
        })
    }

    fn backends(&self) -> Result<Backends> {
        self.backends.clone().ok_or(EngineError::NoBackends)
    }

    /// The models that can be called now, starting with the default.
    pub fn models(&self) -> Result<Vec<String>> {
        let backends = self.backends()?;
        let others = backends.model.names().into_iter().filter(|name| *name != backends.default_model);
        Ok(std::iter::once(backends.default_model.clone()).chain(others).collect())
    }

    /// The underlying store, for operations that the engine does not offer.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

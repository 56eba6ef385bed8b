//! The core that all services share: the store, the clock, the caches and the configuration.
//!
//! **Invariant:** this module depends on no service. Each service is declared in its own module with [`service!`],
//! which also adds its accessor to [`Engine`].

use std::sync::Arc;

use sapwood_core::Agent;
use sapwood_core::port::clock::Clock;
use sapwood_core::port::document::DocumentReader;
use sapwood_core::port::links::AnswerLinks;
use sapwood_core::port::skill::SkillCatalog;
use sapwood_core::port::store::Store;
use sapwood_core::port::tokens::Tokenizers;
use sapwood_core::pressure::Thresholds;

use crate::backends::Backends;
use crate::document_cache::DocumentCache;
use crate::error::{EngineError, Result};
use crate::fragments::FragmentHub;
use crate::graft_cache::GraftCache;
use crate::hook::HookRegistry;
use crate::memory::MemoryConfig;
use crate::session_defaults::{FileModels, SessionDefaults};
use crate::tokens::TokenCache;
use crate::tree_cache::TreeCache;
use crate::wakeups::Wakeups;

/// A function that returns the trace id of a span, as 32 hexadecimal digits, or `None` for an untraced span.
pub type TraceIds = Arc<dyn Fn(&tracing::Span) -> Option<String> + Send + Sync>;

/// The sessions of one store. Cheap to clone.
///
/// The operations are grouped into services, each with an accessor: [`Engine::turns`], [`Engine::sessions`] and so on.
#[derive(Clone)]
pub struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) tokens: Arc<TokenCache>,
    pub(crate) fragments: Arc<FragmentHub>,
    pub(crate) graft_cache: Arc<GraftCache>,
    pub(crate) tree_cache: Arc<TreeCache>,
    pub(crate) documents: Arc<DocumentCache>,
    pub(crate) config: Arc<EngineConfig>,
    /// How many nested hook calls led to this engine's current operation; bounded to stop hook loops.
    pub(crate) depth: u8,
}

/// The configuration of an engine, set by the application.
#[derive(Clone)]
pub struct EngineConfig {
    /// The models and tools that turns need. Without them, the engine stores sessions but runs no turns.
    pub backends: Option<Backends>,
    /// The installed hooks, in call order.
    pub hooks: HookRegistry,
    pub skills: Option<Arc<dyn SkillCatalog>>,
    /// Extracts the text of documents. Without it, only inputs that are text or images can be read.
    pub documents: Option<Arc<dyn DocumentReader>>,
    /// How memories are extracted and searched.
    pub memory: MemoryConfig,
    /// The pressure thresholds for sessions whose agent sets none.
    pub thresholds: Thresholds,
    /// Defaults for sessions without a configuration.
    pub session_defaults: SessionDefaults,
    /// Which file-backed models may be called.
    pub file_models: FileModels,
    /// Signs answer links. Without it, links cannot be created.
    pub links: Option<Arc<dyn AnswerLinks>>,
    /// Finds the exported trace id of a turn. Without it, each turn generates a trace id.
    pub trace_ids: Option<TraceIds>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            backends: None,
            hooks: HookRegistry::default(),
            skills: None,
            documents: None,
            memory: MemoryConfig::default(),
            thresholds: Thresholds::default(),
            session_defaults: SessionDefaults { agent: Some(Agent::default_with(None)), cwd: None },
            file_models: FileModels::default(),
            links: None,
            trace_ids: None,
        }
    }
}

impl Engine {
    /// Create an engine that estimates four bytes per token and has the default configuration.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            wakeups: Arc::default(),
            tokens: Arc::default(),
            fragments: Arc::default(),
            graft_cache: Arc::default(),
            tree_cache: Arc::default(),
            documents: Arc::default(),
            config: Arc::default(),
            depth: 0,
        }
    }

    /// Count tokens with the models' tokenizers.
    pub fn with_tokenizers(mut self, tokenizers: Arc<dyn Tokenizers>) -> Self {
        self.tokens = Arc::new(TokenCache::new(tokenizers));
        self
    }

    /// Change the configuration. Clones of this engine keep theirs.
    pub fn configured(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }

    /// Add the models and tools that turns need.
    pub fn with_backends(self, backends: Backends) -> Self {
        self.configured(|config| config.backends = Some(backends))
    }

    /// Set the hook nesting depth, for actions caused by hooks.
    pub fn at_depth(mut self, depth: u8) -> Self {
        self.depth = depth;
        self
    }

    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The models and tools. Fails if the engine has none.
    pub(crate) fn backends(&self) -> Result<Backends> {
        self.config.backends.clone().ok_or(EngineError::NoBackends)
    }

    /// The underlying store, for operations that the engine does not offer.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

/// Declare a service: a group of operations that borrows the engine, with its accessor.
macro_rules! service {
    ($(#[$doc:meta])* $vis:vis struct $name:ident; $accessor:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        $vis struct $name<'e> {
            pub(crate) engine: &'e $crate::Engine,
        }

        impl $crate::Engine {
            $(#[$doc])*
            $vis fn $accessor(&self) -> $name<'_> {
                $name { engine: self }
            }
        }
    };
}
pub(crate) use service;

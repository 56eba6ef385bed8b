//! The verbs of a session, over any store.
//!
//! [`Engine`] is the one door: it takes a [`Scope`](sapwood_core::Scope) with every call, turns a verb into entries, and
//! appends them. [`authority`] says what of a session may decide how it runs; [`address`] finds the session or entry that somebody meant; [`read`] has the projections; [`write`] the
//! verbs that append; [`turn`] runs turns, and [`flow`] flows of them; [`compact`] lets a summary stand in for what is old, and
//! [`pressure`] says when; [`memory`] keeps what sessions taught; [`graft`] brings in what others delivered; [`hook`] asks and
//! tells whoever wants to have a say; [`skill`] has what a session knows how to do; [`trigger`] begins turns when something
//! else happens; [`follow`] and [`subscribe`] hand out what is new, as it comes; [`doctor`] checks that a store keeps its
//! promises.

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
pub use fragments::{Fragment, News};
pub use spans::SPAN_TARGET;
pub use subscribe::{Listener, SessionEvent, Subscription};

use fragments::FragmentHub;
use tokens::TokenCache;
use wakeups::Wakeups;

/// The id of the trace a span belongs to, as 32 hexadecimal digits; none for a span that nobody traces.
pub type TraceIds = Arc<dyn Fn(&tracing::Span) -> Option<String> + Send + Sync>;

/// Sessions of one store. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    tail: Arc<Wakeups>,
    tokens: Arc<TokenCache>,
    live: Arc<FragmentHub>,
    world: Option<Backends>,
    trace_ids: Option<TraceIds>,
    care: memory::MemoryCare,
    grafted: Arc<graft::GraftCache>,
    /// None where nobody installed one: then nothing is ever asked or told.
    hooks: Option<Arc<hook::Hooks>>,
    skills: Option<Arc<dyn sapwood_core::port::skill::Skills>>,
    /// How many hooks stand between a person and what this engine does.
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
            tail: Arc::default(),
            tokens: Arc::default(),
            live: Arc::default(),
            world: None,
            trace_ids: None,
            care: memory::MemoryCare::default(),
            grafted: Arc::default(),
            hooks: None,
            skills: None,
            depth: 0,
            thresholds: Thresholds::default(),
            defaults: SessionDefaults { agent: Some(Agent::default_with(None)), cwd: None },
            file_models: FileModels::default(),
        }
    }

    /// The same engine, counting tokens with the tokenizers of the models; without them four bytes are a token.
    pub fn with_tokenizers(mut self, tokenizers: Arc<dyn Tokenizers>) -> Self {
        self.tokens = Arc::new(TokenCache::new(tokenizers));
        self
    }

    /// The same engine, with other levels of pressure where the session's agent says nothing.
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// The same engine, able to run turns.
    pub fn with_backends(mut self, world: Backends) -> Self {
        self.world = Some(world);
        self
    }

    /// The same engine, writing the ids of the traces that are exported into the log; without, each turn draws its own.
    pub fn with_trace_ids(mut self, trace_ids: TraceIds) -> Self {
        self.trace_ids = Some(trace_ids);
        self
    }

    /// The same engine, with a model to put memories into words, or an embedder to find them by.
    pub fn with_memory_care(mut self, care: memory::MemoryCare) -> Self {
        self.care = care;
        self
    }

    /// The same engine, with the models, tools, skills and hooks of another one.
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
            ..self.with_backends(other.world()?)
        })
    }

    fn world(&self) -> Result<Backends> {
        self.world.clone().ok_or(EngineError::NoBackends)
    }

    /// The models that can be called now, the default one first.
    pub fn models(&self) -> Result<Vec<String>> {
        let world = self.world()?;
        let others = world.model.names().into_iter().filter(|name| *name != world.default_model);
        Ok(std::iter::once(world.default_model.clone()).chain(others).collect())
    }

    /// The store itself, for what has no verb.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

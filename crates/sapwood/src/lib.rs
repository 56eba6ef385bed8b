//! Sapwood: a session engine for AI agents.
//!
//! A session is a durable, append-only tree of entries. Open a store, open a session, say something, branch, fork, and
//! ask what a model would receive:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), sapwood::Error> {
//! use sapwood::{Sapwood, user_text};
//!
//! let sapwood = Sapwood::open("memory:")?;
//! let session = sapwood.open_session(Default::default()).await?;
//! sapwood.inject(&session, vec![user_text("Hello!")]).await?;
//!
//! let fork = sapwood.fork(&session, Default::default(), Default::default()).await?;
//! sapwood.inject(&fork, vec![user_text("What if …")]).await?;
//!
//! assert_eq!(sapwood.length(&session).await?, 1);
//! assert_eq!(sapwood.length(&fork).await?, 2);
//! # Ok(())
//! # }
//! ```

mod clock;

use std::sync::Arc;

pub use clock::SystemClock;
pub use sapwood_core as core;
pub use sapwood_core::project::context::Context;
pub use sapwood_core::{Body, EntryId, Part, Principal, Scope, Seq, SessionId, TenantId};
pub use sapwood_effects as effects;
pub use sapwood_engine as engine;
pub use sapwood_engine::write::{ForkAt, OpenOptions};
pub use sapwood_engine::{Engine, EngineError as Error};
pub use sapwood_formats as formats;
pub use sapwood_store as store;

use sapwood_core::entry::UserMessage;
use sapwood_engine::write::InjectOptions;

type Result<T, E = Error> = std::result::Result<T, E>;

/// An engine over the store a URL names, with the system's clock.
pub fn open_engine(url: &str, options: store::OpenOptions) -> Result<Engine> {
    let store = store::open(url, options)?;
    Ok(Engine::new(store, Arc::new(SystemClock)))
}

/// A user's words.
pub fn user_text(text: impl Into<String>) -> Body {
    Body::UserMessage(UserMessage { parts: vec![Part::text(text)], origin: None })
}

/// One user's sessions: an [`Engine`] and the scope it is used with.
#[derive(Clone)]
pub struct Sapwood {
    engine: Engine,
    scope: Scope,
}

impl Sapwood {
    /// Opens `sqlite:FILE`, `jsonl:DIR` or `memory:` as the one who holds it.
    pub fn open(url: &str) -> Result<Self> {
        let scope = Scope::operator(TenantId::local(), Principal::System);
        Ok(Self { engine: open_engine(url, store::OpenOptions::default())?, scope })
    }

    /// The same sessions, as somebody else sees them.
    pub fn with_scope(&self, scope: Scope) -> Self {
        Self { engine: self.engine.clone(), scope }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Idempotent: an id that exists is opened as it is.
    pub async fn open_session(&self, options: OpenOptions) -> Result<SessionId> {
        Ok(self.engine.open(&self.scope, options).await?.0)
    }

    pub async fn inject(&self, session: &SessionId, bodies: Vec<Body>) -> Result<()> {
        self.engine.inject(&self.scope, session, bodies, InjectOptions::default()).await?;
        Ok(())
    }

    pub async fn fork(&self, source: &SessionId, at: ForkAt, options: OpenOptions) -> Result<SessionId> {
        self.engine.fork(&self.scope, source, at, options).await
    }

    pub async fn context(&self, session: &SessionId) -> Result<Context> {
        self.engine.context(&self.scope, session, None).await
    }

    /// Messages in the context.
    pub async fn length(&self, session: &SessionId) -> Result<usize> {
        self.engine.length(&self.scope, session).await
    }
}

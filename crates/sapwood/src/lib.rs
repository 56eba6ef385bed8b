//! Sapwood: a session engine for AI agents.
//!
//! A session is a durable, append-only tree of entries. Open a store, start a session with an agent, and send
//! it a message. The answer streams while every event is written to the log:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), sapwood::Error> {
//! use sapwood::{Agent, Sapwood};
//!
//! let sapwood = Sapwood::open("memory:")?;
//! let session = sapwood.start(Agent::default()).await?; // no model named: the demo model, which needs no key
//! let report = sapwood.send(&session, "Hello!").await?;
//! assert!(!report.text.is_empty());
//! assert_eq!(sapwood.length(&session).await?, 2);
//! # Ok(())
//! # }
//! ```
//!
//! Any number of subscribers can follow a session from any entry, and receive each entry once and in order:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), sapwood::Error> {
//! use sapwood::{Agent, Sapwood, Seq, SessionEvent};
//!
//! let sapwood = Sapwood::open("memory:")?;
//! let session = sapwood.start(Agent::default()).await?;
//! let _listener = sapwood
//!     .listen(&session, Seq::ZERO, |event| match event {
//!         SessionEvent::Entry(record) => println!("{} {}", record.meta.seq, record.meta.kind.as_str()),
//!         SessionEvent::Fragment(fragment) => println!("… {:?}", fragment.kind),
//!     })
//!     .await?;
//! sapwood.send(&session, "Hello!").await?;
//! # Ok(())
//! # }
//! ```
//!
//! A session can branch and fork without copying, and messages can be added without a model:
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

mod backends;
mod clock;
pub mod flow;

use std::sync::Arc;

pub use backends::{DEFAULT_MODEL, default_backends};
pub use clock::SystemClock;
pub use sapwood_core as core;
pub use sapwood_core::agent::{Agent, Narrowing};
pub use sapwood_core::entry::{ApprovalAnswer, GraftWhat};
pub use sapwood_core::port::hook::{HookAction, HookAnswer, HookEvent, HookName, Verdict};
pub use sapwood_core::port::memory::{Belongs, Memory, MemoryFilter, MemoryKind, Whose};
pub use sapwood_core::project::context::Context;
pub use sapwood_core::{Body, EntryId, MemoryId, Part, Principal, Scope, Seq, SessionId, TenantId};
pub use sapwood_effects as effects;
pub use sapwood_engine as engine;
pub use sapwood_engine::compact::{Compacted, Compacting};
pub use sapwood_engine::graft::{GraftState, GraftView, Grafted};
pub use sapwood_engine::hook::{HookRegistry, InstalledHook, OnFailure};
pub use sapwood_engine::memory::{
    Learning, MemoryConfig, MemoryEdit, MemoryOutcome, RecalledMemory, Recollection, StoredMemory, UserMemory,
};
pub use sapwood_engine::sessions::StartOptions;
pub use sapwood_engine::sessions::{ForkAt, OpenOptions};
pub use sapwood_engine::turn::{IfRunning, OnWait, PendingApproval, Running, SendOptions, Sent, TurnReport};
pub use sapwood_engine::views::{Ancestry, Snapshot};
pub use sapwood_engine::{Backends, Engine, EngineError as Error, Listener, SessionEvent, Subscription};
pub use sapwood_formats as formats;
pub use sapwood_store as store;

use sapwood_core::TurnId;
use sapwood_core::entry::UserMessage;
use sapwood_effects::tokens::KnownTokenizers;
use sapwood_engine::edits::InjectOptions;
use sapwood_engine::hook::Closure;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Open an engine over the store at a URL, with the system clock. The engine cannot run turns until it has
/// [`Backends`].
pub fn open_engine(url: &str, options: store::OpenOptions) -> Result<Engine> {
    let store = store::open(url, options)?;
    Ok(Engine::new(store, Arc::new(SystemClock)).with_tokenizers(Arc::new(KnownTokenizers)))
}

/// A user message.
pub fn user_text(text: impl Into<String>) -> Body {
    Body::UserMessage(UserMessage { parts: vec![Part::text(text)], origin: None })
}

/// One user's sessions: an [`Engine`] and the scope of its calls. An unknown id is an error for every
/// operation except [`exists`](Sapwood::exists), [`snapshot`](Sapwood::snapshot),
/// [`ancestry`](Sapwood::ancestry) and opening.
#[derive(Clone)]
pub struct Sapwood {
    engine: Engine,
    scope: Scope,
}

impl Sapwood {
    /// Open `sqlite:FILE`, `jsonl:DIR`, `postgres://USER@HOST/DB` or `memory:` as the local operator, with
    /// the default models and tools.
    pub fn open(url: &str) -> Result<Self> {
        let engine = open_engine(url, store::OpenOptions::default())?;
        Ok(Self::with_engine(engine.with_backends(default_backends(backends::scratch_dir())?)))
    }

    /// Use a custom engine: another store, other models, other tools.
    pub fn with_engine(engine: Engine) -> Self {
        Self { engine, scope: Scope::operator(TenantId::local(), Principal::System) }
    }

    /// Use the same sessions with the rights of another scope.
    pub fn with_scope(&self, scope: Scope) -> Self {
        Self { engine: self.engine.clone(), scope }
    }

    /// Install a closure as a hook. It acts with the rights of this scope:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{Agent, HookName, Sapwood, Verdict};
    ///
    /// let sapwood = Sapwood::open("memory:")?.on(HookName::BeforeSend, |event| async move {
    ///     match event.data["text"].as_str() {
    ///         Some(text) if text.contains("password") => Verdict::Refuse { reason: "no passwords".into() },
    ///         _ => Verdict::GoOn,
    ///     }
    /// })?;
    /// let session = sapwood.start(Agent::default()).await?;
    /// let refused = sapwood.send(&session, "my password is …").await.unwrap_err();
    /// assert_eq!(refused.code(), "hook.refused");
    /// # Ok(())
    /// # }
    /// ```
    pub fn on<F, Fut, A>(self, name: HookName, closure: F) -> Result<Self>
    where
        F: Fn(HookEvent) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = A> + Send + 'static,
        A: Into<HookAnswer> + 'static,
    {
        let number = self.engine.config().hooks.iter().filter(|hook| hook.on == name).count() + 1;
        let hook = Arc::new(Closure(closure));
        let installed = InstalledHook::new(format!("closure-{number}"), name, hook, self.scope.clone());
        self.install(installed)
    }

    /// Install a hook with a name, priority and timeout.
    pub fn install(self, installed: InstalledHook) -> Result<Self> {
        let mut hooks = self.engine.config().hooks.clone();
        hooks.install(installed)?;
        Ok(Self { engine: self.engine.configured(|config| config.hooks = hooks), scope: self.scope })
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Start a session with an agent, which is frozen into it.
    pub async fn start(&self, agent: Agent) -> Result<SessionId> {
        self.start_with(StartOptions { agent, ..StartOptions::default() }).await
    }

    /// Start a session with an id, a title, a directory, variables, or fewer rights than the agent allows.
    pub async fn start_with(&self, options: StartOptions) -> Result<SessionId> {
        Ok(self.engine.sessions().start(&self.scope, options).await?.0)
    }

    /// Send a message and wait until the turn ends or waits for an answer: see [`TurnReport::waiting`].
    pub async fn send(&self, session: &SessionId, text: impl Into<String>) -> Result<TurnReport> {
        let options = SendOptions { on_wait: OnWait::Leave, ..SendOptions::default() };
        match self.send_with(session, vec![Part::text(text)], options).await? {
            Sent::Started(running) => running.ended().await,
            Sent::Queued(_) => Err(Error::TurnRunning { session: session.clone() }),
        }
    }

    /// Send parts and return at once. The turn continues even if no caller waits for it.
    pub async fn send_with(
        &self,
        session: &SessionId,
        parts: Vec<Part>,
        options: SendOptions,
    ) -> Result<Sent> {
        self.engine.turns().send(&self.scope, session, parts, options).await
    }

    /// Get one answer without a session. The turn runs on a temporary in-memory store, and nothing is stored
    /// permanently.
    pub async fn ask(&self, agent: Agent, text: impl Into<String>) -> Result<TurnReport> {
        let engine = open_engine("memory:", store::OpenOptions::default())?;
        let temporary = Self {
            engine: engine.configured(|config| *config = self.engine.config().clone()),
            scope: self.scope.clone(),
        };
        let session = temporary.start(agent).await?;
        temporary.send(&session, text).await
    }

    /// Resume a turn that was interrupted or is waiting; `None` if there is nothing to resume.
    pub async fn resume(&self, session: &SessionId) -> Result<Option<TurnReport>> {
        match self.engine.turns().resume(&self.scope, session, OnWait::Leave).await? {
            Some(running) => Ok(Some(running.ended().await?)),
            None => Ok(None),
        }
    }

    /// Request cancellation of the open turn, even if another process runs it.
    pub async fn cancel(&self, session: &SessionId) -> Result<TurnId> {
        self.engine.turn_control().cancel(&self.scope, session).await
    }

    /// Add a message to the running turn.
    pub async fn steer(&self, session: &SessionId, text: impl Into<String>) -> Result<EntryId> {
        self.engine.turn_control().steer(&self.scope, session, vec![Part::text(text)]).await
    }

    /// The pending approvals of a session.
    pub async fn approvals(&self, session: &SessionId) -> Result<Vec<PendingApproval>> {
        self.engine.turn_control().approvals(&self.scope, session).await
    }

    pub async fn answer(
        &self,
        approval: &str,
        answer: ApprovalAnswer,
        reason: Option<String>,
    ) -> Result<SessionId> {
        self.engine.turn_control().answer(&self.scope, approval, answer, reason).await
    }

    /// Subscribe to all events after the cursor: first those in the log, once and in order, then live events.
    pub async fn subscribe(&self, session: &SessionId, after: Seq) -> Result<Subscription> {
        self.engine.events().subscribe(&self.scope, session, after).await
    }

    /// Call a closure for every event after the cursor, until the listener is dropped.
    pub async fn listen(
        &self,
        session: &SessionId,
        after: Seq,
        listener: impl FnMut(SessionEvent) + Send + 'static,
    ) -> Result<Listener> {
        self.engine.events().listen(&self.scope, session, after, listener).await
    }

    /// Open a session. Idempotent: an existing id is opened unchanged.
    pub async fn open_session(&self, options: OpenOptions) -> Result<SessionId> {
        Ok(self.engine.sessions().open(&self.scope, options).await?.0)
    }

    pub async fn exists(&self, session: &SessionId) -> Result<bool> {
        self.engine.directory().exists(&self.scope, session).await
    }

    pub async fn snapshot(&self, session: &SessionId) -> Result<Option<Snapshot>> {
        self.engine.views().snapshot(&self.scope, session).await
    }

    pub async fn ancestry(&self, session: &SessionId) -> Result<Option<Ancestry>> {
        self.engine.views().ancestry(&self.scope, session).await
    }

    pub async fn inject(&self, session: &SessionId, bodies: Vec<Body>) -> Result<()> {
        self.engine.edits().inject(&self.scope, session, bodies, InjectOptions::default()).await?;
        Ok(())
    }

    pub async fn fork(&self, source: &SessionId, at: ForkAt, options: OpenOptions) -> Result<SessionId> {
        self.engine.sessions().fork(&self.scope, source, at, options).await
    }

    /// Fork a session, sharing its first `keep_first` messages.
    pub async fn fork_at(&self, source: &SessionId, keep_first: u32) -> Result<SessionId> {
        self.fork(source, ForkAt::KeepFirst(keep_first), OpenOptions::default()).await
    }

    /// Remove all current messages from the context.
    pub async fn reset(&self, session: &SessionId) -> Result<()> {
        self.engine.edits().reset(&self.scope, session).await?;
        Ok(())
    }

    /// Keep only the last `keep_last` messages in the context. Returns how many are left.
    pub async fn trim(&self, session: &SessionId, keep_last: usize) -> Result<usize> {
        self.engine.edits().trim(&self.scope, session, keep_last).await
    }

    pub async fn compact(&self, session: &SessionId, how: Compacting) -> Result<Compacted> {
        self.engine.compaction().compact(&self.scope, session, how).await
    }

    pub async fn close(&self, session: &SessionId) -> Result<()> {
        self.engine.sessions().close(&self.scope, session).await
    }

    pub async fn archive(&self, session: &SessionId) -> Result<()> {
        self.engine.sessions().archive(&self.scope, session).await
    }

    /// Store a fact for later sessions of this user. A known fact is strengthened; a contradicted fact is
    /// superseded.
    pub async fn remember(&self, text: impl Into<String>, kind: MemoryKind) -> Result<StoredMemory> {
        let written = UserMemory { text: text.into(), kind, belongs: None };
        self.engine.memories().remember(&self.scope, written).await
    }

    /// This user's memories and the tenant's, newest first.
    pub async fn memories(&self) -> Result<Vec<Memory>> {
        let filter =
            MemoryFilter { whose: Whose::For(self.scope.principal.clone()), ..MemoryFilter::default() };
        Ok(self.engine.memories().list(&self.scope, &filter).await?.items)
    }

    /// The memories that match a question, best first.
    pub async fn recollect(&self, question: &str, limit: usize) -> Result<Vec<RecalledMemory>> {
        let whose = Whose::For(self.scope.principal.clone());
        Ok(self.engine.memories().recollect(&self.scope, question, whose, limit).await?.found)
    }

    pub async fn edit_memory(&self, memory: MemoryId, edit: MemoryEdit) -> Result<Memory> {
        self.engine.memories().edit(&self.scope, memory, edit).await
    }

    /// Delete a memory permanently, with the versions it superseded. Returns how many were deleted.
    pub async fn forget(&self, memory: MemoryId) -> Result<usize> {
        self.engine.memories().forget(&self.scope, memory).await
    }

    /// Extract memories from the new entries of a session. Closing or archiving a session does the same.
    pub async fn learn(&self, session: &SessionId) -> Result<Learning> {
        self.engine.memories().learn(&self.scope, session).await
    }

    /// Graft an artifact, a digest or a range of rounds of another session, by reference.
    pub async fn graft(&self, session: &SessionId, source: &SessionId, what: GraftWhat) -> Result<GraftView> {
        self.engine.grafts().add(&self.scope, session, source, what).await
    }

    pub async fn grafts(&self, session: &SessionId) -> Result<Vec<GraftView>> {
        self.engine.grafts().list(&self.scope, session).await
    }

    /// Read a graft's content. Fails if the content is withheld.
    pub async fn read_graft(&self, session: &SessionId, seq: Seq) -> Result<Arc<Grafted>> {
        Ok(self.engine.grafts().read(&self.scope, session, seq).await?.1)
    }

    pub async fn context(&self, session: &SessionId) -> Result<Context> {
        self.engine.views().context(&self.scope, session, None).await
    }

    /// Number of messages in the context.
    pub async fn length(&self, session: &SessionId) -> Result<usize> {
        self.engine.views().length(&self.scope, session).await
    }
}

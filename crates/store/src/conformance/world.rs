//! An open store with a test clock, a few principals, and helpers for common steps.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sapwood_core::entry::proof::{LogHead, StoredEntry, Verifier};
use sapwood_core::entry::{AssistantMessage, MemberChanged, Record, SessionState, StateChanged, UserMessage};
use sapwood_core::fixture::MemLog;
use sapwood_core::port::store::{Append, Appended, Fork, NewSession, Result, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::{
    BlobHash, BlobRef, Body, Draft, Part, Principal, Role, Scope, Seq, SessionId, Store, StoreError,
    TenantId, TimestampMs,
};

use super::Harness;

/// Later than every timestamp that the fixture notation writes.
const START_MS: i64 = 1_800_000_000_000;

pub struct World {
    pub store: Arc<dyn Store>,
    clock: AtomicI64,
}

pub fn user(name: &str) -> Scope {
    Scope::user("acme".parse().unwrap(), name.parse().unwrap())
}

/// The owner of most sessions.
pub fn ana() -> Scope {
    user("ana")
}

pub fn bob() -> Scope {
    user("bob")
}

pub fn operator() -> Scope {
    Scope::operator("acme".parse().unwrap(), Principal::System)
}

/// A user with the same name in another tenant.
pub fn foreign_ana() -> Scope {
    Scope::user("globex".parse::<TenantId>().unwrap(), "ana".parse().unwrap())
}

pub fn id(name: &str) -> SessionId {
    name.parse().unwrap()
}

pub fn user_message(text: &str) -> Body {
    UserMessage { parts: vec![Part::text(text)], origin: None }.into()
}

pub fn assistant_message(text: &str, model: Option<&str>) -> Body {
    AssistantMessage {
        parts: vec![Part::text(text)],
        model: model.map(str::to_owned),
        usage: None,
        cost_nano_usd: None,
        stop: Default::default(),
    }
    .into()
}

pub fn blob_ref(blob: BlobHash) -> BlobRef {
    BlobRef { blob, mime: "text/plain".to_owned(), name: None, bytes: 3, duration_ms: None }
}

pub fn message_with_blob(blob: BlobHash) -> Body {
    UserMessage { parts: vec![Part::text("see"), Part::Media(blob_ref(blob))], origin: None }.into()
}

pub fn archived() -> Body {
    StateChanged { state: SessionState::Archived, reason: None }.into()
}

pub fn reopened() -> Body {
    StateChanged { state: SessionState::Active, reason: None }.into()
}

pub fn shared(with: &Scope, role: Option<Role>) -> Body {
    MemberChanged::new(with.principal.clone(), role).into()
}

/// The error's stable code.
#[track_caller]
pub fn code<T: Debug>(result: Result<T>) -> &'static str {
    result.unwrap_err().code()
}

impl World {
    pub async fn open(harness: &impl Harness) -> Self {
        Self { store: harness.open().await, clock: AtomicI64::new(START_MS) }
    }

    /// Reopen the same location without resetting the clock. Returns `None` if the store does not persist.
    pub async fn reopen(self, harness: &impl Harness) -> Option<Self> {
        if !harness.persists() {
            return None;
        }
        self.store.flush().await.unwrap();
        let clock = AtomicI64::new(self.clock.load(Ordering::Relaxed));
        drop(self);
        Some(Self { store: harness.open().await, clock })
    }

    /// Return the current time. The clock advances one second per call.
    pub fn now(&self) -> TimestampMs {
        TimestampMs(self.clock.fetch_add(1_000, Ordering::Relaxed))
    }

    pub fn new_session(&self, name: &str) -> NewSession {
        let at = self.now();
        NewSession::new(id(name), at)
    }

    pub async fn create(&self, scope: &Scope, name: &str) -> SessionId {
        self.store.create(scope, self.new_session(name)).await.unwrap();
        id(name)
    }

    pub fn append_of(&self, session: &SessionId, bodies: Vec<Body>) -> Append {
        let now = self.now();
        let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
        Append::new(session.clone(), now, drafts)
    }

    pub async fn try_append(
        &self,
        scope: &Scope,
        session: &SessionId,
        bodies: Vec<Body>,
    ) -> Result<Appended> {
        self.store.append(scope, self.append_of(session, bodies)).await
    }

    #[track_caller]
    pub fn append(
        &self,
        scope: &Scope,
        session: &SessionId,
        bodies: Vec<Body>,
    ) -> impl Future<Output = Appended> + Send {
        let append = self.append_of(session, bodies);
        let (store, scope) = (Arc::clone(&self.store), scope.clone());
        async move { store.append(&scope, append).await.unwrap() }
    }

    /// Append a user message.
    pub async fn append_text(&self, scope: &Scope, session: &SessionId, text: &str) -> Appended {
        self.append(scope, session, vec![user_message(text)]).await
    }

    /// Create a session with these user messages.
    pub async fn create_with(&self, scope: &Scope, name: &str, texts: &[&str]) -> SessionId {
        let session = self.create(scope, name).await;
        for text in texts {
            self.append_text(scope, &session, text).await;
        }
        session
    }

    pub async fn fork(&self, scope: &Scope, source: &SessionId, at: Option<u32>, name: &str) -> SessionId {
        self.store.fork(scope, self.fork_of(source, at, name)).await.unwrap();
        id(name)
    }

    pub fn fork_of(&self, source: &SessionId, at: Option<u32>, name: &str) -> Fork {
        Fork { source: source.clone(), at: at.map(Seq), new: self.new_session(name), drafts: Vec::new() }
    }

    pub async fn summary(&self, scope: &Scope, session: &SessionId) -> Summary {
        self.store.summary(scope, session).await.unwrap()
    }

    pub async fn log(&self, scope: &Scope, session: &SessionId) -> Vec<Record> {
        read_log(&*self.store, scope, session).await.unwrap()
    }

    /// Read the whole log as it is stored, with the proofs.
    pub async fn proofs(&self, scope: &Scope, session: &SessionId) -> Vec<StoredEntry> {
        let mut log: Vec<StoredEntry> = Vec::new();
        loop {
            let after = log.last().map_or(Seq::ZERO, |entry| entry.meta.seq);
            let page = self.store.read_proofs(scope, session, after, 1_000).await.unwrap();
            if page.is_empty() {
                return log;
            }
            log.extend(page);
        }
    }

    /// Verify the hashes of a log. Every entry must have one.
    pub async fn verify(&self, scope: &Scope, session: &SessionId) -> LogHead {
        let mut verifier = Verifier::new(session);
        for entry in self.proofs(scope, session).await {
            verifier.check(&entry).unwrap();
        }
        verifier.head().unwrap()
    }

    /// Return the texts of the messages on the path to the leaf.
    pub async fn texts(&self, scope: &Scope, session: &SessionId) -> Vec<String> {
        let slice = self.store.read_path(scope, session, None, Until::Root).await.unwrap();
        slice.entries.iter().map(|entry| entry.body.text()).collect()
    }
}

/// Read the whole log, page by page.
pub async fn read_log(
    store: &dyn Store,
    scope: &Scope,
    session: &SessionId,
) -> Result<Vec<Record>, StoreError> {
    let mut log: Vec<Record> = Vec::new();
    loop {
        let after = log.last().map_or(Seq::ZERO, |record| record.meta.seq);
        let page = store.read_after(scope, session, after, 1_000).await?;
        if page.is_empty() {
            return Ok(log);
        }
        log.extend(page);
    }
}

/// A fixture log and the same log in a store. The session owner is the fixture's writer.
pub struct ModeledSession {
    pub model: MemLog,
    pub scope: Scope,
    pub session: SessionId,
    /// The session that this one was forked from. The model gives all forks the same id.
    source: Option<SessionId>,
    written: usize,
}

impl ModeledSession {
    pub async fn create(world: &World) -> Self {
        let model = MemLog::default();
        let summary = model.summary();
        let scope = Scope { tenant: "acme".parse().unwrap(), principal: summary.owner.clone(), ..ana() };
        let new = NewSession { id: summary.id.clone(), at: summary.created_at, ..world.new_session("x") };
        world.store.create(&scope, new).await.unwrap();
        Self { scope, session: summary.id.clone(), source: None, model, written: 0 }
    }

    pub async fn of(world: &World, script: &str) -> Self {
        let mut modeled = Self::create(world).await;
        modeled.write(world, script).await;
        modeled
    }

    /// Append a script to the model and to the stored session.
    pub async fn write(&mut self, world: &World, script: &str) {
        self.model.write(script);
        self.catch_up(world, usize::MAX).await;
    }

    /// Append the entries that only the model has so far, in batches of at most `batch_max` entries.
    pub async fn catch_up(&mut self, world: &World, batch_max: usize) {
        let drafts: Vec<Draft> = self.model.entries().skip(self.written).map(draft_of).collect();
        self.written += drafts.len();
        for batch in drafts.chunks(batch_max.min(5_000)) {
            let append = Append::new(self.session.clone(), world.now(), batch.to_vec());
            world.store.append(&self.scope, append).await.unwrap();
        }
    }

    /// Fork the model and the stored session at the given entry, or at the leaf.
    pub async fn fork(&self, world: &World, at: Option<Seq>) -> Self {
        let name = self.model.fork(at).summary().id.clone();
        self.fork_as(world, at, name.as_str()).await
    }

    /// Like `fork`, with this name for the stored fork.
    pub async fn fork_as(&self, world: &World, at: Option<Seq>, name: &str) -> Self {
        let model = self.model.fork(at);
        let summary = model.summary();
        let new = NewSession { id: id(name), at: summary.created_at, ..world.new_session("x") };
        let drafts = model.entries().skip(summary.inherited as usize).map(draft_of).collect();
        let fork = Fork { source: self.session.clone(), at, new, drafts };
        let head = world.store.fork(&self.scope, fork).await.unwrap();
        assert_eq!(head, model.head());
        let written = model.placed().len();
        Self {
            scope: self.scope.clone(),
            session: id(name),
            model,
            written,
            source: Some(self.session.clone()),
        }
    }

    /// Check that every store answer about the session equals the naive model's.
    pub async fn check(&self, world: &World) {
        let expected: Vec<Record> = self.model.entries().map(|entry| entry.to_record()).collect();
        assert_eq!(world.log(&self.scope, &self.session).await, expected, "the log");
        let summary = world.summary(&self.scope, &self.session).await;
        let mut expected = self.model.summary().clone();
        expected.id = self.session.clone();
        if let (Some(parent), Some(source)) = (&mut expected.parent, &self.source) {
            parent.session = source.clone();
        }
        assert_eq!(summary, expected, "the summary");
        assert_eq!(world.verify(&self.scope, &self.session).await.seq, summary.head.seq, "the hashes");
        self.check_path(world, None).await;
    }

    pub async fn check_path(&self, world: &World, at: Option<Seq>) {
        for until in [Until::Root, Until::ContextStart, Until::Entries(1), Until::Entries(3)] {
            let mut slice = world.store.read_path(&self.scope, &self.session, at, until).await.unwrap();
            let mut expected = self.model.slice(at, until);
            if expected.entries.is_empty() {
                // An empty slice has no turns to compare.
                (slice.ended_turns, expected.ended_turns) = (Vec::new(), Vec::new());
            }
            assert_eq!(slice, expected, "the path to {at:?} until {until:?}");
        }
        self.check_walk(world, at).await;
    }

    /// Check that walks of any length return the metadata of the path, newest first.
    async fn check_walk(&self, world: &World, at: Option<Seq>) {
        let expected: Vec<_> =
            self.model.slice(at, Until::Root).entries.into_iter().rev().map(|entry| entry.meta).collect();
        for limit in [0, 1, 3, usize::MAX] {
            let walked = world.store.walk_path(&self.scope, &self.session, at, limit).await.unwrap();
            assert_eq!(walked, expected[..limit.min(expected.len())], "{limit} steps of the path to {at:?}");
        }
    }
}

fn draft_of(entry: &sapwood_core::Entry) -> Draft {
    Draft {
        id: Some(entry.meta.id),
        at: entry.meta.at,
        by: Some(entry.meta.by.clone()),
        turn: entry.meta.turn,
        body: entry.body.clone(),
    }
}

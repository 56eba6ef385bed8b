//! Store, edit and delete memories, both learned and written by users. A repeated memory is strengthened. A
//! contradicting memory supersedes the older memory, which is kept and linked.

use sapwood_core::id::MemoryId;
use sapwood_core::memory::compare::{Relation, relate};
use sapwood_core::memory::rank::quantise;
use sapwood_core::memory::{Candidate, Tone, is_storable};
use sapwood_core::port::memory::{
    Belongs, Embedding, Learned, Memory, MemoryFilter, MemoryKind, MemorySource, Standing, Whose,
};
use sapwood_core::port::store::{Page, StoreError};
use sapwood_core::{Principal, Scope, TimestampMs};
use serde::Serialize;

use super::Memories;
use crate::{EngineError, Result};

/// Maximum number of attempts under concurrent writes.
const TRIES_MAX: u32 = 16;

/// A memory written by a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserMemory {
    /// The fact.
    pub text: String,
    /// What kind of fact it is.
    pub kind: MemoryKind,
    /// Defaults to the caller.
    pub belongs: Option<Belongs>,
}

/// Changes to a memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryEdit {
    /// The new text.
    pub text: Option<String>,
    /// The new kind.
    pub kind: Option<MemoryKind>,
    /// Share the memory with the tenant, or return it to the caller.
    pub belongs: Option<Belongs>,
    /// Fail with a conflict unless the memory has this version.
    pub expected: Option<u64>,
}

/// The outcome for a candidate memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum MemoryOutcome {
    /// The memory is new.
    Learned,
    /// The memory was already known and now has more support.
    Strengthened,
    /// The memory was already known, and the candidate adds no support.
    Known,
    /// The memory supersedes an older memory.
    Superseded { old: MemoryId },
}

/// A memory in the store, and how the candidate changed it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredMemory {
    /// The memory.
    pub memory: Memory,
    /// What happened to the memory.
    #[serde(flatten)]
    pub outcome: MemoryOutcome,
}

impl Memories<'_> {
    /// Store a memory written by a user.
    pub async fn remember(self, scope: &Scope, written: UserMemory) -> Result<StoredMemory> {
        let belongs = written.belongs.unwrap_or_else(|| Belongs::To(scope.principal.clone()));
        let text = checked_text(&written.text)?;
        let candidate = Candidate { kind: written.kind, text, entries: Vec::new(), tone: Tone::Plain };
        let now = self.engine.clock.now();
        let new = NewMemory {
            id: MemoryId::mint(now, self.engine.clock.random()),
            belongs: belongs.clone(),
            learned: Learned::ByHand,
            source: None,
        };
        for _ in 0..TRIES_MAX {
            let mut known = self.all(scope, Whose::Only(belongs.clone()), Standing::Current).await?;
            match self.store_candidate(scope, &candidate, &new, &mut known).await {
                Err(EngineError::Store(StoreError::MemoryConflict { .. })) => continue,
                kept => return kept,
            }
        }
        Err(contended(new.id))
    }

    pub async fn get(self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        Ok(self.engine.store.get_memory(scope, id).await?)
    }

    /// One page of memories, newest first. With search words, only memories that contain all of the words.
    pub async fn list(self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        Ok(self.engine.store.list_memories(scope, filter).await?)
    }

    /// The memories that this memory supersedes, newest first.
    pub async fn superseded(self, scope: &Scope, memory: &Memory) -> Result<Vec<Memory>> {
        let all = self.all(scope, Whose::Only(memory.belongs.clone()), Standing::Any).await?;
        Ok(all.into_iter().filter(|other| other.superseded_by == Some(memory.id)).collect())
    }

    /// Change a memory. Its author stays the same.
    pub async fn edit(self, scope: &Scope, id: MemoryId, edit: MemoryEdit) -> Result<Memory> {
        let text = edit.text.as_deref().map(checked_text).transpose()?;
        for _ in 0..TRIES_MAX {
            let known = self.engine.store.get_memory(scope, id).await?;
            let version = edit.expected.unwrap_or(known.version);
            let mut edited = known.clone();
            edited.kind = edit.kind.unwrap_or(known.kind);
            edited.belongs = edit.belongs.clone().unwrap_or_else(|| known.belongs.clone());
            if let Some(text) = text.clone().filter(|text| *text != known.text) {
                edited = Memory { text, embedding: None, ..edited };
            }
            match self.write(scope, edited, version).await {
                Err(EngineError::Store(StoreError::MemoryConflict { .. })) if edit.expected.is_none() => {}
                written => return written,
            }
        }
        Err(contended(id))
    }

    /// Delete a memory permanently, with the memories it superseded. Returns how many were deleted.
    pub async fn forget(self, scope: &Scope, id: MemoryId) -> Result<usize> {
        let memory = self.engine.store.get_memory(scope, id).await?;
        if !memory.may_be_changed_by(scope) {
            let principal = scope.principal.clone();
            return Err(StoreError::MemoryDenied { memory: id, principal }.into());
        }
        if let Belongs::To(owner) = &memory.belongs
            && let Some(hold) = self.engine.personal_data().hold_list(scope).await?.of_principal(owner)
        {
            let what = format!("memory {id}");
            return Err(EngineError::Held { what, hold: hold.to_owned() });
        }
        let all = self.all(scope, Whose::Only(memory.belongs.clone()), Standing::Any).await?;
        let mut to_delete = vec![id];
        // The list grows while it is iterated. The loop ends because no memory is added twice.
        let mut next = 0;
        while let Some(newer) = to_delete.get(next).copied() {
            let older = all
                .iter()
                .filter(|other| other.superseded_by == Some(newer) && !to_delete.contains(&other.id));
            let older: Vec<MemoryId> = older.map(|other| other.id).collect();
            to_delete.extend(older);
            next += 1;
        }
        let now = self.engine.clock.now();
        for id in to_delete.iter().rev() {
            match self.engine.store.forget_memory(scope, *id, now).await {
                Ok(()) | Err(StoreError::NoMemory { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(to_delete.len())
    }

    /// Store a candidate in relation to the known memories, and update `known`.
    pub(super) async fn store_candidate(
        self,
        scope: &Scope,
        candidate: &Candidate,
        new: &NewMemory,
        known: &mut Vec<Memory>,
    ) -> Result<StoredMemory> {
        match relate(candidate, known.iter().filter(|memory| memory.is_current())) {
            Relation::Strengthens(id) => self.strengthen(scope, id, new, known).await,
            Relation::New => {
                let memory = self.write(scope, new.memory(candidate), 0).await?;
                known.push(memory.clone());
                Ok(StoredMemory { memory, outcome: MemoryOutcome::Learned })
            }
            Relation::Supersedes(old) => {
                let memory = self.write(scope, new.memory(candidate), 0).await?;
                self.supersede(scope, old, memory.id, known).await?;
                known.push(memory.clone());
                Ok(StoredMemory { memory, outcome: MemoryOutcome::Superseded { old } })
            }
        }
    }

    async fn strengthen(
        self,
        scope: &Scope,
        id: MemoryId,
        new: &NewMemory,
        known: &mut [Memory],
    ) -> Result<StoredMemory> {
        let stored = known.iter_mut().find(|memory| memory.id == id);
        let stored = stored.ok_or(StoreError::NoMemory { memory: id })?;
        let mut stronger = stored.clone();
        let added = new.source.as_ref().map_or(0, |source| stronger.support(source));
        if added == 0 {
            return Ok(StoredMemory { memory: stronger, outcome: MemoryOutcome::Known });
        }
        let version = stronger.version;
        *stored = self.write(scope, stronger, version).await?;
        Ok(StoredMemory { memory: stored.clone(), outcome: MemoryOutcome::Strengthened })
    }

    async fn supersede(self, scope: &Scope, old: MemoryId, by: MemoryId, known: &mut [Memory]) -> Result<()> {
        let Some(stored) = known.iter_mut().find(|memory| memory.id == old) else { return Ok(()) };
        let version = stored.version;
        let superseded = Memory { superseded_by: Some(by), ..stored.clone() };
        *stored = self.write(scope, superseded, version).await?;
        Ok(())
    }

    /// Write a memory, with its embedding. All writes of this service use this function.
    pub(super) async fn write(self, scope: &Scope, mut memory: Memory, expected: u64) -> Result<Memory> {
        if memory.embedding.is_none() {
            memory.embedding = self.embed(&memory.text).await;
        }
        Ok(self.engine.store.put_memory(scope, memory, expected, self.engine.clock.now()).await?)
    }

    /// The embedding of a text. Without an embedder, or if it fails, search uses words only.
    pub(super) async fn embed(self, text: &str) -> Option<Embedding> {
        let embedder = self.engine.config.memory.embedder.as_ref()?;
        match embedder.embed(&[text.to_owned()]).await {
            Ok(vectors) => {
                let numbers = quantise(vectors.first()?);
                Some(Embedding { model: embedder.model().to_owned(), numbers })
            }
            Err(error) => {
                tracing::warn!(%error, "failed to embed a memory");
                None
            }
        }
    }
}

/// The metadata of a new memory before it is compared with others.
pub(super) struct NewMemory {
    pub id: MemoryId,
    pub belongs: Belongs,
    pub learned: Learned,
    pub source: Option<MemorySource>,
}

impl NewMemory {
    fn memory(&self, candidate: &Candidate) -> Memory {
        Memory {
            id: self.id,
            belongs: self.belongs.clone(),
            kind: candidate.kind,
            text: candidate.text.clone(),
            sources: self.source.clone().into_iter().collect(),
            learned: self.learned.clone(),
            // The store sets these four fields.
            by: Principal::System,
            version: 0,
            created_at: TimestampMs(0),
            updated_at: TimestampMs(0),
            superseded_by: None,
            embedding: None,
        }
    }
}

/// Validate a memory's text: not empty and no secret.
fn checked_text(text: &str) -> Result<String> {
    let text = text.trim();
    let fail = |why: &str| Err(EngineError::Invalid { what: "the memory", why: why.to_owned() });
    if text.is_empty() {
        return fail("it is empty");
    }
    if !is_storable(text) {
        return fail("it looks like a key or a password; secrets cannot be stored as memories");
    }
    Ok(text.to_owned())
}

fn contended(memory: MemoryId) -> EngineError {
    StoreError::MemoryConflict { memory, expected: 0, actual: 0 }.into()
}

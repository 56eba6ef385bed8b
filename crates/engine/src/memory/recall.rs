//! Search memories, and brief new sessions with memories from earlier sessions.

use sapwood_core::agent::Agent;
use sapwood_core::id::MemoryId;
use sapwood_core::memory::prompt::{memory_section, provenance};
use sapwood_core::memory::rank::{quantise, rank};
use sapwood_core::port::embedder::EMBED_TEXTS_MAX;
use sapwood_core::port::memory::{
    Belongs, Embedding, Learned, Memory, MemoryKind, MemorySource, Standing, Whose,
};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Principal, Scope, SessionId, TimestampMs};
use serde::Serialize;

use super::Memories;
use crate::{EngineError, Result};

/// Maximum number of memories per search.
pub const FOUND_MAX: usize = 100;

/// A memory and its relevance, from 0 to about 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecalledMemory {
    /// The memory.
    pub memory: Memory,
    /// How well the memory matches; higher is better.
    pub score: f64,
}

/// The result of a memory search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recollection {
    /// The memories, best first.
    pub found: Vec<RecalledMemory>,
    /// Whether embeddings were compared, or only words.
    pub by_embedding: bool,
}

impl Memories<'_> {
    /// The memories that match a question, best first.
    pub async fn recollect(
        self,
        scope: &Scope,
        question: &str,
        whose: Whose,
        limit: usize,
    ) -> Result<Recollection> {
        let mut memories = self.all(scope, whose, Standing::Current).await?;
        let question_embedding = self.embed(question).await;
        if let Some(question_embedding) = &question_embedding {
            self.embed_more(scope, question_embedding, &mut memories).await;
        }
        let ranked = rank(question, question_embedding.as_ref(), &memories)
            .into_iter()
            .take(limit.clamp(1, FOUND_MAX));
        let found = ranked
            .map(|ranked| RecalledMemory { memory: ranked.memory.clone(), score: ranked.score })
            .collect();
        Ok(Recollection { found, by_embedding: question_embedding.is_some() })
    }

    /// Add embeddings to memories that have none of the current model, a limited number per search.
    async fn embed_more(self, scope: &Scope, question: &Embedding, memories: &mut [Memory]) {
        let Some(embedder) = &self.engine.config.memory.embedder else { return };
        let lacks = |memory: &&mut Memory| {
            memory.embedding.as_ref().is_none_or(|known| known.model != question.model)
                && memory.may_be_changed_by(scope)
        };
        let lacking: Vec<&mut Memory> = memories.iter_mut().filter(lacks).take(EMBED_TEXTS_MAX).collect();
        let texts: Vec<String> = lacking.iter().map(|memory| memory.text.clone()).collect();
        if texts.is_empty() {
            return;
        }
        let Ok(vectors) = embedder.embed(&texts).await else { return };
        for (memory, vector) in lacking.into_iter().zip(vectors) {
            let embedding = Embedding { model: question.model.clone(), numbers: quantise(&vector) };
            let version = memory.version;
            let embedded = Memory { embedding: Some(embedding), ..memory.clone() };
            match self.write(scope, embedded, version).await {
                Ok(written) => *memory = written,
                // The memory was changed concurrently; the next search tries again.
                Err(error) => tracing::debug!(%error, "failed to store a memory's embedding"),
            }
        }
    }

    /// Resolve a memory by its id or a unique id prefix.
    pub async fn find(self, scope: &Scope, given: &str) -> Result<MemoryId> {
        if let Ok(id) = given.parse() {
            return Ok(id);
        }
        let all = self.all(scope, Whose::Any, Standing::Any).await?;
        let prefix = given.to_ascii_lowercase();
        let mut matches = all.iter().map(|memory| memory.id).filter(|id| id.to_string().starts_with(&prefix));
        match (matches.next(), matches.next()) {
            (Some(id), None) => Ok(id),
            (Some(first), Some(second)) => Err(EngineError::Ambiguous {
                what: "the memory",
                given: given.to_owned(),
                first: first.to_string(),
                second: second.to_string(),
            }),
            (None, _) => Err(EngineError::NoSuchMemory { given: given.chars().take(64).collect() }),
        }
    }

    /// The memory text for a new session, as configured by its agent. A failure must not prevent the session from
    /// starting.
    pub(crate) async fn memory_prompt(self, scope: &Scope, agent: &Agent) -> Option<String> {
        let tokens = agent.memory.unwrap_or_default().tokens;
        if tokens == 0 {
            return None;
        }
        let whose = Whose::For(scope.principal.clone());
        match self.all(scope, whose, Standing::Current).await {
            Ok(memories) => memory_section(&memories, tokens),
            Err(error) => {
                tracing::warn!(%error, "failed to read memories; the session starts without them");
                None
            }
        }
    }

    /// Which memories may be put into a session: the owner's and the tenant's if only the owner can read the session,
    /// else only the tenant's. Memories become part of the session's log, which all members can read.
    pub(crate) fn allowed_memories(self, scope: &Scope, summary: &Summary) -> Whose {
        let is_private = summary.members.is_empty() && summary.owner == scope.principal;
        match is_private {
            true => Whose::For(scope.principal.clone()),
            false => Whose::Only(Belongs::Tenant),
        }
    }

    /// Whether all readers of `into` may also read `from`, so that quoting does not leak content.
    pub(crate) async fn may_quote(self, scope: &Scope, into: &Summary, from: &SessionId) -> bool {
        let Ok(from) = self.engine.store.summary(scope, from).await else { return false };
        let may_read = |reader: &Principal| from.owner == *reader || from.members.contains_key(reader);
        std::iter::once(&into.owner).chain(into.members.keys()).all(may_read)
    }
}

/// A memory for display and the API, without its embedding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryView {
    pub id: MemoryId,
    pub belongs: Belongs,
    pub kind: MemoryKind,
    pub text: String,
    pub sources: Vec<MemorySource>,
    pub learned: Learned,
    pub strength: usize,
    pub by: Principal,
    pub version: u64,
    pub created_at: TimestampMs,
    pub updated_at: TimestampMs,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<MemoryId>,
    /// The origin in plain text.
    pub provenance: String,
}

impl From<&Memory> for MemoryView {
    fn from(memory: &Memory) -> Self {
        Self {
            id: memory.id,
            belongs: memory.belongs.clone(),
            kind: memory.kind,
            text: memory.text.clone(),
            sources: memory.sources.clone(),
            learned: memory.learned.clone(),
            strength: memory.strength(),
            by: memory.by.clone(),
            version: memory.version,
            created_at: memory.created_at,
            updated_at: memory.updated_at,
            superseded_by: memory.superseded_by,
            provenance: provenance(memory),
        }
    }
}

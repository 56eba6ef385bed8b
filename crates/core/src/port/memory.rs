//! The memory port: facts, preferences, decisions and error patterns, each with the entries it was learned from. A
//! memory belongs to one principal or to the whole tenant, and no call can access another tenant's memories (I9).
//!
//! Unlike an entry, a memory may be changed and deleted. An update states the version it is based on, and fails if that
//! version is not current. A memory's strength is the number of entries that support it. Erased entries do not
//! count, and erasing a session deletes the memories that only this session supported (see
//! [`Sessions::erase`](super::store::Sessions::erase)).

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::page::Page;
use super::store_error::Result;
use crate::id::{EntryId, IdError, MemoryId, SessionId, TimestampMs};
use crate::scope::{Principal, Reach, Scope};

/// Maximum length of a memory's text, in bytes: a sentence or two, not a document.
pub const MEMORY_BYTES_MAX: usize = 4 << 10;
/// Maximum number of memories per owner.
pub const MEMORIES_MAX: usize = 10_000;
/// Maximum number of source sessions per memory, and of entries per session. Further sources are not recorded.
pub const MEMORY_SOURCES_MAX: usize = 64;
/// Maximum number of dimensions of an embedding.
pub const EMBEDDING_NUMBERS_MAX: usize = 8_192;

/// The owner of a memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Belongs {
    /// Only this principal and operators can see the memory.
    To(Principal),
    /// Every principal of the tenant can see the memory.
    Tenant,
}

impl fmt::Display for Belongs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Belongs::To(principal) => principal.fmt(f),
            Belongs::Tenant => f.write_str("tenant"),
        }
    }
}

impl FromStr for Belongs {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        match text {
            "tenant" => Ok(Belongs::Tenant),
            principal => principal.parse().map(Belongs::To),
        }
    }
}

impl TryFrom<String> for Belongs {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Belongs> for String {
    fn from(belongs: Belongs) -> String {
        belongs.to_string()
    }
}

/// The kind of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// A fact about the user's world.
    Fact,
    /// How the user wants something done.
    Preference,
    /// A decision that was made.
    Decision,
    /// An error and its fix.
    ErrorPattern,
}

impl MemoryKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Fact, Self::Preference, Self::Decision, Self::ErrorPattern];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            MemoryKind::Fact => "fact",
            MemoryKind::Preference => "preference",
            MemoryKind::Decision => "decision",
            MemoryKind::ErrorPattern => "error_pattern",
        }
    }
    /// The kind with this name; `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// How a memory was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Learned {
    /// Written by a person or a program.
    ByHand,
    /// Extracted from a session by fixed rules, without a model.
    ByRules,
    /// Extracted by this model.
    ByModel(String),
}

/// The entries of one session that a memory was learned from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySource {
    /// The session.
    pub session: SessionId,
    /// The entries that support the memory.
    pub entries: Vec<EntryId>,
}

/// An embedding, quantised to small integers. This is precise enough for cosine similarity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Embedding {
    /// The model that computed the vector.
    pub model: String,
    /// The vector's components, scaled to the range of `i8`.
    pub numbers: Vec<i8>,
}

/// A fact, preference, decision or error pattern that later sessions can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The memory's id.
    pub id: MemoryId,
    /// The owner: a principal, or the whole tenant.
    pub belongs: Belongs,
    /// Whether it is a fact, a preference, a decision or an error pattern.
    pub kind: MemoryKind,
    /// The content of the memory.
    pub text: String,
    /// The supporting entries, by session. Empty for memories that were added manually.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<MemorySource>,
    /// How the memory was created.
    pub learned: Learned,
    /// The principal that created the memory. Set by the store.
    pub by: Principal,
    /// The version of this memory: 1, 2, 3 … Set by the store.
    pub version: u64,
    /// The creation time. Updates do not change it.
    pub created_at: TimestampMs,
    /// When the memory last changed.
    pub updated_at: TimestampMs,
    /// The memory that contradicts and replaces this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<MemoryId>,
    /// The embedding of the text. `None` until an embedder has computed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Embedding>,
}

impl Memory {
    /// The number of supporting entries, but at least 1, so that a manually added memory counts as supported.
    pub fn strength(&self) -> usize {
        self.sources.iter().map(|source| source.entries.len()).sum::<usize>().max(1)
    }

    /// Whether a caller of the same tenant may see the memory.
    pub fn is_visible_to(&self, scope: &Scope) -> bool {
        scope.reach == Reach::Tenant || self.is_for(&scope.principal)
    }

    /// Whether the memory belongs to this principal or to the whole tenant.
    pub fn is_for(&self, principal: &Principal) -> bool {
        match &self.belongs {
            Belongs::To(owner) => owner == principal,
            Belongs::Tenant => true,
        }
    }

    /// Whether the caller may change or delete the memory: its owner, the principal that shared it with the
    /// tenant, or an operator.
    pub fn may_be_changed_by(&self, scope: &Scope) -> bool {
        let is_own = match &self.belongs {
            Belongs::To(owner) => *owner == scope.principal,
            Belongs::Tenant => self.by == scope.principal,
        };
        scope.reach == Reach::Tenant || is_own
    }

    /// Whether no newer memory supersedes this one.
    pub fn is_current(&self) -> bool {
        self.superseded_by.is_none()
    }

    /// Whether the memory has supporting entries in this session.
    pub fn is_from(&self, session: &SessionId) -> bool {
        self.sources.iter().any(|source| source.session == *session)
    }

    /// Add further supporting entries. Returns how many were new.
    pub fn support(&mut self, from: &MemorySource) -> usize {
        let position = self.sources.iter().position(|source| source.session == from.session);
        let source = match position {
            Some(position) => &mut self.sources[position],
            None if self.sources.len() < MEMORY_SOURCES_MAX => {
                self.sources.push(MemorySource { session: from.session.clone(), entries: Vec::new() });
                let last = self.sources.len() - 1;
                &mut self.sources[last]
            }
            None => return 0,
        };
        let known = source.entries.len();
        for entry in &from.entries {
            if source.entries.len() < MEMORY_SOURCES_MAX && !source.entries.contains(entry) {
                source.entries.push(*entry);
            }
        }
        source.entries.len() - known
    }
}

/// The owners whose memories are listed. Memories that the caller may not see are never included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Whose {
    /// All memories that the caller can see.
    #[default]
    Any,
    /// The memories that a session of this principal may use: the principal's and the tenant's.
    For(Principal),
    /// Only memories of this owner.
    Only(Belongs),
}

/// Whether to include superseded memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// Only memories that are not superseded.
    #[default]
    Current,
    /// Also superseded memories.
    Any,
}

/// Which memories to list. All conditions must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryFilter {
    /// Whose memories are listed.
    pub whose: Whose,
    /// Whether superseded memories are listed.
    pub standing: Standing,
    /// Only memories of this kind. `None` lists all kinds.
    pub kind: Option<MemoryKind>,
    /// Only memories that this session supports.
    pub session: Option<SessionId>,
    /// Words that must all occur, as in [`SearchQuery`](super::store::SearchQuery). Empty matches all memories.
    pub text: String,
    /// Maximum number of memories in the page.
    pub limit: usize,
    /// The previous page's [`Page::next`].
    pub cursor: Option<String>,
}

impl MemoryFilter {
    /// Whether a memory matches the filter. The text is not compared here: the store matches it.
    pub fn matches(&self, scope: &Scope, memory: &Memory) -> bool {
        let whose = match &self.whose {
            Whose::Any => true,
            Whose::For(principal) => memory.is_for(principal),
            Whose::Only(belongs) => memory.belongs == *belongs,
        };
        whose
            && memory.is_visible_to(scope)
            && (self.standing == Standing::Any || memory.is_current())
            && self.kind.is_none_or(|kind| memory.kind == kind)
            && self.session.as_ref().is_none_or(|session| memory.is_from(session))
    }
}

/// Storage of memories. Changes are recorded in the tenant's audit log in the same transaction, without the
/// text.
#[async_trait]
pub trait Memories: Send + Sync {
    /// Store a memory if `expected` is its current version (zero for a new memory). Returns the stored
    /// memory. Only an operator can store a memory of another principal.
    async fn put_memory(
        &self,
        scope: &Scope,
        memory: Memory,
        expected: u64,
        now: TimestampMs,
    ) -> Result<Memory>;
    /// Read a memory. A memory that the caller may not see is not found.
    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory>;
    /// List memories by id, newest first.
    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>>;
    /// Delete a memory permanently. Memories that it superseded become current again.
    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_counts_once_as_support_and_sources_are_limited() {
        let entry = |n| EntryId::mint(TimestampMs(n), 0);
        let from = |name: &str, n| MemorySource { session: name.parse().unwrap(), entries: vec![entry(n)] };
        let mut memory = Memory {
            id: MemoryId::mint(TimestampMs(1), 0),
            belongs: Belongs::Tenant,
            kind: MemoryKind::Fact,
            text: "x".into(),
            sources: Vec::new(),
            learned: Learned::ByHand,
            by: Principal::System,
            version: 0,
            created_at: TimestampMs(1),
            updated_at: TimestampMs(1),
            superseded_by: None,
            embedding: None,
        };
        assert_eq!(memory.strength(), 1);
        assert_eq!((memory.support(&from("a", 1)), memory.support(&from("a", 1))), (1, 0));
        assert_eq!((memory.support(&from("a", 2)), memory.strength()), (1, 2));
        for n in 0..200 {
            memory.support(&from(&format!("s{n}"), n));
        }
        assert_eq!(memory.sources.len(), MEMORY_SOURCES_MAX);
    }

    #[test]
    fn an_owner_round_trips() {
        for text in ["tenant", "user:ana", "system"] {
            assert_eq!(text.parse::<Belongs>().unwrap().to_string(), text);
        }
        assert!("ana".parse::<Belongs>().is_err());
    }
}

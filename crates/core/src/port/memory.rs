//! What sessions taught, kept beside them: facts, preferences, decisions and error patterns, each with the entries it
//! was learned from. A memory belongs to one principal or to the whole tenant, and no call reaches another tenant's (I9).
//!
//! Unlike an entry a memory may change and be forgotten. Its version says which state of it a writer looked at. How many
//! entries support it is its strength: what is erased no longer counts, and a memory that only an erased session
//! supported goes with it (see [`Sessions::erase`](super::store::Sessions::erase)).

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::store::{Page, Result};
use crate::id::{EntryId, IdError, MemoryId, SessionId, TimestampMs};
use crate::scope::{Principal, Reach, Scope};

/// Longest text of a memory, in bytes: a sentence or two, not a document.
pub const MEMORY_BYTES_MAX: usize = 4 << 10;
/// Most memories of one owner.
pub const MEMORIES_MAX: usize = 10_000;
/// Most sessions, and most entries of one session, that a memory names as its sources. Those that come later are not
/// written down.
pub const MEMORY_SOURCES_MAX: usize = 64;
/// Most numbers of an embedding.
pub const EMBEDDING_NUMBERS_MAX: usize = 8_192;

/// Whose a memory is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Belongs {
    /// Nobody else sees it.
    To(Principal),
    /// Everybody of the tenant sees it.
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

/// What sort of thing was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    Fact,
    Preference,
    Decision,
    /// What went wrong, and what mended it.
    ErrorPattern,
}

impl MemoryKind {
    pub const ALL: [Self; 4] = [Self::Fact, Self::Preference, Self::Decision, Self::ErrorPattern];

    pub fn as_str(self) -> &'static str {
        match self {
            MemoryKind::Fact => "fact",
            MemoryKind::Preference => "preference",
            MemoryKind::Decision => "decision",
            MemoryKind::ErrorPattern => "error_pattern",
        }
    }
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// How a memory came to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Learned {
    /// Somebody wrote it down.
    ByHand,
    ByRules,
    /// With this model.
    ByModel(String),
}

/// The entries of one session that a memory was learned from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub session: SessionId,
    pub entries: Vec<EntryId>,
}

/// A text's direction in a model's space, as small whole numbers: enough to compare by angle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Embedding {
    pub model: String,
    pub numbers: Vec<i8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub id: MemoryId,
    pub belongs: Belongs,
    pub kind: MemoryKind,
    pub text: String,
    /// Empty for what somebody wrote down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    pub learned: Learned,
    /// Whoever put it there first. The store sets it.
    pub by: Principal,
    /// Counts the states of this memory: 1, 2, 3 … The store sets it.
    pub version: u64,
    /// The store keeps the first.
    pub created_at: TimestampMs,
    pub updated_at: TimestampMs,
    /// The memory that contradicts this one and stands in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<MemoryId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Embedding>,
}

impl Memory {
    /// How many entries support it; what somebody wrote down stands on its own.
    pub fn strength(&self) -> usize {
        self.sources.iter().map(|source| source.entries.len()).sum::<usize>().max(1)
    }

    /// Whether the caller, who is of the same tenant, may know of it.
    pub fn shows_to(&self, scope: &Scope) -> bool {
        scope.reach == Reach::Tenant || self.is_for(&scope.principal)
    }

    /// Whether it is this principal's own, or everybody's.
    pub fn is_for(&self, principal: &Principal) -> bool {
        match &self.belongs {
            Belongs::To(owner) => owner == principal,
            Belongs::Tenant => true,
        }
    }

    /// Whether the caller may change or forget it: its owner, or whoever made it everybody's.
    pub fn yields_to(&self, scope: &Scope) -> bool {
        let is_own = match &self.belongs {
            Belongs::To(owner) => *owner == scope.principal,
            Belongs::Tenant => self.by == scope.principal,
        };
        scope.reach == Reach::Tenant || is_own
    }

    pub fn is_current(&self) -> bool {
        self.superseded_by.is_none()
    }

    pub fn is_from(&self, session: &SessionId) -> bool {
        self.sources.iter().any(|source| source.session == *session)
    }

    /// Notes further entries that say the same. Returns how many were new.
    pub fn support(&mut self, from: &Source) -> usize {
        let place = self.sources.iter().position(|source| source.session == from.session);
        let source = match place {
            Some(place) => &mut self.sources[place],
            None if self.sources.len() < MEMORY_SOURCES_MAX => {
                self.sources.push(Source { session: from.session.clone(), entries: Vec::new() });
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

/// Whose memories are asked for. What the caller may not know of never shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Whose {
    #[default]
    Any,
    /// This principal's own, and everybody's: what a session of that principal may be told.
    For(Principal),
    /// Only of these.
    Only(Belongs),
}

/// Whether memories that others stand in for are wanted, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    #[default]
    Current,
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryFilter {
    pub whose: Whose,
    pub standing: Standing,
    pub kind: Option<MemoryKind>,
    /// Only what this session supports.
    pub session: Option<SessionId>,
    /// Words that must all occur, as in [`SearchQuery`](super::store::SearchQuery); all memories if empty.
    pub text: String,
    pub limit: usize,
    /// What [`Page::next`] said.
    pub cursor: Option<String>,
}

impl MemoryFilter {
    /// Everything but the words, which are the store's to match.
    pub fn wants(&self, scope: &Scope, memory: &Memory) -> bool {
        let whose = match &self.whose {
            Whose::Any => true,
            Whose::For(principal) => memory.is_for(principal),
            Whose::Only(belongs) => memory.belongs == *belongs,
        };
        whose
            && memory.shows_to(scope)
            && (self.standing == Standing::Any || memory.is_current())
            && self.kind.is_none_or(|kind| memory.kind == kind)
            && self.session.as_ref().is_none_or(|session| memory.is_from(session))
    }
}

/// What sessions taught. Changes are written into the tenant's audit with them, without the text.
#[async_trait]
pub trait Memories: Send + Sync {
    /// Keeps a memory if `expected` is the version it has now; nought for one that is not there yet. Returns it as it is
    /// kept. Nobody can put a memory that belongs to somebody else.
    async fn put_memory(
        &self,
        scope: &Scope,
        memory: Memory,
        expected: u64,
        now: TimestampMs,
    ) -> Result<Memory>;
    /// One that the caller may not know of is not there.
    async fn get_memory(&self, scope: &Scope, id: MemoryId) -> Result<Memory>;
    /// The newest first, by id.
    async fn list_memories(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>>;
    /// Really deletes it. What it stood in for is current again.
    async fn forget_memory(&self, scope: &Scope, id: MemoryId, now: TimestampMs) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_entry_supports_once_and_sources_have_a_limit() {
        let entry = |n| EntryId::mint(TimestampMs(n), 0);
        let from = |name: &str, n| Source { session: name.parse().unwrap(), entries: vec![entry(n)] };
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
    fn an_owner_reads_back_as_it_was_written() {
        for text in ["tenant", "user:ana", "system"] {
            assert_eq!(text.parse::<Belongs>().unwrap().to_string(), text);
        }
        assert!("ana".parse::<Belongs>().is_err());
    }
}

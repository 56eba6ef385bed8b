//! Pure memory logic: extracting memories by [`rules`] or with a model ([`llm_extract`]), finding repetitions and
//! contradictions ([`compare`]), ranking memories for a question ([`rank`]), and building the text for a new session
//! ([`prompt`]). The engine reads the logs and writes the memories.
//!
//! An extracted memory is based on a message of the session's owner or on repeated tool errors, and never
//! contains text that looks like a secret. Memories are always quoted when they are shown to a model.

pub mod compare;
pub mod llm_extract;
pub mod prompt;
pub mod rank;
pub mod rules;
mod sentence;
mod text_similarity;

use serde::{Deserialize, Serialize};

use crate::entry::{Body, EngineRecord, Entry, MemoryLearned};
use crate::id::{EntryId, Seq};
use crate::port::memory::{Learned, MemoryKind};
use crate::scope::Principal;

/// Maximum number of memories extracted from one session at a time.
pub const CANDIDATES_MAX: usize = 64;
/// Maximum number of entries to scan, from the end of the path.
pub const ENTRIES_MAX: u32 = 5_000;

/// A statement that may become a memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub kind: MemoryKind,
    pub text: String,
    /// The supporting entries, oldest first.
    pub entries: Vec<EntryId>,
    pub tone: Tone,
}

/// The tone of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    #[default]
    Plain,
    /// A correction, which invalidates a similar memory.
    Corrects,
}

/// The extraction progress of a session: entries up to `upto` are not processed again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCheckpoint {
    pub upto: Seq,
    /// The number of memories that were created or strengthened.
    pub learned: u32,
    pub how: Learned,
    /// Why the model's answer was not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
}

impl MemoryCheckpoint {
    pub fn to_body(&self) -> Body {
        MemoryLearned::of(self).into()
    }

    pub fn of(body: &Body) -> Option<Self> {
        MemoryLearned::read(body)
    }
}

/// Whether an entry is a user message that no user other than the owner wrote. Messages of other members must
/// not become the owner's memories.
pub fn is_from_owner(entry: &Entry, owner: &Principal) -> bool {
    let is_others = matches!(&entry.meta.by, Principal::User(_)) && entry.meta.by != *owner;
    matches!(entry.body, Body::UserMessage(_)) && !is_others
}

/// Phrases that indicate a secret, even if the secret does not look like a key.
const SECRET_WORDS: &[&str] = &[
    "password",
    "passphrase",
    "passwort",
    "api key",
    "api-key",
    "apikey",
    "access token",
    "secret key",
    "pin code",
];

/// Whether a text may be stored as a memory. Texts that seem to contain a secret may not.
pub fn is_storable(text: &str) -> bool {
    let lower = text.to_lowercase();
    let states_secret = |word: &str| {
        lower.split_once(word).is_some_and(|(_, rest)| {
            let rest = rest.trim_start();
            [":", "=", "is ", "are ", "was "].iter().any(|sign| rest.starts_with(sign))
        })
    };
    crate::secret_shape::looks_like_key(text).is_none()
        && !SECRET_WORDS.iter().any(|word| states_secret(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_storable() {
        let key = format!("remember the key sk-ant-{}", "aB3x".repeat(6));
        let secrets =
            ["the password is hunter2", "my passphrase: correct horse", "the API key is on the wall", &key];
        for secret in secrets {
            assert!(!is_storable(secret), "{secret}");
        }
        for plain in ["we rotate passwords monthly", "the token bucket holds 100", "I use a password manager"]
        {
            assert!(is_storable(plain), "{plain}");
        }
    }

    #[test]
    fn a_checkpoint_round_trips() {
        let checkpoint =
            MemoryCheckpoint { upto: Seq(7), learned: 2, how: Learned::ByRules, fell_back: None };
        assert_eq!(MemoryCheckpoint::of(&checkpoint.to_body()), Some(checkpoint));
    }
}

#[cfg(test)]
mod fixture {
    use crate::id::{MemoryId, TimestampMs};
    use crate::port::memory::{Belongs, Learned, Memory, MemoryKind};
    use crate::scope::Principal;

    /// A sample fact that belongs to the whole tenant.
    pub fn memory(number: i64, text: &str) -> Memory {
        Memory {
            id: MemoryId::mint(TimestampMs(number), 1),
            belongs: Belongs::Tenant,
            kind: MemoryKind::Fact,
            text: text.to_owned(),
            sources: Vec::new(),
            learned: Learned::ByHand,
            by: Principal::System,
            version: 1,
            created_at: TimestampMs(1),
            updated_at: TimestampMs(1),
            superseded_by: None,
            embedding: None,
        }
    }
}

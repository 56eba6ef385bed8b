//! What sessions teach, without any effect: which sentences are worth remembering ([`rules`], or [`llm_extract`] with a model),
//! whether something is known already or contradicts what is known ([`compare`]), which memories answer a question
//! ([`rank`]), and what a new session is told ([`prompt`]). The engine reads logs and writes memories around it.
//!
//! Only what a session's own person said becomes a memory, and never what looks like a secret. A memory is quoted speech:
//! whoever shows one to a model says so.

pub mod compare;
pub mod llm_extract;
pub mod prompt;
pub mod rank;
pub mod rules;
mod sentence;
mod text_similarity;

use serde::{Deserialize, Serialize};

use crate::content::Json;
use crate::entry::{Body, CustomInfo, Entry};
use crate::id::{EntryId, Seq};
use crate::port::memory::{Learned, MemoryKind};
use crate::scope::Principal;

/// Most memories that are learned from one session at a time.
pub const CANDIDATES_MAX: usize = 64;
/// Most entries that are looked at, from the end of the path.
pub const ENTRIES_MAX: u32 = 5_000;
/// The type of the entry that says how far a session was learned from.
pub const MARK_TYPE: &str = "sapwood.memory";

/// Something that may be worth remembering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub kind: MemoryKind,
    pub text: String,
    /// The entries that say so, the oldest first.
    pub entries: Vec<EntryId>,
    pub tone: Tone,
}

/// How something was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    #[default]
    Plain,
    /// It sets something else right, so what it resembles no longer holds.
    Corrects,
}

/// How far a session was learned from: entries up to `upto` are not looked at again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub upto: Seq,
    /// How many memories came of it, new and strengthened.
    pub learned: u32,
    pub how: Learned,
    /// Why the model's answer was not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
}

impl Mark {
    pub fn to_body(&self) -> Body {
        let value = serde_json::to_value(self).expect("a mark holds strings and numbers only");
        CustomInfo { custom_type: MARK_TYPE.to_owned(), data: Json::from_value(&value) }.into()
    }

    pub fn of(body: &Body) -> Option<Self> {
        match body {
            Body::CustomInfo(info) if info.custom_type == MARK_TYPE => {
                serde_json::from_str(info.data.get()).ok()
            }
            _ => None,
        }
    }
}

/// Whether an entry is the owner's own words: what another member said is not the owner's to be remembered as.
pub fn is_owners_word(entry: &Entry, owner: &Principal) -> bool {
    let is_others = matches!(&entry.meta.by, Principal::User(_)) && entry.meta.by != *owner;
    matches!(entry.body, Body::UserMessage(_)) && !is_others
}

/// Beginnings of sentences that give away what must not be kept, even where it does not look like a key.
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

/// Whether a text may be kept at all.
pub fn is_fit_to_keep(text: &str) -> bool {
    let lower = text.to_lowercase();
    let gives_away = |word: &str| {
        lower.split_once(word).is_some_and(|(_, rest)| {
            let rest = rest.trim_start();
            [":", "=", "is ", "are ", "was "].iter().any(|sign| rest.starts_with(sign))
        })
    };
    crate::secret_shape::looks_like_key(text).is_none() && !SECRET_WORDS.iter().any(|word| gives_away(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_fit_to_keep() {
        let key = format!("remember the key sk-ant-{}", "aB3x".repeat(6));
        let told =
            ["the password is hunter2", "my passphrase: correct horse", "the API key is on the wall", &key];
        for secret in told {
            assert!(!is_fit_to_keep(secret), "{secret}");
        }
        for plain in ["we rotate passwords monthly", "the token bucket holds 100", "I use a password manager"]
        {
            assert!(is_fit_to_keep(plain), "{plain}");
        }
    }

    #[test]
    fn a_mark_reads_back() {
        let mark = Mark { upto: Seq(7), learned: 2, how: Learned::ByRules, fell_back: None };
        assert_eq!(Mark::of(&mark.to_body()), Some(mark));
    }
}

#[cfg(test)]
mod fixture {
    use crate::id::{MemoryId, TimestampMs};
    use crate::port::memory::{Belongs, Learned, Memory, MemoryKind};
    use crate::scope::Principal;

    /// A fact that the whole tenant knows.
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

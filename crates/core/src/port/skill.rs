//! The skill port: folders of instructions for sessions. The names and descriptions of active skills are part of the
//! system prompt; their instructions are read on demand.

use async_trait::async_trait;
use serde::Serialize;

/// Maximum length of a name in bytes, and of a description in characters.
pub const SKILL_NAME_BYTES_MAX: usize = 64;
pub const SKILL_DESCRIPTION_CHARS_MAX: usize = 1_024;
/// Maximum number of active skills per session.
pub const SKILLS_ACTIVE_MAX: usize = 32;

/// The description of a skill in the system prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkillCard {
    pub name: String,
    pub description: String,
    /// Where the skill was found, for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// A folder that contains an invalid skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkillFault {
    pub place: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkillListing {
    /// Sorted by name.
    pub cards: Vec<SkillCard>,
    pub faults: Vec<SkillFault>,
}

impl SkillListing {
    pub fn card(&self, name: &str) -> Option<&SkillCard> {
        self.cards.iter().find(|card| card.name == name)
    }
}

/// A skill that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkillError {
    /// There is no such skill.
    #[error("there is no skill {name:.64}")]
    Unknown { name: String },
    /// The request would make more skills active than the limit allows.
    #[error("a session has at most {limit} active skills")]
    TooMany { limit: usize },
    /// A file of the skill cannot be read.
    #[error("{why}")]
    Unreadable { why: String },
}

impl SkillError {
    /// The stable error code, for programs. Each code has a page in docs/errors.
    pub fn code(&self) -> &'static str {
        match self {
            SkillError::Unknown { .. } => "skill.not_found",
            SkillError::TooMany { .. } => "input.too_large",
            SkillError::Unreadable { .. } => "skill.unreadable",
        }
    }
}

/// The source of skills. Every call reads the files again, so that edits take effect at once.
#[async_trait]
pub trait SkillCatalog: Send + Sync {
    async fn list(&self) -> SkillListing;
    /// Read a skill's instructions with a list of its other files, or one of those files.
    async fn read(&self, name: &str, file: Option<&str>) -> Result<String, SkillError>;
}

/// Whether a name consists of lower-case words joined by hyphens.
pub fn is_skill_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= SKILL_NAME_BYTES_MAX
        && name.chars().all(is_plain)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The system prompt section about active skills.
pub fn skills_prompt(cards: &[SkillCard]) -> Option<String> {
    if cards.is_empty() {
        return None;
    }
    let mut prompt = String::from(
        "Skills are instructions for particular kinds of work. Before you start work that one of these \
         covers, read it with the tool skill:",
    );
    for card in cards {
        prompt.push_str(&format!("\n- {}: {}", card.name, card.description));
    }
    Some(prompt)
}

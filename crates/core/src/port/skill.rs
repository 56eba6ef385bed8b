//! The seam to skills: folders of instructions that a session can have at hand. Their names and descriptions go into the
//! system prompt of sessions in which they are active; their text is read when it is used.

use async_trait::async_trait;
use serde::Serialize;

/// Longest name, in bytes, and longest description, in characters.
pub const SKILL_NAME_BYTES_MAX: usize = 64;
pub const SKILL_DESCRIPTION_CHARS_MAX: usize = 1_024;
/// Most skills that are active in one session.
pub const SKILLS_ACTIVE_MAX: usize = 32;

/// What a model is told about a skill before it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkillCard {
    pub name: String,
    pub description: String,
    /// For people: where it was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// A folder that could be a skill and is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkillFault {
    pub place: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkillListing {
    /// By name.
    pub cards: Vec<SkillCard>,
    pub faults: Vec<SkillFault>,
}

impl SkillListing {
    pub fn card(&self, name: &str) -> Option<&SkillCard> {
        self.cards.iter().find(|card| card.name == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkillError {
    #[error("there is no skill {name:.64}")]
    Unknown { name: String },
    #[error("a session has at most {limit} active skills")]
    TooMany { limit: usize },
    #[error("{why}")]
    Unreadable { why: String },
}

impl SkillError {
    pub fn code(&self) -> &'static str {
        match self {
            SkillError::Unknown { .. } => "skill.not_found",
            SkillError::TooMany { .. } => "input.too_large",
            SkillError::Unreadable { .. } => "skill.unreadable",
        }
    }
}

/// Where skills are kept. Looked at anew each time, so that a folder that was edited is what is read.
#[async_trait]
pub trait Skills: Send + Sync {
    async fn list(&self) -> SkillListing;
    /// The instructions of a skill and what else is in its folder, or one of those files.
    async fn read(&self, name: &str, file: Option<&str>) -> Result<String, SkillError>;
}

/// Lower-case words joined by hyphens.
pub fn is_skill_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= SKILL_NAME_BYTES_MAX
        && name.chars().all(is_plain)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// What stands in the system prompt about active skills.
pub fn skills_prompt(cards: &[SkillCard]) -> Option<String> {
    if cards.is_empty() {
        return None;
    }
    let mut prompt = String::from(
        "Skills are instructions for particular kinds of work. Before you do what one of these is for, read it with \
         the tool skill:",
    );
    for card in cards {
        prompt.push_str(&format!("\n- {}: {}", card.name, card.description));
    }
    Some(prompt)
}

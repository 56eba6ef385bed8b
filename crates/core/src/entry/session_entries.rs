//! Marks on a session: where its leaf is, what it is called, who may see it, what it produced.

use serde::{Deserialize, Serialize};

use crate::content::{BlobRef, Json};
use crate::id::{EntryId, SessionId};
use crate::scope::{Principal, Role};

/// The next entry hangs from `to`; from nothing, as a new root, if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafMoved {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<EntryId>,
}

/// Names an entry; without a text it takes the name away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    pub target: EntryId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionNamed {
    pub title: String,
}

/// Most characters of a title.
pub const TITLE_CHARS_MAX: usize = 400;

/// A title that somebody else wrote, as one that a session may have: one line, not endless. None if nothing is left of it.
pub fn fit_title(title: &str) -> Option<String> {
    let spaced = title.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let line: String = spaced.skip_while(|letter| letter.is_whitespace()).take(TITLE_CHARS_MAX).collect();
    Some(line.trim_end().to_owned()).filter(|title| !title.is_empty())
}

/// Metadata of an extension, or a foreign record that has no counterpart here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustomInfo {
    pub custom_type: String,
    pub data: Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactUse {
    /// Supplied material.
    Input,
    /// A deliverable.
    Artifact,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactPut {
    pub name: String,
    pub usage: ArtifactUse,
    pub content: BlobRef,
}

/// Gives `member` a role; takes it away if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChanged {
    pub member: Principal,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// So it was where this log was imported from; here it counts for nothing. An export does not say it.
    #[serde(default, skip_serializing_if = "crate::content::is_false")]
    pub elsewhere: bool,
}

impl MemberChanged {
    pub fn new(member: Principal, role: Option<Role>) -> Self {
        Self { member, role, elsewhere: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Nothing has been said yet.
    #[default]
    Created,
    Active,
    /// Ended by its user; a new message opens it again.
    Closed,
    /// Read-only until its owner reopens it.
    Archived,
}

impl SessionState {
    pub fn as_str(self) -> &'static str {
        match self {
            SessionState::Created => "created",
            SessionState::Active => "active",
            SessionState::Closed => "closed",
            SessionState::Archived => "archived",
        }
    }
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Created, Self::Active, Self::Closed, Self::Archived]
            .into_iter()
            .find(|state| state.as_str() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateChanged {
    pub state: SessionState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    pub format: String,
    pub entries: u32,
}

/// What of the other session is referred to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum GraftWhat {
    Artifact { name: String },
    Digest,
    Rounds { first: u32, last: u32 },
}

/// Refers to another session's deliverable as it was at `upto`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graft {
    pub source: SessionId,
    pub upto: EntryId,
    #[serde(flatten)]
    pub what: GraftWhat,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_that_does_not_fit_is_made_to() {
        assert_eq!(fit_title(" Shop\tand\nmore \u{7}").as_deref(), Some("Shop and more"));
        assert_eq!(fit_title(" \n\u{0} "), None);
        assert_eq!(fit_title(&"ä".repeat(500)).unwrap().chars().count(), TITLE_CHARS_MAX);
        let fits = fit_title(&format!("{} b", "a".repeat(TITLE_CHARS_MAX - 1))).unwrap();
        assert_eq!(fit_title(&fits), Some(fits.clone()));
        assert!(!fits.ends_with(' '));
    }
}

//! Session entries: leaf moves, labels, titles, custom info, artifacts, members, state, exports and grafts.

use serde::{Deserialize, Serialize};

use crate::content::{BlobRef, Json};
use crate::id::{EntryId, SessionId};
use crate::scope::{Principal, Role};

/// Moves the leaf to `to`. Without `to`, the next entry becomes a new root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeafMoved {
    /// The new leaf. `None`: the next entry becomes a new root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<EntryId>,
}

/// Labels an entry. Without a text it removes the label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Label {
    /// The entry that gets the label.
    pub target: EntryId,
    /// The label; `None` removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A new title of the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionNamed {
    /// The title.
    pub title: String,
}

/// Maximum length of a title, in characters.
pub const TITLE_CHARS_MAX: usize = 400;

/// Normalize a title from another program to one line of limited length. `None` if the result is empty.
pub fn fit_title(title: &str) -> Option<String> {
    let spaced = title.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let line: String = spaced.skip_while(|letter| letter.is_whitespace()).take(TITLE_CHARS_MAX).collect();
    Some(line.trim_end().to_owned()).filter(|title| !title.is_empty())
}

/// Metadata of an extension, or an imported record that has no equivalent here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CustomInfo {
    /// The writer's name for this kind of data.
    pub custom_type: String,
    /// The data.
    pub data: Json,
}

/// Whether an artifact is an input or a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ArtifactUse {
    /// Material supplied to the session.
    Input,
    /// A deliverable of the session.
    Artifact,
}

/// A file of the session, as an input or a deliverable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ArtifactPut {
    /// The file's name. A later file with the same name and usage is a new version.
    pub name: String,
    /// Whether the file is an input or a deliverable.
    pub usage: ArtifactUse,
    /// The file's content.
    pub content: BlobRef,
    /// Where the text was retrieved from, such as a URL. An input with a source is a snippet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl ArtifactPut {
    /// A file without a source.
    pub fn new(name: impl Into<String>, usage: ArtifactUse, content: BlobRef) -> Self {
        Self { name: name.into(), usage, content, source: None }
    }
}

/// Gives `member` a role, or removes the member if `role` is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberChanged {
    /// The principal whose role changes.
    pub member: Principal,
    /// The new role; `None` removes the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Whether the membership was imported and has no effect in this store. Exports omit this flag.
    #[serde(default, skip_serializing_if = "crate::content::is_false")]
    pub elsewhere: bool,
}

impl MemberChanged {
    /// Give a principal a role, or remove the principal from the session if `role` is `None`.
    pub fn new(member: Principal, role: Option<Role>) -> Self {
        Self { member, role, elsewhere: false }
    }
}

/// The state of a session. Only an archived session refuses entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// The session has no messages yet.
    #[default]
    Created,
    /// The session has messages and accepts more.
    Active,
    /// Closed by its user; a new message reopens it.
    Closed,
    /// Read-only until its owner reopens it.
    Archived,
}

impl SessionState {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            SessionState::Created => "created",
            SessionState::Active => "active",
            SessionState::Closed => "closed",
            SessionState::Archived => "archived",
        }
    }
    /// The state with this name; `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Created, Self::Active, Self::Closed, Self::Archived]
            .into_iter()
            .find(|state| state.as_str() == name)
    }
}

/// A change of the session's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateChanged {
    /// The new state.
    pub state: SessionState,
    /// The reason, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Records that the session was exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Exported {
    /// The name of the export format.
    pub format: String,
    /// Number of exported entries.
    pub entries: u32,
}

/// The referenced part of the other session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum GraftWhat {
    /// An artifact of the source.
    Artifact { name: String },
    /// A digest of the source: what was asked and answered.
    Digest,
    /// The rounds `first` to `last` of the source, counted from 1.
    Rounds { first: u32, last: u32 },
}

/// References a part of another session, as of its entry `upto`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Graft {
    /// The source session.
    pub source: SessionId,
    /// The entry of the source up to which content is included. Later entries do not change the graft.
    pub upto: EntryId,
    /// Which content is included.
    #[serde(flatten)]
    pub what: GraftWhat,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_title_is_normalized() {
        assert_eq!(fit_title(" Shop\tand\nmore \u{7}").as_deref(), Some("Shop and more"));
        assert_eq!(fit_title(" \n\u{0} "), None);
        assert_eq!(fit_title(&"ä".repeat(500)).unwrap().chars().count(), TITLE_CHARS_MAX);
        let fits = fit_title(&format!("{} b", "a".repeat(TITLE_CHARS_MAX - 1))).unwrap();
        assert_eq!(fit_title(&fits), Some(fits.clone()));
        assert!(!fits.ends_with(' '));
    }
}

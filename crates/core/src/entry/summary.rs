//! Entries that summarise older entries: compactions, and summaries of abandoned branches.

use serde::{Deserialize, Serialize};

use super::Usage;
use crate::content::is_false;
use crate::id::EntryId;

/// How a compaction was created. Trim and prune have no summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CompactionStrategy))]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Each older message became one line.
    Truncate,
    /// Messages were kept in the summary, and long tool outputs were replaced by their first line and size.
    ObservationMask,
    /// A model wrote a summary.
    Llm,
    /// The caller's own compactor wrote the summary.
    Custom,
    /// Older messages were removed without a summary, at the caller's request.
    Trim,
    /// Older messages were removed without a summary, because the session was idle.
    Prune,
    /// Another program compacted the session.
    Imported,
}

/// What caused a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CompactionTrigger))]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// A caller requested it.
    Manual,
    /// The context reached a level of token pressure at which the engine compacts.
    Pressure,
    /// The context exceeded the model's limit.
    Overflow,
    /// The session was idle.
    Inactivity,
    /// Another program compacted the session.
    Imported,
}

/// Structured details of a summary, stored next to its prose so that the next summary can include them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = SummaryDetails))]
#[serde(default)]
pub struct Details {
    /// Paths of the files that tools read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_read: Vec<String>,
    /// Paths of the files that tools changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_changed: Vec<String>,
    /// Facts that were marked in messages or listed by a summariser.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
    /// Decisions that were marked in messages or listed by a summariser.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<String>,
    /// Unfinished work that was marked in messages or listed by a summariser.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open_items: Vec<String>,
}

impl Strategy {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::Truncate => "truncate",
            Strategy::ObservationMask => "observation_mask",
            Strategy::Llm => "llm",
            Strategy::Custom => "custom",
            Strategy::Trim => "trim",
            Strategy::Prune => "prune",
            Strategy::Imported => "imported",
        }
    }
}

impl Details {
    /// Whether all lists are empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Replaces older messages of the context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Compaction {
    /// The text that replaces the older messages. `None` if they were removed without a summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The oldest entry that is kept in the context. If absent, nothing before the compaction is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_kept: Option<EntryId>,
    /// How the messages were replaced.
    pub strategy: Strategy,
    /// What caused the compaction.
    pub trigger: Trigger,
    /// Number of tokens of the context before the compaction, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_before: Option<u64>,
    /// Number of tokens of the context after the compaction, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_after: Option<u64>,
    /// Details that the next summary includes.
    #[serde(default, skip_serializing_if = "Details::is_empty")]
    pub details: Details,
    /// Whether a hook supplied the summary.
    #[serde(default, skip_serializing_if = "is_false")]
    pub from_hook: bool,
    /// The number of messages that the summary replaces, including those of earlier summaries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<u32>,
    /// The requested strategy, if it failed and `strategy` was the fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<Strategy>,
    /// Kept tool results that are shortened in every context from this compaction on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortened: Vec<Shortened>,
    /// Usage of the model that wrote the summary, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<WrittenBy>,
}

impl Compaction {
    /// A compaction with only a strategy and a trigger.
    pub fn new(strategy: Strategy, trigger: Trigger) -> Self {
        Self {
            summary: None,
            first_kept: None,
            strategy,
            trigger,
            tokens_before: None,
            tokens_after: None,
            details: Details::default(),
            from_hook: false,
            archived: None,
            instead_of: None,
            shortened: Vec::new(),
            written_by: None,
        }
    }
}

/// The usage of one model's calls, such as those that wrote a summary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenBy {
    /// The model's name.
    pub model: String,
    /// Number of model calls.
    pub calls: u32,
    /// The tokens that the calls used.
    #[serde(flatten)]
    pub usage: Usage,
    /// The cost in billionths of a US dollar; absent if the price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

/// The text that a context shows instead of a tool result. It is stored, not computed when read, so that contexts do
/// not change when the shortening algorithm changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Shortened {
    /// The entry with the long tool result.
    pub entry: EntryId,
    /// The text that replaces it.
    pub text: String,
}

/// A summary of an abandoned branch, which the model receives on the new branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BranchSummary {
    /// The text.
    pub summary: String,
    /// The leaf of the abandoned branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<EntryId>,
    /// Structured details of the abandoned branch.
    #[serde(default, skip_serializing_if = "Details::is_empty")]
    pub details: Details,
    /// Whether a hook supplied the summary.
    #[serde(default, skip_serializing_if = "is_false")]
    pub from_hook: bool,
    /// Usage of the model that wrote the summary, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<WrittenBy>,
}

impl BranchSummary {
    /// A summary without details that no model wrote.
    pub fn new(summary: impl Into<String>) -> Self {
        let (summary, details) = (summary.into(), Details::default());
        Self { summary, from: None, details, from_hook: false, written_by: None }
    }
}

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
    Truncate,
    ObservationMask,
    Llm,
    Custom,
    Trim,
    Prune,
    Imported,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CompactionTrigger))]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    Manual,
    Pressure,
    Overflow,
    Inactivity,
    Imported,
}

/// Structured details of a summary, stored next to its prose so that the next summary can include them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = SummaryDetails))]
#[serde(default)]
pub struct Details {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_read: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_changed: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open_items: Vec<String>,
}

impl Strategy {
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
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Compaction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The oldest entry that is kept in the context. If absent, nothing before the compaction is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_kept: Option<EntryId>,
    pub strategy: Strategy,
    pub trigger: Trigger,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_before: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_after: Option<u64>,
    #[serde(default, skip_serializing_if = "Details::is_empty")]
    pub details: Details,
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

/// The model calls that wrote a summary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenBy {
    pub model: String,
    pub calls: u32,
    #[serde(flatten)]
    pub usage: Usage,
    /// `None` if the price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

/// The text that a context shows instead of a tool result. It is stored, not computed when read, so that contexts do
/// not change when the shortening algorithm changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Shortened {
    pub entry: EntryId,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BranchSummary {
    pub summary: String,
    /// The leaf of the abandoned branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<EntryId>,
    #[serde(default, skip_serializing_if = "Details::is_empty")]
    pub details: Details,
    #[serde(default, skip_serializing_if = "is_false")]
    pub from_hook: bool,
}

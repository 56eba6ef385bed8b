//! What stands in for older entries: compactions, and summaries of branches that were left.

use serde::{Deserialize, Serialize};

use super::Usage;
use crate::content::is_false;
use crate::id::EntryId;

/// How a compaction was made. Trim and prune keep no summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    Manual,
    Pressure,
    Overflow,
    Inactivity,
    Imported,
}

/// What a summary carries besides its prose, so that the next one can fold it in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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
pub struct Compaction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The oldest entry that stays in the context; nothing before the compaction stays if there is none.
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
    /// How many messages the summary stands in for, those of the summaries folded into it included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<u32>,
    /// The strategy that was asked for and gave nothing, so that `strategy` had to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<Strategy>,
    /// Kept tool results that show shortened from here on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortened: Vec<Shortened>,
    /// What it took to write the summary, if a model did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<WrittenBy>,
}

impl Compaction {
    /// One that says how and why it was made, and nothing else yet.
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
pub struct WrittenBy {
    pub model: String,
    pub calls: u32,
    #[serde(flatten)]
    pub usage: Usage,
    /// None where the price is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

/// What a context shows instead of a tool result's text. It is written down, not computed when read, so that a context
/// stays as it was when the way of shortening changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortened {
    pub entry: EntryId,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchSummary {
    pub summary: String,
    /// The leaf of the branch that was left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<EntryId>,
    #[serde(default, skip_serializing_if = "Details::is_empty")]
    pub details: Details,
    #[serde(default, skip_serializing_if = "is_false")]
    pub from_hook: bool,
}

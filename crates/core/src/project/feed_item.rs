//! The items of the feed. `id`, `type`, `label` and `text` are a readable line; the other fields have the details that a
//! graphical client shows.

use serde::{Deserialize, Serialize};

use crate::content::{BlobRef, Json, Part};
use crate::entry::{Body, Entry, Kind, Meta, Queue, Stop, Usage};
use crate::id::{Seq, TimestampMs, TurnId};
use crate::scope::Principal;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FeedType {
    Assistant,
    User,
    Event,
    Error,
    Handoff,
    Resume,
    Repair,
    Tool,
    ToolSuccess,
    ToolError,
    Activation,
    Reasoning,
    Waiting,
    Pressure,
}

/// An item of the feed. An item with a known id replaces the earlier item with that id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeedItem {
    /// The entry's seq; for an answer's parts other than text, followed by the part's number. Unique within
    /// the feed.
    pub id: String,
    #[serde(rename = "type")]
    pub kind: FeedType,
    pub label: String,
    pub text: String,
    /// The entry that created the item.
    pub seq: Seq,
    #[serde(rename = "kind")]
    pub entry_kind: Kind,
    pub at: TimestampMs,
    pub by: Principal,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The parts of a message or a tool's output, unless it is a single text, which is in `text`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<FeedAnswer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<FeedTool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<FeedApproval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<FeedQueued>,
    /// The entry's body, unless the entry has parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
}

/// How an answer was produced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeedAnswer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
    pub stop: Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FeedToolStatus {
    Running,
    Done,
    Failed,
    Interrupted,
}

/// A tool call and its outcome. The output is the item's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeedTool {
    pub call_id: String,
    pub name: String,
    /// Absent if the call is not in the log. Also absent in a replacement if many long calls were unfinished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    pub status: FeedToolStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The whole output, if the item has only its head and tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<BlobRef>,
}

impl FeedTool {
    pub(super) fn running(call_id: &str, name: &str, input: Option<Json>) -> Self {
        let (call_id, name, status) = (call_id.to_owned(), name.to_owned(), FeedToolStatus::Running);
        Self { call_id, name, input, status, duration_ms: None, full: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FeedApprovalState {
    Open,
    Approved,
    Denied,
    /// The turn ended before an answer.
    Expired,
}

/// The state of a question that a turn asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeedApproval {
    pub id: String,
    /// `tool`, `question`, `handoff`, `budget`, `confidence` or `consent`; empty if unknown.
    pub about: String,
    pub state: FeedApprovalState,
    /// Why a person was asked, if it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The reason given with the answer, or the answer to a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The state of queued input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeedQueued {
    pub queue: Queue,
    pub taken: bool,
}

impl FeedItem {
    pub(super) fn new(entry: &Entry, id: String, kind: FeedType, label: &str, text: String) -> Self {
        let Meta { seq, at, ref by, turn, kind: entry_kind, .. } = entry.meta;
        let has_parts = matches!(
            entry_kind,
            Kind::UserMessage
                | Kind::AssistantMessage
                | Kind::ToolResult
                | Kind::CustomMessage
                | Kind::InputQueued
        );
        Self {
            id,
            kind,
            label: label.to_owned(),
            text,
            seq,
            entry_kind,
            at,
            by: by.clone(),
            turn,
            parts: Vec::new(),
            answer: None,
            tool: None,
            approval: None,
            queued: None,
            body: (!has_parts).then(|| entry.body.clone()),
        }
    }

    /// The size of the text and of the tool input.
    pub(super) fn kept_bytes(&self) -> usize {
        let input = self.tool.as_ref().and_then(|tool| tool.input.as_ref());
        self.text.len() + input.map_or(0, |input| input.get().len())
    }

    /// Whether a later entry changed only the state of this item, not its type, label or text.
    pub fn is_state_change(&self) -> bool {
        let is_answered = self.approval.as_ref().is_some_and(|it| it.state != FeedApprovalState::Open);
        is_answered || self.queued.as_ref().is_some_and(|it| it.taken)
    }
}

/// The change of the feed by one entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeedChange {
    /// New items, and items that replace an earlier item with the same id.
    pub items: Vec<FeedItem>,
    /// The turn that is open after the entry.
    pub open_turn: Option<TurnId>,
}

//! Turn entries, outside the tree: starts and ends of turns, the ledger's rounds, approvals and queued input.

use serde::{Deserialize, Serialize};

use super::message::Usage;
use crate::content::{Json, Part, present};
use crate::id::{EntryId, TurnId};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct TurnStarted {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = TurnOutcome))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    Cancelled,
    Failed,
    Limited,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TurnEnded {
    pub outcome: Outcome,
    /// The reason, for failed and limited turns: `turn_limit`, `budget_exceeded`, `context_overflow` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// A description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    Answer,
    Tool,
    Delegate,
    AskUser,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RoundAction))]
pub struct Action {
    pub kind: ActionKind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoundStatus {
    Ok,
    Error,
    Interrupted,
    /// Tool input did not match its schema. The model gets the error and retries.
    Malformed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoundResult {
    pub status: RoundStatus,
    #[serde(default)]
    pub tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

/// A round of the ledger. The engine writes each round twice with the same number: without a result before acting, and
/// with the result afterwards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Round {
    pub number: u32,
    pub action: Action,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RoundResult>,
    /// The model's rating of its answer, from 0 to 1; absent if the answer had no rating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalAsked {
    pub approval: String,
    pub question: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub details: Option<Json>,
}

impl ApprovalAsked {
    /// The kind of the question, from `details`: `tool`, `question`, `budget`, `confidence`; empty if absent.
    pub fn kind(&self) -> String {
        let details = self.details.as_ref().map(Json::to_value).unwrap_or_default();
        details["kind"].as_str().unwrap_or_default().to_owned()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalAnswer {
    Approved,
    Denied,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalAnswered {
    pub approval: String,
    pub answer: ApprovalAnswer,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// When queued input is consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// By the running turn, before its next model call.
    Steer,
    /// As the input of the next turn.
    Next,
}

/// Queued input. It is written to the log at once, and the process that runs the session consumes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InputQueued {
    pub queue: Queue,
    pub parts: Vec<Part>,
}

/// Marks queued input as consumed. Written in the same batch as its user message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InputTaken {
    pub input: EntryId,
}

/// A request to cancel the turn. It is outside the tree, so it needs no lease. The process that runs the turn reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelAsked {
    pub turn: TurnId,
}

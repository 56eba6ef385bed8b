//! The life of a turn, written beside the tree: its start and end, the ledger's rounds, approvals.

use serde::{Deserialize, Serialize};

use super::message::Usage;
use crate::content::{Json, Part, present};
use crate::id::{EntryId, TurnId};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnStarted {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    Cancelled,
    Failed,
    Limited,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEnded {
    pub outcome: Outcome,
    /// Why, for failed and limited turns: `turn_limit`, `budget_exceeded`, `context_overflow` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What happened, in words for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    Answer,
    Tool,
    Delegate,
    AskUser,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    pub kind: ActionKind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundStatus {
    Ok,
    Error,
    Interrupted,
    /// Tool input that does not fit its schema: the model was told, and tries again.
    Malformed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundResult {
    pub status: RoundStatus,
    #[serde(default)]
    pub tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

/// One line of the ledger, written before acting (no result) and again, under the same number, after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub number: u32,
    pub action: Action,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RoundResult>,
    /// The model's own rating from 0 to 1; absent when it gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalAsked {
    pub approval: String,
    pub question: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub details: Option<Json>,
}

impl ApprovalAsked {
    /// What is asked about, as `details` names it: `tool`, `question`, `budget`, `confidence`; empty where nothing does.
    pub fn kind(&self) -> String {
        let details = self.details.as_ref().map(Json::to_value).unwrap_or_default();
        details["kind"].as_str().unwrap_or_default().to_owned()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalAnswer {
    Approved,
    Denied,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalAnswered {
    pub approval: String,
    pub answer: ApprovalAnswer,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// When queued input is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// By the turn that runs, before its next call of the model.
    Steer,
    /// As the input of the turn after this one.
    Next,
}

/// Input that waits its turn. It is durable at once, and whoever runs the session takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputQueued {
    pub queue: Queue,
    pub parts: Vec<Part>,
}

/// Queued input has become a user message: written in the same batch with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputTaken {
    pub input: EntryId,
}

/// Somebody wants the turn to end. It stands beside the tree, so it needs no lease: whoever runs the turn reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAsked {
    pub turn: TurnId,
}

//! Turn entries, outside the tree: starts and ends of turns, the ledger's rounds, approvals and queued input.

use serde::{Deserialize, Serialize};

use super::message::Usage;
use crate::content::{Json, Part, present};
use crate::id::{EntryId, TimestampMs, TurnId};

/// The start of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct TurnStarted {
    /// The trace id, as 32 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = TurnOutcome))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The model has answered.
    Completed,
    /// A caller cancelled the turn, a person declined it, or it was rolled back.
    Cancelled,
    /// An error ended the turn. `code` and `message` describe it.
    Failed,
    /// A limit ended the turn. `code` names it.
    Limited,
}

/// The end of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TurnEnded {
    /// How the turn ended.
    pub outcome: Outcome,
    /// A code for the reason, such as `turn_limit`, `context_overflow` or `rolled_back`. Absent if the turn was completed
    /// or a caller cancelled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// A description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The tokens of all model calls of the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The cost of the turn in billionths of a US dollar; absent if the price of a call is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

/// What the model does in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// It answers.
    Answer,
    /// It calls one or more tools.
    Tool,
    /// It calls `delegate`, possibly with other tools.
    Delegate,
    /// It asks a person with `ask_user`.
    AskUser,
}

/// The action of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RoundAction))]
pub struct Action {
    /// What kind of action it is.
    pub kind: ActionKind,
    /// The names of the called tools, separated by commas. Empty for an answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
}

/// How a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoundStatus {
    /// The round is complete.
    Ok,
    /// The model call or a tool failed, or the budget did not allow the call. `reason` says which.
    Failed,
    /// A tool call was invalid, or a policy or a person refused it. The model gets the error.
    Refused,
    /// A person was asked before the turn continued.
    Asked,
    /// The answer was given up because its rating was too low. The model answers again.
    Backtracked,
    /// A limit or a crash stopped the round.
    Interrupted,
    /// A caller cancelled the round.
    Cancelled,
}

impl RoundStatus {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            RoundStatus::Ok => "ok",
            RoundStatus::Failed => "failed",
            RoundStatus::Refused => "refused",
            RoundStatus::Asked => "asked",
            RoundStatus::Backtracked => "backtracked",
            RoundStatus::Interrupted => "interrupted",
            RoundStatus::Cancelled => "cancelled",
        }
    }
}

/// The result of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoundResult {
    /// How the round ended.
    pub status: RoundStatus,
    /// The tokens that the round used.
    #[serde(default)]
    pub tokens: u64,
    /// The cost of the round in billionths of a US dollar; absent if the price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

/// A round of the ledger. The engine writes a round several times with the same number: without a result before each
/// action, and with a result afterwards. The last entry applies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Round {
    /// The number of the round within its turn, from 1.
    pub number: u32,
    /// What the model does.
    pub action: Action,
    /// The result; `None` in an entry that is written before an action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RoundResult>,
    /// Why the round failed, was refused, asked a person or was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The model's rating of its answer, from 0 to 1; absent if the answer had no rating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f32>,
    /// The trace id, as 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// A question that a person must answer before the turn continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalAsked {
    /// The id of the approval.
    pub approval: String,
    /// The question.
    pub question: String,
    /// The tool call that the question is about. Absent for questions about the turn, such as its budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Further data about the question.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub details: Option<Json>,
    /// When the question is escalated and when it expires. Absent if it waits without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<ApprovalDeadlines>,
}

/// When a question is escalated and when it expires.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalDeadlines {
    /// When the hook `on_approval` is called again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalates_at: Option<TimestampMs>,
    /// Whom the escalation is addressed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate_to: Option<String>,
    /// When the system answers `denied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<TimestampMs>,
}

impl ApprovalAsked {
    /// Why a person was asked, from `details`; `None` if it is not recorded.
    pub fn why(&self) -> Option<String> {
        let details = self.details.as_ref().map(Json::to_value).unwrap_or_default();
        details["why"].as_str().map(str::to_owned)
    }

    /// The kind of the question, from `details`: `tool`, `question`, `handoff`, `budget`, `confidence` or `consent`.
    /// Empty if it is not recorded.
    pub fn kind(&self) -> String {
        let details = self.details.as_ref().map(Json::to_value).unwrap_or_default();
        details["kind"].as_str().unwrap_or_default().to_owned()
    }
}

/// The answer to an approval, from a person or, after the deadline, from the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalAnswer {
    /// The action may run, or the question was answered.
    Approved,
    /// The action must not run.
    Denied,
}

/// An answer to an approval. The first answer counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalAnswered {
    /// The id of the approval.
    pub approval: String,
    /// The answer.
    pub answer: ApprovalAnswer,
    /// The reason of a refusal, or the answer to the model's question. The model receives it.
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
    /// When the input is consumed.
    pub queue: Queue,
    /// The content.
    pub parts: Vec<Part>,
}

/// Marks queued input as consumed. Written in the same batch as its user message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InputTaken {
    /// The id of the `input_queued` entry.
    pub input: EntryId,
}

/// A request to cancel the turn. It is outside the tree, so it needs no lease. The process that runs the turn reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelAsked {
    /// The turn to cancel.
    pub turn: TurnId,
}

//! Types of approvals and answer links.

use sapwood::core::entry::ApprovalAnswer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

/// A question that waits for a person.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Approval {
    pub approval: String,
    pub session: String,
    pub question: String,
    pub kind: String,
    /// Why a person is asked, if it is recorded.
    #[serde(default)]
    pub why: Option<String>,
    #[serde(default)]
    pub call: Option<Value>,
    /// When the question was asked.
    pub asked_at: i64,
    /// When the question is escalated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalates_at: Option<i64>,
    /// Whom the escalation is addressed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate_to: Option<String>,
    /// When the question was escalated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalated_at: Option<i64>,
    /// When the system answers `denied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Approvals {
    pub items: Vec<Approval>,
}

/// A page of the approvals of all sessions.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ApprovalPage {
    pub items: Vec<Approval>,
    /// The cursor of the next page.
    pub next: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ApprovalQuery {
    /// Maximum number of sessions in the page.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// The `next` of the previous page.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub answer: AnswerGiven,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerGiven {
    Approved,
    Denied,
}

impl From<AnswerGiven> for ApprovalAnswer {
    fn from(answer: AnswerGiven) -> Self {
        match answer {
            AnswerGiven::Approved => ApprovalAnswer::Approved,
            AnswerGiven::Denied => ApprovalAnswer::Denied,
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewAnswerLink {
    /// Seconds until the link expires. One day by default, at most 7 days.
    #[schema(minimum = 1, maximum = 604_800)]
    pub expires_in_s: Option<u32>,
    /// The answers that the link allows. Both, if empty.
    pub answers: Vec<AnswerGiven>,
}

/// A link that lets a person without a key answer one approval once.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AnswerLink {
    pub approval: String,
    pub url: String,
    pub expires_at: i64,
}

/// The form of an answer link's page.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerForm {
    pub answer: AnswerGiven,
    #[serde(default)]
    pub reason: Option<String>,
}

//! Durable events: every entry is an event, and its seq is the event id. Stream fragments are not entries and have no
//! id.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::entry::{Body, Kind, Outcome, Record, SessionState, Strategy, codec::CodecError};
use crate::flow::assignment::ASSIGNMENT_INFO;
use crate::flow::event::RUN_INFO;
use crate::id::{EntryId, Seq, SessionId, TimestampMs, TurnId};
use crate::pressure::PRESSURE_INFO;
use crate::scope::Principal;

#[derive(Debug, Serialize)]
pub struct Event<'a> {
    #[serde(rename = "type")]
    pub name: &'static str,
    pub session: &'a SessionId,
    pub seq: Seq,
    pub at: TimestampMs,
    pub id: EntryId,
    pub parent: Option<Seq>,
    pub by: &'a Principal,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The body, unchanged from the log.
    pub entry: &'a RawValue,
}

impl<'a> Event<'a> {
    pub fn of(session: &'a SessionId, record: &'a Record) -> Result<Self, CodecError> {
        let malformed = |source| CodecError::Malformed { kind: record.meta.kind, source };
        Ok(Self {
            name: event_name(record)?,
            session,
            seq: record.meta.seq,
            at: record.meta.at,
            id: record.meta.id,
            parent: record.meta.parent,
            by: &record.meta.by,
            turn: record.meta.turn,
            entry: serde_json::from_slice(&record.body).map_err(malformed)?,
        })
    }
}

fn event_name(record: &Record) -> Result<&'static str, CodecError> {
    Ok(match record.meta.kind {
        Kind::UserMessage | Kind::SystemNote | Kind::CustomMessage => "session:message",
        Kind::AssistantMessage => "agent:message",
        Kind::ToolResult => "agent:tool_result",
        Kind::Compaction => match record.decode()? {
            Body::Compaction(body) if matches!(body.strategy, Strategy::Trim) => "session:trimmed",
            _ => "session:compacted",
        },
        Kind::BranchSummary | Kind::LeafMoved => "session:branched",
        Kind::ModelChanged | Kind::ThinkingChanged | Kind::SkillsChanged | Kind::ContextChanged => {
            "session:settings_changed"
        }
        Kind::Graft => "session:grafted",
        Kind::Label => "session:labelled",
        Kind::SessionNamed => "session:renamed",
        Kind::CustomInfo => match record.decode()? {
            Body::CustomInfo(body) if body.custom_type == PRESSURE_INFO => "session:pressure",
            Body::CustomInfo(body) if body.custom_type == RUN_INFO => "flow:event",
            Body::CustomInfo(body) if body.custom_type == ASSIGNMENT_INFO => "flow:entered",
            _ => "session:info",
        },
        Kind::TurnStarted => "session:turn_started",
        Kind::TurnEnded => match record.decode()? {
            Body::TurnEnded(body) if body.outcome == Outcome::Cancelled => "session:cancelled",
            _ => "session:turn_completed",
        },
        Kind::Round => "cost:updated",
        Kind::ApprovalAsked => "agent:approval_requested",
        Kind::ApprovalAnswered => "agent:approval_answered",
        Kind::ArtifactPut => "session:artifact",
        Kind::MemberChanged => "session:shared",
        Kind::StateChanged => match record.decode()? {
            Body::StateChanged(body) if body.state == SessionState::Archived => "session:archived",
            Body::StateChanged(body) if body.state == SessionState::Closed => "session:closed",
            _ => "session:reopened",
        },
        Kind::Exported => "session:exported",
        Kind::InputQueued => "session:queued",
        Kind::InputTaken => "session:dequeued",
        Kind::CancelAsked => "session:cancel_asked",
    })
}

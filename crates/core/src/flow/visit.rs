//! The progress of one visit: the fold of the role's session, starting with the entry that began the visit.

use super::REPAIRS_MAX;
use super::assignment::{Assignment, HANDOFF_TOOL, Handoff};
use crate::content::{Part, ToolCall};
use crate::entry::{ApprovalAnswer, Body, Entry, Outcome, TurnEnded};
use crate::id::TurnId;

/// The `reason` of the note with the request to repair a handoff.
pub const REPAIR_REASON: &str = "flow.repair";
/// The `reason` of the note for entering a node.
pub const ENTRY_REASON: &str = "flow.entry";

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Visit {
    /// The latest turn, and how it ended.
    pub turn: Option<(TurnId, Option<TurnEnded>)>,
    /// Valid handoffs.
    pub handed: Vec<Handoff>,
    /// The number of invalid handoffs plus requests to repair a handoff. A person's refusal does not count.
    pub faults: u32,
    /// The role's last answer.
    pub said: String,
    calls: Vec<ToolCall>,
    refused: Vec<String>,
    asked: Vec<(String, String)>,
    last_fault: Option<String>,
}

/// The next action of a visit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextAction {
    /// The turn is running, was interrupted, or waits for a person: continue it.
    Continue,
    /// The turn ended without a valid handoff: send the role the error and let it retry.
    Repair {
        why: String,
    },
    Done {
        said: String,
    },
    /// A person refused the whole visit.
    Declined {
        why: String,
    },
    Fail {
        code: String,
        message: String,
    },
}

impl Visit {
    /// Fold the entries of a visit. The first entry contains the assignment.
    pub fn fold<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut visit = Self::default();
        for entry in entries {
            visit.apply(entry);
        }
        visit
    }

    fn apply(&mut self, entry: &Entry) {
        match &entry.body {
            Body::TurnStarted(_) => self.turn = entry.meta.turn.map(|turn| (turn, None)),
            Body::TurnEnded(ended) => {
                if let Some((_, end)) = &mut self.turn {
                    *end = Some(ended.clone());
                }
            }
            Body::AssistantMessage(message) => {
                let calls = message.parts.iter().filter_map(Part::as_tool_call);
                self.calls.extend(calls.filter(|call| call.name == HANDOFF_TOOL).cloned());
                let text = entry.body.text();
                if !text.trim().is_empty() {
                    self.said = text;
                }
            }
            Body::ApprovalAsked(asked) => {
                self.asked.extend(asked.call_id.clone().map(|call| (asked.approval.clone(), call)));
            }
            Body::ApprovalAnswered(answered) if answered.answer == ApprovalAnswer::Denied => {
                let about = self.asked.iter().find(|(approval, _)| *approval == answered.approval);
                self.refused.extend(about.map(|(_, call)| call.clone()));
            }
            Body::ToolResult(result) if result.tool.as_deref() == Some(HANDOFF_TOOL) => {
                self.take_result(&result.call_id, result.is_error, result.interrupted, entry.body.text());
            }
            Body::SystemNote(note) if note.reason.as_deref() == Some(REPAIR_REASON) => self.faults += 1,
            _ => {}
        }
    }

    fn take_result(&mut self, call_id: &str, is_error: bool, interrupted: bool, text: String) {
        let Some(at) = self.calls.iter().rposition(|call| call.call_id == call_id) else { return };
        let call = self.calls.remove(at);
        let was_refused = self.refused.iter().any(|refused| refused == call_id);
        match (is_error, Handoff::of_call(&call)) {
            // An answered question is not a handoff.
            (false, Ok(handoff)) if handoff.prompt.is_none() => self.handed.push(handoff),
            (false, _) => {}
            (true, _) if was_refused || interrupted => {}
            (true, _) => {
                self.faults += 1;
                self.last_fault = Some(text);
            }
        }
    }

    pub fn next_action(&self, assignment: &Assignment) -> NextAction {
        let Some((_, Some(ended))) = &self.turn else { return NextAction::Continue };
        if ended.code.as_deref() == Some(DECLINED) {
            let why = ended.message.clone().unwrap_or_else(|| "a person declined".to_owned());
            return NextAction::Declined { why };
        }
        let is_completed = ended.outcome == Outcome::Completed;
        let is_done = if assignment.has_tool() { assignment.is_ended_by(&self.handed) } else { is_completed };
        if is_done {
            return NextAction::Done { said: self.said.clone() };
        }
        if self.faults >= REPAIRS_MAX && (assignment.has_tool() || !is_completed) {
            let last = self.last_fault.clone().unwrap_or_else(|| "no handoff was made".to_owned());
            let message = format!("the handoff was still invalid after {REPAIRS_MAX} repairs: {last}");
            return NextAction::Fail { code: "flow.handoff".to_owned(), message };
        }
        let can_be_repaired = is_completed || ended.code.as_deref() == Some("correction_limit");
        if assignment.has_tool() && can_be_repaired {
            return NextAction::Repair { why: self.repair_reason(assignment) };
        }
        let code = ended.code.clone().unwrap_or_else(|| "turn.cancelled".to_owned());
        let message = ended.message.clone().unwrap_or_else(|| format!("its turn ended with {code}"));
        NextAction::Fail { code, message }
    }

    fn repair_reason(&self, assignment: &Assignment) -> String {
        let required: Vec<&str> =
            assignment.required_targets(&self.handed).iter().map(|target| target.node.as_str()).collect();
        match (self.handed.is_empty(), &self.last_fault) {
            (true, Some(fault)) => format!("The last handoff was not valid: {fault}"),
            (true, None) => "The turn ended without a handoff.".to_owned(),
            (false, _) => format!("A handoff to {} is still required.", required.join(", ")),
        }
    }
}

/// The code of a turn that a person declined.
pub const DECLINED: &str = "consent.declined";

//! How far one visit has come, as the role's session tells it: the fold of everything behind the entry that began it.

use super::REPAIRS_MAX;
use super::assignment::{Assignment, HANDOFF_TOOL, Handoff};
use crate::content::{Part, ToolCall};
use crate::entry::{ApprovalAnswer, Body, Entry, Outcome, TurnEnded};
use crate::id::TurnId;

/// The `reason` of the note that asks a role to mend its handoff.
pub const REPAIR_REASON: &str = "flow.repair";
/// The `reason` of the note that a node is entered with.
pub const ENTRY_REASON: &str = "flow.entry";

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Visit {
    /// The latest turn, and how it ended.
    pub turn: Option<(TurnId, Option<TurnEnded>)>,
    /// Handoffs that were right.
    pub handed: Vec<Handoff>,
    /// Those that were not, and turns that ended without one; a person's refusal is neither.
    pub faults: u32,
    /// The last thing the role said.
    pub said: String,
    calls: Vec<ToolCall>,
    refused: Vec<String>,
    asked: Vec<(String, String)>,
    last_fault: Option<String>,
}

/// What is to be done about a visit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextMove {
    /// Its turn runs, was interrupted, or waits for a person: carry it on.
    GoOn,
    /// The turn ended without a handoff that would do: the role is told, and tries again.
    Repair {
        why: String,
    },
    Done {
        said: String,
    },
    /// A person did not agree to the visit as a whole.
    Declined {
        why: String,
    },
    Fail {
        code: String,
        message: String,
    },
}

impl Visit {
    /// `entries` begin with the one that holds the post.
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
            // A question that was answered is no handoff yet.
            (false, Ok(handoff)) if handoff.prompt.is_none() => self.handed.push(handoff),
            (false, _) => {}
            (true, _) if was_refused || interrupted => {}
            (true, _) => {
                self.faults += 1;
                self.last_fault = Some(text);
            }
        }
    }

    pub fn next_move(&self, post: &Assignment) -> NextMove {
        let Some((_, Some(ended))) = &self.turn else { return NextMove::GoOn };
        if ended.code.as_deref() == Some(DECLINED) {
            let why = ended.message.clone().unwrap_or_else(|| "a person did not agree".to_owned());
            return NextMove::Declined { why };
        }
        let has_ended_well = ended.outcome == Outcome::Completed;
        let is_done = if post.has_tool() { post.is_ended_by(&self.handed) } else { has_ended_well };
        if is_done {
            return NextMove::Done { said: self.said.clone() };
        }
        if self.faults >= REPAIRS_MAX && (post.has_tool() || !has_ended_well) {
            let last = self.last_fault.clone().unwrap_or_else(|| "no handoff was made".to_owned());
            let message = format!("the handoff was not right after {REPAIRS_MAX} repairs: {last}");
            return NextMove::Fail { code: "flow.handoff".to_owned(), message };
        }
        let may_mend = has_ended_well || ended.code.as_deref() == Some("correction_limit");
        if post.has_tool() && may_mend {
            return NextMove::Repair { why: self.what_is_missing(post) };
        }
        let code = ended.code.clone().unwrap_or_else(|| "turn.cancelled".to_owned());
        let message = ended.message.clone().unwrap_or_else(|| format!("its turn ended with {code}"));
        NextMove::Fail { code, message }
    }

    fn what_is_missing(&self, post: &Assignment) -> String {
        let owed: Vec<&str> = post.owed(&self.handed).iter().map(|target| target.node.as_str()).collect();
        match (self.handed.is_empty(), &self.last_fault) {
            (true, Some(fault)) => format!("The last handoff was not right: {fault}"),
            (true, None) => "The turn ended, and the node was not handed off.".to_owned(),
            (false, _) => format!("A handoff is still owed to {}.", owed.join(", ")),
        }
    }
}

/// The code of a turn that a person did not agree to.
pub const DECLINED: &str = "consent.declined";

//! The state of a turn: the fold of its entries, in log order.

use crate::content::{Part, ToolCall, joined_text};
use crate::entry::{
    ApprovalAnswer, Body, Kind, Round, RoundStatus, Stop, ToolResult, Trigger, TurnEnded, Usage,
};

/// The status of one call of the latest answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallStatus {
    /// The call is in the log, but no decision about it is.
    Open,
    /// The call waits for a person.
    Asked {
        approval: String,
    },
    /// A person approved the call; it has not started.
    Approved {
        reason: Option<String>,
    },
    Denied {
        reason: Option<String>,
    },
    /// The call may have run: the log records the intent to run it.
    Begun,
    /// The call has its result.
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallState {
    pub call: ToolCall,
    pub status: CallStatus,
    /// How the call ended; `None` until its result is in the log.
    pub end: Option<CallEnd>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEnd {
    Ok,
    /// The call did not run: its tool is unknown, its input was invalid, or its approval was denied or expired.
    Refused {
        why: String,
    },
    /// The result is an error.
    Failed {
        why: String,
    },
    Interrupted,
}

impl CallEnd {
    fn of(result: &ToolResult, status: &CallStatus) -> Self {
        let why = joined_text(&result.parts);
        match (result.is_error, status) {
            _ if result.interrupted => CallEnd::Interrupted,
            (false, _) => CallEnd::Ok,
            (true, CallStatus::Open | CallStatus::Denied { .. }) => CallEnd::Refused { why },
            (true, _) => CallEnd::Failed { why },
        }
    }
}

/// A question to a person about the turn itself rather than about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    pub approval: String,
    pub kind: String,
    /// `None` until a person answers.
    pub answer: Option<(ApprovalAnswer, Option<String>)>,
}

/// The fold of a turn's entries.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnState {
    /// Whether the turn's input is in the log.
    pub has_input: bool,
    /// The latest round: its number, and whether it is unfinished.
    pub round: u32,
    pub round_is_open: bool,
    /// The model's rating of the latest round's answer.
    pub rating: Option<f32>,
    /// The trace id of the process that opened the latest round.
    pub round_trace: Option<String>,
    /// Whether a person was asked about the rating of the latest round.
    pub has_asked_rating: bool,
    has_invalid_call: bool,
    /// The latest answer's calls. Empty before the first answer and after an answer without calls.
    pub calls: Vec<CallState>,
    /// How the latest answer of the open round stopped; `None` until the model answers.
    pub answered: Option<Stop>,
    pub gate: Option<Gate>,
    pub is_budget_waived: bool,
    /// The number of rounds with an invalid tool call.
    pub corrections: u32,
    pub backtracks: u32,
    /// The number of compactions caused by a full context window.
    pub overflows: u32,
    pub usage: Usage,
    pub cost_nano_usd: u64,
    pub has_unpriced: bool,
    /// The tokens of the latest answer.
    pub last_tokens: u64,
    pub last_cost_nano_usd: Option<u64>,
    pub approvals_asked: u32,
    pub is_cancel_asked: bool,
    pub ended: Option<TurnEnded>,
}

impl TurnState {
    pub fn fold<'a>(bodies: impl IntoIterator<Item = &'a Body>) -> Self {
        let mut state = Self::default();
        for body in bodies {
            state.apply(body);
        }
        state
    }

    pub fn apply(&mut self, body: &Body) {
        if self.gate.is_some() && shows_progress(body) {
            self.gate = None;
        }
        match body {
            Body::UserMessage(_) | Body::SystemNote(_) => self.has_input = true,
            // Before the first round, an assistant message is part of the turn's input.
            Body::AssistantMessage(_) if self.round == 0 => self.has_input = true,
            Body::Round(round) => self.apply_round(round),
            Body::AssistantMessage(message) => {
                self.answered = Some(message.stop);
                self.calls = open_calls(&message.parts);
                self.count(message.usage, message.cost_nano_usd);
            }
            Body::ToolResult(result) => {
                self.has_input = true;
                self.apply_result(result);
            }
            Body::BranchSummary(_) => self.backtracks += 1,
            // Backtracking abandons the answer and its calls.
            Body::LeafMoved(_) => {
                self.calls.clear();
                self.answered = None;
            }
            Body::Compaction(compaction) if compaction.trigger == Trigger::Overflow => self.overflows += 1,
            Body::ApprovalAsked(asked) => {
                self.approvals_asked += 1;
                let approval = asked.approval.clone();
                match &asked.call_id {
                    Some(call_id) => self.set_status(call_id, CallStatus::Asked { approval }),
                    None => {
                        self.has_asked_rating |= asked.kind() == CONFIDENCE;
                        self.gate = Some(Gate { approval, kind: asked.kind(), answer: None });
                    }
                }
            }
            Body::ApprovalAnswered(answered) => {
                self.answer(&answered.approval, answered.answer, answered.reason.clone());
            }
            Body::CancelAsked(_) => self.is_cancel_asked = true,
            Body::TurnEnded(ended) => self.ended = Some(ended.clone()),
            // Settings, session entries and records of other parts of the engine.
            _ => {}
        }
    }

    fn apply_round(&mut self, round: &Round) {
        if round.number > self.round {
            self.round = round.number;
            self.answered = None;
            self.calls.clear();
            (self.rating, self.round_trace) = (None, None);
            (self.has_asked_rating, self.has_invalid_call) = (false, false);
        }
        self.rating = round.confidence.or(self.rating);
        self.round_trace = self.round_trace.take().or_else(|| round.trace_id.clone());
        let status = round.result.as_ref().map(|result| result.status);
        // A round that waits for a person is not finished.
        self.round_is_open = matches!(status, None | Some(RoundStatus::Asked));
        if status.is_none() {
            // The recorded intent to act: after this entry, these calls may have run.
            for call in &mut self.calls {
                if matches!(call.status, CallStatus::Open | CallStatus::Approved { .. }) {
                    call.status = CallStatus::Begun;
                }
            }
        }
    }

    fn apply_result(&mut self, result: &ToolResult) {
        let is_open_call =
            |call: &&mut CallState| call.call.call_id == result.call_id && call.status != CallStatus::Done;
        let Some(call) = self.calls.iter_mut().find(is_open_call) else { return };
        let end = CallEnd::of(result, &call.status);
        // Only an invalid call ends before the intent to run it is recorded.
        let is_invalid = call.status == CallStatus::Open && matches!(end, CallEnd::Refused { .. });
        (call.status, call.end) = (CallStatus::Done, Some(end));
        if is_invalid && self.round_is_open && !self.has_invalid_call {
            self.has_invalid_call = true;
            self.corrections += 1;
        }
    }

    fn answer(&mut self, approval: &str, answer: ApprovalAnswer, reason: Option<String>) {
        if let Some(gate) = self.gate.as_mut().filter(|gate| gate.approval == approval) {
            self.is_budget_waived |= gate.kind == BUDGET && answer == ApprovalAnswer::Approved;
            // Only the first answer counts.
            gate.answer.get_or_insert((answer, reason));
            return;
        }
        let is_asked = |call: &&mut CallState| matches!(&call.status, CallStatus::Asked { approval: asked } if asked == approval);
        if let Some(call) = self.calls.iter_mut().find(is_asked) {
            call.status = match answer {
                ApprovalAnswer::Approved => CallStatus::Approved { reason },
                ApprovalAnswer::Denied => CallStatus::Denied { reason },
            };
        }
    }

    /// Set the status of a call. If several calls share the id, the first call without a result is updated.
    fn set_status(&mut self, call_id: &str, status: CallStatus) {
        let is_open_call =
            |call: &&mut CallState| call.call.call_id == call_id && call.status != CallStatus::Done;
        if let Some(call) = self.calls.iter_mut().find(is_open_call) {
            call.status = status;
        }
    }

    fn count(&mut self, usage: Option<Usage>, cost_nano_usd: Option<u64>) {
        let usage = usage.unwrap_or_default();
        self.usage += usage;
        self.last_tokens = usage.total();
        self.last_cost_nano_usd = cost_nano_usd;
        match cost_nano_usd {
            Some(cost) => self.cost_nano_usd = self.cost_nano_usd.saturating_add(cost),
            None => self.has_unpriced = true,
        }
    }

    /// The approvals that have not been answered.
    pub fn waiting_for(&self) -> Vec<&str> {
        let gate = self.gate.iter().filter(|gate| gate.answer.is_none()).map(|gate| gate.approval.as_str());
        let calls = self.calls.iter().filter_map(|call| match &call.status {
            CallStatus::Asked { approval } => Some(approval.as_str()),
            _ => None,
        });
        gate.chain(calls).collect()
    }

    pub(super) fn all_done(&self) -> bool {
        self.calls.iter().all(|call| call.status == CallStatus::Done)
    }
}

/// Whether the entry shows that the turn has continued after a question about the turn.
fn shows_progress(body: &Body) -> bool {
    matches!(
        body.kind(),
        Kind::UserMessage
            | Kind::AssistantMessage
            | Kind::ToolResult
            | Kind::Round
            | Kind::LeafMoved
            | Kind::ApprovalAsked
            | Kind::TurnEnded
    )
}

/// Kinds of questions about a turn, as stored in [`crate::entry::ApprovalAsked::details`].
pub(super) const BUDGET: &str = "budget";
pub(super) const CONFIDENCE: &str = "confidence";
/// Approval of the turn before the first model call.
pub(super) const CONSENT: &str = "consent";

fn open_calls(parts: &[Part]) -> Vec<CallState> {
    let calls = parts.iter().filter_map(Part::as_tool_call);
    calls.map(|call| CallState { call: call.clone(), status: CallStatus::Open, end: None }).collect()
}

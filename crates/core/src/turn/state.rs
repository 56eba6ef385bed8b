//! Where a turn stands: the fold of its own entries, in the order of the log.

use crate::content::{Part, ToolCall};
use crate::entry::{ApprovalAnswer, Body, Kind, RoundStatus, Stop, Trigger, TurnEnded, Usage};

/// What the log says about one call of the latest answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallStatus {
    /// It is in the log, and nothing has been done about it.
    Open,
    /// It waits for a person.
    Asked {
        approval: String,
    },
    /// A person agreed; it has not begun.
    Approved {
        reason: Option<String>,
    },
    Denied {
        reason: Option<String>,
    },
    /// It may have run: a crash leaves it here for good.
    Begun,
    /// It has its result.
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallState {
    pub call: ToolCall,
    pub status: CallStatus,
}

/// Something about the turn itself that a person was asked, rather than about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    pub approval: String,
    pub kind: String,
    /// None while nobody has answered.
    pub answer: Option<(ApprovalAnswer, Option<String>)>,
}

/// The fold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnState {
    /// The user's words are in the log.
    pub has_input: bool,
    /// The latest round: its number, and whether its result is missing.
    pub round: u32,
    pub round_is_open: bool,
    /// The latest answer's calls. Empty before any answer, and after one that calls nothing.
    pub calls: Vec<CallState>,
    /// How the latest answer of the open round stopped; none while the model has not answered.
    pub answered: Option<Stop>,
    pub gate: Option<Gate>,
    pub is_budget_waived: bool,
    /// Rounds in which tool input did not fit.
    pub corrections: u32,
    pub backtracks: u32,
    /// Compactions because the window was full.
    pub overflows: u32,
    pub usage: Usage,
    pub cost_nano_usd: u64,
    pub has_unpriced: bool,
    /// What the latest answer took.
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
        if self.gate.is_some() && goes_on(body) {
            self.gate = None;
        }
        match body {
            Body::UserMessage(_) | Body::SystemNote(_) => self.has_input = true,
            // Before the first round it is what the turn was given, said elsewhere.
            Body::AssistantMessage(_) if self.round == 0 => self.has_input = true,
            Body::Round(round) => self.apply_round(round.number, round.result.as_ref().map(|r| r.status)),
            Body::AssistantMessage(message) => {
                self.answered = Some(message.stop);
                self.calls = open_calls(&message.parts);
                self.count(message.usage, message.cost_nano_usd);
            }
            Body::ToolResult(result) => {
                self.has_input = true;
                self.set_status(&result.call_id, CallStatus::Done);
            }
            Body::BranchSummary(_) => self.backtracks += 1,
            // Going back leaves the answer behind, with its calls.
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
                    None => self.gate = Some(Gate { approval, kind: asked.kind(), answer: None }),
                }
            }
            Body::ApprovalAnswered(answered) => {
                self.answer(&answered.approval, answered.answer, answered.reason.clone());
            }
            Body::CancelAsked(_) => self.is_cancel_asked = true,
            Body::TurnEnded(ended) => self.ended = Some(ended.clone()),
            Body::TurnStarted(_)
            | Body::CustomMessage(_)
            | Body::Compaction(_)
            | Body::ModelChanged(_)
            | Body::ThinkingChanged(_)
            | Body::SkillsChanged(_)
            | Body::ContextChanged(_)
            | Body::Graft(_)
            | Body::Label(_)
            | Body::SessionNamed(_)
            | Body::CustomInfo(_)
            | Body::ArtifactPut(_)
            | Body::MemberChanged(_)
            | Body::StateChanged(_)
            | Body::Exported(_)
            | Body::InputQueued(_)
            | Body::InputTaken(_) => {}
        }
    }

    fn apply_round(&mut self, number: u32, result: Option<RoundStatus>) {
        if number > self.round {
            self.round = number;
            self.answered = None;
            self.calls.clear();
        }
        self.round_is_open = result.is_none();
        self.corrections += u32::from(result == Some(RoundStatus::Malformed));
        if result.is_none() {
            // The intent to act: from here on, what may run may have run.
            for call in &mut self.calls {
                if matches!(call.status, CallStatus::Open | CallStatus::Approved { .. }) {
                    call.status = CallStatus::Begun;
                }
            }
        }
    }

    fn answer(&mut self, approval: &str, answer: ApprovalAnswer, reason: Option<String>) {
        if let Some(gate) = self.gate.as_mut().filter(|gate| gate.approval == approval) {
            self.is_budget_waived |= gate.kind == BUDGET && answer == ApprovalAnswer::Approved;
            // The first answer counts.
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

    /// Of calls that share an id, the first without a result is meant.
    fn set_status(&mut self, call_id: &str, status: CallStatus) {
        let is_meant =
            |call: &&mut CallState| call.call.call_id == call_id && call.status != CallStatus::Done;
        if let Some(call) = self.calls.iter_mut().find(is_meant) {
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

    /// The approvals nobody has answered yet.
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

/// Whether the turn has gone on, past whatever it had asked about itself.
fn goes_on(body: &Body) -> bool {
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

/// Kinds of questions about a turn, as [`crate::entry::ApprovalAsked::details`] names them.
pub(super) const BUDGET: &str = "budget";
pub(super) const CONFIDENCE: &str = "confidence";
/// Before a model is told anything.
pub(super) const CONSENT: &str = "consent";

fn open_calls(parts: &[Part]) -> Vec<CallState> {
    let calls = parts.iter().filter_map(Part::as_tool_call);
    calls.map(|call| CallState { call: call.clone(), status: CallStatus::Open }).collect()
}

//! The rounds of a turn, as the ledger shows them. A round has one number, one rating and one trace id, even if another
//! process finishes it. Its status says how it ended, and its reason why.

use super::TurnStep;
use super::machine::Machine;
use super::state::{CallEnd, CallState, CallStatus};
use crate::entry::{Action, ActionKind, Round, RoundResult, RoundStatus};
use crate::policy::{Decision, decide};

/// Maximum length of a reason, in characters.
const REASON_CHARS_MAX: usize = 300;

impl Machine {
    /// Write the round without a result: the intent to act.
    pub(super) fn add_intent(&mut self, step: &mut TurnStep) {
        self.add_round(step, self.state.round, self.action(), None, None);
    }

    /// Open the round with this number: a model call.
    pub(super) fn add_opening(&mut self, step: &mut TurnStep, number: u32) {
        let action = Action { kind: ActionKind::Answer, what: String::new() };
        self.add_round(step, number, action, None, None);
    }

    /// Record that the round waits for a person. It stays open.
    pub(super) fn add_asked(&mut self, step: &mut TurnStep, reason: String) {
        let result = Some(self.result(RoundStatus::Asked));
        self.add_round(step, self.state.round, self.action(), result, Some(one_line(&reason)));
    }

    fn add_round(
        &mut self,
        step: &mut TurnStep,
        number: u32,
        action: Action,
        result: Option<RoundResult>,
        reason: Option<String>,
    ) {
        let is_same = number == self.state.round;
        let confidence = self.state.rating.filter(|_| is_same);
        let own_trace = self.state.round_trace.clone().filter(|_| is_same);
        let trace_id = own_trace.or_else(|| self.rules.trace_id.clone());
        self.add(step, Round { number, action, result, reason, confidence, trace_id });
    }

    pub(super) fn close_round(&mut self, step: &mut TurnStep, status: RoundStatus, reason: Option<String>) {
        if !self.state.round_is_open {
            return;
        }
        let (result, reason) = (self.result(status), reason.map(|reason| one_line(&reason)));
        self.add_round(step, self.state.round, self.action(), Some(result), reason);
    }

    /// Close the round with the status that its calls give it.
    pub(super) fn close_settled_round(&mut self, step: &mut TurnStep) {
        let (status, reason) = self.settled_status();
        self.close_round(step, status, reason);
    }

    fn result(&self, status: RoundStatus) -> RoundResult {
        RoundResult { status, tokens: self.state.last_tokens, cost_nano_usd: self.state.last_cost_nano_usd }
    }

    /// The action that the latest answer requests.
    pub(super) fn action(&self) -> Action {
        let names: Vec<&str> = self.state.calls.iter().map(|call| call.call.name.as_str()).collect();
        let kind = match names.as_slice() {
            [] => ActionKind::Answer,
            ["ask_user"] => ActionKind::AskUser,
            names if names.contains(&"delegate") => ActionKind::Delegate,
            _ => ActionKind::Tool,
        };
        Action { kind, what: names.join(", ") }
    }

    /// The status of a round whose calls have all ended, and its reason. The first call that failed decides, then one
    /// that was interrupted, then one that was refused.
    fn settled_status(&self) -> (RoundStatus, Option<String>) {
        let ends: Vec<(RoundStatus, String)> =
            self.state.calls.iter().filter_map(|call| self.bad_end(call)).collect();
        for status in [RoundStatus::Failed, RoundStatus::Interrupted, RoundStatus::Refused] {
            if let Some((_, reason)) = ends.iter().find(|(found, _)| *found == status) {
                return (status, Some(reason.clone()));
            }
        }
        match self.state.has_asked_rating {
            true => {
                (RoundStatus::Asked, Some(format!("{}; a person agreed to continue", self.rating_text())))
            }
            false => (RoundStatus::Ok, None),
        }
    }

    /// How a call ended, unless it succeeded or the caller runs it.
    fn bad_end(&self, call: &CallState) -> Option<(RoundStatus, String)> {
        let name = &call.call.name;
        let (status, why) = match call.end.as_ref()? {
            CallEnd::Ok => return None,
            CallEnd::Interrupted => (RoundStatus::Interrupted, "it was interrupted"),
            CallEnd::Refused { why } => (RoundStatus::Refused, why.as_str()),
            CallEnd::Failed { why } if self.is_refused_by_policy(name) => {
                (RoundStatus::Refused, why.as_str())
            }
            CallEnd::Failed { why } => (RoundStatus::Failed, why.as_str()),
        };
        Some((status, format!("{name}: {why}")))
    }

    fn is_refused_by_policy(&self, tool: &str) -> bool {
        let decision =
            self.rules.tool(tool).map(|spec| decide(spec, self.rules.approvals, self.rules.fs_scope));
        matches!(decision, Some(Decision::Refuse { .. }))
    }

    /// The rating and the threshold that it is below, as text for a round's reason.
    pub(super) fn rating_text(&self) -> String {
        let rating = self.state.rating.unwrap_or_default();
        let rules = self.rules.confidence.unwrap_or_default();
        let limit = if rating < rules.backtrack_below { rules.backtrack_below } else { rules.ask_below };
        format!("the model rated its answer {rating:.2}, below {limit:.2}")
    }

    /// A reason that names the calls that wait for a person; `None` if no call waits.
    pub(super) fn waiting_reason(&self) -> Option<String> {
        let is_asked = |call: &&CallState| matches!(call.status, CallStatus::Asked { .. });
        let names: Vec<&str> =
            self.state.calls.iter().filter(is_asked).map(|call| call.call.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("a person has to decide about {}", names.join(", ")))
    }
}

/// Convert a text to one line of at most `REASON_CHARS_MAX` characters.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(REASON_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

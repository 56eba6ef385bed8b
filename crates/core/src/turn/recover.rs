//! Recovery folds the turn's entries into its state, and a turn can continue from any state. Calls that may have run
//! before the crash are not run again, unless their tool allows it. Calls that waited for a person still wait.

use super::machine::{Machine, Rules, interrupted_result};
use super::state::{CallStatus, TurnState};
use super::{Effect, TurnStep};
use crate::agent::OnInterrupt;
use crate::entry::{Body, LeafMoved, Outcome, RoundStatus, Stop, SystemNote};
use crate::id::EntryId;
use crate::port::tool::Replay;

/// The note for the model when a turn continues after a crash.
const CONTINUATION: &str = "The work was interrupted before it was finished. The results so far are above. A call that \
    is marked as interrupted may or may not have taken effect, so check before repeating it. Continue from here.";

/// The reason of a round whose process died.
const INTERRUPTED: &str = "the process ended before the round was finished";

/// The note that starts the continuation of an interrupted turn.
pub fn continuation() -> SystemNote {
    SystemNote { text: CONTINUATION.to_owned(), reason: Some("continuation".to_owned()) }
}

impl Machine {
    /// Recover a turn from its entries, with the step that resumes it. `before` is the entry before the turn, for a
    /// rollback.
    pub fn recover<'a>(
        rules: Rules,
        entries: impl IntoIterator<Item = &'a Body>,
        on_interrupt: OnInterrupt,
        before: Option<EntryId>,
    ) -> (Self, TurnStep) {
        let mut machine = Self::new(rules, TurnState::fold(entries));
        let mut step = TurnStep::default();
        if machine.state.ended.is_none() {
            machine.resume(&mut step, on_interrupt, before);
        }
        (machine, step)
    }

    fn resume(&mut self, step: &mut TurnStep, on_interrupt: OnInterrupt, before: Option<EntryId>) {
        if self.state.is_cancel_asked {
            return self.abort(step, None, Outcome::Cancelled, None);
        }
        if self.is_waiting() {
            return self.continue_waiting(step);
        }
        if !self.state.has_input || on_interrupt == OnInterrupt::Rollback {
            self.close_round(step, RoundStatus::Interrupted, Some(INTERRUPTED.to_owned()));
            self.add(step, LeafMoved { to: before });
            return self.end(step, Outcome::Cancelled, Some("rolled_back"));
        }
        match self.state.answered {
            // The answer is in the log; only the turn's end is missing.
            Some(Stop::Error) => {
                self.close_round(step, RoundStatus::Failed, Some(INTERRUPTED.to_owned()));
                self.end(step, Outcome::Failed, Some("interrupted"));
            }
            Some(Stop::Aborted) => {
                self.close_round(step, RoundStatus::Cancelled, Some("the turn was cancelled".to_owned()));
                self.end(step, Outcome::Cancelled, None);
            }
            Some(_) if self.state.calls.is_empty() => {
                self.close_settled_round(step);
                self.end(step, Outcome::Completed, None);
            }
            Some(_) => self.settle_begun_calls(step),
            None => self.continue_with_note(step),
        }
    }

    /// Whether the turn waits for a person. Such a turn was not interrupted: nothing was running when the process
    /// ended.
    fn is_waiting(&self) -> bool {
        let has_gate = self.state.gate.is_some();
        let was_asked = |status: &CallStatus| {
            matches!(
                status,
                CallStatus::Asked { .. } | CallStatus::Approved { .. } | CallStatus::Denied { .. }
            )
        };
        let mut calls = self.state.calls.iter().map(|call| &call.status);
        has_gate
            || (calls.clone().any(was_asked)
                && calls.all(|status| was_asked(status) || *status == CallStatus::Done))
    }

    fn continue_waiting(&mut self, step: &mut TurnStep) {
        self.continue_after_answers(step);
        if step.effects.is_empty() && self.state.ended.is_none() {
            step.effects.push(Effect::AwaitPerson);
        }
    }

    /// Record an interrupted result for calls that may have run and must not be repeated. Start or repeat the other
    /// calls.
    fn settle_begun_calls(&mut self, step: &mut TurnStep) {
        let mut was_interrupted = false;
        for at in 0..self.state.calls.len() {
            let call = self.state.calls[at].call.clone();
            let is_safe = self.rules.tool(&call.name).is_some_and(|spec| spec.replay == Replay::Safe);
            let runs_here = !self.is_handed_over(&self.state.calls[at]);
            if self.state.calls[at].status == CallStatus::Begun && runs_here && !is_safe {
                self.add(step, interrupted_result(&call));
                was_interrupted = true;
            }
        }
        if self.state.all_done() && was_interrupted {
            return self.continue_with_note(step);
        }
        if self.state.calls.iter().any(|call| call.status == CallStatus::Open) {
            // The calls are in the log, but no decision is: decide now, as if the answer had just arrived.
            return self.act_on_answer(step, &Default::default());
        }
        self.continue_after_answers(step);
    }

    fn continue_with_note(&mut self, step: &mut TurnStep) {
        self.close_round(step, RoundStatus::Interrupted, Some(INTERRUPTED.to_owned()));
        self.add(step, continuation());
        self.open_round(step);
    }
}

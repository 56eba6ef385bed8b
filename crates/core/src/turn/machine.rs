//! The turn state machine. Each transition folds its entries into the state, and returns them with the effects to run
//! once the entries are durable. The machine performs no I/O. Recovery folds the same entries, so a logged decision is
//! never repeated.

use std::collections::{BTreeMap, HashSet};

use super::confidence::take_rating;
use super::question::{Asking, question_of};
use super::state::{BUDGET, CONSENT, CallState, CallStatus, TurnState};
use super::{Answer, Effect, Input, TurnStep};
use crate::agent::{Confidence, Limits};
use crate::content::{Part, ToolCall};
use crate::entry::{
    ApprovalAnswer, AssistantMessage, Body, BranchSummary, Compaction, InputTaken, LeafMoved, Outcome,
    RoundStatus, Stop, ToolResult, Trigger, TurnEnded, TurnStarted, UserMessage,
};
use crate::flow::assignment::Question;
use crate::flow::{Assignment, visit::DECLINED};
use crate::id::{EntryId, SessionId, TurnId};
use crate::policy::{ApprovalMode, Decision, decide};
use crate::port::tool::{FsScope, ToolSpec, Touch};

/// The configuration of one turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub session: SessionId,
    pub turn: TurnId,
    pub limits: Limits,
    pub approvals: ApprovalMode,
    pub fs_scope: FsScope,
    pub confidence: Option<Confidence>,
    pub tools: Vec<ToolSpec>,
    pub trace_id: Option<String>,
    /// The session's current flow node.
    pub assignment: Option<Assignment>,
}

impl Rules {
    pub(super) fn tool(&self, name: &str) -> Option<&ToolSpec> {
        self.tools.iter().find(|spec| spec.name == name)
    }

    /// Whether the call is a question to a person. The person's answer becomes the call's result.
    fn asks(&self, call: &ToolCall) -> bool {
        let is_prompt = matches!(self.question(call), Some(Question::Prompt(_)));
        is_prompt || self.tool(&call.name).is_some_and(|spec| spec.touch == Touch::Asks)
    }

    /// The question that a person has to answer before a handoff, if any.
    fn question(&self, call: &ToolCall) -> Option<Question> {
        self.assignment.as_ref()?.question(call)
    }
}

/// One turn. Its state is the fold of its entries, plus the calls that are running.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub(super) rules: Rules,
    pub(super) state: TurnState,
    /// Indexes of the calls that are running.
    pub(super) running: HashSet<usize>,
    /// Input that arrived during the turn and is not in the tree yet.
    steered: Vec<(EntryId, Vec<Part>)>,
    /// The last error message, written in the entry that ends the turn.
    last_error: Option<String>,
}

impl Machine {
    pub(super) fn new(rules: Rules, state: TurnState) -> Self {
        Self { rules, state, running: HashSet::new(), steered: Vec::new(), last_error: None }
    }

    /// Begin a turn with a user's message. `taken` is the message's queue entry, if any.
    pub fn begin(rules: Rules, message: UserMessage, taken: Option<EntryId>) -> (Self, TurnStep) {
        Self::begin_with(rules, vec![message.into()], taken)
    }

    /// Begin a turn with the caller's entries: messages, results of calls handed to the caller, or messages from other
    /// programs.
    pub fn begin_with(rules: Rules, opening: Vec<Body>, taken: Option<EntryId>) -> (Self, TurnStep) {
        let mut machine = Self::new(rules, TurnState::default());
        let mut step = TurnStep::default();
        machine.add(&mut step, TurnStarted { trace_id: machine.rules.trace_id.clone() });
        if let Some(input) = taken {
            machine.add(&mut step, InputTaken { input });
        }
        for body in opening {
            machine.add(&mut step, body);
        }
        match machine.rules.assignment.as_ref().filter(|assignment| assignment.needs_consent_first()) {
            None => machine.open_round(&mut step),
            Some(assignment) => {
                let question = format!(
                    "May {} of the flow {:?} see the roles' findings?",
                    assignment.role, assignment.flow
                );
                machine.ask(&mut step, Asking { question, kind: CONSENT, why: None }, None);
                step.effects.push(Effect::AwaitPerson);
            }
        }
        (machine, step)
    }

    pub fn state(&self) -> &TurnState {
        &self.state
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Process an input. A turn that has ended ignores all input.
    pub fn advance(&mut self, input: Input) -> TurnStep {
        let mut step = TurnStep::default();
        if self.state.ended.is_some() {
            return step;
        }
        match input {
            Input::Answered { answer, faults, leaf } => self.take_answer(&mut step, answer, &faults, leaf),
            Input::ModelFailed { code, message, partial } => {
                self.last_error = Some(message);
                self.take_failure(&mut step, code, partial);
            }
            Input::TooFull { trigger, note } => {
                note.into_iter().for_each(|note| self.add(&mut step, note));
                self.request_compaction(&mut step, trigger);
            }
            Input::Compacted { trigger, compaction } => self.take_compaction(&mut step, trigger, compaction),
            Input::OverBudget { question, ask } => self.take_over_budget(&mut step, question, ask),
            Input::ToolDone(result) => self.take_result(&mut step, result),
            Input::ApprovalGiven { approval, answer, reason } => {
                self.take_approval(&mut step, approval, answer, reason)
            }
            Input::Steered { input, parts } => self.steered.push((input, parts)),
            Input::Cancelled { partial } => self.abort(&mut step, partial, Outcome::Cancelled, None),
            Input::TimeOver { partial } => {
                self.abort(&mut step, partial, Outcome::Limited, Some("wall_time"))
            }
        }
        step
    }

    pub(super) fn add(&mut self, step: &mut TurnStep, body: impl Into<Body>) {
        let body = body.into();
        self.state.apply(&body);
        step.entries.push(body);
    }

    /// Open the next round with a model call, unless the turn has reached its round limit.
    pub(super) fn open_round(&mut self, step: &mut TurnStep) {
        if self.state.round >= self.rules.limits.rounds_max {
            let limit = self.rules.limits.rounds_max;
            self.last_error = Some(format!("the turn has reached its limit of {limit} rounds"));
            return self.end(step, Outcome::Limited, Some("turn_limit"));
        }
        for (input, parts) in std::mem::take(&mut self.steered) {
            self.add(step, InputTaken { input });
            self.add(step, UserMessage { parts, origin: None });
        }
        self.add_opening(step, self.state.round + 1);
        step.effects.push(Effect::CallModel);
    }

    pub(super) fn end(&mut self, step: &mut TurnStep, outcome: Outcome, code: Option<&str>) {
        let cost = Some(self.state.cost_nano_usd).filter(|_| !self.state.has_unpriced);
        let (usage, code) = (Some(self.state.usage), code.map(str::to_owned));
        let message = self.last_error.take();
        self.add(step, TurnEnded { outcome, code, message, usage, cost_nano_usd: cost });
        step.effects.clear();
    }

    fn take_answer(
        &mut self,
        step: &mut TurnStep,
        mut answer: Answer,
        faults: &BTreeMap<usize, String>,
        leaf: Option<EntryId>,
    ) {
        let rating = self.rules.confidence.and_then(|_| take_rating(&mut answer.parts));
        self.add_answer(step, answer);
        // Every action below writes the round, so that a recovering process has the rating too.
        self.state.rating = rating.or(self.state.rating);
        match self.confidence_action(rating) {
            ConfidenceAction::Proceed => self.act_on_answer(step, faults),
            ConfidenceAction::Backtrack => self.backtrack(step, leaf),
            ConfidenceAction::Ask => self.ask_about_rating(step),
        }
    }

    fn add_answer(&mut self, step: &mut TurnStep, answer: Answer) {
        let Answer { parts, model, usage, cost_nano_usd, stop } = answer;
        self.add(step, AssistantMessage { parts, model: Some(model), usage, cost_nano_usd, stop });
    }

    fn confidence_action(&self, rating: Option<f32>) -> ConfidenceAction {
        let (Some(rules), Some(rating)) = (self.rules.confidence, rating) else {
            return ConfidenceAction::Proceed;
        };
        if rating < rules.backtrack_below {
            let may_backtrack = self.state.backtracks < rules.backtracks_max;
            return if may_backtrack { ConfidenceAction::Backtrack } else { ConfidenceAction::Ask };
        }
        if rating < rules.ask_below { ConfidenceAction::Ask } else { ConfidenceAction::Proceed }
    }

    /// Abandon the answer's branch, and summarise it for the next attempt.
    fn backtrack(&mut self, step: &mut TurnStep, leaf: Option<EntryId>) {
        let (tried, rating) = (self.action(), self.state.rating);
        self.close_round(step, RoundStatus::Backtracked, Some(self.rating_text()));
        let what =
            if tried.what.is_empty() { "an answer".to_owned() } else { format!("calling {}", tried.what) };
        let rating = rating.unwrap_or_default();
        let summary = format!(
            "A first attempt ({what}) was abandoned because it was rated {rating:.2}. Try another approach, or say what is missing."
        );
        self.add(step, LeafMoved { to: leaf });
        self.add(step, BranchSummary::new(summary));
        self.open_round(step);
    }

    /// Run each call, request approval for it, or refuse it. An answer without calls ends the turn, unless new input
    /// has arrived.
    pub(super) fn act_on_answer(&mut self, step: &mut TurnStep, faults: &BTreeMap<usize, String>) {
        if self.state.calls.is_empty() {
            self.close_settled_round(step);
            return self.finish(step);
        }
        let mut refusals = Vec::new();
        for at in 0..self.state.calls.len() {
            if self.state.calls[at].status == CallStatus::Open {
                let refusal = self.decide_call(step, at, faults.get(&at));
                refusals.extend(refusal.map(|why| (self.state.calls[at].call.clone(), why)));
            }
        }
        if self.state.corrections > self.rules.limits.corrections_max {
            return self.abort(step, None, Outcome::Limited, Some("correction_limit"));
        }
        if self.state.calls.iter().any(|call| call.status == CallStatus::Open) {
            // Record the intent before acting.
            self.add_intent(step);
        }
        // Add refusals after the intent: only invalid calls end without an intent, and only those count as corrections.
        for (call, why) in refusals {
            self.add(step, error_result(&call, why));
        }
        if let Some(reason) = self.waiting_reason() {
            self.add_asked(step, reason);
        }
        self.dispatch(step);
    }

    /// End the turn as completed or, if new input has arrived, open another round for it.
    fn finish(&mut self, step: &mut TurnStep) {
        if self.steered.is_empty() {
            self.end(step, Outcome::Completed, None);
        } else {
            self.open_round(step);
        }
    }

    /// Decide whether a call may run. Returns why the policy refuses it.
    fn decide_call(&mut self, step: &mut TurnStep, at: usize, fault: Option<&String>) -> Option<String> {
        let call = self.state.calls[at].call.clone();
        let Some(spec) = self.rules.tool(&call.name) else {
            let known: Vec<&str> = self.rules.tools.iter().map(|spec| spec.name.as_str()).collect();
            let text = format!("There is no tool {}. Available tools: {}.", call.name, known.join(", "));
            self.add(step, error_result(&call, text));
            return None;
        };
        if let Some(fault) = fault {
            let text = format!("The input does not match the tool's schema: {fault}");
            self.add(step, error_result(&call, text));
            return None;
        }
        let (touch, decision) = (spec.touch, decide(spec, self.rules.approvals, self.rules.fs_scope));
        let asking = match (self.rules.question(&call), decision) {
            (Some(Question::Prompt(question)), _) => Asking { question, kind: "question", why: None },
            (Some(Question::Agree(question)), _) => {
                let why = Some("the node requires a person's approval of forward handoffs".to_owned());
                Asking { question, kind: "handoff", why }
            }
            (None, Decision::Ask) => question_of(&call, touch),
            (None, Decision::Refuse { why }) => return Some(why),
            (None, Decision::Run | Decision::HandOver) => return None,
        };
        self.ask(step, asking, Some(&call));
        None
    }

    /// Start the calls that may start. Read-only calls run in parallel; all others run alone and in order.
    pub(super) fn dispatch(&mut self, step: &mut TurnStep) {
        if self.is_settled() {
            return self.complete_round(step);
        }
        let mut earlier_waits = false;
        for at in 0..self.state.calls.len() {
            let call = &self.state.calls[at];
            let may_run =
                call.status == CallStatus::Begun && !self.is_handed_over(call) && !self.running.contains(&at);
            let reads = self.rules.tool(&call.call.name).is_some_and(|spec| spec.touch == Touch::Reads);
            let runs_alone = self.running.is_empty() && !earlier_waits;
            let only_reads_run = !self.running.iter().any(|at| !self.reads(*at)) && !earlier_waits;
            if may_run && (runs_alone || (reads && only_reads_run)) {
                step.effects.push(Effect::RunTool(call.call.clone()));
                self.running.insert(at);
            } else if may_run {
                earlier_waits = true;
            }
        }
        if self.running.is_empty() && step.effects.is_empty() && !self.state.waiting_for().is_empty() {
            step.effects.push(Effect::AwaitPerson);
        }
    }

    fn reads(&self, at: usize) -> bool {
        let name = self.state.calls.get(at).map(|call| call.call.name.as_str()).unwrap_or_default();
        self.rules.tool(name).is_some_and(|spec| spec.touch == Touch::Reads)
    }

    /// Open the next round, or end the turn if the caller has to run some calls. Only calls handed to the caller may
    /// lack a result.
    fn complete_round(&mut self, step: &mut TurnStep) {
        self.close_settled_round(step);
        if self.state.all_done() {
            self.open_round(step);
        } else {
            self.end(step, Outcome::Completed, None);
        }
    }

    pub(super) fn is_handed_over(&self, call: &CallState) -> bool {
        self.rules.tool(&call.call.name).is_some_and(|spec| spec.touch == Touch::Callers)
    }

    /// Whether every call is done or handed to the caller.
    pub(super) fn is_settled(&self) -> bool {
        let mut calls = self.state.calls.iter();
        calls.all(|call| call.status == CallStatus::Done || self.is_handed_over(call))
    }

    fn take_result(&mut self, step: &mut TurnStep, result: ToolResult) {
        let at = self
            .running
            .iter()
            .copied()
            .find(|at| self.state.calls.get(*at).is_some_and(|call| call.call.call_id == result.call_id));
        // A late result: the call was interrupted in the meantime.
        let Some(at) = at else { return };
        self.running.remove(&at);
        self.add(step, result);
        self.dispatch(step);
    }

    fn take_approval(
        &mut self,
        step: &mut TurnStep,
        approval: String,
        answer: ApprovalAnswer,
        reason: Option<String>,
    ) {
        // The entry is already in the log: fold it, but do not write it again.
        let answered = crate::entry::ApprovalAnswered { approval, answer, reason };
        self.state.apply(&Body::ApprovalAnswered(answered));
        self.continue_after_answers(step);
    }

    /// Continue with the answers received so far.
    pub(super) fn continue_after_answers(&mut self, step: &mut TurnStep) {
        if let Some(gate) = self.state.gate.clone() {
            let Some((answer, reason)) = gate.answer else { return };
            return self.pass_gate(step, &gate.kind, answer, reason);
        }
        self.settle_answered_calls(step);
        if self.state.calls.iter().any(|call| matches!(call.status, CallStatus::Approved { .. })) {
            // Record the intent before acting.
            self.add_intent(step);
            if let Some(reason) = self.waiting_reason() {
                self.add_asked(step, reason);
            }
        }
        self.dispatch(step);
    }

    /// Turn answered questions and refusals into results.
    fn settle_answered_calls(&mut self, step: &mut TurnStep) {
        for at in 0..self.state.calls.len() {
            let (call, status) = (self.state.calls[at].call.clone(), self.state.calls[at].status.clone());
            let asks = self.rules.asks(&call);
            match status {
                CallStatus::Denied { reason } => {
                    let why = reason.unwrap_or_else(|| "no reason was given".to_owned());
                    self.add(step, error_result(&call, format!("This call was refused: {why}")));
                }
                CallStatus::Approved { reason } if asks => {
                    let text = reason.unwrap_or_else(|| "Yes.".to_owned());
                    self.add(step, result_of(&call, text, IsError::No));
                }
                _ => {}
            }
        }
    }

    fn pass_gate(&mut self, step: &mut TurnStep, kind: &str, answer: ApprovalAnswer, reason: Option<String>) {
        match (kind, answer) {
            (BUDGET, ApprovalAnswer::Approved) => {
                self.add_intent(step);
                step.effects.push(Effect::CallModel);
            }
            (BUDGET, ApprovalAnswer::Denied) => {
                let why = reason.unwrap_or_else(|| "no reason was given".to_owned());
                self.close_round(
                    step,
                    RoundStatus::Refused,
                    Some(format!("a person refused to exceed the budget: {why}")),
                );
                self.abort(step, None, Outcome::Limited, Some("budget_exceeded"))
            }
            (CONSENT, ApprovalAnswer::Approved) => self.open_round(step),
            (CONSENT, ApprovalAnswer::Denied) => {
                self.last_error = reason;
                self.end(step, Outcome::Cancelled, Some(DECLINED));
            }
            (_, ApprovalAnswer::Approved) => self.act_on_answer(step, &BTreeMap::new()),
            (_, ApprovalAnswer::Denied) => {
                let why = reason.unwrap_or_else(|| "Do it another way.".to_owned());
                // Close the round first: these results are not invalid calls.
                let refused = format!("{}; a person did not agree: {why}", self.rating_text());
                self.close_round(step, RoundStatus::Refused, Some(refused));
                for call in self.unanswered() {
                    self.add(step, error_result(&call, format!("A person did not agree: {why}")));
                }
                self.add(step, UserMessage { parts: vec![Part::text(why)], origin: None });
                self.open_round(step);
            }
        }
    }

    pub(super) fn unanswered(&self) -> Vec<ToolCall> {
        let open = self.state.calls.iter().filter(|call| call.status != CallStatus::Done);
        open.map(|call| call.call.clone()).collect()
    }

    fn take_failure(&mut self, step: &mut TurnStep, code: String, partial: Option<Answer>) {
        if code == "context_overflow" && self.state.overflows == 0 {
            return self.request_compaction(step, Trigger::Overflow);
        }
        if let Some(partial) = partial.filter(|partial| !partial.parts.is_empty() || partial.usage.is_some())
        {
            self.add_answer(step, Answer { stop: Stop::Error, ..partial });
        }
        let why = self.last_error.clone().unwrap_or_default();
        self.close_round(step, RoundStatus::Failed, Some(format!("{code}: {why}")));
        self.end(step, Outcome::Failed, Some(&code));
    }

    fn request_compaction(&mut self, step: &mut TurnStep, trigger: Trigger) {
        step.effects.push(Effect::Compact(trigger));
    }

    fn take_compaction(&mut self, step: &mut TurnStep, trigger: Trigger, compaction: Option<Compaction>) {
        match compaction {
            Some(compaction) => self.add(step, compaction),
            // A retry would fail the same way.
            None if trigger == Trigger::Overflow => {
                let why = "context_overflow: the context exceeds the model's window, and cannot be compacted further";
                self.close_round(step, RoundStatus::Failed, Some(why.to_owned()));
                return self.end(step, Outcome::Failed, Some("context_overflow"));
            }
            None => {}
        }
        step.effects.push(Effect::CallModel);
    }

    fn take_over_budget(&mut self, step: &mut TurnStep, question: String, ask: bool) {
        if ask {
            let why = "the next model call could exceed the session's budget".to_owned();
            self.add_asked(step, question.clone());
            self.ask(step, Asking { question, kind: BUDGET, why: Some(why) }, None);
            return step.effects.push(Effect::AwaitPerson);
        }
        self.close_round(step, RoundStatus::Failed, Some(format!("budget_exceeded: {question}")));
        self.end(step, Outcome::Limited, Some("budget_exceeded"));
    }

    /// End the turn early. The partial answer is kept, and open calls get an interrupted result.
    pub(super) fn abort(
        &mut self,
        step: &mut TurnStep,
        partial: Option<Answer>,
        outcome: Outcome,
        code: Option<&str>,
    ) {
        if let Some(partial) = partial.filter(|partial| !partial.parts.is_empty() || partial.usage.is_some())
        {
            self.add_answer(step, Answer { stop: Stop::Aborted, ..partial });
        }
        for call in self.unanswered() {
            self.add(step, interrupted_result(&call));
        }
        self.running.clear();
        match (outcome, code) {
            (Outcome::Cancelled, _) => {
                self.close_round(step, RoundStatus::Cancelled, Some("the turn was cancelled".to_owned()));
            }
            (_, Some("correction_limit")) => self.close_settled_round(step),
            (_, code) => {
                let why = format!("{}: the turn reached a limit", code.unwrap_or("limit"));
                self.close_round(step, RoundStatus::Interrupted, Some(why));
            }
        }
        self.end(step, outcome, code);
    }
}

enum ConfidenceAction {
    Proceed,
    Backtrack,
    Ask,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IsError {
    Yes,
    No,
}

fn result_of(call: &ToolCall, text: String, is_error: IsError) -> ToolResult {
    ToolResult {
        call_id: call.call_id.clone(),
        tool: Some(call.name.clone()),
        parts: vec![Part::text(text)],
        is_error: is_error == IsError::Yes,
        duration_ms: None,
        interrupted: false,
        full: None,
    }
}

pub(super) fn error_result(call: &ToolCall, text: String) -> ToolResult {
    result_of(call, text, IsError::Yes)
}

pub(super) fn interrupted_result(call: &ToolCall) -> ToolResult {
    let text = crate::project::context::INTERRUPTED.to_owned();
    ToolResult { interrupted: true, ..result_of(call, text, IsError::Yes) }
}

//! The points at which a turn calls hooks. A hook's result has the same form as a result of the model or the tool,
//! so the state machine does not depend on hooks. A hook can restrict what a turn may do, but never extend it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sapwood_core::content::{Json, ToolCall, joined_text};
use sapwood_core::entry::{Body, Outcome, Round, RoundStatus, Stop, TurnEnded, Usage};
use sapwood_core::flow::HANDOFF_TOOL;
use sapwood_core::policy::{Decision, decide};
use sapwood_core::port::hook::{HookName, event_text};
use sapwood_core::port::tool::{OutputPart, ToolOutput};
use sapwood_core::pressure::{Level, Pressure};
use sapwood_core::project::context::Context;
use sapwood_core::turn::{Answer, Input};
use sapwood_core::{Entry, EntryId, Kind, Part, Scope, SessionId};
use serde_json::{Value, json};

use super::TurnContext;
use super::approvals::event_data;
use super::control::PendingApproval;
use super::send::Turns;
use crate::hook::{EventLocation, HookDecision, text_of};
use crate::{EngineError, Result};

/// The approval kind for answers with low confidence.
const CONFIDENCE: &str = "confidence";

/// Either continue, with the input that hooks may have changed, or stop with a result.
pub(super) enum HookGate<P, D> {
    Pass(P),
    Done(D),
}

impl Turns<'_> {
    /// Ask the hooks about the input, and return it with their changes.
    pub(super) async fn ask_before_send(
        self,
        scope: &Scope,
        session: &SessionId,
        parts: Vec<Part>,
    ) -> Result<Vec<Part>> {
        if !self.engine.hooks().has(HookName::BeforeSend) {
            return Ok(parts);
        }
        // Check that the session exists before any hook is called.
        self.engine.store.summary(scope, session).await?;
        let about = || json!({"text": joined_text(&parts)});
        match self.engine.hooks().ask(HookName::BeforeSend, EventLocation::new(scope, session), about).await?
        {
            HookDecision::Changed(data) => {
                let rest = parts.into_iter().filter(|part| !matches!(part, Part::Text(_)));
                Ok(text_of(&data, "text").map(Part::text).into_iter().chain(rest).collect())
            }
            HookDecision::Continue | HookDecision::Supplied { .. } => Ok(parts),
        }
    }
}

impl TurnContext {
    fn location(&self) -> EventLocation<'_> {
        EventLocation { scope: &self.scope, session: &self.session, turn: Some(self.turn) }
    }

    async fn notify_hooks(&self, name: HookName, data: impl FnOnce() -> Value) {
        self.engine.hooks().fire(name, &self.scope, &self.session, Some(self.turn), data).await;
    }

    /// Record the input of a new turn, so that the before-turn hooks are called.
    pub(super) fn set_initial_input(&self, parts: &[Part]) {
        if self.engine.hooks().has(HookName::BeforeTurn) {
            self.with_progress(|progress| progress.initial_input = Some(joined_text(parts)));
        }
    }

    /// Like [`Self::set_initial_input`], for a turn that was interrupted before the model answered: its hooks may not
    /// have been called yet.
    pub(super) fn restore_initial_input(&self, entries: &[Entry]) {
        let first_of = |kind: Kind| entries.iter().find(|entry| entry.meta.kind == kind);
        if let (Some(message), None) = (first_of(Kind::UserMessage), first_of(Kind::AssistantMessage)) {
            self.set_initial_input(message.body.parts());
        }
    }

    /// Ask the hooks about a new turn. A refusal ends the turn like a failure, with the reason as its
    /// message.
    pub(super) async fn ask_before_turn(&self) -> Result<Option<Input>> {
        let Some(input) = self.with_progress(|progress| progress.initial_input.take()) else {
            return Ok(None);
        };
        let about = || json!({"text": event_text(&input), "agent": self.agent.id});
        match self.engine.hooks().ask(HookName::BeforeTurn, self.location(), about).await {
            Ok(_) => Ok(None),
            Err(error) => Ok(Some(refusal(error)?)),
        }
    }

    /// The system prompt for this call, or the answer that a hook supplied instead.
    pub(super) async fn ask_before_model(
        &self,
        context: &Context,
        leaf: Option<EntryId>,
    ) -> Result<HookGate<Option<String>, Input>> {
        let system = self.system(context);
        let model = self.chain.first().map(|link| link.model.as_str());
        let about = || json!({"model": model, "system": system, "messages": context.messages.len()});
        match self.engine.hooks().ask(HookName::BeforeModel, self.location(), about).await {
            Ok(HookDecision::Continue) => Ok(HookGate::Pass(system)),
            Ok(HookDecision::Changed(data)) => Ok(HookGate::Pass(text_of(&data, "system"))),
            Ok(HookDecision::Supplied { by, data }) => {
                let text = text_of(&data, "text").unwrap_or_default();
                Ok(HookGate::Done(supplied_answer(&by, text, leaf)))
            }
            Err(error) => Ok(HookGate::Done(refusal(error)?)),
        }
    }

    /// The call to run, or the result that a hook supplied instead. An input that a hook changed is validated like
    /// the model's input. A call that a user approved cannot be changed afterwards.
    pub(super) async fn ask_before_tool<'a>(
        &self,
        call: &'a ToolCall,
    ) -> Result<HookGate<Cow<'a, ToolCall>, ToolOutput>> {
        let about = || json!({"tool": call.name, "call_id": call.call_id, "input": call.input.to_value()});
        match self.engine.hooks().ask(HookName::BeforeTool, self.location(), about).await {
            Ok(HookDecision::Continue) => Ok(HookGate::Pass(Cow::Borrowed(call))),
            Ok(HookDecision::Changed(data)) if self.runs_without_approval(&call.name) => {
                let input = Json::from_value(&data["input"]);
                Ok(HookGate::Pass(Cow::Owned(ToolCall { input, ..call.clone() })))
            }
            Ok(HookDecision::Changed(_)) => {
                let why = "The call was not run: a hook tried to change it after the user had approved it.";
                Ok(HookGate::Done(ToolOutput::error(why)))
            }
            Ok(HookDecision::Supplied { data, .. }) => {
                let text = text_of(&data, "text").unwrap_or_default();
                let is_error = data["is_error"].as_bool().unwrap_or_default();
                Ok(HookGate::Done(if is_error { ToolOutput::error(text) } else { ToolOutput::text(text) }))
            }
            Err(EngineError::HookRefused { hook, reason, .. }) => {
                Ok(HookGate::Done(ToolOutput::error(format!("Hook {hook} refused this call: {reason}"))))
            }
            Err(error) => Err(error),
        }
    }

    fn runs_without_approval(&self, tool: &str) -> bool {
        if tool == HANDOFF_TOOL {
            // A handoff is read from the logged call, which a user may have approved.
            return false;
        }
        let spec = self.specs.iter().find(|spec| spec.name == tool);
        spec.is_some_and(|spec| decide(spec, self.agent.approvals, self.agent.fs_scope) == Decision::Run)
    }

    pub(super) async fn notify_answer(&self, model: &str) {
        self.notify_hooks(HookName::AfterModel, || {
            let (parts, usage) =
                self.with_progress(|progress| (progress.reply.parts(), progress.reply.usage));
            let calls: Vec<&str> =
                parts.iter().filter_map(Part::as_tool_call).map(|call| call.name.as_str()).collect();
            json!({"model": model, "text": event_text(&joined_text(&parts)), "calls": calls, "usage": usage})
        })
        .await;
    }

    pub(super) async fn notify_tool_result(&self, call: &ToolCall, output: &ToolOutput) {
        self.notify_hooks(HookName::AfterTool, || {
            let texts = output.parts.iter().filter_map(|part| match part {
                OutputPart::Text(text) => Some(text.as_str()),
                OutputPart::Media { .. } => None,
            });
            let text = event_text(&texts.collect::<Vec<_>>().join("\n"));
            let is_error = output.is_error;
            json!({"tool": call.name, "call_id": call.call_id, "is_error": is_error, "text": text})
        })
        .await;
    }

    pub(super) async fn notify_pressure(&self, pressure: &Pressure) {
        if pressure.level == Level::Green {
            return;
        }
        self.notify_hooks(HookName::OnPressure, || {
            json!({
                "level": pressure.level.as_str(), "used_tokens": pressure.used_tokens,
                "window_tokens": pressure.budget_tokens,
            })
        })
        .await;
    }

    /// The hook events for these entries, sent once the entries are durable.
    pub(super) fn hook_events_of(&self, bodies: &[Body]) -> Vec<(HookName, Value)> {
        let listens = |name| self.engine.hooks().has(name);
        let names = [HookName::AfterCompact, HookName::OnLowConfidence, HookName::OnApproval];
        if !names.into_iter().any(listens) {
            return Vec::new();
        }
        let event_of = |body: &Body| match body {
            Body::Compaction(compaction) => {
                Some((HookName::AfterCompact, crate::hook::compacted(compaction)))
            }
            Body::ApprovalAsked(asked) if asked.kind() == CONFIDENCE => {
                Some((HookName::OnLowConfidence, json!({"question": asked.question})))
            }
            // A question about the rating has its own event.
            Body::Round(round) if is_given_up(round) => {
                Some((HookName::OnLowConfidence, json!({"confidence": round.confidence?})))
            }
            _ => None,
        };
        let questions = self.question_events(bodies).into_iter().filter(|_| listens(HookName::OnApproval));
        bodies.iter().filter_map(event_of).chain(questions).collect()
    }

    /// An event `on_approval` for each question among the entries. The calls that they are about are in the same step.
    fn question_events(&self, bodies: &[Body]) -> Vec<(HookName, Value)> {
        let call_of = |call_id: &Option<String>| {
            let calls = bodies.iter().flat_map(Body::parts).filter_map(Part::as_tool_call);
            calls.into_iter().find(|call| Some(&call.call_id) == call_id.as_ref()).cloned()
        };
        let event_of = |body: &Body| match body {
            Body::ApprovalAsked(asked) => {
                let pending = PendingApproval {
                    approval: asked.approval.clone(),
                    session: self.session.clone(),
                    question: asked.question.clone(),
                    kind: asked.kind(),
                    why: asked.why(),
                    call: call_of(&asked.call_id),
                    asked_at: self.engine.clock.now(),
                    deadlines: asked.deadlines.clone().unwrap_or_default(),
                    escalated_at: None,
                };
                Some((HookName::OnApproval, event_data(&self.engine, &self.scope.tenant, &pending, None)))
            }
            _ => None,
        };
        bodies.iter().filter_map(event_of).collect()
    }

    pub(super) async fn notify_events(&self, events: Vec<(HookName, Value)>) {
        for (name, data) in events {
            self.notify_hooks(name, || data).await;
        }
    }

    pub(super) async fn notify_end(&self, ended: &TurnEnded) {
        if ended.outcome == Outcome::Failed {
            let code = ended.code.as_deref().unwrap_or("turn.failed");
            self.notify_error(code, ended.message.as_deref().unwrap_or_default()).await;
        }
        self.notify_hooks(HookName::AfterTurn, || {
            let text = self.with_progress(|progress| progress.latest_text.clone());
            json!({"outcome": ended.outcome, "code": ended.code, "text": event_text(&text)})
        })
        .await;
    }

    pub(super) async fn notify_error(&self, code: &str, message: &str) {
        self.notify_hooks(HookName::OnError, || json!({"code": code, "message": event_text(message)})).await;
    }
}

/// A hook's refusal becomes a failed turn; other errors are returned.
fn refusal(error: EngineError) -> Result<Input> {
    match error {
        EngineError::HookRefused { .. } => Ok(Input::ModelFailed {
            code: error.code().to_owned(),
            message: error.to_string(),
            partial: None,
        }),
        other => Err(other),
    }
}

/// An answer from a hook: free of charge, with the hook recorded as its model.
fn supplied_answer(by: &str, text: String, leaf: Option<EntryId>) -> Input {
    let answer = Answer {
        parts: vec![Part::text(text)],
        model: format!("hook/{by}"),
        usage: Some(Usage::default()),
        cost_nano_usd: Some(0),
        stop: Stop::Stop,
    };
    Input::Answered { answer, faults: BTreeMap::new(), leaf }
}

/// Whether the round's answer was given up because of its rating.
fn is_given_up(round: &Round) -> bool {
    round.result.as_ref().is_some_and(|result| result.status == RoundStatus::Backtracked)
}

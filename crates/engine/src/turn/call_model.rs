//! Call the model for one round. The budget is checked before any request is sent. Then each model of the
//! chain is tried, with backoff between retries. Once output has streamed, nothing is retried.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use sapwood_core::agent::{ChainLink, OnExceed};
use sapwood_core::entry::Stop;
use sapwood_core::port::model::{ModelError, Reply, ReplyEvent, Request};
use sapwood_core::port::store::Until;
use sapwood_core::project::context::Context;
use sapwood_core::retry::{Retry, decide_retry};
use sapwood_core::turn::confidence::RatingFilter;
use sapwood_core::turn::{Answer, Input};
use sapwood_core::{EntryId, Part};
use tracing::Instrument;

use super::TurnContext;
use super::hooks::HookGate;
use crate::Result;
use crate::fragments::FragmentKind;
use crate::spans::{model_span, record_answer, record_failure, record_usage};

/// Assumed maximum output tokens if neither the agent nor the model's facts set a maximum.
const OUTPUT_TOKENS_ASSUMED: u64 = 4_096;
/// Maximum length of a stored error message, in characters.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// A failed call, and whether any output had been shown.
struct FailedCall {
    error: ModelError,
    has_output: bool,
}

impl TurnContext {
    /// Call the model on the session's current context.
    pub(super) async fn call_model(&self) -> Result<Input> {
        if let Some(refused) = self.ask_before_turn().await? {
            return Ok(refused);
        }
        let slice =
            self.engine.store.read_path(&self.scope, &self.session, None, Until::ContextStart).await?;
        let leaf = slice.entries.last().map(|entry| entry.meta.id);
        let context = self.engine.grafts().context_with_grafts(&self.scope, slice).await?;
        if let Some(over) = self.check_budget(&context).await? {
            return Ok(over);
        }
        if let Some(full) = self.check_pressure(&context).await {
            return Ok(full);
        }
        match self.ask_before_model(&context, leaf).await? {
            HookGate::Pass(system) => self.call_chain(&context, system.as_deref(), leaf).await,
            HookGate::Done(input) => Ok(input),
        }
    }

    /// Check the budget. If the cost so far plus the worst case of this call exceeds the cap, the agent's policy
    /// decides whether to fail, ask or warn.
    async fn check_budget(&self, context: &Context) -> Result<Option<Input>> {
        let Some(budget) = self.agent.budget else { return Ok(None) };
        if self.with_progress(|progress| progress.is_budget_waived) {
            return Ok(None);
        }
        let spent = self.engine.store.summary(&self.scope, &self.session).await?.spend.total().cost_nano_usd;
        let worst = self.worst_cost_nano_usd(context);
        let cap = budget.cap_nano_usd();
        if spent.saturating_add(worst) <= cap {
            return Ok(None);
        }
        let dollars = |nano: u64| nano as f64 / 1e9;
        let text = format!(
            "${:.4} of ${:.4} spent; the next call may cost up to ${:.4}.",
            dollars(spent),
            dollars(cap),
            dollars(worst)
        );
        Ok(match budget.on_exceed {
            OnExceed::Fail => Some(Input::OverBudget { question: text, ask: false }),
            OnExceed::Ask => Some(Input::OverBudget { question: format!("{text} Continue?"), ask: true }),
            OnExceed::Warn => {
                self.send_fragment(FragmentKind::OverBudget { text });
                None
            }
        })
    }

    /// The highest price that any model of the chain can charge for this call. Models without a known price
    /// are ignored here; their calls are reported as unpriced.
    fn worst_cost_nano_usd(&self, context: &Context) -> u64 {
        let schemas: usize = self.specs.iter().map(|spec| spec.input_schema.get().len()).sum();
        let input = context.tokens + schemas.div_ceil(4) as u64;
        let cost = |link: &ChainLink| {
            let facts = self.backends.model.facts(&link.model);
            let asked = self.agent.max_tokens.map(u64::from);
            let output = asked.or(facts.output_tokens_max).unwrap_or(OUTPUT_TOKENS_ASSUMED);
            let price = facts.price.unwrap_or_default();
            let highest_input = price.input.max(price.cache_write);
            highest_input.saturating_mul(input).saturating_add(price.output.saturating_mul(output))
        };
        self.chain.iter().map(cost).max().unwrap_or_default()
    }

    async fn call_chain(
        &self,
        context: &Context,
        system: Option<&str>,
        leaf: Option<EntryId>,
    ) -> Result<Input> {
        let mut last_error = None;
        for (at, link) in self.chain.iter().enumerate() {
            match self.call_link(link, context, system).await? {
                Ok(()) => {
                    self.notify_answer(&link.model).await;
                    return Ok(self.answered(&link.model, leaf));
                }
                Err(FailedCall { error, has_output }) => {
                    let is_final = has_output || matches!(error, ModelError::Overflow { .. });
                    tracing::warn!(session = %self.session, model = %link.model, %error, "a model call failed");
                    last_error = Some(error);
                    if is_final {
                        break;
                    }
                }
            }
            if let (Some(next), Some(error)) = (self.chain.get(at + 1), &last_error) {
                let (from, to) = (link.model.clone(), next.model.clone());
                self.send_fragment(FragmentKind::Failover { from, to, why: error.to_string() });
            }
        }
        let code = last_error.as_ref().map_or("model.none", ModelError::code).to_owned();
        let text = last_error.map_or_else(|| "no model is configured".to_owned(), |error| error.to_string());
        let message = text.chars().take(MESSAGE_CHARS_MAX).collect();
        let partial = self.partial_answer(Stop::Error);
        Ok(Input::ModelFailed { code, message, partial })
    }

    /// Try one model, with as many retries as its chain link and the failure allow.
    async fn call_link(
        &self,
        link: &ChainLink,
        context: &Context,
        system: Option<&str>,
    ) -> Result<Result<(), FailedCall>> {
        let request = self.request(&link.model, context, system).await?;
        let mut attempt = 1;
        loop {
            self.with_progress(|progress| {
                progress.reply = Reply::default();
                progress.chunks_sent = 0;
                progress.model.clone_from(&link.model);
            });
            let Err(failed) = self.attempt(&request).await else { return Ok(Ok(())) };
            let chance = self.engine.clock.random() as u64;
            match decide_retry(&failed.error, attempt, link.max_attempts, chance) {
                Retry::Wait { ms } if !failed.has_output => {
                    let (model, why) = (link.model.clone(), failed.error.to_string());
                    self.send_fragment(FragmentKind::Retrying { model, after_ms: ms, why });
                    tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
                }
                Retry::Wait { .. } | Retry::GiveUp => return Ok(Err(failed)),
            }
            attempt += 1;
        }
    }

    /// Make one attempt, with a trace span.
    async fn attempt(&self, request: &Request) -> Result<(), FailedCall> {
        let span = model_span(Some(&self.session), &request.model);
        let result = self.stream(request).instrument(span.clone()).await;
        if let Some(usage) = self.with_progress(|progress| progress.reply.usage) {
            record_usage(&span, usage);
        }
        match &result {
            Ok(()) => record_answer(&span, &request.model),
            Err(failed) => record_failure(&span, failed.error.code()),
        }
        result
    }

    async fn stream(&self, request: &Request) -> Result<(), FailedCall> {
        let before = |error| FailedCall { error, has_output: false };
        let mut events = self.backends.model.call(request).await.map_err(before)?;
        let mut filter = RatingFilter::default();
        loop {
            let has_output = self.with_progress(|progress| !progress.reply.is_empty());
            let Some(event) = events.next().await else { break };
            let event = event.map_err(|error| FailedCall { error, has_output })?;
            self.send_chunk(&event, &mut filter);
            let applied = self.with_progress(|progress| progress.reply.apply(event));
            applied.map_err(|error| FailedCall { error: error.of_model(&request.model), has_output })?;
        }
        match self.with_progress(|progress| (progress.reply.stop, !progress.reply.is_empty())) {
            (Some(_), _) => Ok(()),
            (None, has_output) => {
                let why = "the stream ended without a stop reason".to_owned();
                Err(FailedCall { error: ModelError::Cut { model: request.model.clone(), why }, has_output })
            }
        }
    }

    fn send_chunk(&self, event: &ReplyEvent, filter: &mut RatingFilter) {
        match event {
            ReplyEvent::Text(text) if self.agent.confidence.is_some() => {
                let text = filter.push(text);
                if !text.is_empty() {
                    self.send_fragment(FragmentKind::Token { text });
                }
            }
            ReplyEvent::Text(text) => self.send_fragment(FragmentKind::Token { text: text.clone() }),
            ReplyEvent::Reasoning(text) => self.send_fragment(FragmentKind::Reasoning { text: text.clone() }),
            ReplyEvent::CallBegan { call_id, name, .. } => {
                self.send_fragment(FragmentKind::ToolCall { call_id: call_id.clone(), name: name.clone() });
            }
            ReplyEvent::ReasoningEnd { .. }
            | ReplyEvent::CallInput { .. }
            | ReplyEvent::Usage(_)
            | ReplyEvent::Stop(_) => {}
        }
    }

    fn answered(&self, model: &str, leaf: Option<EntryId>) -> Input {
        let (parts, usage, stop) = self.with_progress(|progress| {
            (progress.reply.parts(), progress.reply.usage, progress.reply.stop.unwrap_or_default())
        });
        let parts = unique_calls(parts);
        let calls = parts.iter().filter_map(Part::as_tool_call);
        let input_error = |(at, call)| self.input_error(call).map(|why| (at, why));
        let faults: BTreeMap<usize, String> = calls.enumerate().filter_map(input_error).collect();
        let price = self.backends.model.facts(model).price;
        let cost_nano_usd = price.map(|price| price.cost_nano_usd(&usage.unwrap_or_default()));
        let answer = Answer { parts, model: model.to_owned(), usage, cost_nano_usd, stop };
        Input::Answered { answer, faults, leaf }
    }

    /// The partial answer of a call that will not be finished. Its tool calls are dropped because they may be
    /// incomplete.
    pub(super) fn partial_answer(&self, stop: Stop) -> Option<Answer> {
        let (reply, model) =
            self.with_progress(|progress| (std::mem::take(&mut progress.reply), progress.model.clone()));
        let (parts, usage) = (reply.parts_without_calls(), reply.usage);
        if parts.is_empty() && usage.is_none() {
            return None;
        }
        let price = self.backends.model.facts(&model).price;
        let cost_nano_usd = price.zip(usage).map(|(price, usage)| price.cost_nano_usd(&usage));
        Some(Answer { parts, model, usage, cost_nano_usd, stop })
    }
}

/// Assign a unique id to tool calls with a missing or duplicate id: each result must match exactly one call.
fn unique_calls(mut parts: Vec<Part>) -> Vec<Part> {
    let mut seen = std::collections::HashSet::new();
    for (at, part) in parts.iter_mut().enumerate() {
        let Part::ToolCall(call) = part else { continue };
        if call.call_id.is_empty() || !seen.insert(call.call_id.clone()) {
            call.call_id = format!("{}#{at}", call.call_id);
            seen.insert(call.call_id.clone());
        }
    }
    parts
}

//! Trace spans of a turn, following the OpenTelemetry conventions for generative AI. Only this file writes span
//! attributes, and it never records content: no prompt, answer, or tool input or output gets into a span (I12).
//! Without a tracing subscriber, spans cost almost nothing.

use sapwood_core::SessionId;
use sapwood_core::agent::Agent;
use sapwood_core::content::ToolCall;
use sapwood_core::entry::{Outcome, TurnEnded, Usage};
use tracing::field::Empty;
use tracing::{Span, info_span};

/// The tracing target of these spans only. The trace exporter filters by this target.
pub const SPAN_TARGET: &str = "sapwood::gen_ai";

/// `error.type` of a tool that reports a failure.
const TOOL_FAILED: &str = "tool.failed";

/// Span of a turn, from its setup until the turn ends or its runner stops.
pub(crate) fn turn_span(session: &SessionId, agent: &Agent) -> Span {
    info_span!(
        target: SPAN_TARGET,
        "invoke_agent",
        "otel.name" = format!("invoke_agent {}", agent.id),
        "otel.kind" = "internal",
        "otel.status_code" = Empty,
        "gen_ai.operation.name" = "invoke_agent",
        "gen_ai.agent.name" = agent.id.as_str(),
        "gen_ai.conversation.id" = %session,
        "gen_ai.usage.input_tokens" = Empty,
        "gen_ai.usage.output_tokens" = Empty,
        "gen_ai.usage.cache_read.input_tokens" = Empty,
        "gen_ai.usage.cache_creation.input_tokens" = Empty,
        "error.type" = Empty,
    )
}

/// Span of one attempt to get an answer from one model. `session` is `None` for summaries and memory extraction.
pub(crate) fn model_span(session: Option<&SessionId>, model: &str) -> Span {
    let (provider, name) = split_model(model);
    let span = info_span!(
        target: SPAN_TARGET,
        "chat",
        "otel.name" = format!("chat {name}"),
        "otel.kind" = "client",
        "otel.status_code" = Empty,
        "gen_ai.operation.name" = "chat",
        "gen_ai.provider.name" = provider,
        "gen_ai.conversation.id" = Empty,
        "gen_ai.request.model" = name,
        "gen_ai.response.model" = Empty,
        "gen_ai.usage.input_tokens" = Empty,
        "gen_ai.usage.output_tokens" = Empty,
        "gen_ai.usage.cache_read.input_tokens" = Empty,
        "gen_ai.usage.cache_creation.input_tokens" = Empty,
        "error.type" = Empty,
    );
    if let Some(session) = session {
        span.record("gen_ai.conversation.id", session.to_string());
    }
    span
}

pub(crate) fn tool_span(session: &SessionId, call: &ToolCall) -> Span {
    info_span!(
        target: SPAN_TARGET,
        "execute_tool",
        "otel.name" = format!("execute_tool {}", call.name),
        "otel.kind" = "internal",
        "otel.status_code" = Empty,
        "gen_ai.operation.name" = "execute_tool",
        "gen_ai.conversation.id" = %session,
        "gen_ai.tool.name" = call.name.as_str(),
        "gen_ai.tool.call.id" = call.call_id.as_str(),
        "gen_ai.tool.type" = "function",
        "error.type" = Empty,
    )
}

/// Record the model that answered.
pub(crate) fn record_answer(span: &Span, model: &str) {
    span.record("gen_ai.response.model", split_model(model).1);
}

pub(crate) fn record_usage(span: &Span, usage: Usage) {
    let count = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    // The conventions count cached tokens as input; the log stores them separately.
    let input = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    span.record("gen_ai.usage.input_tokens", count(input));
    span.record("gen_ai.usage.output_tokens", count(usage.output));
    span.record("gen_ai.usage.cache_read.input_tokens", count(usage.cache_read));
    span.record("gen_ai.usage.cache_creation.input_tokens", count(usage.cache_write));
}

/// Record a failure by its code. The message is left out because it may quote content.
pub(crate) fn record_failure(span: &Span, code: &str) {
    span.record("error.type", code);
    span.record("otel.status_code", "ERROR");
}

pub(crate) fn record_tool_failure(span: &Span) {
    record_failure(span, TOOL_FAILED);
}

pub(crate) fn record_end(span: &Span, ended: &TurnEnded) {
    if let Some(usage) = ended.usage {
        record_usage(span, usage);
    }
    match ended.outcome {
        Outcome::Completed | Outcome::Cancelled => {}
        Outcome::Failed => record_failure(span, ended.code.as_deref().unwrap_or("failed")),
        Outcome::Limited => record_failure(span, ended.code.as_deref().unwrap_or("limited")),
    }
}

/// Split `PROVIDER/NAME` or `scripted:FILE` into provider and name. A built-in model is its own provider.
fn split_model(model: &str) -> (&str, &str) {
    if model.starts_with("scripted:") {
        return ("scripted", model);
    }
    model.split_once('/').unwrap_or((model, model))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_a_model_into_provider_and_name() {
        assert_eq!(split_model("openrouter/qwen/qwen3"), ("openrouter", "qwen/qwen3"));
        assert_eq!(split_model("demo"), ("demo", "demo"));
        assert_eq!(split_model("scripted:/tmp/a.toml"), ("scripted", "scripted:/tmp/a.toml"));
    }
}

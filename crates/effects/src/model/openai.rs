//! OpenAI's chat completions API, which many servers and gateways also implement. They differ from OpenAI in a few
//! fields: see [`Dialect`]. Some servers send reasoning in a separate field, and some of these servers require clients
//! to send it back within a turn.

use std::collections::BTreeSet;

use reqwest::header::AUTHORIZATION;
use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{ReplyEvent, Request, Signature, Thinking};
use serde_json::{Value, json};

use super::catalog_row::{CatalogRow, ThinkingStyle};
use super::conversation::{
    ChatItem, ChatTurn, Media, MediaKind, Side, fold_turns, input_object, note_text, object, wire_call_id,
};
use super::error_map::ProviderError;
use super::key::ProviderKey;
use super::sse::Framing;
use super::wire::{Decode, DecodeError, ReplyProgress, WireRequest, parse_frame};

/// Signature of reasoning from the field `reasoning_content`. Reasoning with this signature is sent back in the same
/// field.
const REASONING_SIGNATURE: &str = "openai:reasoning_content";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI itself.
    Openai,
    /// Any other server: older field names, and a system message only at the beginning.
    Compatible,
}

pub fn build_request(
    base_url: &str,
    dialect: Dialect,
    name: &str,
    request: &Request,
    row: &CatalogRow,
    key: Option<&ProviderKey>,
) -> WireRequest {
    let key = key.and_then(|key| key.header("Bearer "));
    WireRequest {
        url: format!("{base_url}/chat/completions"),
        headers: key.map(|key| (AUTHORIZATION, key)).into_iter().collect(),
        body: body(dialect, name, request, row),
        framing: Framing::Events,
    }
}

fn body(dialect: Dialect, name: &str, request: &Request, row: &CatalogRow) -> Value {
    let mut messages = Vec::new();
    if let Some(system) = request.system.as_deref().filter(|text| !text.trim().is_empty()) {
        messages.push(json!({"role": "system", "content": system}));
    }
    for turn in fold_turns(request) {
        match turn.side {
            Side::Assistant => messages.extend(assistant_message(&turn)),
            Side::User => push_user_messages(dialect, &turn, &mut messages),
        }
    }
    let tools = request.tools.iter().map(|tool| {
        let function =
            json!({"name": tool.name, "description": tool.description, "parameters": tool.input_schema.to_value()});
        json!({"type": "function", "function": function})
    });
    let tools: Vec<Value> = tools.collect();
    let output_max = request.output_tokens_max.map(|tokens| json!(tokens));
    let (own_max, other_max) = match dialect {
        Dialect::Openai => (output_max, None),
        Dialect::Compatible => (None, output_max),
    };
    object([
        ("model", Some(json!(name))),
        ("messages", Some(Value::Array(messages))),
        ("stream", Some(json!(true))),
        ("stream_options", Some(json!({"include_usage": true}))),
        ("tools", (!tools.is_empty()).then_some(Value::Array(tools))),
        ("max_completion_tokens", own_max),
        ("max_tokens", other_max),
        ("reasoning_effort", effort(request.thinking, row).map(|effort| json!(effort))),
        ("temperature", request.temperature.map(|value| json!(value))),
    ])
}

fn effort(thinking: Thinking, row: &CatalogRow) -> Option<&'static str> {
    match thinking {
        _ if row.thinking == ThinkingStyle::None => None,
        Thinking::Off => None,
        Thinking::Low => Some("low"),
        Thinking::Medium => Some("medium"),
        Thinking::High => Some("high"),
    }
}

fn assistant_message(turn: &ChatTurn<'_>) -> Option<Value> {
    let texts: Vec<&str> = turn.items.iter().filter_map(text_of).collect();
    let reasoning = turn.items.iter().filter_map(|item| match item {
        ChatItem::Reasoning { text, signature } if *signature == REASONING_SIGNATURE => Some(*text),
        _ => None,
    });
    let reasoning: Vec<&str> = reasoning.collect();
    let calls = turn.items.iter().filter_map(|item| match item {
        ChatItem::Call(call) => Some(json!({
            "id": wire_call_id(&call.call_id),
            "type": "function",
            "function": {"name": call.name, "arguments": input_object(call).to_string()},
        })),
        _ => None,
    });
    let calls: Vec<Value> = calls.collect();
    if texts.is_empty() && calls.is_empty() {
        return None;
    }
    let content = if texts.is_empty() { Value::Null } else { json!(texts.join("\n")) };
    Some(object([
        ("role", Some(json!("assistant"))),
        ("content", Some(content)),
        ("reasoning_content", (!reasoning.is_empty()).then(|| json!(reasoning.join("\n")))),
        ("tool_calls", (!calls.is_empty()).then_some(Value::Array(calls))),
    ]))
}

fn text_of<'a>(item: &ChatItem<'a>) -> Option<&'a str> {
    match item {
        ChatItem::Text(text) => Some(text),
        ChatItem::Note(_)
        | ChatItem::Reasoning { .. }
        | ChatItem::Call(_)
        | ChatItem::Result(_)
        | ChatItem::Media(_) => None,
    }
}

/// Push each tool result as a message, then the user's text with the images and documents from the results. An engine
/// note becomes a separate message only for servers that accept system messages in the middle of the conversation.
fn push_user_messages(dialect: Dialect, turn: &ChatTurn<'_>, messages: &mut Vec<Value>) {
    let mut pending: Vec<Value> = Vec::new();
    for item in &turn.items {
        match item {
            ChatItem::Result(result) => {
                let text = result.text();
                let text = if result.is_error { format!("Error: {text}") } else { text };
                let id = wire_call_id(result.call_id);
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
                let result_media: Vec<Value> =
                    result.media().filter_map(|media| attachment_part(&media)).collect();
                if !result_media.is_empty() {
                    pending.push(json!({"type": "text", "text": format!("Result of {}:", result.tool)}));
                    pending.extend(result_media);
                }
            }
            ChatItem::Note(text) if dialect == Dialect::Openai => {
                flush_user_message(dialect, &mut pending, messages);
                messages.push(json!({"role": "system", "content": text}));
            }
            ChatItem::Note(text) => pending.push(json!({"type": "text", "text": note_text(text)})),
            ChatItem::Text(text) => pending.push(json!({"type": "text", "text": text})),
            ChatItem::Media(media) => pending.push(media_part(media)),
            ChatItem::Reasoning { .. } | ChatItem::Call(_) => {}
        }
    }
    flush_user_message(dialect, &mut pending, messages);
}

/// Push plain text as a string, because not every server accepts lists of parts. OpenAI does: there, texts that come
/// from different messages stay separate parts.
fn flush_user_message(dialect: Dialect, pending: &mut Vec<Value>, messages: &mut Vec<Value>) {
    let parts = std::mem::take(pending);
    if parts.is_empty() {
        return;
    }
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    let content = match texts {
        Some(texts) if dialect == Dialect::Compatible || texts.len() == 1 => json!(texts.join("\n\n")),
        Some(_) | None => Value::Array(parts),
    };
    messages.push(json!({"role": "user", "content": content}));
}

fn media_part(media: &Media<'_>) -> Value {
    attachment_part(media).unwrap_or_else(|| json!({"type": "text", "text": media.as_text()}))
}

/// An image or a document as a message part. `None` for other media, which are sent as text.
fn attachment_part(media: &Media<'_>) -> Option<Value> {
    match media.kind() {
        MediaKind::Image => Some(json!({"type": "image_url", "image_url": {"url": media.data_url()}})),
        MediaKind::Pdf => {
            let name = media.name.unwrap_or("document.pdf");
            Some(json!({"type": "file", "file": {"filename": name, "file_data": media.data_url()}}))
        }
        MediaKind::Text | MediaKind::Audio | MediaKind::Other => None,
    }
}

/// Decodes the stream: chunks with a choice's delta, one chunk with the usage, `[DONE]`.
#[derive(Default)]
pub struct Decoder {
    calls: BTreeSet<u32>,
    reasoning: ReasoningState,
    stop: Option<Stop>,
    is_refusal: bool,
    has_usage: bool,
    is_over: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum ReasoningState {
    #[default]
    None,
    Open {
        is_sent_back: bool,
    },
}

impl Decode for Decoder {
    fn decode(&mut self, frame: &str, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        if frame.trim() == "[DONE]" {
            self.close_reasoning(events);
            self.is_over = true;
            return Ok(());
        }
        let chunk = parse_frame(frame)?;
        if !chunk.is_object() {
            return Err(DecodeError::Malformed("a chunk that is not an object".into()));
        }
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(DecodeError::Provider(ProviderError::from_event(&chunk)));
        }
        if let Some(choice) = chunk["choices"].get(0) {
            self.decode_delta(&choice["delta"], events)?;
            self.stop = choice["finish_reason"].as_str().map(stop_of).or(self.stop);
        }
        self.decode_usage(&chunk["usage"], events);
        Ok(())
    }

    fn progress(&self) -> ReplyProgress {
        match (self.is_over, self.stop) {
            (true, _) => ReplyProgress::Complete(self.final_stop()),
            // The reply is complete, and some servers omit `[DONE]`.
            (false, Some(_)) if self.has_usage => ReplyProgress::CompleteAtEof(self.final_stop()),
            (false, _) => ReplyProgress::Incomplete,
        }
    }
}

impl Decoder {
    fn final_stop(&self) -> Stop {
        match self.stop.unwrap_or(Stop::Stop) {
            Stop::Stop if self.is_refusal => Stop::ContentFilter,
            // Some servers report `stop` for a reply with tool calls.
            Stop::Stop if !self.calls.is_empty() => Stop::ToolUse,
            stop => stop,
        }
    }

    fn decode_delta(&mut self, delta: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        for (field, is_sent_back) in [("reasoning_content", true), ("reasoning", false)] {
            let text = delta[field].as_str().unwrap_or_default();
            if !text.is_empty() {
                self.reasoning = ReasoningState::Open { is_sent_back };
                events.push(ReplyEvent::Reasoning(text.to_owned()));
                break;
            }
        }
        for field in ["content", "refusal"] {
            let text = delta[field].as_str().unwrap_or_default();
            if !text.is_empty() {
                self.close_reasoning(events);
                events.push(ReplyEvent::Text(text.to_owned()));
            }
        }
        self.is_refusal |= delta["refusal"].is_string();
        for (position, call) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
            self.close_reasoning(events);
            self.decode_call(position, call, events)?;
        }
        Ok(())
    }

    fn close_reasoning(&mut self, events: &mut Vec<ReplyEvent>) {
        if let ReasoningState::Open { is_sent_back } = std::mem::take(&mut self.reasoning) {
            let signature = is_sent_back.then(|| Signature(REASONING_SIGNATURE.into()));
            events.push(ReplyEvent::ReasoningEnd { signature, redacted: false });
        }
    }

    /// Decode the delta of a call. The first delta contains the call's name. Some servers omit the index if a chunk has
    /// only one call.
    fn decode_call(
        &mut self,
        position: usize,
        call: &Value,
        events: &mut Vec<ReplyEvent>,
    ) -> Result<(), DecodeError> {
        let name = call["function"]["name"].as_str().filter(|name| !name.is_empty());
        let given = call["index"].as_u64().and_then(|index| u32::try_from(index).ok());
        let next = self.calls.last().map_or(0, |last| last.saturating_add(1));
        let index = match (given, name) {
            (Some(index), _) => index,
            (None, Some(_)) => next,
            (None, None) => self.calls.last().copied().unwrap_or(position as u32),
        };
        if !self.calls.contains(&index) {
            let name = name.ok_or_else(|| DecodeError::missing("the name of a tool call"))?;
            let id = call["id"].as_str().filter(|id| !id.is_empty());
            let call_id = id.map_or_else(super::fresh_call_id, str::to_owned);
            events.push(ReplyEvent::CallBegan { index, call_id, name: name.to_owned() });
            self.calls.insert(index);
        }
        match &call["function"]["arguments"] {
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => events.push(ReplyEvent::CallInput { index, text: text.clone() }),
            Value::Null => {}
            other => events.push(ReplyEvent::CallInput { index, text: other.to_string() }),
        }
        Ok(())
    }

    /// Decode the usage. `prompt_tokens` includes tokens read from or written to the cache.
    fn decode_usage(&mut self, usage: &Value, events: &mut Vec<ReplyEvent>) {
        if !usage.is_object() {
            return;
        }
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let details = &usage["prompt_tokens_details"];
        let cache_read =
            details["cached_tokens"].as_u64().unwrap_or(count(&usage["prompt_cache_hit_tokens"]));
        let cache_write = count(&details["cache_write_tokens"]);
        let cached = cache_read.saturating_add(cache_write);
        self.has_usage = true;
        events.push(ReplyEvent::Usage(Usage {
            input: count(&usage["prompt_tokens"]).saturating_sub(cached),
            output: count(&usage["completion_tokens"]),
            cache_read,
            cache_write,
            reasoning: count(&usage["completion_tokens_details"]["reasoning_tokens"]),
        }));
    }
}

fn stop_of(reason: &str) -> Stop {
    match reason {
        "length" | "max_tokens" => Stop::Length,
        "tool_calls" | "function_call" => Stop::ToolUse,
        "content_filter" => Stop::ContentFilter,
        "error" => Stop::Error,
        _ => Stop::Stop,
    }
}

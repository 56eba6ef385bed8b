//! Anthropic's Messages API. Reasoning is signed and sent back with its signature within a turn. Redacted reasoning
//! is sent back unchanged. The stable prefix of a request is marked for the provider's cache.

use reqwest::header::{HeaderName, HeaderValue};
use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{ReplyEvent, Request, RequestPart, Signature, Thinking};
use serde_json::{Value, json};

use super::catalog_row::{CatalogRow, ThinkingStyle};
use super::conversation::{
    ChatItem, ChatToolResult, ChatTurn, Media, MediaKind, Side, fold_turns, input_object, note_text, object,
    wire_call_id,
};
use super::error_map::ProviderError;
use super::key::ProviderKey;
use super::sse::Framing;
use super::wire::{Decode, DecodeError, ReplyProgress, WireRequest, parse_frame};

const VERSION: &str = "2023-06-01";
/// Output limit for models that are not in the catalog. The API requires a limit.
const OUTPUT_TOKENS_DEFAULT: u64 = 8_192;
/// Smallest thinking budget that the provider accepts.
const BUDGET_TOKENS_MIN: u64 = 1_024;
/// Prefix of a signature. Identifies the vendor, so that the signature is not sent to another provider.
const SIGNED: &str = "anthropic:thinking:";
const REDACTED: &str = "anthropic:redacted:";

pub fn build_request(
    base_url: &str,
    name: &str,
    request: &Request,
    row: &CatalogRow,
    key: Option<&ProviderKey>,
) -> WireRequest {
    let mut headers: Vec<_> = version_header().collect();
    let key = key.and_then(|key| key.header(""));
    headers.extend(key.map(|key| (HeaderName::from_static("x-api-key"), key)));
    WireRequest {
        url: format!("{base_url}/v1/messages"),
        headers,
        body: body(name, request, row),
        framing: Framing::Events,
    }
}

/// The header with the version of the API, which every request needs.
pub fn version_header() -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    std::iter::once((HeaderName::from_static("anthropic-version"), HeaderValue::from_static(VERSION)))
}

fn body(name: &str, request: &Request, row: &CatalogRow) -> Value {
    let turns = fold_turns(request);
    let requested = request.output_tokens_max.map(u64::from);
    let output_max = requested.or(row.output).unwrap_or(OUTPUT_TOKENS_DEFAULT);
    let (thinking, effort) = thinking_fields(request, row, &turns, output_max);
    let mut messages = messages(&turns);
    mark_last_for_cache(&mut messages);
    let tools = request.tools.iter().map(|tool| {
        json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema.to_value()})
    });
    let tools: Vec<Value> = tools.collect();
    let system = request.system.as_deref().filter(|text| !text.trim().is_empty());
    object([
        ("model", Some(json!(name))),
        ("max_tokens", Some(json!(output_max))),
        ("stream", Some(json!(true))),
        (
            "system",
            system.map(|text| json!([{"type": "text", "text": text, "cache_control": cache_control()}])),
        ),
        ("messages", Some(Value::Array(messages))),
        ("tools", (!tools.is_empty()).then_some(Value::Array(tools))),
        ("thinking", thinking),
        ("output_config", effort.map(|effort| json!({"effort": effort}))),
        ("temperature", request.temperature.map(|value| json!(value))),
    ])
}

fn cache_control() -> Value {
    json!({"type": "ephemeral"})
}

/// The `thinking` field and the effort to request.
fn thinking_fields(
    request: &Request,
    row: &CatalogRow,
    turns: &[ChatTurn<'_>],
    output_max: u64,
) -> (Option<Value>, Option<&'static str>) {
    let effort = match request.thinking {
        Thinking::Off if row.thinking == ThinkingStyle::AdaptiveByDefault => {
            return (Some(json!({"type": "disabled"})), None);
        }
        Thinking::Off => return (None, None),
        Thinking::Low => "low",
        Thinking::Medium => "medium",
        Thinking::High => "high",
    };
    match row.thinking {
        ThinkingStyle::None => (None, None),
        ThinkingStyle::Budget => (budget(request.thinking, turns, output_max), None),
        _ => (Some(json!({"type": "adaptive", "display": "summarized"})), Some(effort)),
    }
}

/// Build the `thinking` field with a token budget. With a budget, the provider rejects a tool call without its
/// reasoning, which may be lost in a restart. In that case the rest of the turn runs without thinking.
fn budget(thinking: Thinking, turns: &[ChatTurn<'_>], output_max: u64) -> Option<Value> {
    let requested = match thinking {
        Thinking::Off => return None,
        Thinking::Low => 2_048,
        Thinking::Medium => 8_192,
        Thinking::High => 24_576,
    };
    let tokens = requested.min(output_max / 2);
    let may_think = answered_calls(turns).is_none_or(|turn| {
        let first = turn.items.iter().find_map(block_of_reasoning);
        first.is_some()
    });
    (tokens >= BUDGET_TOKENS_MIN && may_think).then(|| json!({"type": "enabled", "budget_tokens": tokens}))
}

/// The assistant turn whose tool results this request sends.
fn answered_calls<'t, 'a>(turns: &'t [ChatTurn<'a>]) -> Option<&'t ChatTurn<'a>> {
    let [.., calls, results] = turns else { return None };
    let is_answered = results.items.iter().any(|item| matches!(item, ChatItem::Result(_)));
    is_answered.then_some(calls)
}

fn messages(turns: &[ChatTurn<'_>]) -> Vec<Value> {
    let mut messages = Vec::new();
    // The API requires the first message to be a user message.
    if turns.first().is_some_and(|turn| turn.side == Side::Assistant) {
        messages.push(
            json!({"role": "user", "content": [{"type": "text", "text": "(The conversation continues.)"}]}),
        );
    }
    for turn in turns {
        let content: Vec<Value> = turn.items.iter().filter_map(block).collect();
        let role = if turn.side == Side::Assistant { "assistant" } else { "user" };
        if !content.is_empty() {
            messages.push(json!({"role": role, "content": content}));
        }
    }
    messages
}

fn block(item: &ChatItem<'_>) -> Option<Value> {
    match item {
        ChatItem::Text(text) => Some(json!({"type": "text", "text": text})),
        ChatItem::Note(text) => Some(json!({"type": "text", "text": note_text(text)})),
        ChatItem::Reasoning { .. } => block_of_reasoning(item),
        ChatItem::Call(call) => Some(json!({
            "type": "tool_use",
            "id": wire_call_id(&call.call_id),
            "name": call.name,
            "input": input_object(call),
        })),
        ChatItem::Result(result) => Some(result_block(result)),
        ChatItem::Media(media) => Some(media_block(media)),
    }
}

fn block_of_reasoning(item: &ChatItem<'_>) -> Option<Value> {
    let ChatItem::Reasoning { text, signature } = item else { return None };
    if let Some(data) = signature.strip_prefix(REDACTED) {
        return Some(json!({"type": "redacted_thinking", "data": data}));
    }
    let signature = signature.strip_prefix(SIGNED)?;
    Some(json!({"type": "thinking", "thinking": text, "signature": signature}))
}

fn result_block(result: &ChatToolResult<'_>) -> Value {
    let content = result.parts.iter().filter_map(|part| match part {
        RequestPart::Text(text) if text.is_empty() => None,
        RequestPart::Text(text) => Some(json!({"type": "text", "text": text})),
        RequestPart::Media { mime, name, bytes } => {
            Some(media_block(&Media { mime, name: name.as_deref(), bytes }))
        }
        RequestPart::Reasoning { .. } | RequestPart::ToolCall(_) | RequestPart::ToolResult { .. } => None,
    });
    let content: Vec<Value> = content.collect();
    object([
        ("type", Some(json!("tool_result"))),
        ("tool_use_id", Some(json!(wire_call_id(result.call_id)))),
        ("content", (!content.is_empty()).then_some(Value::Array(content))),
        ("is_error", result.is_error.then_some(json!(true))),
    ])
}

fn media_block(media: &Media<'_>) -> Value {
    let source = json!({"type": "base64", "media_type": media.mime, "data": ""});
    let with_data = |kind: &str| {
        let mut source = source.clone();
        source["data"] = json!(media.base64());
        let title = media.name.filter(|_| kind == "document");
        object([
            ("type", Some(json!(kind))),
            ("source", Some(source)),
            ("title", title.map(|name| json!(name))),
        ])
    };
    match media.kind() {
        MediaKind::Image => with_data("image"),
        MediaKind::Pdf => with_data("document"),
        MediaKind::Text | MediaKind::Audio | MediaKind::Other => {
            json!({"type": "text", "text": media.as_text()})
        }
    }
}

/// Mark the last block of the conversation for caching, because the next round repeats the whole conversation.
fn mark_last_for_cache(messages: &mut [Value]) {
    let last = messages.last_mut().and_then(|message| message["content"].as_array_mut()?.last_mut());
    if let Some(block) = last
        && !matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
    {
        block["cache_control"] = cache_control();
    }
}

/// Decodes the stream: a message start, its blocks in order, a message stop.
#[derive(Default)]
pub struct Decoder {
    usage: Usage,
    open: OpenBlock,
    stop: Option<Stop>,
    is_over: bool,
}

#[derive(Default)]
enum OpenBlock {
    #[default]
    None,
    Text,
    Thinking {
        signature: String,
    },
    Call {
        index: u32,
        /// Input from the block's start event, used if no delta follows.
        full_input: Option<String>,
    },
    Other,
}

impl Decode for Decoder {
    fn decode(&mut self, frame: &str, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        let event = parse_frame(frame)?;
        match event["type"].as_str().ok_or_else(|| DecodeError::missing("the event type"))? {
            "message_start" => self.decode_usage(&event["message"]["usage"], events),
            "content_block_start" => self.open_block(&event, events)?,
            "content_block_delta" => self.decode_delta(&event["delta"], events)?,
            "content_block_stop" => self.close_block(events),
            "message_delta" => {
                self.decode_usage(&event["usage"], events);
                self.stop = event["delta"]["stop_reason"].as_str().map(stop_of).or(self.stop);
            }
            "message_stop" => self.is_over = true,
            "error" => return Err(DecodeError::Provider(ProviderError::from_event(&event))),
            // `ping` and future event types: the protocol requires clients to ignore unknown event types.
            _ => {}
        }
        Ok(())
    }

    fn progress(&self) -> ReplyProgress {
        if self.is_over {
            ReplyProgress::Complete(self.stop.unwrap_or(Stop::Stop))
        } else {
            ReplyProgress::Incomplete
        }
    }
}

impl Decoder {
    /// Record token counts. They are totals, and later events repeat some of them.
    fn decode_usage(&mut self, usage: &Value, events: &mut Vec<ReplyEvent>) {
        if !usage.is_object() {
            return;
        }
        let take = |field: &mut u64, value: &Value| *field = value.as_u64().unwrap_or(*field);
        take(&mut self.usage.input, &usage["input_tokens"]);
        take(&mut self.usage.output, &usage["output_tokens"]);
        take(&mut self.usage.cache_read, &usage["cache_read_input_tokens"]);
        take(&mut self.usage.cache_write, &usage["cache_creation_input_tokens"]);
        take(&mut self.usage.reasoning, &usage["output_tokens_details"]["thinking_tokens"]);
        events.push(ReplyEvent::Usage(self.usage));
    }

    fn open_block(&mut self, event: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        self.close_block(events);
        let block = &event["content_block"];
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        self.open = match block["type"].as_str().ok_or_else(|| DecodeError::missing("the block type"))? {
            "text" => {
                push_text(events, text("text"), ReplyEvent::Text);
                OpenBlock::Text
            }
            "thinking" => {
                push_text(events, text("thinking"), ReplyEvent::Reasoning);
                OpenBlock::Thinking { signature: text("signature") }
            }
            "redacted_thinking" => {
                let signature = Some(Signature(format!("{REDACTED}{}", text("data")).into()));
                events.push(ReplyEvent::ReasoningEnd { signature, redacted: true });
                OpenBlock::Other
            }
            "tool_use" => begin_call(event, events)?,
            _ => OpenBlock::Other,
        };
        Ok(())
    }

    fn decode_delta(&mut self, delta: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        let text = |name: &str| {
            delta[name]
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| DecodeError::missing(&format!("a delta's {name}")))
        };
        match (delta["type"].as_str(), &mut self.open) {
            (None, _) => return Err(DecodeError::missing("the delta type")),
            (Some("text_delta"), _) => push_text(events, text("text")?, ReplyEvent::Text),
            (Some("thinking_delta"), _) => push_text(events, text("thinking")?, ReplyEvent::Reasoning),
            (Some("signature_delta"), OpenBlock::Thinking { signature }) => {
                signature.push_str(&text("signature")?)
            }
            (Some("input_json_delta"), OpenBlock::Call { index, full_input }) => {
                let (index, more) = (*index, text("partial_json")?);
                if !more.is_empty() {
                    *full_input = None;
                }
                push_text(events, more, |text| ReplyEvent::CallInput { index, text });
            }
            (Some("input_json_delta"), OpenBlock::Other) => {}
            (Some("input_json_delta" | "signature_delta"), _) => {
                return Err(DecodeError::Malformed("a delta for a block that is not open".into()));
            }
            (Some(_), _) => {}
        }
        Ok(())
    }

    fn close_block(&mut self, events: &mut Vec<ReplyEvent>) {
        match std::mem::take(&mut self.open) {
            OpenBlock::Thinking { signature } => {
                let signed =
                    (!signature.is_empty()).then(|| Signature(format!("{SIGNED}{signature}").into()));
                events.push(ReplyEvent::ReasoningEnd { signature: signed, redacted: false });
            }
            OpenBlock::Call { index, full_input: Some(text) } => {
                events.push(ReplyEvent::CallInput { index, text })
            }
            OpenBlock::None
            | OpenBlock::Text
            | OpenBlock::Call { full_input: None, .. }
            | OpenBlock::Other => {}
        }
    }
}

fn begin_call(event: &Value, events: &mut Vec<ReplyEvent>) -> Result<OpenBlock, DecodeError> {
    let block = &event["content_block"];
    let index = event["index"].as_u64().and_then(|index| u32::try_from(index).ok());
    let (Some(index), Some(id), Some(name)) = (index, block["id"].as_str(), block["name"].as_str()) else {
        return Err(DecodeError::missing("the index, id or name of a tool call"));
    };
    events.push(ReplyEvent::CallBegan { index, call_id: id.to_owned(), name: name.to_owned() });
    let full_input = block["input"].as_object().filter(|input| !input.is_empty());
    Ok(OpenBlock::Call { index, full_input: full_input.map(|input| json!(input).to_string()) })
}

fn push_text(events: &mut Vec<ReplyEvent>, text: String, event: impl FnOnce(String) -> ReplyEvent) {
    if !text.is_empty() {
        events.push(event(text));
    }
}

fn stop_of(reason: &str) -> Stop {
    match reason {
        "max_tokens" | "model_context_window_exceeded" => Stop::Length,
        "tool_use" => Stop::ToolUse,
        "refusal" => Stop::ContentFilter,
        // `end_turn`, `stop_sequence`, and `pause_turn`, which only occurs with the provider's server-side tools.
        _ => Stop::Stop,
    }
}

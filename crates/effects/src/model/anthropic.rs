//! Anthropic's Messages API. Reasoning is signed and sent back with its signature within a turn. Redacted reasoning
//! is sent back unchanged. The stable prefix of a request is marked for the provider's cache.

use reqwest::header::{HeaderName, HeaderValue};
use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{Piece, Request, RequestPart, Signature, Thinking};
use serde_json::{Value, json};

use super::catalog::{Row, ThinkingStyle};
use super::conversation::{
    Answer, Item, Media, MediaKind, Side, Turn, fold_turns, input_object, note_text, object, wire_call_id,
};
use super::error_map::Complaint;
use super::key::ProviderKey;
use super::sse::Framing;
use super::wire::{Ask, Decode, DecodeError, End, parse_frame};

const VERSION: &str = "2023-06-01";
/// Output limit for models that are not in the catalog. The API requires a limit.
const OUTPUT_TOKENS_DEFAULT: u64 = 8_192;
/// Smallest thinking budget that the provider accepts.
const BUDGET_TOKENS_MIN: u64 = 1_024;
/// Prefix of stored signatures. Identifies the vendor, so that signatures are not sent to other providers.
const SIGNED: &str = "anthropic:thinking:";
const REDACTED: &str = "anthropic:redacted:";

pub fn ask(base_url: &str, name: &str, request: &Request, row: &Row, key: Option<&ProviderKey>) -> Ask {
    let mut headers = vec![(HeaderName::from_static("anthropic-version"), HeaderValue::from_static(VERSION))];
    let key = key.and_then(|key| key.header(""));
    headers.extend(key.map(|key| (HeaderName::from_static("x-api-key"), key)));
    Ask {
        url: format!("{base_url}/v1/messages"),
        headers,
        body: body(name, request, row),
        framing: Framing::Events,
    }
}

fn body(name: &str, request: &Request, row: &Row) -> Value {
    let turns = fold_turns(request);
    let asked = request.output_tokens_max.map(u64::from);
    let output_max = asked.or(row.output).unwrap_or(OUTPUT_TOKENS_DEFAULT);
    let (thinking, effort) = think(request, row, &turns, output_max);
    let mut messages = messages(&turns);
    mark_last(&mut messages);
    let tools = request.tools.iter().map(|tool| {
        json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema.to_value()})
    });
    let tools: Vec<Value> = tools.collect();
    let system = request.system.as_deref().filter(|text| !text.trim().is_empty());
    object([
        ("model", Some(json!(name))),
        ("max_tokens", Some(json!(output_max))),
        ("stream", Some(json!(true))),
        ("system", system.map(|text| json!([{"type": "text", "text": text, "cache_control": cached()}]))),
        ("messages", Some(Value::Array(messages))),
        ("tools", (!tools.is_empty()).then_some(Value::Array(tools))),
        ("thinking", thinking),
        ("output_config", effort.map(|effort| json!({"effort": effort}))),
        ("temperature", request.temperature.map(|value| json!(value))),
    ])
}

fn cached() -> Value {
    json!({"type": "ephemeral"})
}

/// The `thinking` field and the effort to request.
fn think(
    request: &Request,
    row: &Row,
    turns: &[Turn<'_>],
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

/// Returns the thinking budget. With a budget, the provider rejects a tool call without its reasoning, which may be
/// lost in a restart. In that case the rest of the turn runs without thinking.
fn budget(thinking: Thinking, turns: &[Turn<'_>], output_max: u64) -> Option<Value> {
    let wanted = match thinking {
        Thinking::Off => return None,
        Thinking::Low => 2_048,
        Thinking::Medium => 8_192,
        Thinking::High => 24_576,
    };
    let tokens = wanted.min(output_max / 2);
    let can_go_on = last_calls(turns).is_none_or(|turn| {
        let first = turn.items.iter().find_map(block_of_reasoning);
        first.is_some()
    });
    (tokens >= BUDGET_TOKENS_MIN && can_go_on).then(|| json!({"type": "enabled", "budget_tokens": tokens}))
}

/// The assistant turn whose tool results this request sends.
fn last_calls<'t, 'a>(turns: &'t [Turn<'a>]) -> Option<&'t Turn<'a>> {
    let [.., asked, answered] = turns else { return None };
    let is_answered = answered.items.iter().any(|item| matches!(item, Item::Result(_)));
    is_answered.then_some(asked)
}

fn messages(turns: &[Turn<'_>]) -> Vec<Value> {
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

fn block(item: &Item<'_>) -> Option<Value> {
    match item {
        Item::Text(text) => Some(json!({"type": "text", "text": text})),
        Item::Note(text) => Some(json!({"type": "text", "text": note_text(text)})),
        Item::Reasoning { .. } => block_of_reasoning(item),
        Item::Call(call) => Some(json!({
            "type": "tool_use",
            "id": wire_call_id(&call.call_id),
            "name": call.name,
            "input": input_object(call),
        })),
        Item::Result(answer) => Some(result(answer)),
        Item::Media(media) => Some(media_block(media)),
    }
}

fn block_of_reasoning(item: &Item<'_>) -> Option<Value> {
    let Item::Reasoning { text, signature } = item else { return None };
    if let Some(data) = signature.strip_prefix(REDACTED) {
        return Some(json!({"type": "redacted_thinking", "data": data}));
    }
    let signature = signature.strip_prefix(SIGNED)?;
    Some(json!({"type": "thinking", "thinking": text, "signature": signature}))
}

fn result(answer: &Answer<'_>) -> Value {
    let content = answer.parts.iter().filter_map(|part| match part {
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
        ("tool_use_id", Some(json!(wire_call_id(answer.call_id)))),
        ("content", (!content.is_empty()).then_some(Value::Array(content))),
        ("is_error", answer.is_error.then_some(json!(true))),
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
fn mark_last(messages: &mut [Value]) {
    let last = messages.last_mut().and_then(|message| message["content"].as_array_mut()?.last_mut());
    if let Some(block) = last
        && !matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
    {
        block["cache_control"] = cached();
    }
}

/// Decodes the stream: a message start, its blocks in order, a message stop.
#[derive(Default)]
pub struct Decoder {
    usage: Usage,
    open: Open,
    stop: Option<Stop>,
    is_over: bool,
}

#[derive(Default)]
enum Open {
    #[default]
    None,
    Text,
    Thinking {
        signature: String,
    },
    Call {
        index: u32,
        /// Input from the block's start event, used if no delta follows.
        whole: Option<String>,
    },
    Other,
}

impl Decode for Decoder {
    fn decode(&mut self, frame: &str, pieces: &mut Vec<Piece>) -> Result<(), DecodeError> {
        let event = parse_frame(frame)?;
        match event["type"].as_str().ok_or_else(|| DecodeError::missing("the event type"))? {
            "message_start" => self.take_usage(&event["message"]["usage"], pieces),
            "content_block_start" => self.open_block(&event, pieces)?,
            "content_block_delta" => self.take_delta(&event["delta"], pieces)?,
            "content_block_stop" => self.close_block(pieces),
            "message_delta" => {
                self.take_usage(&event["usage"], pieces);
                self.stop = event["delta"]["stop_reason"].as_str().map(stop_of).or(self.stop);
            }
            "message_stop" => self.is_over = true,
            "error" => return Err(DecodeError::Complaint(Complaint::of_event(&event))),
            // `ping` and future event types: the protocol requires clients to ignore unknown event types.
            _ => {}
        }
        Ok(())
    }

    fn end(&self) -> End {
        if self.is_over { End::Now(self.stop.unwrap_or(Stop::Stop)) } else { End::NotYet }
    }
}

impl Decoder {
    /// Record token counts. They are totals, and later events repeat some of them.
    fn take_usage(&mut self, usage: &Value, pieces: &mut Vec<Piece>) {
        if !usage.is_object() {
            return;
        }
        let take = |field: &mut u64, value: &Value| *field = value.as_u64().unwrap_or(*field);
        take(&mut self.usage.input, &usage["input_tokens"]);
        take(&mut self.usage.output, &usage["output_tokens"]);
        take(&mut self.usage.cache_read, &usage["cache_read_input_tokens"]);
        take(&mut self.usage.cache_write, &usage["cache_creation_input_tokens"]);
        take(&mut self.usage.reasoning, &usage["output_tokens_details"]["thinking_tokens"]);
        pieces.push(Piece::Usage(self.usage));
    }

    fn open_block(&mut self, event: &Value, pieces: &mut Vec<Piece>) -> Result<(), DecodeError> {
        self.close_block(pieces);
        let block = &event["content_block"];
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        self.open = match block["type"].as_str().ok_or_else(|| DecodeError::missing("the block type"))? {
            "text" => {
                push_text(pieces, text("text"), Piece::Text);
                Open::Text
            }
            "thinking" => {
                push_text(pieces, text("thinking"), Piece::Reasoning);
                Open::Thinking { signature: text("signature") }
            }
            "redacted_thinking" => {
                let signature = Some(Signature(format!("{REDACTED}{}", text("data")).into()));
                pieces.push(Piece::ReasoningEnd { signature, redacted: true });
                Open::Other
            }
            "tool_use" => begin_call(event, pieces)?,
            _ => Open::Other,
        };
        Ok(())
    }

    fn take_delta(&mut self, delta: &Value, pieces: &mut Vec<Piece>) -> Result<(), DecodeError> {
        let text = |name: &str| {
            delta[name]
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| DecodeError::missing(&format!("a delta's {name}")))
        };
        match (delta["type"].as_str(), &mut self.open) {
            (None, _) => return Err(DecodeError::missing("the delta type")),
            (Some("text_delta"), _) => push_text(pieces, text("text")?, Piece::Text),
            (Some("thinking_delta"), _) => push_text(pieces, text("thinking")?, Piece::Reasoning),
            (Some("signature_delta"), Open::Thinking { signature }) => {
                signature.push_str(&text("signature")?)
            }
            (Some("input_json_delta"), Open::Call { index, whole }) => {
                let (index, more) = (*index, text("partial_json")?);
                if !more.is_empty() {
                    *whole = None;
                }
                push_text(pieces, more, |text| Piece::CallInput { index, text });
            }
            (Some("input_json_delta"), Open::Other) => {}
            (Some("input_json_delta" | "signature_delta"), _) => {
                return Err(DecodeError::Malformed("a delta for a block that is not open".into()));
            }
            (Some(_), _) => {}
        }
        Ok(())
    }

    fn close_block(&mut self, pieces: &mut Vec<Piece>) {
        match std::mem::take(&mut self.open) {
            Open::Thinking { signature } => {
                let signed =
                    (!signature.is_empty()).then(|| Signature(format!("{SIGNED}{signature}").into()));
                pieces.push(Piece::ReasoningEnd { signature: signed, redacted: false });
            }
            Open::Call { index, whole: Some(text) } => pieces.push(Piece::CallInput { index, text }),
            Open::None | Open::Text | Open::Call { whole: None, .. } | Open::Other => {}
        }
    }
}

fn begin_call(event: &Value, pieces: &mut Vec<Piece>) -> Result<Open, DecodeError> {
    let block = &event["content_block"];
    let index = event["index"].as_u64().and_then(|index| u32::try_from(index).ok());
    let (Some(index), Some(id), Some(name)) = (index, block["id"].as_str(), block["name"].as_str()) else {
        return Err(DecodeError::missing("the index, id or name of a tool call"));
    };
    pieces.push(Piece::CallBegan { index, call_id: id.to_owned(), name: name.to_owned() });
    let whole = block["input"].as_object().filter(|input| !input.is_empty());
    Ok(Open::Call { index, whole: whole.map(|input| json!(input).to_string()) })
}

fn push_text(pieces: &mut Vec<Piece>, text: String, piece: impl FnOnce(String) -> Piece) {
    if !text.is_empty() {
        pieces.push(piece(text));
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

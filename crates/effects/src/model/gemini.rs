//! Google's Gemini API. It signs tool calls rather than reasoning, and requires the signatures to be sent back within
//! a turn. Each signature is stored in a reasoning part before its call. Only the finish reason marks the end of a
//! reply.

use reqwest::header::HeaderName;
use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{ReplyEvent, Request, Signature, Thinking};
use serde_json::{Value, json};

use super::catalog_row::{CatalogRow, ThinkingStyle};
use super::conversation::{
    ChatItem, ChatToolResult, ChatTurn, Media, MediaKind, Side, fold_turns, input_object, note_text, object,
};
use super::error_map::ProviderError;
use super::key::ProviderKey;
use super::sse::Framing;
use super::wire::{Decode, DecodeError, ReplyProgress, WireRequest, parse_frame};

/// Prefix of a signature. Identifies the vendor, so that the signature is not sent to another provider.
const SIGNED: &str = "gemini:call:";
/// Documented placeholder for the signature of a call that lost it in a restart or came from another provider.
const UNSIGNED: &str = "skip_thought_signature_validator";

pub fn build_request(
    base_url: &str,
    name: &str,
    request: &Request,
    row: &CatalogRow,
    key: Option<&ProviderKey>,
) -> WireRequest {
    let key = key.and_then(|key| key.header(""));
    WireRequest {
        url: format!("{base_url}/v1beta/models/{name}:streamGenerateContent?alt=sse"),
        headers: key.map(|key| (HeaderName::from_static("x-goog-api-key"), key)).into_iter().collect(),
        body: body(name, request, row),
        framing: Framing::Events,
    }
}

fn body(name: &str, request: &Request, row: &CatalogRow) -> Value {
    let turns = fold_turns(request);
    let mut contents = Vec::new();
    // The API requires the first message to be a user message.
    if turns.first().is_some_and(|turn| turn.side == Side::Assistant) {
        contents.push(json!({"role": "user", "parts": [{"text": "(The conversation continues.)"}]}));
    }
    for turn in &turns {
        match turn.side {
            Side::Assistant => push_content("model", model_parts(turn, must_sign(name)), &mut contents),
            Side::User => push_user_contents(turn, &mut contents),
        }
    }
    let tools = request.tools.iter().map(|tool| {
        json!({
            "name": tool.name,
            "description": tool.description,
            "parametersJsonSchema": tool.input_schema.to_value(),
        })
    });
    let tools: Vec<Value> = tools.collect();
    let system = request.system.as_deref().filter(|text| !text.trim().is_empty());
    let config = object([
        ("temperature", request.temperature.map(|value| json!(value))),
        ("maxOutputTokens", request.output_tokens_max.map(|tokens| json!(tokens))),
        ("thinkingConfig", thinking_config(request.thinking, row)),
    ]);
    let has_config = config.as_object().is_some_and(|config| !config.is_empty());
    object([
        ("systemInstruction", system.map(|text| json!({"parts": [{"text": text}]}))),
        ("contents", Some(Value::Array(contents))),
        ("tools", (!tools.is_empty()).then(|| json!([{"functionDeclarations": tools}]))),
        ("generationConfig", has_config.then_some(config)),
    ])
}

/// Whether the model rejects unsigned calls in the current turn. Models since the third generation do.
fn must_sign(name: &str) -> bool {
    let version = name.strip_prefix("gemini-").unwrap_or_default();
    let major: String = version.chars().take_while(char::is_ascii_digit).collect();
    major.parse().is_ok_and(|major: u32| major >= 3)
}

fn thinking_config(thinking: Thinking, row: &CatalogRow) -> Option<Value> {
    let (level, budget) = match thinking {
        Thinking::Off => return None,
        Thinking::Low => ("low", 2_048),
        Thinking::Medium => ("medium", 8_192),
        Thinking::High => ("high", 24_576),
    };
    match row.thinking {
        ThinkingStyle::None => None,
        ThinkingStyle::Budget => Some(json!({"includeThoughts": true, "thinkingBudget": budget})),
        _ => Some(json!({"includeThoughts": true, "thinkingLevel": level})),
    }
}

fn push_content(role: &str, parts: Vec<Value>, contents: &mut Vec<Value>) {
    if !parts.is_empty() {
        contents.push(json!({"role": role, "parts": parts}));
    }
}

fn model_parts(turn: &ChatTurn<'_>, must_sign: bool) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut signature: Option<&str> = None;
    let mut is_first_call = true;
    for item in &turn.items {
        match item {
            ChatItem::Reasoning { signature: signed, .. } => {
                signature = signed.strip_prefix(SIGNED).or(signature)
            }
            ChatItem::Call(call) => {
                let call = json!({"name": call.name, "args": input_object(call)});
                let needed = (must_sign && is_first_call).then_some(UNSIGNED);
                let signed = signature.take().or(needed);
                is_first_call = false;
                parts.push(object([
                    ("functionCall", Some(call)),
                    ("thoughtSignature", signed.map(|signed| json!(signed))),
                ]));
            }
            ChatItem::Text(text) => parts.push(json!({"text": text})),
            ChatItem::Note(_) | ChatItem::Result(_) | ChatItem::Media(_) => {}
        }
    }
    parts
}

/// Push a user turn. Tool results are sent in a separate content with exactly one part per call.
fn push_user_contents(turn: &ChatTurn<'_>, contents: &mut Vec<Value>) {
    let mut results = Vec::new();
    let mut parts = Vec::new();
    for item in &turn.items {
        match item {
            ChatItem::Result(result) => {
                results.push(result_part(result));
                parts.extend(result.media().filter_map(|media| inline_part(&media)));
            }
            ChatItem::Text(text) => parts.push(json!({"text": text})),
            ChatItem::Note(text) => parts.push(json!({"text": note_text(text)})),
            ChatItem::Media(media) => {
                parts.push(inline_part(media).unwrap_or_else(|| json!({"text": media.as_text()})));
            }
            ChatItem::Reasoning { .. } | ChatItem::Call(_) => {}
        }
    }
    push_content("user", results, contents);
    push_content("user", parts, contents);
}

fn result_part(result: &ChatToolResult<'_>) -> Value {
    let field = if result.is_error { "error" } else { "result" };
    json!({"functionResponse": {"name": result.tool, "response": {field: result.text()}}})
}

fn inline_part(media: &Media<'_>) -> Option<Value> {
    match media.kind() {
        MediaKind::Image | MediaKind::Pdf | MediaKind::Audio => {
            Some(json!({"inlineData": {"mimeType": media.mime, "data": media.base64()}}))
        }
        MediaKind::Text | MediaKind::Other => None,
    }
}

/// Decodes the stream: chunks with parts. The last chunk has a finish reason.
#[derive(Default)]
pub struct Decoder {
    calls: u32,
    is_reasoning: bool,
    stop: Option<Stop>,
}

impl Decode for Decoder {
    fn decode(&mut self, frame: &str, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        let chunk = parse_frame(frame)?;
        if !chunk.is_object() {
            return Err(DecodeError::Malformed("a chunk that is not an object".into()));
        }
        if chunk.get("error").is_some() {
            return Err(DecodeError::Provider(ProviderError::from_event(&chunk)));
        }
        let candidate = &chunk["candidates"][0];
        for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
            self.decode_part(part, events)?;
        }
        decode_usage(&chunk["usageMetadata"], events);
        if chunk["promptFeedback"]["blockReason"].is_string() {
            self.stop = Some(Stop::ContentFilter);
        }
        if let Some(reason) = candidate["finishReason"].as_str() {
            self.close_reasoning(None, events);
            self.stop = Some(stop_of(reason));
        }
        Ok(())
    }

    fn progress(&self) -> ReplyProgress {
        match self.stop {
            Some(Stop::Stop) if self.calls > 0 => ReplyProgress::CompleteAtEof(Stop::ToolUse),
            Some(stop) => ReplyProgress::CompleteAtEof(stop),
            None => ReplyProgress::Incomplete,
        }
    }
}

impl Decoder {
    fn decode_part(&mut self, part: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        if let Some(call) = part.get("functionCall") {
            let name =
                call["name"].as_str().ok_or_else(|| DecodeError::missing("the name of a tool call"))?;
            let id = call["id"].as_str().filter(|id| !id.is_empty());
            let call_id = id.map_or_else(super::fresh_call_id, str::to_owned);
            self.close_reasoning(part["thoughtSignature"].as_str(), events);
            let index = self.calls;
            self.calls = self.calls.saturating_add(1);
            events.push(ReplyEvent::CallBegan { index, call_id, name: name.to_owned() });
            let args = call.get("args").filter(|args| !args.is_null());
            events.extend(args.map(|args| ReplyEvent::CallInput { index, text: args.to_string() }));
            return Ok(());
        }
        match part["text"].as_str() {
            None | Some("") => {}
            Some(text) if part["thought"].as_bool() == Some(true) => {
                self.is_reasoning = true;
                events.push(ReplyEvent::Reasoning(text.to_owned()));
            }
            Some(text) => {
                self.close_reasoning(None, events);
                events.push(ReplyEvent::Text(text.to_owned()));
            }
        }
        Ok(())
    }

    /// End the current reasoning. A signature without visible reasoning belongs to hidden reasoning.
    fn close_reasoning(&mut self, signed: Option<&str>, events: &mut Vec<ReplyEvent>) {
        let was_visible = std::mem::take(&mut self.is_reasoning);
        if was_visible || signed.is_some() {
            let signature = signed.map(|signed| Signature(format!("{SIGNED}{signed}").into()));
            events.push(ReplyEvent::ReasoningEnd { signature, redacted: !was_visible });
        }
    }
}

/// Decode the usage. `promptTokenCount` includes cached tokens. `candidatesTokenCount` excludes thoughts.
fn decode_usage(usage: &Value, events: &mut Vec<ReplyEvent>) {
    if !usage.is_object() {
        return;
    }
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    let cache_read = count("cachedContentTokenCount");
    let reasoning = count("thoughtsTokenCount");
    let prompt = count("promptTokenCount").saturating_add(count("toolUsePromptTokenCount"));
    events.push(ReplyEvent::Usage(Usage {
        input: prompt.saturating_sub(cache_read),
        output: count("candidatesTokenCount").saturating_add(reasoning),
        cache_read,
        cache_write: 0,
        reasoning,
    }));
}

fn stop_of(reason: &str) -> Stop {
    match reason {
        "MAX_TOKENS" => Stop::Length,
        "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" | "TOO_MANY_TOOL_CALLS" | "OTHER" => Stop::Error,
        "SAFETY" | "RECITATION" | "LANGUAGE" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" => {
            Stop::ContentFilter
        }
        _ if reason.starts_with("IMAGE_") => Stop::ContentFilter,
        // `STOP`, and other servers' names for a completed reply.
        _ => Stop::Stop,
    }
}

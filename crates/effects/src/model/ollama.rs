//! Ollama's chat API: local models, JSON lines. Every call sends the window size if it is known, because the server
//! otherwise silently drops the beginning of a long conversation.

use std::time::Duration;

use reqwest::Client;
use reqwest::header::AUTHORIZATION;
use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{ReplyEvent, Request, Signature, Thinking};
use serde_json::{Value, json};

use super::catalog_row::CatalogRow;
use super::conversation::{
    ChatItem, ChatTurn, Media, MediaKind, Side, fold_turns, input_object, note_text, object,
};
use super::error_map::ProviderError;
use super::key::ProviderKey;
use super::sse::Framing;
use super::wire::{Decode, DecodeError, ReplyProgress, WireRequest, parse_frame};

/// Signature of reasoning from the field `thinking`. Reasoning with this signature is sent back in the same field.
const THINKING_SIGNATURE: &str = "ollama:thinking";
const PORT: u16 = 11_434;
/// Timeout for listing models, and maximum number of models to list.
const LIST_MS_MAX: u64 = 1_000;
const NAMES_MAX: usize = 1_000;

/// The base URL for `OLLAMA_HOST`, which may lack a scheme, a host or a port, and may be `0.0.0.0`.
pub fn base_url_of(host: &str) -> String {
    let host = host.trim().trim_end_matches('/');
    if host.contains("://") {
        return host.replace("://0.0.0.0", "://127.0.0.1");
    }
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => (name, port.to_owned()),
        _ => (host, PORT.to_string()),
    };
    let name = if name.is_empty() || name == "0.0.0.0" { "127.0.0.1" } else { name };
    format!("http://{name}:{port}")
}

/// List the models of a server. Returns an empty list if the server does not respond in time.
pub async fn list_names(client: &Client, base_url: &str) -> Vec<String> {
    let request =
        client.get(format!("{base_url}/api/tags")).timeout(Duration::from_millis(LIST_MS_MAX)).send();
    let Ok(response) = request.await else { return Vec::new() };
    let Ok(tags) = response.json::<Value>().await else { return Vec::new() };
    let models = tags["models"].as_array().into_iter().flatten();
    models.filter_map(|model| model["name"].as_str()).take(NAMES_MAX).map(str::to_owned).collect()
}

pub fn build_request(
    base_url: &str,
    name: &str,
    request: &Request,
    row: &CatalogRow,
    key: Option<&ProviderKey>,
) -> WireRequest {
    let key = key.and_then(|key| key.header("Bearer "));
    WireRequest {
        url: format!("{base_url}/api/chat"),
        headers: key.map(|key| (AUTHORIZATION, key)).into_iter().collect(),
        body: body(name, request, row),
        framing: Framing::Lines,
    }
}

fn body(name: &str, request: &Request, row: &CatalogRow) -> Value {
    let mut messages = Vec::new();
    if let Some(system) = request.system.as_deref().filter(|text| !text.trim().is_empty()) {
        messages.push(json!({"role": "system", "content": system}));
    }
    for turn in fold_turns(request) {
        match turn.side {
            Side::Assistant => messages.extend(assistant_message(&turn)),
            Side::User => push_user_messages(&turn, &mut messages),
        }
    }
    let tools = request.tools.iter().map(|tool| {
        let function =
            json!({"name": tool.name, "description": tool.description, "parameters": tool.input_schema.to_value()});
        json!({"type": "function", "function": function})
    });
    let tools: Vec<Value> = tools.collect();
    let options = object([
        ("num_ctx", row.window.map(|tokens| json!(tokens))),
        ("num_predict", request.output_tokens_max.map(|tokens| json!(tokens))),
        ("temperature", request.temperature.map(|value| json!(value))),
    ]);
    object([
        ("model", Some(json!(name))),
        ("messages", Some(Value::Array(messages))),
        ("stream", Some(json!(true))),
        ("tools", (!tools.is_empty()).then_some(Value::Array(tools))),
        ("think", Some(think_field(name, request.thinking))),
        ("options", Some(options)),
    ])
}

/// The `think` field. Only one model family supports thinking levels.
fn think_field(name: &str, thinking: Thinking) -> Value {
    match thinking {
        Thinking::Off => json!(false),
        Thinking::Low if name.starts_with("gpt-oss") => json!("low"),
        Thinking::Medium if name.starts_with("gpt-oss") => json!("medium"),
        Thinking::High if name.starts_with("gpt-oss") => json!("high"),
        Thinking::Low | Thinking::Medium | Thinking::High => json!(true),
    }
}

fn assistant_message(turn: &ChatTurn<'_>) -> Option<Value> {
    let mut texts = Vec::new();
    let mut thoughts = Vec::new();
    let mut calls = Vec::new();
    for item in &turn.items {
        match item {
            ChatItem::Text(text) => texts.push(*text),
            ChatItem::Reasoning { text, signature } if *signature == THINKING_SIGNATURE => {
                thoughts.push(*text)
            }
            ChatItem::Call(call) => {
                calls.push(json!({"function": {"name": call.name, "arguments": input_object(call)}}));
            }
            ChatItem::Reasoning { .. } | ChatItem::Note(_) | ChatItem::Result(_) | ChatItem::Media(_) => {}
        }
    }
    let has_content = !texts.is_empty() || !calls.is_empty();
    has_content.then(|| {
        object([
            ("role", Some(json!("assistant"))),
            ("content", Some(json!(texts.join("\n")))),
            ("thinking", (!thoughts.is_empty()).then(|| json!(thoughts.join("\n")))),
            ("tool_calls", (!calls.is_empty()).then_some(Value::Array(calls))),
        ])
    })
}

fn push_user_messages(turn: &ChatTurn<'_>, messages: &mut Vec<Value>) {
    let mut texts: Vec<String> = Vec::new();
    let mut images: Vec<Value> = Vec::new();
    for item in &turn.items {
        match item {
            ChatItem::Result(result) => {
                let text = result.text();
                let text = if result.is_error { format!("Error: {text}") } else { text };
                messages.push(json!({"role": "tool", "tool_name": result.tool, "content": text}));
                let result_images: Vec<Value> = result.media().filter_map(|media| image(&media)).collect();
                if !result_images.is_empty() {
                    texts.push(format!("Result of {}:", result.tool));
                    images.extend(result_images);
                }
            }
            ChatItem::Text(text) => texts.push((*text).to_owned()),
            ChatItem::Note(text) => texts.push(note_text(text)),
            ChatItem::Media(media) => match image(media) {
                Some(image) => images.push(image),
                None => texts.push(media.as_text()),
            },
            ChatItem::Reasoning { .. } | ChatItem::Call(_) => {}
        }
    }
    if !texts.is_empty() || !images.is_empty() {
        messages.push(object([
            ("role", Some(json!("user"))),
            ("content", Some(json!(texts.join("\n\n")))),
            ("images", (!images.is_empty()).then_some(Value::Array(images))),
        ]));
    }
}

fn image(media: &Media<'_>) -> Option<Value> {
    (media.kind() == MediaKind::Image).then(|| json!(media.base64()))
}

/// Decodes the lines: each contains a part of the message, and the last line has `done`.
#[derive(Default)]
pub struct Decoder {
    calls: u32,
    is_reasoning: bool,
    stop: Option<Stop>,
}

impl Decode for Decoder {
    fn decode(&mut self, frame: &str, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        let line = parse_frame(frame)?;
        if !line.is_object() {
            return Err(DecodeError::Malformed("a line that is not an object".into()));
        }
        if line.get("error").is_some() {
            return Err(DecodeError::Provider(ProviderError::from_event(&line)));
        }
        self.decode_message(&line["message"], events)?;
        if line["done"].as_bool() == Some(true) {
            self.close_reasoning(events);
            decode_usage(&line, events);
            self.stop = Some(match line["done_reason"].as_str() {
                Some("length") => Stop::Length,
                _ if self.calls > 0 => Stop::ToolUse,
                _ => Stop::Stop,
            });
        }
        Ok(())
    }

    fn progress(&self) -> ReplyProgress {
        self.stop.map_or(ReplyProgress::Incomplete, ReplyProgress::Complete)
    }
}

impl Decoder {
    fn decode_message(&mut self, message: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        let text = |name: &str| message[name].as_str().filter(|text| !text.is_empty());
        if let Some(thought) = text("thinking") {
            self.is_reasoning = true;
            events.push(ReplyEvent::Reasoning(thought.to_owned()));
        }
        if let Some(text) = text("content") {
            self.close_reasoning(events);
            events.push(ReplyEvent::Text(text.to_owned()));
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            self.close_reasoning(events);
            self.decode_call(call, events)?;
        }
        Ok(())
    }

    fn decode_call(&mut self, call: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError> {
        let function = &call["function"];
        let name =
            function["name"].as_str().ok_or_else(|| DecodeError::missing("the name of a tool call"))?;
        let index = self.calls;
        self.calls = self.calls.saturating_add(1);
        events.push(ReplyEvent::CallBegan { index, call_id: super::fresh_call_id(), name: name.to_owned() });
        match &function["arguments"] {
            Value::Null => {}
            Value::String(text) => events.push(ReplyEvent::CallInput { index, text: text.clone() }),
            other => events.push(ReplyEvent::CallInput { index, text: other.to_string() }),
        }
        Ok(())
    }

    fn close_reasoning(&mut self, events: &mut Vec<ReplyEvent>) {
        if std::mem::take(&mut self.is_reasoning) {
            let signature = Some(Signature(THINKING_SIGNATURE.into()));
            events.push(ReplyEvent::ReasoningEnd { signature, redacted: false });
        }
    }
}

fn decode_usage(line: &Value, events: &mut Vec<ReplyEvent>) {
    let count = |name: &str| line[name].as_u64();
    if let (None, None) = (count("prompt_eval_count"), count("eval_count")) {
        return;
    }
    events.push(ReplyEvent::Usage(Usage {
        input: count("prompt_eval_count").unwrap_or(0),
        output: count("eval_count").unwrap_or(0),
        ..Usage::default()
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_host_becomes_a_base_url() {
        let cases = [
            ("", "http://127.0.0.1:11434"),
            ("0.0.0.0", "http://127.0.0.1:11434"),
            (":1234", "http://127.0.0.1:1234"),
            ("box", "http://box:11434"),
            ("box:80", "http://box:80"),
            ("http://box:80/", "http://box:80"),
            ("http://0.0.0.0:11434", "http://127.0.0.1:11434"),
            ("https://models.example", "https://models.example"),
        ];
        for (host, expected) in cases {
            assert_eq!(base_url_of(host), expected, "{host}");
        }
    }
}

//! Import of plain messages in the formats of the OpenAI and Anthropic APIs: an array, an object with `messages`, or
//! one message per line. Messages have no ids and are identified by their content and the messages before them.
//! Therefore a conversation that grew extends the session, and an edited conversation becomes a branch.

use std::borrow::Cow;

use sapwood_core::content::{Part, Reasoning};
use sapwood_core::entry::{
    AssistantMessage, ContextChanged, ModelChanged, Stop, SystemNote, Usage, UserMessage, fit_title,
};
use sapwood_core::{BlobHash, Body};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::blocks::{Block, Content, tool_result};
use super::document::{Records, has_lines, read_document, read_lines};
use super::steps::{Author, RecordKey, StepBatch, StepParent, plausible_usage};
use super::text::{arguments_json, input_json};
use super::{Format, LineLocator, ProblemKind, Reader, read_json_line};

const RECORDS: Records = Records { keys: &["messages"], container_keys: &[] };

#[derive(Deserialize, Default)]
struct Conversation<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    system: Content<'a>,
    model: Option<String>,
    id: Option<String>,
    title: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ApiMessage<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Content<'a>,
    #[serde(borrow)]
    tool_calls: Option<Vec<ApiToolCall<'a>>>,
    #[serde(alias = "tool_use_id", alias = "call_id")]
    tool_call_id: Option<String>,
    name: Option<String>,
    is_error: Option<bool>,
    reasoning_content: Option<String>,
    refusal: Option<String>,
    model: Option<String>,
    usage: Option<ApiUsage>,
    #[serde(alias = "finish_reason", alias = "stop")]
    stop_reason: Option<String>,
    /// Present in a whole conversation, absent in a message.
    messages: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ApiToolCall<'a> {
    #[serde(default)]
    id: String,
    #[serde(borrow)]
    function: Option<ApiFunction<'a>>,
    #[serde(borrow)]
    custom: Option<ApiFunction<'a>>,
}

#[derive(Deserialize)]
struct ApiFunction<'a> {
    #[serde(default)]
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ApiUsage {
    #[serde(alias = "prompt_tokens")]
    input_tokens: u64,
    #[serde(alias = "completion_tokens")]
    output_tokens: u64,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<CachedTokens>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CachedTokens {
    cached_tokens: u64,
}

pub struct Importer {
    name: String,
    last: Option<RecordKey>,
    /// Whether a message or the system prompt was read.
    begun: bool,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, batch: &mut StepBatch) {
        read_json_line(line, number, batch, |line, batch| {
            if line.starts_with(b"[") {
                return self.take_conversation(line, batch);
            }
            let message: ApiMessage<'_> = serde_json::from_slice(line)?;
            if message.messages.is_some() && message.role.is_empty() {
                return self.take_conversation(line, batch);
            }
            self.open(None, line, batch);
            self.take(message, line, batch);
            Ok(())
        });
    }

    fn push_document(&mut self, bytes: &[u8], batch: &mut StepBatch) {
        if has_lines(bytes) {
            return read_lines(bytes, self, batch);
        }
        read_document(bytes, RECORDS, batch, |bytes, batch| self.take_conversation(bytes, batch));
    }
}

impl Importer {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), last: None, begun: false }
    }

    /// Read an array of messages, or an object that contains such an array.
    fn take_conversation(&mut self, bytes: &[u8], batch: &mut StepBatch) -> Result<(), serde_json::Error> {
        let conversation = match bytes.trim_ascii_start().starts_with(b"[") {
            true => Conversation { messages: serde_json::from_slice(bytes)?, ..Conversation::default() },
            false => serde_json::from_slice::<Conversation<'_>>(bytes)?,
        };
        self.take_all(conversation, bytes, batch);
        Ok(())
    }

    /// Name the session by its id or after the file. Without either, derive the name from the first message.
    fn open(&mut self, id: Option<String>, first: &[u8], batch: &mut StepBatch) {
        if batch.session.is_some() {
            return;
        }
        let named = id.unwrap_or_else(|| match self.name.as_str() {
            "" | "-" => format!("messages-{}", &BlobHash::of(first).to_string()[..24]),
            name => name.to_owned(),
        });
        batch.open(Format::Messages, &named, batch.at);
    }

    fn take_all(&mut self, conversation: Conversation<'_>, bytes: &[u8], batch: &mut StepBatch) {
        let first = conversation.messages.first().map_or("", |first| first.get());
        self.open(conversation.id, first.as_bytes(), batch);
        if let Some(session) = &mut batch.session {
            session.title = conversation.title.as_deref().and_then(fit_title);
        }
        let system = conversation.system.into_parts(batch);
        let system = batch.text_only(&system);
        if !system.is_empty() {
            self.begun = true;
            self.add(
                system.clone().as_bytes(),
                ContextChanged { system: Some(system), ..ContextChanged::default() },
                batch,
            );
        }
        if let Some(model) = conversation.model {
            self.add(model.clone().as_bytes(), ModelChanged { model }, batch);
        }
        let mut lines = LineLocator::new(bytes);
        for raw in conversation.messages {
            if batch.is_given_up() {
                return;
            }
            let number = lines.line_of(raw.get());
            read_json_line(raw.get().as_bytes(), number, batch, |raw, batch| {
                self.take(serde_json::from_slice(raw)?, raw, batch);
                Ok(())
            });
        }
    }

    fn take(&mut self, message: ApiMessage<'_>, raw: &[u8], batch: &mut StepBatch) {
        let bodies: Vec<Body> = match message.role.as_ref() {
            "user" => user_bodies(message.content.into_blocks(), batch),
            "assistant" => vec![assistant(message, batch).into()],
            "tool" | "function" => {
                let (call_id, parts) =
                    (message.tool_call_id.unwrap_or_default(), message.content.into_parts(batch));
                vec![tool_result(call_id, message.name, parts, message.is_error.unwrap_or(false)).into()]
            }
            "system" | "developer" => {
                let parts = message.content.into_parts(batch);
                let text = batch.text_only(&parts);
                vec![match self.begun {
                    // A system message before the first message is the system prompt, even if a model was set.
                    false => ContextChanged { system: Some(text), ..ContextChanged::default() }.into(),
                    true => SystemNote { text, reason: None }.into(),
                }]
            }
            role => {
                let role: String = role.chars().take(40).collect();
                return batch.report(ProblemKind::BadLine { why: format!("unknown role {role:?}") });
            }
        };
        self.begun = true;
        for (number, body) in bodies.into_iter().enumerate() {
            let content = [raw, &number.to_le_bytes()].concat();
            self.add(&content, body, batch);
        }
    }

    fn add(&mut self, content: &[u8], body: impl Into<Body>, batch: &mut StepBatch) {
        let body = body.into();
        let under = self.last.map_or(StepParent::Root, StepParent::RecordKey);
        let key = RecordKey::after(self.last.unwrap_or_else(|| RecordKey::of("messages")), content);
        let by = if matches!(body, Body::UserMessage(_)) { Author::Caller } else { Author::Agent };
        batch.add(key, under, by, body);
        self.last = Some(key);
    }
}

/// Convert a user message to bodies. In Anthropic's format, it may include tool results. Each result becomes an entry.
pub(super) fn user_bodies(blocks: Vec<Block<'_>>, batch: &mut StepBatch) -> Vec<Body> {
    let mut bodies: Vec<Body> = Vec::new();
    let mut user_parts: Vec<Part> = Vec::new();
    for block in blocks {
        if block.is_result() {
            let (call_id, is_error) =
                (block.tool_use_id.unwrap_or_default(), block.is_error.unwrap_or(false));
            let parts = block.content.into_parts(batch);
            bodies.push(tool_result(call_id, None, parts, is_error).into());
        } else {
            user_parts.extend(block.into_part(batch));
        }
    }
    if !user_parts.is_empty() {
        bodies.push(UserMessage { parts: user_parts, origin: None }.into());
    }
    bodies
}

fn assistant(message: ApiMessage<'_>, batch: &mut StepBatch) -> AssistantMessage {
    let reasoning = message.reasoning_content.filter(|text| !text.is_empty());
    let mut parts: Vec<Part> =
        reasoning.map(|text| Part::Reasoning(Reasoning { text, redacted: false })).into_iter().collect();
    parts.extend(message.content.into_parts(batch));
    parts.extend(message.refusal.map(Part::text));
    for call in message.tool_calls.unwrap_or_default() {
        let Some(function) = call.function.or(call.custom) else { continue };
        let raw = function.arguments.or(function.input);
        let input = match raw.filter(|raw| raw.get().starts_with('"')) {
            Some(text) => arguments_json(&serde_json::from_str::<String>(text.get()).unwrap_or_default()),
            None => input_json(raw),
        };
        parts.push(Part::tool_call(call.id, function.name, input));
    }
    let called = parts.iter().any(|part| part.as_tool_call().is_some());
    let stop = match message.stop_reason.as_deref() {
        Some("length" | "max_tokens") => Stop::Length,
        Some("content_filter" | "refusal") => Stop::ContentFilter,
        Some("error") => Stop::Error,
        Some("aborted") => Stop::Aborted,
        _ if called => Stop::ToolUse,
        _ => Stop::Stop,
    };
    let usage = message.usage.and_then(usage_of);
    AssistantMessage { parts, model: message.model, usage, cost_nano_usd: None, stop }
}

fn usage_of(counts: ApiUsage) -> Option<Usage> {
    let cached = counts.prompt_tokens_details.map_or(0, |details| details.cached_tokens);
    plausible_usage(Usage {
        input: counts.input_tokens.saturating_sub(cached),
        output: counts.output_tokens,
        cache_read: counts.cache_read_input_tokens.unwrap_or(cached),
        cache_write: counts.cache_creation_input_tokens.unwrap_or(0),
        reasoning: 0,
    })
}

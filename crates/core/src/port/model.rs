//! The model port. Durable messages are projected to a [`Request`] for each call. The reply streams back as
//! [`ReplyEvent`]s, and [`Reply`] is their fold. Data that a request may contain but a log must not (media bytes,
//! vendors' reasoning signatures) has separate types here, so that it cannot get into an entry.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::content::{Json, Part, Reasoning, Text, ToolCall};
use crate::entry::{Stop, Usage};
use crate::nesting::{NESTING_MAX, nesting};
use crate::project::context::Role;

use super::tool::ToolSpec;

/// Maximum number of tool calls in one reply.
pub const CALLS_MAX: usize = 128;
/// Maximum size of a reply: text, reasoning and tool input together.
pub const REPLY_BYTES_MAX: usize = 8 << 20;

/// A request to a model.
#[derive(Debug, Clone)]
pub struct Request {
    /// The model's name, such as `PROVIDER/NAME`.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The conversation, oldest message first.
    pub messages: Vec<RequestMessage>,
    /// The tools that the model may call.
    pub tools: Vec<ToolSpec>,
    /// The reasoning effort.
    pub thinking: Thinking,
    /// The sampling temperature.
    pub temperature: Option<f32>,
    /// Maximum number of tokens of the answer.
    pub output_tokens_max: Option<u32>,
}

impl Request {
    /// The role of the last message; `None` if there are no messages.
    pub fn last_role(&self) -> Option<Role> {
        self.messages.last().map(|message| message.role)
    }

    /// The text of the last message, including the text of tool results. Empty if there are no messages.
    pub fn last_text(&self) -> String {
        let parts = self.messages.last().map(|message| message.parts.as_slice()).unwrap_or_default();
        parts.iter().map(RequestPart::text).collect()
    }
}

/// One message of a request.
#[derive(Debug, Clone)]
pub struct RequestMessage {
    /// A [`Role::Tool`] message has exactly one [`RequestPart::ToolResult`]. A [`Role::System`] message is a note from
    /// the engine in the middle of the conversation.
    pub role: Role,
    /// The content.
    pub parts: Vec<RequestPart>,
}

/// One part of a message.
#[derive(Debug, Clone)]
pub enum RequestPart {
    /// Text.
    Text(String),
    /// Sent only with a vendor signature from the same turn; otherwise adapters drop the reasoning.
    Reasoning { text: String, signature: Option<Signature> },
    /// A tool call by the model.
    ToolCall(ToolCall),
    /// The result of a tool call.
    ToolResult { call_id: String, tool: String, parts: Vec<RequestPart>, is_error: bool },
    /// An image, a recording or a file.
    Media { mime: String, name: Option<String>, bytes: Arc<[u8]> },
}

impl RequestPart {
    /// The text of this part. A tool's result has the text of its parts; other parts have none.
    fn text(&self) -> String {
        match self {
            RequestPart::Text(text) => text.clone(),
            RequestPart::ToolResult { parts, .. } => parts.iter().map(RequestPart::text).collect(),
            RequestPart::Reasoning { .. } | RequestPart::ToolCall(_) | RequestPart::Media { .. } => {
                String::new()
            }
        }
    }
}

/// Opaque data that must be sent back to the vendor unchanged within a turn. It is never stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature(pub Arc<str>);

/// The model's reasoning effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// No reasoning.
    #[default]
    Off,
    /// Little reasoning.
    Low,
    /// Moderate reasoning.
    Medium,
    /// Extensive reasoning.
    High,
}

impl Thinking {
    /// The name in agent files and in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Thinking::Off => "off",
            Thinking::Low => "low",
            Thinking::Medium => "medium",
            Thinking::High => "high",
        }
    }
    /// The level with this name, or with the synonym `minimal` or `max`; `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Thinking::Off),
            "low" | "minimal" => Some(Thinking::Low),
            "medium" => Some(Thinking::Medium),
            "high" | "max" => Some(Thinking::High),
            _ => None,
        }
    }
}

/// One event of a streamed reply.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyEvent {
    /// The next fragment of the answer's text.
    Text(String),
    /// The next fragment of the reasoning.
    Reasoning(String),
    /// Ends the current reasoning block. Reasoning that follows belongs to another block.
    ReasoningEnd { signature: Option<Signature>, redacted: bool },
    /// A tool call begins. The adapter assigns `index`, which is unique within the reply.
    CallBegan { index: u32, call_id: String, name: String },
    /// The next fragment of the call's input, as text, because providers split JSON anywhere.
    CallInput { index: u32, text: String },
    /// Total usage of the call so far. Replaces earlier values.
    Usage(Usage),
    /// The reply is complete. A stream that ends without `Stop` was cut off.
    Stop(Stop),
}

/// The events of one reply. An error ends the stream.
pub type ReplyStream = Pin<Box<dyn Stream<Item = Result<ReplyEvent, ModelError>> + Send>>;

/// Prices in billionths of a US dollar per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Price of an input token that is neither read from nor written to the cache.
    pub input: u64,
    /// Price of an output token, including reasoning.
    pub output: u64,
    /// Price of an input token that is read from the provider's cache.
    #[serde(default)]
    pub cache_read: u64,
    /// Price of an input token that is written to the provider's cache.
    #[serde(default)]
    pub cache_write: u64,
}

impl Price {
    /// Compute the cost. `input` of a [`Usage`] excludes cache reads and writes.
    pub fn cost_nano_usd(&self, usage: &Usage) -> u64 {
        let rows = [
            (self.input, usage.input),
            (self.output, usage.output),
            (self.cache_read, usage.cache_read),
            (self.cache_write, usage.cache_write),
        ];
        rows.iter().fold(0, |sum: u64, (price, tokens)| sum.saturating_add(price.saturating_mul(*tokens)))
    }
}

/// Known properties of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelFacts {
    /// The context window: tokens of one request and its answer. `None` if unknown.
    pub window_tokens: Option<u64>,
    /// Maximum number of tokens of one answer. `None` if unknown.
    pub output_tokens_max: Option<u64>,
    /// The price; `None` if unknown. Calls without a price count as unpriced, never as free.
    pub price: Option<Price>,
}

/// A model, or a group of models that are selected by [`Request::model`].
#[async_trait]
pub trait Model: Send + Sync {
    /// Begin a call. An error returned here occurred before any output; later errors are in the stream. Dropping the
    /// stream cancels the call.
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError>;
    /// The known properties of the model with this name.
    fn facts(&self, _model: &str) -> ModelFacts {
        ModelFacts::default()
    }
    /// The name to call the model by: `PROVIDER/NAME`. Accepts dated names and the spellings of other programs, as
    /// imported sessions contain them. Fails with [`ModelError::Unknown`] if no provider here has the model.
    fn resolve(&self, model: &str) -> Result<String, ModelError> {
        Ok(model.to_owned())
    }
    /// Check without a network connection that the model can be called: its provider is configured and has a key.
    fn check(&self, _model: &str) -> Result<(), ModelError> {
        Ok(())
    }
    /// The models that are currently available, for selection by a person.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether calling this model reads a file on this machine. The name of a file-backed model is accepted only from
    /// the operator or the local command line.
    fn is_file_backed(&self, _model: &str) -> bool {
        false
    }
}

/// A failed model call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The provider's rate limit was reached. Transient.
    #[error("{model}: the provider's rate limit was reached")]
    RateLimited { model: String, retry_after_ms: Option<u64> },
    /// The provider is overloaded. Transient.
    #[error("{model}: the provider is overloaded ({status})")]
    Overloaded { model: String, status: u16, retry_after_ms: Option<u64> },
    /// The provider cannot be reached. Transient.
    #[error("{model}: the provider cannot be reached: {why}")]
    Unreachable { model: String, why: String },
    /// The provider sent no data for too long. Transient.
    #[error("{model}: no data received for {waited_ms} ms")]
    Silent { model: String, waited_ms: u64 },
    /// The stream ended before the reply was complete. Transient.
    #[error("{model}: the stream ended early: {why}")]
    Cut { model: String, why: String },
    /// The reply cannot be decoded. Not retried.
    #[error("{model}: failed to decode the stream: {what}")]
    Malformed { model: String, what: String },
    /// The request is larger than the model's window. The engine compacts the context and retries.
    #[error("{model}: the request is larger than the model's window: {why}")]
    Overflow { model: String, why: String },
    /// The provider refused the API key.
    #[error("{model}: the provider refused the key ({status}): {why}")]
    KeyRefused { model: String, status: u16, why: String },
    /// No API key is set for the provider. `variable` is the environment variable that should contain it.
    #[error("{model} needs a key: {variable} is not set")]
    NoKey { model: String, variable: String },
    /// There is no such model.
    #[error("there is no model {model}: {why}")]
    Unknown { model: String, why: String },
    /// The provider refused the request.
    #[error("{model}: the provider refused the request ({status}): {why}")]
    Refused { model: String, status: u16, why: String },
    /// The scripted model has no reply for this call.
    #[error("{model}: call {call} is not in the script")]
    Unscripted { model: String, call: u32 },
    /// The caller's allowance does not include the model. Nothing was sent.
    #[error("{model} is not among the models that {holder} may use")]
    Denied { model: String, holder: String },
    /// The call could exceed the caller's allowance. Nothing was sent.
    #[error("{model} was not called: {holder} may use {limit}, and the call could exceed this")]
    OverAllowance { model: String, holder: String, limit: String },
    /// The reply exceeds one of Sapwood's limits.
    #[error("{model}: the reply is over the limit of {limit} {unit}")]
    TooLarge { model: String, limit: usize, unit: &'static str },
}

impl ModelError {
    /// The stable error code, for programs. Each code has a page in docs/errors.
    pub fn code(&self) -> &'static str {
        match self {
            ModelError::RateLimited { .. } => "model.rate_limited",
            ModelError::Overloaded { .. } => "model.overloaded",
            ModelError::Unreachable { .. } => "model.unreachable",
            ModelError::Silent { .. } => "model.silent",
            ModelError::Cut { .. } => "model.cut",
            ModelError::Malformed { .. } => "model.malformed",
            ModelError::Overflow { .. } => "context_overflow",
            ModelError::KeyRefused { .. } => "model.key_refused",
            ModelError::NoKey { .. } => "model.no_key",
            ModelError::Unknown { .. } => "model.unknown",
            ModelError::Refused { .. } => "model.refused",
            ModelError::Unscripted { .. } => "model.unscripted",
            ModelError::Denied { .. } => "model.denied",
            ModelError::OverAllowance { .. } => "allowance.exceeded",
            ModelError::TooLarge { .. } => "model.too_large",
        }
    }

    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            ModelError::RateLimited { .. }
                | ModelError::Overloaded { .. }
                | ModelError::Unreachable { .. }
                | ModelError::Silent { .. }
                | ModelError::Cut { .. }
        )
    }

    /// The delay that the provider requested.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            ModelError::RateLimited { retry_after_ms, .. }
            | ModelError::Overloaded { retry_after_ms, .. } => *retry_after_ms,
            _ => None,
        }
    }
}

/// The fold of a reply's [`ReplyEvent`]s: complete after [`ReplyEvent::Stop`], partial before.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reply {
    blocks: Vec<Block>,
    bytes: usize,
    pub usage: Option<Usage>,
    pub stop: Option<Stop>,
}

#[derive(Debug, Clone, PartialEq)]
enum Block {
    Text(String),
    Reasoning { text: String, closed: bool, redacted: bool, signature: Option<Signature> },
    Call { index: u32, call_id: String, name: String, input: String },
}

impl Reply {
    pub fn apply(&mut self, event: ReplyEvent) -> Result<(), ReplyError> {
        self.bytes += event_bytes(&event);
        if self.bytes > REPLY_BYTES_MAX {
            return Err(ReplyError::TooLarge { limit: REPLY_BYTES_MAX, unit: "bytes" });
        }
        match event {
            ReplyEvent::Text(text) => self.add_text(&text),
            ReplyEvent::Reasoning(text) => self.add_reasoning(&text),
            ReplyEvent::ReasoningEnd { signature, redacted } => self.close_reasoning(signature, redacted),
            ReplyEvent::CallBegan { index, call_id, name } => return self.begin_call(index, call_id, name),
            ReplyEvent::CallInput { index, text } => return self.add_input(index, &text),
            ReplyEvent::Usage(usage) => self.usage = Some(usage),
            ReplyEvent::Stop(stop) => self.stop = Some(stop),
        }
        Ok(())
    }

    fn add_text(&mut self, more: &str) {
        match self.blocks.last_mut() {
            Some(Block::Text(text)) => text.push_str(more),
            _ if more.is_empty() => {}
            _ => self.blocks.push(Block::Text(more.to_owned())),
        }
    }

    fn add_reasoning(&mut self, more: &str) {
        match self.blocks.last_mut() {
            Some(Block::Reasoning { text, closed: false, .. }) => text.push_str(more),
            _ if more.is_empty() => {}
            _ => self.open_reasoning(more.to_owned()),
        }
    }

    fn open_reasoning(&mut self, text: String) {
        self.blocks.push(Block::Reasoning { text, closed: false, redacted: false, signature: None });
    }

    fn close_reasoning(&mut self, given: Option<Signature>, is_redacted: bool) {
        if !matches!(self.blocks.last(), Some(Block::Reasoning { closed: false, .. })) {
            self.open_reasoning(String::new());
        }
        if let Some(Block::Reasoning { closed, redacted, signature, .. }) = self.blocks.last_mut() {
            *closed = true;
            *redacted = is_redacted;
            *signature = given;
        }
    }

    fn begin_call(&mut self, index: u32, call_id: String, name: String) -> Result<(), ReplyError> {
        let calls = self.blocks.iter().filter(|block| matches!(block, Block::Call { .. })).count();
        if calls >= CALLS_MAX {
            return Err(ReplyError::TooLarge { limit: CALLS_MAX, unit: "tool calls" });
        }
        self.blocks.push(Block::Call { index, call_id, name, input: String::new() });
        Ok(())
    }

    fn add_input(&mut self, at: u32, more: &str) -> Result<(), ReplyError> {
        let call = self.blocks.iter_mut().rev().find_map(|block| match block {
            Block::Call { index, input, .. } if *index == at => Some(input),
            _ => None,
        });
        call.ok_or(ReplyError::NoCall { index: at })?.push_str(more);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// All parts that may be logged.
    pub fn parts(&self) -> Vec<Part> {
        self.blocks.iter().filter_map(durable).collect()
    }

    /// The parts of an interrupted reply. Calls are dropped because their input may be incomplete.
    pub fn parts_without_calls(&self) -> Vec<Part> {
        self.blocks.iter().filter(|block| !matches!(block, Block::Call { .. })).filter_map(durable).collect()
    }

    /// The signatures of the reasoning parts, by index into [`Reply::parts`].
    pub fn signatures(&self) -> BTreeMap<usize, Signature> {
        let kept = self.blocks.iter().filter(|block| durable(block).is_some());
        let signed = kept.enumerate().filter_map(|(at, block)| match block {
            Block::Reasoning { signature, .. } => signature.clone().map(|signature| (at, signature)),
            Block::Text(_) | Block::Call { .. } => None,
        });
        signed.collect()
    }
}

fn durable(block: &Block) -> Option<Part> {
    match block {
        Block::Text(text) => Some(Part::Text(Text { text: text.clone() })),
        Block::Reasoning { text, redacted, .. } => {
            Some(Part::Reasoning(Reasoning { text: text.clone(), redacted: *redacted }))
        }
        Block::Call { call_id, name, input, .. } => {
            Some(Part::tool_call(call_id.clone(), name.clone(), whole_input(input)))
        }
    }
}

/// Keep invalid and deeply nested JSON as a string. The schema check then refuses the input and reports the reason to the model.
fn whole_input(text: &str) -> Json {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let parsed = Json::parse(text).ok().filter(|_| nesting(text.as_bytes()) <= NESTING_MAX);
    parsed.unwrap_or_else(|| Json::from_value(&serde_json::Value::String(text.to_owned())))
}

fn event_bytes(event: &ReplyEvent) -> usize {
    match event {
        ReplyEvent::Text(text) | ReplyEvent::Reasoning(text) | ReplyEvent::CallInput { text, .. } => {
            text.len()
        }
        ReplyEvent::CallBegan { call_id, name, .. } => call_id.len() + name.len(),
        ReplyEvent::ReasoningEnd { .. } | ReplyEvent::Usage(_) | ReplyEvent::Stop(_) => 0,
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    #[error("input for call {index}, which has not begun")]
    NoCall { index: u32 },
    #[error("the reply is over the limit of {limit} {unit}")]
    TooLarge { limit: usize, unit: &'static str },
}

impl ReplyError {
    pub fn of_model(self, model: &str) -> ModelError {
        let model = model.to_owned();
        match self {
            ReplyError::NoCall { .. } => ModelError::Malformed { model, what: self.to_string() },
            ReplyError::TooLarge { limit, unit } => ModelError::TooLarge { model, limit, unit },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(events: Vec<ReplyEvent>) -> Reply {
        let mut reply = Reply::default();
        for event in events {
            reply.apply(event).unwrap();
        }
        reply
    }

    fn call(index: u32, input: &[&str]) -> Vec<ReplyEvent> {
        let began = ReplyEvent::CallBegan { index, call_id: format!("c{index}"), name: "ls".into() };
        let rest = input.iter().map(|text| ReplyEvent::CallInput { index, text: (*text).to_owned() });
        std::iter::once(began).chain(rest).collect()
    }

    #[test]
    fn events_of_parallel_calls_are_assigned_to_their_call() {
        let mut events = call(0, &["{\"a\""]);
        events.extend(call(1, &["{\"b\":2}"]));
        events.push(ReplyEvent::CallInput { index: 0, text: ":1}".into() });
        let parts = reply(events).parts();
        let inputs: Vec<&str> = parts.iter().map(|part| part.as_tool_call().unwrap().input.get()).collect();
        assert_eq!(inputs, ["{\"a\":1}", "{\"b\":2}"]);
    }

    #[test]
    fn deeply_nested_input_is_kept_as_a_string() {
        for (depth, is_kept) in [(NESTING_MAX, true), (NESTING_MAX + 1, false), (200_000, false)] {
            let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            let parts = reply(call(0, &[&deep])).parts();
            let input = parts[0].as_tool_call().unwrap().input.to_value();
            assert_eq!((input.is_array(), input.is_string()), (is_kept, !is_kept), "depth {depth}");
        }
    }

    #[test]
    fn input_that_is_not_json_is_kept_as_a_string() {
        let parts = reply(call(0, &["{\"a\": "])).parts();
        assert_eq!(parts[0].as_tool_call().unwrap().input.get(), "\"{\\\"a\\\": \"");
    }

    #[test]
    fn missing_input_is_an_empty_object() {
        assert_eq!(reply(call(0, &[])).parts()[0].as_tool_call().unwrap().input.get(), "{}");
    }

    #[test]
    fn signatures_are_not_durable() {
        let whole = reply(vec![
            ReplyEvent::Reasoning("hm".into()),
            ReplyEvent::ReasoningEnd { signature: Some(Signature("sig".into())), redacted: false },
            ReplyEvent::Text("yes".into()),
        ]);
        assert_eq!(whole.parts().len(), 2);
        assert_eq!(whole.signatures().get(&0), Some(&Signature("sig".into())));
        assert!(!serde_json::to_string(&whole.parts()).unwrap().contains("sig"));
    }

    #[test]
    fn input_for_a_call_that_never_began_is_refused() {
        let error = Reply::default().apply(ReplyEvent::CallInput { index: 3, text: "x".into() }).unwrap_err();
        assert_eq!(error, ReplyError::NoCall { index: 3 });
    }
}

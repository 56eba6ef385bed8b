//! Import of Gemini CLI recordings. A recording has a line with session data, then one message per line. Older
//! recordings are one document.
//!
//! - A message replaces the earlier message with the same id: Gemini CLI rewrites a message whenever its tools return
//!   results.
//! - `$set` patches the session data. If the patch has a `messages` key, it replaces all messages. Gemini CLI writes
//!   such a patch when it compresses the conversation.
//! - `$rewindTo` removes a message and all later messages, or all messages if the id is unknown. Removed messages stay
//!   in the log as a branch.
//! - The message that calls a tool also contains the tool's result.
//!
//! Memory: about 50 bytes per message, plus a buffer of up to [`PENDING_BYTES_MAX`] for the latest messages of the
//! current path, because each may still be replaced.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use sapwood_core::content::{Part, Reasoning, joined_text};
use sapwood_core::entry::{AssistantMessage, SessionNamed, Stop, ToolResult, Usage, UserMessage};
use sapwood_core::{BlobHash, Body, TimestampMs};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::blocks::tool_result;
use super::document::{Records, has_lines, read_document, read_lines};
use super::steps::{
    Author, PathKind, RecordKey, StepAction, StepBatch, StepParent, model_name, plausible_usage,
};
use super::text::{Time, decode_base64, input_json};
use super::{Format, Reader, keep_record, read_json_line};

/// Maximum size of buffered messages. Beyond it, the older half is flushed, and a later replacement of a
/// flushed message becomes a branch.
const PENDING_BYTES_MAX: usize = 8 << 20;
/// The key of the messages in an old recording, which is one document.
const RECORDS: Records = Records { keys: &["messages"], container_keys: &[] };
/// Size of a buffered message in addition to its text.
const PENDING_OVERHEAD_BYTES: usize = 256;

#[derive(Deserialize, Default)]
#[serde(default)]
struct GeminiRecord<'a> {
    id: Option<String>,
    #[serde(rename = "$rewindTo")]
    rewind_to: Option<String>,
    #[serde(rename = "$set", borrow)]
    set: Option<SessionData<'a>>,
}

/// The session data.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SessionData<'a> {
    session_id: Option<String>,
    start_time: Option<Time>,
    summary: Option<String>,
    directories: Option<Vec<String>>,
    #[serde(borrow)]
    messages: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct GeminiMessage<'a> {
    id: String,
    timestamp: Option<Time>,
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<GeminiCall<'a>>>,
    thoughts: Option<Vec<Thought>>,
    tokens: Option<GeminiTokens>,
    model: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct GeminiCall<'a> {
    id: String,
    name: String,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Thought {
    subject: Option<String>,
    description: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct GeminiTokens {
    input: u64,
    output: u64,
    cached: u64,
    thoughts: u64,
}

/// A part in Google's format.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct GeminiPart<'a> {
    text: Option<String>,
    thought: Option<bool>,
    #[serde(borrow)]
    function_call: Option<FunctionCall<'a>>,
    #[serde(borrow)]
    function_response: Option<FunctionResponse<'a>>,
    #[serde(borrow)]
    inline_data: Option<InlineData<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FunctionCall<'a> {
    id: Option<String>,
    name: String,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FunctionResponse<'a> {
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct InlineData<'a> {
    #[serde(borrow)]
    data: Cow<'a, str>,
    mime_type: String,
}

/// A buffered message of the current path.
struct PendingMessage {
    id: String,
    at: Option<TimestampMs>,
    line: u64,
    bodies: Vec<Body>,
    bytes: usize,
}

#[derive(Default)]
pub struct Importer {
    name: String,
    pending: VecDeque<PendingMessage>,
    pending_bytes: usize,
    /// The number of the first buffered message.
    first: usize,
    /// Numbers of buffered messages by id.
    positions: HashMap<String, usize>,
    /// The last entry of each buffered message that was already emitted. These are the first buffered messages.
    ends: VecDeque<StepParent>,
    /// The parent of the first buffered message.
    under: StepParent,
    /// The parents of messages that are no longer buffered.
    flushed_parents: HashMap<RecordKey, StepParent>,
    /// The leaf according to the emitted steps.
    emitted_leaf: StepParent,
    rewinds: u64,
    loose: u64,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, batch: &mut StepBatch) {
        read_json_line(line, number, batch, |line, batch| self.take_line(line, batch));
    }

    fn push_document(&mut self, bytes: &[u8], batch: &mut StepBatch) {
        if has_lines(bytes) {
            return read_lines(bytes, self, batch);
        }
        read_document(bytes, RECORDS, batch, |bytes, batch| self.take_line(bytes, batch));
    }

    fn finish(&mut self, batch: &mut StepBatch) {
        self.emit_pending(batch);
        let is_conversation = self.first + self.pending.len() > 0;
        if batch.session.is_none() && is_conversation {
            batch.open(Format::GeminiCli, &self.name, batch.at);
        } else if batch.session.is_none() {
            batch.steps.clear();
        }
    }
}

impl Importer {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    fn take_line(&mut self, line: &[u8], batch: &mut StepBatch) -> Result<(), serde_json::Error> {
        let record: GeminiRecord<'_> = serde_json::from_slice(line)?;
        if let Some(id) = record.rewind_to {
            self.rewind(&id, batch);
        } else if let Some(data) = record.set {
            self.take_data(data, line, batch);
        } else if record.id.is_some() {
            let message: GeminiMessage<'_> = serde_json::from_slice(line)?;
            self.take_message(message, line, batch);
        } else {
            let data: SessionData<'_> = serde_json::from_slice(line)?;
            self.take_data(data, line, batch);
        }
        Ok(())
    }

    fn take_data(&mut self, data: SessionData<'_>, line: &[u8], batch: &mut StepBatch) {
        if let Some(id) = data.session_id.filter(|_| batch.session.is_none()) {
            let session = batch.open(Format::GeminiCli, &id, data.start_time.and_then(|time| time.0));
            session.cwd = data.directories.as_ref().and_then(|directories| directories.first().cloned());
        } else if data.messages.is_none() && data.summary.is_none() {
            self.keep(line, "data", batch);
        }
        if let Some(summary) = data.summary.filter(|summary| !summary.trim().is_empty()) {
            self.loose += 1;
            let title = summary.trim().lines().next().unwrap_or_default().to_owned();
            batch.note(RecordKey::of(&format!("summary {} {title}", self.loose)), SessionNamed { title });
        }
        let Some(messages) = data.messages else { return };
        // The patch replaces all messages. The old messages stay as a branch, except those that the new list
        // repeats.
        self.rewind_all_to(StepParent::Root, batch);
        let number = batch.line;
        for raw in messages {
            if batch.is_given_up() {
                return;
            }
            read_json_line(raw.get().as_bytes(), number, batch, |raw, batch| {
                self.take_message(serde_json::from_slice(raw)?, raw, batch);
                Ok(())
            });
        }
    }

    fn keep(&mut self, line: &[u8], kind: &str, batch: &mut StepBatch) {
        self.loose += 1;
        let key = RecordKey::of(&format!("loose {} {}", self.loose, BlobHash::of(line)));
        keep_record(Format::GeminiCli, if kind.is_empty() { "record" } else { kind }, key, line, batch);
    }

    /// Remove this message and all later messages, or all messages if the id is unknown.
    fn rewind(&mut self, id: &str, batch: &mut StepBatch) {
        match (self.positions.get(id), self.flushed_parents.get(&message_key(id)).copied()) {
            (Some(number), _) => self.drop_from(*number - self.first, batch),
            (None, parent) => self.rewind_all_to(parent.unwrap_or(StepParent::Root), batch),
        }
    }

    /// Drop all buffered messages and continue after `to`.
    fn rewind_all_to(&mut self, to: StepParent, batch: &mut StepBatch) {
        self.drop_from(0, batch);
        self.under = to;
    }

    fn drop_from(&mut self, kept: usize, batch: &mut StepBatch) {
        // Emit the messages first, so that the dropped ones stay in the log as a branch.
        self.emit_pending(batch);
        self.rewinds += 1;
        for removed in self.pending.drain(kept..) {
            self.pending_bytes -= removed.bytes;
            self.positions.remove(&removed.id);
        }
        self.ends.truncate(kept);
    }

    fn take_message(&mut self, message: GeminiMessage<'_>, line: &[u8], batch: &mut StepBatch) {
        batch.at = message.timestamp.and_then(|time| time.0).or(batch.at);
        let (id, is_user) = (message.id.clone(), message.kind == "user");
        let bodies = match message.kind.as_ref() {
            "user" => user(&message, batch),
            "gemini" | "model" => gemini(message, batch),
            kind => return self.keep(line, kind, batch),
        };
        if is_user && bodies.is_empty() {
            self.keep(line, "user", batch);
        }
        let bytes = line.len() + PENDING_OVERHEAD_BYTES;
        self.buffer(PendingMessage { id, at: batch.at, line: batch.line, bodies, bytes }, batch);
        if self.pending_bytes > PENDING_BYTES_MAX {
            self.flush_older_half(batch);
        }
    }

    /// Buffer a message, replacing an earlier version of it.
    fn buffer(&mut self, pending: PendingMessage, batch: &mut StepBatch) {
        if let Some(number) = self.positions.get(&pending.id) {
            let index = *number - self.first;
            self.pending_bytes += pending.bytes;
            let before = std::mem::replace(&mut self.pending[index], pending);
            self.pending_bytes -= before.bytes;
            if index >= self.ends.len() {
                for body in &before.bodies {
                    batch.drop_media(body.parts());
                }
            }
            self.ends.truncate(index);
        } else if let Some(under) = self.flushed_parents.get(&message_key(&pending.id)) {
            // Messages after the emitted version stay attached to it.
            emit_message(&pending, *under, PathKind::Side, batch);
        } else {
            self.pending_bytes += pending.bytes;
            self.positions.insert(pending.id.clone(), self.first + self.pending.len());
            self.pending.push_back(pending);
        }
    }

    fn flush_older_half(&mut self, batch: &mut StepBatch) {
        self.emit_pending(batch);
        while self.pending_bytes > PENDING_BYTES_MAX / 2 && self.pending.len() > 1 {
            let (Some(removed), Some(end)) = (self.pending.pop_front(), self.ends.pop_front()) else {
                return;
            };
            self.pending_bytes -= removed.bytes;
            self.positions.remove(&removed.id);
            self.flushed_parents.insert(message_key(&removed.id), self.under);
            (self.under, self.first) = (end, self.first + 1);
        }
    }

    /// Emit all buffered messages that were not emitted yet.
    fn emit_pending(&mut self, batch: &mut StepBatch) {
        let (at, line) = (batch.at, batch.line);
        let mut under = self.ends.back().copied().unwrap_or(self.under);
        for pending in self.pending.iter().skip(self.ends.len()) {
            under = emit_message(pending, under, PathKind::Main, batch);
            self.ends.push_back(under);
            self.emitted_leaf = under;
        }
        (batch.at, batch.line) = (at, line);
        if self.emitted_leaf != under {
            self.emitted_leaf = under;
            let seed = format!("rewind {} {}", self.rewinds, under.key_text());
            batch.step(RecordKey::of(&seed), StepAction::Rewind(under));
        }
    }
}

fn message_key(id: &str) -> RecordKey {
    RecordKey::of(&format!("{id}/0"))
}

/// Add the entries of a message as a chain, and return the last entry.
fn emit_message(
    pending: &PendingMessage,
    mut under: StepParent,
    path: PathKind,
    batch: &mut StepBatch,
) -> StepParent {
    (batch.at, batch.line) = (pending.at, pending.line);
    for (number, body) in pending.bodies.iter().enumerate() {
        let key = RecordKey::of(&format!("{}/{number}", pending.id));
        let by = if matches!(body, Body::UserMessage(_)) { Author::Caller } else { Author::Agent };
        batch.step(key, StepAction::Version { body: body.clone(), under, by, path, refs: None });
        under = StepParent::RecordKey(key);
    }
    under
}

/// Parse content in Google's format: one part, several parts, or plain text.
fn gemini_parts<'a>(raw: Option<&'a RawValue>) -> Vec<GeminiPart<'a>> {
    let text = |raw: &str| serde_json::from_str::<String>(raw).ok();
    let part = |raw: &'a str| match text(raw) {
        Some(text) => GeminiPart { text: Some(text), ..GeminiPart::default() },
        None => serde_json::from_str::<GeminiPart<'a>>(raw).unwrap_or_default(),
    };
    let Some(raw) = raw else { return Vec::new() };
    match serde_json::from_str::<Vec<&'a RawValue>>(raw.get()) {
        Ok(many) => many.into_iter().map(|raw| part(raw.get())).collect(),
        Err(_) => vec![part(raw.get())],
    }
}

fn part_of(part: GeminiPart<'_>, batch: &mut StepBatch) -> Option<Part> {
    if let Some(call) = part.function_call {
        let id = call.id.unwrap_or_else(|| call.name.clone());
        return Some(Part::tool_call(id, call.name, input_json(call.args)));
    }
    if let Some(data) = part.inline_data {
        return decode_base64(&data.data).map(|bytes| batch.media(&data.mime_type, bytes, None));
    }
    let text = part.text.filter(|text| !text.is_empty())?;
    Some(match part.thought {
        Some(true) => Part::Reasoning(Reasoning { text, redacted: false }),
        _ => Part::text(text),
    })
}

/// Convert a user message. Returns no body for commands to Gemini CLI and for its own notes, because they are not sent
/// to the model.
fn user(message: &GeminiMessage<'_>, batch: &mut StepBatch) -> Vec<Body> {
    let parts: Vec<Part> =
        gemini_parts(message.content).into_iter().filter_map(|part| part_of(part, batch)).collect();
    let text = joined_text(&parts);
    let text = text.trim();
    let is_internal =
        ["/", "?", "<session_context>", "<hook_context>"].iter().any(|opening| text.starts_with(opening));
    if parts.is_empty() || is_internal {
        batch.drop_media(&parts);
        return Vec::new();
    }
    vec![UserMessage { parts, origin: None }.into()]
}

/// Convert a model message and the results of its tools.
fn gemini(message: GeminiMessage<'_>, batch: &mut StepBatch) -> Vec<Body> {
    let content_parts: Vec<Part> =
        gemini_parts(message.content).into_iter().filter_map(|part| part_of(part, batch)).collect();
    let calls = message.tool_calls.unwrap_or_default();
    let is_whole = content_parts.iter().any(|part| !matches!(part, Part::Text(_) | Part::Media(_)));
    let mut parts = Vec::new();
    if !is_whole {
        parts.extend(message.thoughts.unwrap_or_default().into_iter().filter_map(thought));
    }
    parts.extend(content_parts);
    if !is_whole {
        let call = |call: &GeminiCall<'_>| {
            Part::tool_call(call.id.clone(), call.name.clone(), input_json(call.args))
        };
        parts.extend(calls.iter().map(call));
    }
    if parts.is_empty() {
        return Vec::new();
    }
    let called = parts.iter().any(|part| part.as_tool_call().is_some());
    let usage = message.tokens.and_then(|tokens| {
        plausible_usage(Usage {
            input: tokens.input.saturating_sub(tokens.cached),
            output: tokens.output.saturating_add(tokens.thoughts),
            cache_read: tokens.cached,
            cache_write: 0,
            reasoning: tokens.thoughts,
        })
    });
    let stop = if called { Stop::ToolUse } else { Stop::Stop };
    let model = message.model.map(|model| model_name(Some("gemini"), &model));
    let answer = AssistantMessage { parts, model, usage, cost_nano_usd: None, stop };
    let mut bodies: Vec<Body> = vec![answer.into()];
    bodies.extend(calls.into_iter().filter_map(|call| result(call, batch)).map(Body::from));
    bodies
}

fn thought(thought: Thought) -> Option<Part> {
    let text = match (thought.subject, thought.description) {
        (Some(subject), Some(description)) => format!("**{subject}** {description}"),
        (one, other) => one.or(other)?,
    };
    Some(Part::Reasoning(Reasoning { text, redacted: false }))
}

fn result(call: GeminiCall<'_>, batch: &mut StepBatch) -> Option<ToolResult> {
    let raw = call.result?;
    let mut parts = Vec::new();
    for part in gemini_parts(Some(raw)) {
        match part.function_response.as_ref().and_then(|response| response.response) {
            Some(response) => parts.push(Part::text(response_text(response))),
            None => parts.extend(part_of(part, batch)),
        }
    }
    let is_error = matches!(call.status.as_ref(), "error" | "cancelled");
    let interrupted = call.status == "cancelled";
    Some(ToolResult { interrupted, ..tool_result(call.id, Some(call.name), parts, is_error) })
}

/// Return a tool's response as text. If the response is an object that only wraps a string, return the string.
fn response_text(raw: &RawValue) -> String {
    let read = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(raw.get());
    let only = read.ok().filter(|object| object.len() == 1).and_then(|object| {
        let (key, value) = object.into_iter().next()?;
        matches!(key.as_str(), "output" | "error" | "result").then_some(value)
    });
    match only {
        Some(serde_json::Value::String(text)) => text,
        _ => raw.get().to_owned(),
    }
}

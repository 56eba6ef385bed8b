//! Import of Gemini CLI recordings: a line with session data, then one message per line. Older recordings are
//! one document.
//!
//! - A message with a known id replaces the earlier one: Gemini CLI rewrites a message whenever its tools
//!   answer.
//! - `$set` patches the session data. A `messages` key in it replaces all messages, which happens in a
//!   compression.
//! - `$rewindTo` removes a message and all after it, or all messages if the id is unknown. Removed messages
//!   stay in the log as a branch.
//! - A tool's result is inside the message that called the tool.
//!
//! Memory: the latest messages of the current path, up to [`HELD_BYTES_MAX`], because each may still be
//! replaced, and about 50 bytes per earlier message.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use sapwood_core::content::{Part, Reasoning, joined_text};
use sapwood_core::entry::{AssistantMessage, SessionNamed, Stop, ToolResult, Usage, UserMessage};
use sapwood_core::{BlobHash, Body, TimestampMs};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::document::{Records, has_lines, read_document, read_lines};
use super::steps::{Act, By, Path, RecordKey, StepBatch, Under, believable, model_name};
use super::text::{Time, decode_base64, input_json};
use super::{Format, Reader, keep_record, read_json_line};

/// Maximum size of buffered messages. Beyond it, the older half is flushed, and a later replacement of a
/// flushed message becomes a branch.
const HELD_BYTES_MAX: usize = 8 << 20;
/// Where an old recording, which is one document, has its messages.
const RECORDS: Records = Records { of: &["messages"], inside: &[] };
/// Size of a buffered message in addition to its text.
const HELD_FRAME_BYTES: usize = 256;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Record<'a> {
    id: Option<String>,
    #[serde(rename = "$rewindTo")]
    rewind_to: Option<String>,
    #[serde(rename = "$set", borrow)]
    set: Option<Data<'a>>,
}

/// The session data.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Data<'a> {
    session_id: Option<String>,
    start_time: Option<Time>,
    summary: Option<String>,
    directories: Option<Vec<String>>,
    #[serde(borrow)]
    messages: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Message<'a> {
    id: String,
    timestamp: Option<Time>,
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Call<'a>>>,
    thoughts: Option<Vec<Thought>>,
    tokens: Option<Tokens>,
    model: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Call<'a> {
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
struct Tokens {
    input: u64,
    output: u64,
    cached: u64,
    thoughts: u64,
}

/// A part in Google's format.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Piece<'a> {
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

pub struct Importer {
    name: String,
    held: VecDeque<PendingMessage>,
    held_bytes: usize,
    /// The number of the first buffered message.
    first: usize,
    /// Numbers of buffered messages by id.
    places: HashMap<String, usize>,
    /// The last entry of each buffered message that was already emitted, starting with the first one.
    ends: VecDeque<Under>,
    /// The parent of the first buffered message.
    under: Under,
    /// The parents of messages that are no longer buffered.
    passed: HashMap<RecordKey, Under>,
    /// The leaf according to the emitted steps.
    told: Under,
    rewinds: u64,
    loose: u64,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, harvest: &mut StepBatch) {
        read_json_line(line, number, harvest, |line, harvest| self.take_line(line, harvest));
    }

    fn push_document(&mut self, bytes: &[u8], harvest: &mut StepBatch) {
        if has_lines(bytes) {
            return read_lines(bytes, self, harvest);
        }
        read_document(bytes, RECORDS, harvest, |bytes, harvest| self.take_line(bytes, harvest));
    }

    fn finish(&mut self, harvest: &mut StepBatch) {
        self.grow(harvest);
        let is_conversation = self.first + self.held.len() > 0;
        if harvest.session.is_none() && is_conversation {
            harvest.open(Format::GeminiCli, &self.name, harvest.at);
        } else if harvest.session.is_none() {
            harvest.steps.clear();
        }
    }
}

impl Importer {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            held: VecDeque::new(),
            held_bytes: 0,
            first: 0,
            places: HashMap::new(),
            ends: VecDeque::new(),
            under: Under::Root,
            passed: HashMap::new(),
            told: Under::Root,
            rewinds: 0,
            loose: 0,
        }
    }

    fn take_line(&mut self, line: &[u8], harvest: &mut StepBatch) -> Result<(), serde_json::Error> {
        let record: Record<'_> = serde_json::from_slice(line)?;
        if let Some(id) = record.rewind_to {
            self.rewind(&id, harvest);
        } else if let Some(data) = record.set {
            self.take_data(data, line, harvest);
        } else if record.id.is_some() {
            let message: Message<'_> = serde_json::from_slice(line)?;
            self.take_message(message, line, harvest);
        } else {
            let data: Data<'_> = serde_json::from_slice(line)?;
            self.take_data(data, line, harvest);
        }
        Ok(())
    }

    fn take_data(&mut self, data: Data<'_>, line: &[u8], harvest: &mut StepBatch) {
        if let Some(id) = data.session_id.filter(|_| harvest.session.is_none()) {
            let session = harvest.open(Format::GeminiCli, &id, data.start_time.and_then(|time| time.0));
            session.cwd = data.directories.as_ref().and_then(|directories| directories.first().cloned());
        } else if data.messages.is_none() && data.summary.is_none() {
            self.keep(line, "data", harvest);
        }
        if let Some(summary) = data.summary.filter(|summary| !summary.trim().is_empty()) {
            self.loose += 1;
            let title = summary.trim().lines().next().unwrap_or_default().to_owned();
            harvest.note(RecordKey::of(&format!("summary {} {title}", self.loose)), SessionNamed { title });
        }
        let Some(messages) = data.messages else { return };
        // The patch replaces all messages. The old ones stay as a branch, except those that the new list
        // repeats.
        self.go_back(Under::Root, harvest);
        let number = harvest.line;
        for raw in messages {
            if harvest.is_given_up() {
                return;
            }
            read_json_line(raw.get().as_bytes(), number, harvest, |raw, harvest| {
                self.take_message(serde_json::from_slice(raw)?, raw, harvest);
                Ok(())
            });
        }
    }

    fn keep(&mut self, line: &[u8], kind: &str, harvest: &mut StepBatch) {
        self.loose += 1;
        let key = RecordKey::of(&format!("loose {} {}", self.loose, BlobHash::of(line)));
        keep_record(Format::GeminiCli, if kind.is_empty() { "record" } else { kind }, key, line, harvest);
    }

    /// Remove this message and all after it, or all messages if the id is unknown.
    fn rewind(&mut self, id: &str, harvest: &mut StepBatch) {
        match (self.places.get(id), self.passed.get(&message_key(id)).copied()) {
            (Some(number), _) => self.drop_from(*number - self.first, harvest),
            (None, passed) => self.go_back(passed.unwrap_or(Under::Root), harvest),
        }
    }

    /// Drop all buffered messages and continue after `to`.
    fn go_back(&mut self, to: Under, harvest: &mut StepBatch) {
        self.drop_from(0, harvest);
        self.under = to;
    }

    fn drop_from(&mut self, kept: usize, harvest: &mut StepBatch) {
        // Emit the messages first, so that the dropped ones stay in the log as a branch.
        self.grow(harvest);
        self.rewinds += 1;
        for gone in self.held.drain(kept..) {
            self.held_bytes -= gone.bytes;
            self.places.remove(&gone.id);
        }
        self.ends.truncate(kept);
    }

    fn take_message(&mut self, message: Message<'_>, line: &[u8], harvest: &mut StepBatch) {
        harvest.at = message.timestamp.and_then(|time| time.0).or(harvest.at);
        let (id, is_user) = (message.id.clone(), message.kind == "user");
        let bodies = match message.kind.as_ref() {
            "user" => user(&message, harvest),
            "gemini" | "model" => gemini(message, harvest),
            kind => return self.keep(line, kind, harvest),
        };
        if is_user && bodies.is_empty() {
            self.keep(line, "user", harvest);
        }
        let bytes = line.len() + HELD_FRAME_BYTES;
        self.hold(PendingMessage { id, at: harvest.at, line: harvest.line, bodies, bytes }, harvest);
        if self.held_bytes > HELD_BYTES_MAX {
            self.let_go(harvest);
        }
    }

    /// Buffer a message, replacing an earlier version of it.
    fn hold(&mut self, held: PendingMessage, harvest: &mut StepBatch) {
        if let Some(number) = self.places.get(&held.id) {
            let place = *number - self.first;
            self.held_bytes += held.bytes;
            let before = std::mem::replace(&mut self.held[place], held);
            self.held_bytes -= before.bytes;
            if place >= self.ends.len() {
                for body in &before.bodies {
                    harvest.forget(body.parts());
                }
            }
            self.ends.truncate(place);
        } else if let Some(under) = self.passed.get(&message_key(&held.id)) {
            // Messages after the emitted version stay attached to it.
            put_held(&held, *under, Path::Side, harvest);
        } else {
            self.held_bytes += held.bytes;
            self.places.insert(held.id.clone(), self.first + self.held.len());
            self.held.push_back(held);
        }
    }

    /// Flush the older half of the buffered messages.
    fn let_go(&mut self, harvest: &mut StepBatch) {
        self.grow(harvest);
        while self.held_bytes > HELD_BYTES_MAX / 2 && self.held.len() > 1 {
            let (Some(gone), Some(end)) = (self.held.pop_front(), self.ends.pop_front()) else { return };
            self.held_bytes -= gone.bytes;
            self.places.remove(&gone.id);
            self.passed.insert(message_key(&gone.id), self.under);
            (self.under, self.first) = (end, self.first + 1);
        }
    }

    /// Emit all buffered messages that were not emitted yet.
    fn grow(&mut self, harvest: &mut StepBatch) {
        let (at, line) = (harvest.at, harvest.line);
        let mut under = self.ends.back().copied().unwrap_or(self.under);
        for held in self.held.iter().skip(self.ends.len()) {
            under = put_held(held, under, Path::Main, harvest);
            self.ends.push_back(under);
            self.told = under;
        }
        (harvest.at, harvest.line) = (at, line);
        if self.told != under {
            self.told = under;
            let place = format!("rewind {} {under:?}", self.rewinds);
            harvest.step(RecordKey::of(&place), Act::Rewind(under));
        }
    }
}

fn message_key(id: &str) -> RecordKey {
    RecordKey::of(&format!("{id}/0"))
}

/// Add the entries of a message one after another, and return the last one.
fn put_held(held: &PendingMessage, mut under: Under, path: Path, harvest: &mut StepBatch) -> Under {
    (harvest.at, harvest.line) = (held.at, held.line);
    for (number, body) in held.bodies.iter().enumerate() {
        let key = RecordKey::of(&format!("{}/{number}", held.id));
        let by = if matches!(body, Body::UserMessage(_)) { By::Caller } else { By::Agent };
        harvest.step(key, Act::Version { body: body.clone(), under, by, path, names: None });
        under = Under::RecordKey(key);
    }
    under
}

/// Read Google's parts: one, several, or plain text.
fn pieces<'a>(raw: Option<&'a RawValue>) -> Vec<Piece<'a>> {
    let text = |raw: &str| serde_json::from_str::<String>(raw).ok();
    let piece = |raw: &'a str| match text(raw) {
        Some(text) => Piece { text: Some(text), ..Piece::default() },
        None => serde_json::from_str::<Piece<'a>>(raw).unwrap_or_default(),
    };
    let Some(raw) = raw else { return Vec::new() };
    match serde_json::from_str::<Vec<&'a RawValue>>(raw.get()) {
        Ok(many) => many.into_iter().map(|raw| piece(raw.get())).collect(),
        Err(_) => vec![piece(raw.get())],
    }
}

fn part_of(piece: Piece<'_>, harvest: &mut StepBatch) -> Option<Part> {
    if let Some(call) = piece.function_call {
        let id = call.id.unwrap_or_else(|| call.name.clone());
        return Some(Part::tool_call(id, call.name, input_json(call.args)));
    }
    if let Some(data) = piece.inline_data {
        return decode_base64(&data.data).map(|bytes| harvest.media(&data.mime_type, bytes, None));
    }
    let text = piece.text.filter(|text| !text.is_empty())?;
    Some(match piece.thought {
        Some(true) => Part::Reasoning(Reasoning { text, redacted: false }),
        _ => Part::text(text),
    })
}

/// Convert a user message. Commands to the program and the program's notes are not sent to the model, so they get
/// no entry in the tree.
fn user(message: &Message<'_>, harvest: &mut StepBatch) -> Vec<Body> {
    let parts: Vec<Part> =
        pieces(message.content).into_iter().filter_map(|piece| part_of(piece, harvest)).collect();
    let text = joined_text(&parts);
    let text = text.trim();
    let to_itself =
        ["/", "?", "<session_context>", "<hook_context>"].iter().any(|opening| text.starts_with(opening));
    if parts.is_empty() || to_itself {
        harvest.forget(&parts);
        return Vec::new();
    }
    vec![UserMessage { parts, origin: None }.into()]
}

/// Convert a model message and the results of its tools.
fn gemini(message: Message<'_>, harvest: &mut StepBatch) -> Vec<Body> {
    let said: Vec<Part> =
        pieces(message.content).into_iter().filter_map(|piece| part_of(piece, harvest)).collect();
    let calls = message.tool_calls.unwrap_or_default();
    let is_whole = said.iter().any(|part| !matches!(part, Part::Text(_) | Part::Media(_)));
    let mut parts = Vec::new();
    if !is_whole {
        parts.extend(message.thoughts.unwrap_or_default().into_iter().filter_map(thought));
    }
    parts.extend(said);
    if !is_whole {
        let call =
            |call: &Call<'_>| Part::tool_call(call.id.clone(), call.name.clone(), input_json(call.args));
        parts.extend(calls.iter().map(call));
    }
    if parts.is_empty() {
        return Vec::new();
    }
    let called = parts.iter().any(|part| part.as_tool_call().is_some());
    let usage = message.tokens.and_then(|tokens| {
        believable(Usage {
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
    bodies.extend(calls.into_iter().filter_map(|call| result(call, harvest)).map(Body::from));
    bodies
}

fn thought(thought: Thought) -> Option<Part> {
    let text = match (thought.subject, thought.description) {
        (Some(subject), Some(description)) => format!("**{subject}** {description}"),
        (one, other) => one.or(other)?,
    };
    Some(Part::Reasoning(Reasoning { text, redacted: false }))
}

fn result(call: Call<'_>, harvest: &mut StepBatch) -> Option<ToolResult> {
    let raw = call.result?;
    let mut parts = Vec::new();
    for piece in pieces(Some(raw)) {
        match piece.function_response.as_ref().and_then(|response| response.response) {
            Some(response) => parts.push(Part::text(response_text(response))),
            None => parts.extend(part_of(piece, harvest)),
        }
    }
    let is_error = matches!(call.status.as_ref(), "error" | "cancelled");
    Some(ToolResult {
        call_id: call.id,
        tool: Some(call.name),
        parts,
        is_error,
        duration_ms: None,
        interrupted: call.status == "cancelled",
        full: None,
    })
}

/// Google's tools answer with an object. If it only wraps a text, return the text.
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

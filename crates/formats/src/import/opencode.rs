//! Import of opencode's database, row by row. The caller reads SQLite and passes rows as lines: session by
//! session, messages in order, each followed by its parts.
//!
//! ```text
//! {"table":"session","id":…,"parent_id":…,"title":…,"directory":…,"time_created":…,"revert":…}
//! {"table":"message","id":…,"time_created":…,"data":{"role":…,"modelID":…,"tokens":…,"summary":…}}
//! {"table":"part","id":…,"message_id":…,"data":{"type":"text",…}}
//! ```
//!
//! A row with unreadable data has the key `fault` with the reason instead of `data`.
//!
//! - A tool call and its result are one part. Its `state` shows whether there is a result.
//! - A `compaction` part in a user message requests a summary, and `tail_start_id` references the first kept
//!   message. The answer with `summary: true` is the summary, once it has finished without an error. Until then,
//!   opencode sends the request as a separate text, followed by the partial answer.
//! - opencode rewrites a message while it grows, so its versions are distinguished by content.
//! - `revert` references a message, and possibly a part of the message. Nothing from that point on is sent to the
//!   model. The reverted messages stay as a branch until the session's row has no `revert`.
//! - Tool output that was cleared later (`time.compacted`) is sent as a placeholder. The full output is stored as a
//!   blob.

use std::borrow::Cow;

use sapwood_core::content::{Part, Reasoning};
use sapwood_core::entry::{
    AssistantMessage, Compaction, CustomInfo, CustomMessage, ModelChanged, Stop, Strategy, ToolResult,
    Trigger, Usage, UserMessage, WrittenBy,
};
use sapwood_core::{Body, TimestampMs};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::steps::{
    Author, PathKind, RecordKey, StepAction, StepBatch, StepParent, lineage, model_name, plausible_usage,
};
use super::text::{self, Time, decode_data_url, input_json, keep_json};
use super::{Format, ProblemKind, Reader, read_json_line};
use crate::message::COST_NANO_USD_MAX;

#[derive(Deserialize)]
struct OpenCodeRow<'a> {
    #[serde(borrow)]
    table: Cow<'a, str>,
    id: String,
    parent_id: Option<String>,
    title: Option<String>,
    directory: Option<String>,
    time_created: Option<Time>,
    revert: Option<Revert>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    fault: Option<String>,
}

/// The point to which the user reverted the conversation.
#[derive(Deserialize)]
struct Revert {
    #[serde(rename = "messageID")]
    message_id: String,
    #[serde(rename = "partID")]
    part_id: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MessageData<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(rename = "modelID")]
    model_id: Option<String>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    tokens: Option<OpenCodeTokens>,
    cost: Option<f64>,
    /// `true` in an answer that is a summary. In a user message, an object with other data.
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    finish: Option<Cow<'a, str>>,
    model: Option<ModelRef>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ModelRef {
    #[serde(rename = "modelID")]
    model_id: Option<String>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

impl ModelRef {
    fn name(self) -> Option<String> {
        self.model_id.map(|model| model_name(self.provider_id.as_deref(), &model))
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OpenCodeTokens {
    input: f64,
    output: f64,
    reasoning: f64,
    cache: CacheTokens,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CacheTokens {
    read: f64,
    write: f64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PartData<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    text: Option<String>,
    ignored: Option<bool>,
    #[serde(rename = "callID")]
    call_id: Option<String>,
    tool: Option<String>,
    #[serde(borrow)]
    state: Option<ToolState<'a>>,
    mime: Option<String>,
    filename: Option<String>,
    url: Option<String>,
    auto: Option<bool>,
    tail_start_id: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ToolState<'a> {
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    output: Option<String>,
    error: Option<String>,
    time: Option<TimeSpan>,
    attachments: Option<Vec<FileData>>,
}

/// A file, usually with its bytes in the URL.
#[derive(Deserialize, Default)]
#[serde(default)]
struct FileData {
    mime: Option<String>,
    filename: Option<String>,
    url: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TimeSpan {
    start: f64,
    end: f64,
    /// When the output was cleared.
    compacted: Option<f64>,
}

/// opencode's placeholder for cleared output.
const CLEARED: &str = "[Old tool result content cleared]";

/// opencode's text for a compaction request without a summary.
const REQUEST_TEXT: &str = "What did we do so far?";

/// A requested compaction.
#[derive(Clone)]
struct RequestedCompaction {
    /// The first kept message.
    kept: Option<String>,
    trigger: Trigger,
}

/// A compaction request. It is part of the context only if no summary follows.
struct CompactionRequest {
    id: String,
    line: u64,
    at: Option<TimestampMs>,
}

/// A message whose parts are still being read.
#[derive(Clone)]
struct OpenMessage {
    id: String,
    is_user: bool,
    /// Whether the message is a valid summary: finished without an error.
    is_summary: bool,
    message: AssistantMessage,
    results: Vec<ToolResult>,
    line: u64,
    at: Option<TimestampMs>,
    requested: Option<RequestedCompaction>,
    /// Number of parts and results before the part that the user reverted to.
    kept: Option<(usize, usize)>,
}

#[derive(Default)]
pub struct Importer {
    open: Option<OpenMessage>,
    /// Whether the next rows belong to an unreadable message.
    is_lost: bool,
    last: Option<StepParent>,
    requested: Option<RequestedCompaction>,
    request: Option<CompactionRequest>,
    model: Option<String>,
    title: Option<String>,
    revert: Option<Revert>,
    /// The last entry of the path, if the user reverted.
    reverted_to: Option<StepParent>,
    /// The remaining parts of a partly reverted message.
    remaining: Option<OpenMessage>,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, batch: &mut StepBatch) {
        read_json_line(line, number, batch, |line, batch| {
            self.take_row(serde_json::from_slice(line)?, batch)
        });
    }

    fn finish(&mut self, batch: &mut StepBatch) {
        self.close(batch);
        if let Some(title) = self.title.take().filter(|_| self.last.is_some()) {
            // Add the title as an entry instead of setting the session title, so that a later title can
            // replace it. A title alone is not a conversation.
            batch.step(RecordKey::of(&format!("title {title}")), StepAction::Title(title));
        }
        if self.last.is_some() {
            // opencode does not record that a revert was undone, so the current path is authoritative.
            batch.step(RecordKey::of("stand"), StepAction::SyncLeaf);
        }
        let Some(under) = self.reverted_to.take() else { return };
        let revert = self.revert.take().map(|revert| (revert.message_id, revert.part_id));
        batch.step(RecordKey::of(&format!("revert {revert:?}")), StepAction::Rewind(under));
        self.last = Some(under);
        if let Some(remaining) = self.remaining.take() {
            self.put(remaining, batch);
        }
    }
}

impl Importer {
    /// Read a row. Fails only if the caller should repair the text of the row and retry.
    fn take_row(&mut self, row: OpenCodeRow<'_>, batch: &mut StepBatch) -> Result<(), serde_json::Error> {
        match row.table.as_ref() {
            "session" => self.open_session(row, batch),
            "message" => {
                let data = read_data::<MessageData<'_>>(&row)?;
                self.close(batch);
                batch.at = row.time_created.and_then(|time| time.0).or(batch.at);
                self.is_lost = true;
                match data {
                    Ok(data) if matches!(data.role.as_ref(), "user" | "assistant") => {
                        self.is_lost = false;
                        self.open_message(row.id, data, batch);
                    }
                    Ok(data) => {
                        let why = format!("unknown role {:?}", shortened(&data.role));
                        report_lost("message", &row.id, &why, batch);
                    }
                    Err(why) => report_lost("message", &row.id, &why, batch),
                }
            }
            // The problem report of the lost message already includes its parts.
            "part" if self.is_lost => {}
            "part" => match read_data::<PartData<'_>>(&row)? {
                Ok(part) => self.take_part(&row.id, part, row.data.map_or("{}", RawValue::get), batch),
                Err(why) => report_lost("part", &row.id, &why, batch),
            },
            table => {
                let why = format!("unknown table {:?}", shortened(table));
                batch.report(ProblemKind::PartSkipped { why });
            }
        }
        Ok(())
    }

    fn open_session(&mut self, row: OpenCodeRow<'_>, batch: &mut StepBatch) {
        let at = row.time_created.and_then(|time| time.0);
        batch.at = at.or(batch.at);
        let session = batch.open(Format::OpenCode, &row.id, at);
        session.cwd = row.directory;
        session.parent = row.parent_id.as_deref().map(|id| lineage(Format::OpenCode, id));
        (self.revert, self.title) = (row.revert, row.title.filter(|title| !title.trim().is_empty()));
    }

    fn open_message(&mut self, id: String, data: MessageData<'_>, batch: &mut StepBatch) {
        let count = |number: f64| if (0.0..1e15).contains(&number) { number.round() as u64 } else { 0 };
        let usage = data.tokens.and_then(|tokens| {
            plausible_usage(Usage {
                input: count(tokens.input),
                output: count(tokens.output + tokens.reasoning),
                cache_read: count(tokens.cache.read),
                cache_write: count(tokens.cache.write),
                reasoning: count(tokens.reasoning),
            })
        });
        let cost =
            data.cost.map(|dollars| count((dollars * 1e9).round())).filter(|cost| *cost <= COST_NANO_USD_MAX);
        let is_user = data.role == "user";
        let chosen = data.model.and_then(ModelRef::name).filter(|_| is_user);
        if let Some(model) = chosen.filter(|model| self.model.as_ref() != Some(model)) {
            self.model = Some(model.clone());
            self.end_path_at(&id);
            self.add(RecordKey::of(&format!("{id}/model")), None, ModelChanged { model }, batch);
        }
        let is_finished = data.finish.as_deref().is_some_and(|finish| !finish.is_empty());
        let stop = match data.finish.as_deref() {
            _ if data.error.is_some_and(|error| error.get().contains("AbortedError")) => Stop::Aborted,
            _ if data.error.is_some_and(|error| error.get() != "null") => Stop::Error,
            Some("length") => Stop::Length,
            Some("content-filter") => Stop::ContentFilter,
            Some("tool-calls") => Stop::ToolUse,
            _ => Stop::Stop,
        };
        self.open = Some(OpenMessage {
            id,
            is_user,
            is_summary: data.summary.is_some_and(|summary| summary.get() == "true")
                && is_finished
                && !matches!(stop, Stop::Aborted | Stop::Error),
            message: AssistantMessage {
                parts: Vec::new(),
                model: ModelRef { model_id: data.model_id, provider_id: data.provider_id }.name(),
                usage,
                cost_nano_usd: cost,
                stop,
            },
            results: Vec::new(),
            line: batch.line,
            at: batch.at,
            requested: None,
            kept: None,
        });
    }

    fn take_part(&mut self, id: &str, part: PartData<'_>, raw: &str, batch: &mut StepBatch) {
        let Some(open) = &mut self.open else {
            return batch.report(ProblemKind::PartSkipped { why: "a part without its message".to_owned() });
        };
        let revert = self.revert.as_ref().filter(|revert| revert.message_id == open.id);
        if revert.is_some_and(|revert| revert.part_id.as_deref() == Some(id)) {
            open.kept = Some((open.message.parts.len(), open.results.len()));
        }
        let parts = &mut open.message.parts;
        match part.kind.as_ref() {
            "text" if part.ignored != Some(true) => {
                parts.extend(part.text.filter(|text| !text.is_empty()).map(Part::text));
            }
            "reasoning" => {
                let text = part.text.unwrap_or_default();
                let redacted = text.is_empty();
                parts.push(Part::Reasoning(Reasoning { text, redacted }));
            }
            "tool" => take_tool(open, id, part, raw, batch),
            "file" if !is_sent_as_text(part.mime.as_deref()) => {
                let file = FileData { mime: part.mime, filename: part.filename, url: part.url };
                parts.extend(file.into_part(batch));
            }
            "compaction" => {
                let trigger = if part.auto == Some(true) { Trigger::Pressure } else { Trigger::Manual };
                open.requested = Some(RequestedCompaction { kept: part.tail_start_id, trigger });
            }
            // Start and end of a step. The message already has the usage.
            "step-start" | "step-finish" => {}
            kind => keep_part(id, kind, raw, batch),
        }
    }

    /// End the open message and add it. If the user reverted to this message, the path ends before the message.
    fn close(&mut self, batch: &mut StepBatch) {
        let Some(mut open) = self.open.take() else { return };
        if let Some(request) = self.request.take().filter(|_| !open.is_summary) {
            self.put_request(request, batch);
        }
        self.end_path_at(&open.id);
        if let Some((parts, results)) = open.kept.take() {
            let mut remaining = open.clone();
            remaining.message.parts.truncate(parts);
            remaining.results.truncate(results);
            self.remaining = Some(remaining);
        }
        self.put(open, batch);
    }

    /// End the path before the message that the user reverted to. Later messages are still added to the log.
    fn end_path_at(&mut self, id: &str) {
        let is_reverted = self.revert.as_ref().is_some_and(|revert| id >= revert.message_id.as_str());
        if is_reverted && self.reverted_to.is_none() {
            self.reverted_to = Some(self.last.unwrap_or(StepParent::Root));
        }
    }

    fn put(&mut self, open: OpenMessage, batch: &mut StepBatch) {
        let (line, at) = (batch.line, batch.at);
        (batch.line, batch.at) = (open.line, open.at);
        if open.is_user {
            self.put_user(open, batch);
        } else if let (true, Some(RequestedCompaction { kept, trigger })) =
            (open.is_summary, self.requested.take())
        {
            let compaction = Compaction {
                summary: Some(batch.text_only(&open.message.parts)),
                trigger,
                written_by: summary_usage(&open.message),
                ..Compaction::new(Strategy::Imported, Trigger::Imported)
            };
            self.add(RecordKey::of(&open.id), kept.as_deref().map(RecordKey::of), compaction, batch);
        } else {
            self.put_answer(open, batch);
        }
        (batch.line, batch.at) = (line, at);
    }

    fn put_user(&mut self, open: OpenMessage, batch: &mut StepBatch) {
        if open.requested.is_some() {
            batch.drop_media(&open.message.parts);
            self.requested = open.requested;
            self.request = Some(CompactionRequest { id: open.id, line: open.line, at: open.at });
            return;
        }
        if !open.message.parts.is_empty() {
            let message = UserMessage { parts: open.message.parts, origin: None };
            self.add(RecordKey::of(&open.id), None, message, batch);
        }
    }

    /// Add a compaction request that was not followed by a summary.
    fn put_request(&mut self, request: CompactionRequest, batch: &mut StepBatch) {
        let (line, at) = (batch.line, batch.at);
        (batch.line, batch.at) = (request.line, request.at);
        let custom_type = "opencode:compaction".to_owned();
        let message = CustomMessage {
            custom_type,
            parts: vec![Part::text(REQUEST_TEXT)],
            display: false,
            details: None,
        };
        self.add(RecordKey::of(&request.id), None, message, batch);
        (batch.line, batch.at) = (line, at);
    }

    fn put_answer(&mut self, open: OpenMessage, batch: &mut StepBatch) {
        let mut message = open.message;
        if message.parts.is_empty() && message.usage.is_none() && message.stop == Stop::Stop {
            return;
        }
        if message.stop == Stop::Stop && message.parts.iter().any(|part| part.as_tool_call().is_some()) {
            message.stop = Stop::ToolUse;
        }
        self.add(RecordKey::of(&open.id), None, message, batch);
        for (number, result) in open.results.into_iter().enumerate() {
            self.add(RecordKey::of(&format!("{}/{number}", open.id)), None, result, batch);
        }
    }

    fn add(&mut self, key: RecordKey, refs: Option<RecordKey>, body: impl Into<Body>, batch: &mut StepBatch) {
        let (body, under) = (body.into(), self.last.unwrap_or(StepParent::Root));
        let by = if matches!(body, Body::UserMessage(_)) { Author::Caller } else { Author::Agent };
        batch.step(key, StepAction::Version { body, under, by, path: PathKind::Main, refs });
        self.last = Some(StepParent::RecordKey(key));
    }
}

/// Return the data of a row, or the reason why it has none. Fails only if the caller should repair the text and retry.
fn read_data<'a, T: Deserialize<'a>>(row: &OpenCodeRow<'a>) -> Result<Result<T, String>, serde_json::Error> {
    let data = match (&row.fault, row.data) {
        (Some(fault), _) => return Ok(Err(fault.clone())),
        (None, None) => return Ok(Err("it has no data".to_owned())),
        (None, Some(data)) => data.get(),
    };
    match serde_json::from_str(data) {
        Err(error) if text::repair(data.as_bytes()).is_some() => Err(error),
        read => Ok(read.map_err(|error| error.to_string())),
    }
}

fn report_lost(what: &str, id: &str, why: &str, batch: &mut StepBatch) {
    let all = if what == "message" { " and its parts" } else { "" };
    batch.report(ProblemKind::BadLine { why: format!("{what} {:?}{all}: {why}", shortened(id)) });
}

fn shortened(name: &str) -> String {
    name.chars().take(40).collect()
}

/// Whether opencode sends the text or the folder listing of the file in a separate part, instead of the file.
fn is_sent_as_text(mime: Option<&str>) -> bool {
    matches!(mime, Some("text/plain" | "application/x-directory"))
}

fn keep_part(id: &str, kind: &str, raw: &str, batch: &mut StepBatch) {
    let kind: String = kind.chars().take(64).collect();
    match keep_json(raw) {
        Some(data) => {
            let key = RecordKey::of(&format!("part {id} {raw}"));
            batch.note(key, CustomInfo { custom_type: format!("opencode:{kind}"), data });
        }
        None => batch
            .report(ProblemKind::PartSkipped { why: format!("part {:?} cannot be stored", shortened(id)) }),
    }
}

impl FileData {
    fn into_part(self, batch: &mut StepBatch) -> Option<Part> {
        match self.url.as_deref().and_then(decode_data_url) {
            Some((_, bytes)) => {
                let mime = self.mime.as_deref().unwrap_or("application/octet-stream");
                Some(batch.media(mime, bytes, self.filename))
            }
            None => self.filename.or(self.url).map(|name| Part::text(format!("[file: {name}]"))),
        }
    }
}

fn take_tool(open: &mut OpenMessage, id: &str, part: PartData<'_>, raw: &str, batch: &mut StepBatch) {
    let (call_id, tool) = (part.call_id.unwrap_or_default(), part.tool.unwrap_or_default());
    let state = part.state.unwrap_or_default();
    open.message.parts.push(Part::tool_call(call_id.clone(), tool.clone(), input_json(state.input)));
    let is_error = state.status == "error";
    let text = if is_error { state.error } else { state.output };
    let Some(text) = text.filter(|_| is_error || state.status == "completed") else { return };
    let span = state.time.unwrap_or_default();
    let duration = Some(span.end - span.start).filter(|ms| span.end > 0.0 && (0.0..1e12).contains(ms));
    let files = state.attachments.unwrap_or_default();
    let is_cleared = span.compacted.is_some() && !is_error;
    let (parts, full) = match is_cleared {
        true => {
            if !files.is_empty() {
                keep_part(id, "tool", raw, batch);
            }
            (vec![Part::text(CLEARED)], Some(batch.store_text(text)))
        }
        false => {
            let files = files.into_iter().filter_map(|file| file.into_part(batch));
            ([Part::text(text)].into_iter().chain(files).collect(), None)
        }
    };
    open.results.push(ToolResult {
        call_id,
        tool: Some(tool),
        parts,
        is_error,
        duration_ms: duration.map(|ms| ms.round() as u64),
        interrupted: false,
        full,
    });
}

/// Return the usage of the call that wrote a summary.
fn summary_usage(message: &AssistantMessage) -> Option<WrittenBy> {
    let model = message.model.clone().unwrap_or_else(|| "unknown".to_owned());
    let usage = message.usage?;
    Some(WrittenBy { model, calls: 1, usage, cost_nano_usd: message.cost_nano_usd })
}

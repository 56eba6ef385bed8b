//! opencode's database, row by row. A store that can read SQLite hands its rows over as lines, a session after the other,
//! messages in order and each followed by its parts:
//!
//! ```text
//! {"table":"session","id":…,"parent_id":…,"title":…,"directory":…,"time_created":…}
//! {"table":"message","id":…,"time_created":…,"data":{"role":…,"modelID":…,"tokens":…,"summary":…}}
//! {"table":"part","id":…,"message_id":…,"data":{"type":"text",…}}
//! ```
//!
//! - A tool's call and its result are one part, told apart by its `state`.
//! - A `compaction` part in a user's message asks for a summary, and names in `tail_start_id` what is kept; the message
//!   with `summary: true` that answers it is the summary.
//! - A message is written anew while it grows, so it is known by its id and what it says.

use std::borrow::Cow;

use sapwood_core::Body;
use sapwood_core::content::{Part, Reasoning, joined_text};
use sapwood_core::entry::{
    AssistantMessage, Compaction, CustomInfo, ModelChanged, Stop, Strategy, ToolResult, Trigger, Usage,
    UserMessage, WrittenBy,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::harvest::{By, Harvest, Key, Path, Under, believable, identity, lineage, model_name};
use super::text::{Time, decode_data_url, input_json, keep_json};
use super::{Format, Reader, Trouble, read_json_line};
use crate::message::COST_NANO_USD_MAX;

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    table: Cow<'a, str>,
    id: String,
    parent_id: Option<String>,
    title: Option<String>,
    directory: Option<String>,
    time_created: Option<Time>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MessageData<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    #[serde(rename = "modelID")]
    model_id: Option<String>,
    tokens: Option<Tokens>,
    cost: Option<f64>,
    /// `true` in an answer that is a summary; in a user's message an object with other data.
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
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    #[serde(rename = "modelID")]
    model_id: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Tokens {
    input: f64,
    output: f64,
    reasoning: f64,
    cache: Cache,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cache {
    read: f64,
    write: f64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PartData<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    text: Option<String>,
    synthetic: Option<bool>,
    ignored: Option<bool>,
    #[serde(rename = "callID")]
    call_id: Option<String>,
    tool: Option<String>,
    #[serde(borrow)]
    state: Option<State<'a>>,
    mime: Option<String>,
    filename: Option<String>,
    url: Option<String>,
    auto: Option<bool>,
    tail_start_id: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct State<'a> {
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    output: Option<String>,
    error: Option<String>,
    time: Option<Span>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Span {
    start: f64,
    end: f64,
}

/// A message, until the next row is no part of it.
struct Open {
    id: String,
    is_user: bool,
    is_summary: bool,
    message: AssistantMessage,
    results: Vec<ToolResult>,
    line: u64,
    /// A compaction is asked for: what it keeps, and why.
    asked: Option<(Option<String>, Trigger)>,
}

#[derive(Default)]
pub struct Importer {
    open: Option<Open>,
    last: Option<Key>,
    asked: Option<(Option<String>, Trigger)>,
    model: Option<String>,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, harvest: &mut Harvest) {
        read_json_line(line, number, harvest, |line, harvest| {
            self.take_row(serde_json::from_slice(line)?, harvest)
        });
    }

    fn finish(&mut self, harvest: &mut Harvest) {
        self.close(harvest);
    }
}

impl Importer {
    fn take_row(&mut self, row: Row<'_>, harvest: &mut Harvest) -> Result<(), serde_json::Error> {
        let data = row.data.map_or("{}", RawValue::get);
        match row.table.as_ref() {
            "session" => {
                harvest.at = row.time_created.and_then(|time| time.0).or(harvest.at);
                let session =
                    harvest.open(Format::OpenCode, &row.id, row.time_created.and_then(|time| time.0));
                session.title = row.title;
                session.cwd = row.directory;
                session.parent = row.parent_id.as_deref().map(|id| lineage(Format::OpenCode, id));
            }
            "message" => {
                let message: MessageData<'_> = serde_json::from_str(data)?;
                self.close(harvest);
                harvest.at = row.time_created.and_then(|time| time.0).or(harvest.at);
                self.open_message(row.id, message, harvest);
            }
            "part" => {
                let part: PartData<'_> = serde_json::from_str(data)?;
                self.take_part(&row.id, part, data, harvest);
            }
            table => {
                let why =
                    format!("a row of table {:?} is not known", table.chars().take(40).collect::<String>());
                harvest.report(Trouble::LeftOut { why });
            }
        }
        Ok(())
    }

    fn open_message(&mut self, id: String, data: MessageData<'_>, harvest: &mut Harvest) {
        let count = |number: f64| if (0.0..1e15).contains(&number) { number.round() as u64 } else { 0 };
        let usage = data.tokens.and_then(|tokens| {
            believable(Usage {
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
        let ModelRef { provider_id, model_id } = data.model.filter(|_| is_user).unwrap_or_default();
        if let Some(bare) = model_id.filter(|model| self.model.as_ref() != Some(model)) {
            let model = model_name(provider_id.as_deref(), &bare);
            // Known by its bare name, as it was before names had their provider.
            self.add(bare.as_bytes(), ModelChanged { model }.into(), harvest);
            self.model = Some(bare);
        }
        let stop = match data.finish.as_deref() {
            _ if data.error.is_some_and(|error| error.get().contains("AbortedError")) => Stop::Aborted,
            _ if data.error.is_some_and(|error| error.get() != "null") => Stop::Error,
            Some("length") => Stop::Length,
            Some("content-filter") => Stop::ContentFilter,
            Some("tool-calls") => Stop::ToolUse,
            _ => Stop::Stop,
        };
        self.open = Some(Open {
            id,
            is_user,
            is_summary: data.summary.is_some_and(|summary| summary.get() == "true"),
            message: AssistantMessage {
                parts: Vec::new(),
                model: data.model_id.map(|model| model_name(data.provider_id.as_deref(), &model)),
                usage,
                cost_nano_usd: cost,
                stop,
            },
            results: Vec::new(),
            line: harvest.line,
            asked: None,
        });
    }

    fn take_part(&mut self, id: &str, part: PartData<'_>, raw: &str, harvest: &mut Harvest) {
        let Some(open) = &mut self.open else {
            return harvest.report(Trouble::LeftOut { why: "a part without its message".to_owned() });
        };
        let parts = &mut open.message.parts;
        match part.kind.as_ref() {
            "text" if part.ignored != Some(true) => {
                let _ = part.synthetic;
                parts.extend(part.text.filter(|text| !text.is_empty()).map(Part::text));
            }
            "reasoning" => {
                let text = part.text.unwrap_or_default();
                let redacted = text.is_empty();
                parts.push(Part::Reasoning(Reasoning { text, redacted }));
            }
            "tool" => take_tool(open, part),
            "file" => match part.url.as_deref().and_then(decode_data_url) {
                Some((_, bytes)) => {
                    let mime = part.mime.as_deref().unwrap_or("application/octet-stream");
                    parts.push(harvest.media(mime, bytes, part.filename));
                }
                None => {
                    parts.extend(part.filename.or(part.url).map(|name| Part::text(format!("[file: {name}]"))))
                }
            },
            "compaction" => {
                let trigger = if part.auto == Some(true) { Trigger::Pressure } else { Trigger::Manual };
                open.asked = Some((part.tail_start_id, trigger));
            }
            // How a step began and ended: the message has what it took.
            "step-start" | "step-finish" | "text" => {}
            kind => {
                let kind: String = kind.chars().take(64).collect();
                let Some(data) = keep_json(raw) else { return };
                let key = Key::of(&format!("part {id} {raw}"));
                harvest.note(key, CustomInfo { custom_type: format!("opencode:{kind}"), data });
            }
        }
    }

    fn close(&mut self, harvest: &mut Harvest) {
        let Some(open) = self.open.take() else { return };
        let line = std::mem::replace(&mut harvest.line, open.line);
        let id = open.id.clone();
        if open.is_user {
            self.close_user(open, harvest);
        } else if let (true, Some((kept, trigger))) = (open.is_summary, self.asked.take()) {
            let compaction = Compaction {
                summary: Some(joined_text(&open.message.parts)),
                trigger,
                written_by: bill_of(&open.message),
                ..Compaction::new(Strategy::Imported, Trigger::Imported)
            };
            let key = self.next_key(open.id.as_bytes(), &compaction.clone().into());
            let under = self.last.map_or(Under::Root, Under::Key);
            harvest.sum_up(key, under, kept.as_deref().map(Key::of), compaction);
            self.last = Some(key);
        } else {
            let mut message = open.message;
            if message.stop == Stop::Stop && message.parts.iter().any(|part| part.as_tool_call().is_some()) {
                message.stop = Stop::ToolUse;
            }
            let first = self.add(open.id.as_bytes(), message.into(), harvest);
            harvest.alias(Key::of(&id), Under::Key(first), Path::Side);
            for (number, result) in open.results.into_iter().enumerate() {
                let content = [id.as_bytes(), &number.to_le_bytes()].concat();
                self.add(&content, result.into(), harvest);
            }
        }
        harvest.line = line;
    }

    fn close_user(&mut self, open: Open, harvest: &mut Harvest) {
        if open.asked.is_some() {
            self.asked = open.asked;
            return;
        }
        if open.message.parts.is_empty() {
            return;
        }
        let body = UserMessage { parts: open.message.parts, origin: None };
        let key = self.add(open.id.as_bytes(), body.into(), harvest);
        harvest.alias(Key::of(&open.id), Under::Key(key), Path::Side);
    }

    fn add(&mut self, content: &[u8], body: Body, harvest: &mut Harvest) -> Key {
        let under = self.last.map_or(Under::Root, Under::Key);
        let key = self.next_key(content, &body);
        let by = if matches!(body, Body::UserMessage(_)) { By::Caller } else { By::Agent };
        harvest.add(key, under, by, body);
        self.last = Some(key);
        key
    }

    fn next_key(&self, content: &[u8], body: &Body) -> Key {
        let before = self.last.unwrap_or_else(|| Key::of("opencode"));
        Key::after(before, &[content, &identity(body)].concat())
    }
}

/// A call, and what came of it.
fn take_tool(open: &mut Open, part: PartData<'_>) {
    let (call_id, tool) = (part.call_id.unwrap_or_default(), part.tool.unwrap_or_default());
    let state = part.state.unwrap_or_default();
    open.message.parts.push(Part::tool_call(call_id.clone(), tool.clone(), input_json(state.input)));
    let is_error = state.status == "error";
    let text = if is_error { state.error } else { state.output };
    let Some(text) = text.filter(|_| is_error || state.status == "completed") else { return };
    let took = state.time.map(|time| time.end - time.start).filter(|ms| (0.0..1e12).contains(ms));
    open.results.push(ToolResult {
        call_id,
        tool: Some(tool),
        parts: vec![Part::text(text)],
        is_error,
        duration_ms: took.map(|ms| ms.round() as u64),
        interrupted: false,
        full: None,
    });
}
/// What the call took that wrote a summary.
fn bill_of(message: &AssistantMessage) -> Option<WrittenBy> {
    let model = message.model.clone().unwrap_or_else(|| "unknown".to_owned());
    let usage = message.usage?;
    Some(WrittenBy { model, calls: 1, usage, cost_nano_usd: message.cost_nano_usd })
}

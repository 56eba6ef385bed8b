//! Conversion of a turn to the events of a response stream. Only durable entries determine the events and their
//! numbers: a streamed text uses as many numbers as it has bytes, regardless of its chunks. A reader can therefore
//! resume after the last number it received, on any server, even in the middle of a text. Live chunks are only a
//! preview of the entry.

use std::collections::HashSet;

use sapwood_core::entry::{AssistantMessage, ToolResult};
use sapwood_core::turn::Terms;
use sapwood_core::{Body, Entry};
use serde_json::{Value, json};

use super::items::{
    AnswerItem, AnswerShape, ItemContent, answer_items, output_of, output_text, server_call_item,
};
use super::response::response_of;
use super::{Anchor, ItemId, ResponseId};

/// A chunk of a streamed reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveChunk<'a> {
    Text(&'a str),
    Reasoning(&'a str),
    /// A call has started, so the text before it is complete.
    Call,
}

/// One event. A delta with `bytes` bytes of text uses the numbers up to `number`, one per byte.
#[derive(Debug, Clone, PartialEq)]
struct NumberedEvent {
    number: i64,
    bytes: i64,
    value: Value,
}

/// Generates the events of one turn.
#[derive(Debug)]
pub struct EventSequence {
    id: ResponseId,
    entries: Vec<Entry>,
    /// The number of the last event sent. Earlier events are not sent again.
    sent: i64,
    /// The number of the last durable event.
    number: i64,
    /// The number of durable items.
    items: u32,
    client_tools: HashSet<String>,
    /// Calls that run on the server and have no result yet.
    running: Vec<(u32, ItemId, Value)>,
    preview: Option<Preview>,
    is_over: bool,
}

/// The streamed part of an answer whose entry is not written yet.
#[derive(Debug, Clone, PartialEq, Default)]
struct Preview {
    number: i64,
    items: u32,
    /// Number of chunks received, to detect a lost chunk.
    chunks_seen: u32,
    open: Option<ItemContent>,
}

impl EventSequence {
    /// Create the sequence. `after` is the number of the last event that the reader received.
    pub fn new(id: ResponseId, after: Option<u32>) -> Self {
        Self {
            id,
            entries: Vec::new(),
            sent: after.map_or(-1, i64::from),
            number: -1,
            items: 0,
            client_tools: HashSet::new(),
            running: Vec::new(),
            preview: Some(Preview::default()),
            is_over: false,
        }
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Return the number for an event outside the turn, such as a stream error.
    pub fn next_number(&self) -> i64 {
        self.sent + 1
    }

    /// Disable the preview: only durable entries produce events.
    pub fn without_preview(mut self) -> Self {
        self.preview = None;
        self
    }

    /// Process the next entry of the turn.
    pub fn apply(&mut self, entry: &Entry) -> Vec<Value> {
        self.entries.push(entry.clone());
        let mut writer = EventWriter { number: self.number, events: Vec::new() };
        let is_output = output_of(entry).is_some();
        match &entry.body {
            Body::TurnStarted(_) => {}
            Body::Round(round) if round.number == 1 && self.number < 0 => self.begin(&mut writer),
            Body::AssistantMessage(answer) if is_output => self.write_answer(&mut writer, answer, entry),
            Body::ToolResult(result) if is_output => self.write_result(&mut writer, result),
            Body::TurnEnded(_) => self.end(&mut writer),
            _ => {}
        }
        self.number = writer.number;
        if let Some(preview) = self.preview.as_mut().filter(|_| is_output || self.items == 0) {
            *preview = Preview { number: self.number, items: self.items, ..Preview::default() };
        }
        self.send(writer.events)
    }

    fn begin(&mut self, writer: &mut EventWriter) {
        let terms = Terms::of(self.entries.iter().map(|entry| &entry.body));
        self.client_tools = terms.tools.into_iter().map(|tool| tool.name).collect();
        for kind in ["response.created", "response.in_progress"] {
            writer.write(kind, json!({ "response": response_of(&self.id, &self.entries) }));
        }
    }

    fn item_id(&self, index: u32) -> ItemId {
        ItemId { anchor: Anchor::Turn(self.id.turn), index }
    }

    fn write_answer(&mut self, writer: &mut EventWriter, answer: &AssistantMessage, entry: &Entry) {
        debug_assert!(output_of(entry).is_some());
        for item in answer_items(answer, AnswerShape::Output) {
            let (at, id) = (self.items, self.item_id(self.items));
            self.items += 1;
            match &item.content {
                ItemContent::Text(texts) => {
                    let text = texts.concat();
                    open_text(writer, &id, at);
                    writer.write_text_delta(&id, at, &text);
                    close_text(writer, &id, at, &text, item.value(&id));
                }
                ItemContent::Reasoning(text) => {
                    open_reasoning(writer, &id, at);
                    writer.write_reasoning_delta(&id, at, text);
                    close_reasoning(writer, &id, at, text, item.value(&id));
                }
                ItemContent::Call(call) if self.client_tools.contains(&call.name) => {
                    write_client_call(writer, &id, at, &item.value(&id));
                }
                ItemContent::Call(_) => {
                    let call = item.value(&id);
                    write_server_call(writer, &id, at, &call);
                    self.running.push((at, id, call));
                }
            }
        }
    }

    fn write_result(&mut self, writer: &mut EventWriter, result: &ToolResult) {
        let is_call = |(_, _, call): &(u32, ItemId, Value)| call["call_id"] == result.call_id.as_str();
        let Some(found) = self.running.iter().position(is_call) else { return };
        let (at, id, call) = self.running.remove(found);
        let item = server_call_item(&id, &call, Some(result));
        let kind = if result.is_error { "response.mcp_call.failed" } else { "response.mcp_call.completed" };
        writer.write(kind, json!({ "item_id": item["id"], "output_index": at }));
        writer.write("response.output_item.done", json!({ "output_index": at, "item": item }));
    }

    fn end(&mut self, writer: &mut EventWriter) {
        let response = response_of(&self.id, &self.entries);
        let kind = match response["status"].as_str() {
            Some("completed") => "response.completed",
            Some("failed") => "response.failed",
            _ => "response.incomplete",
        };
        writer.write(kind, json!({ "response": response }));
        self.is_over = true;
    }

    /// Emit events for a live chunk, ahead of its entry. A lost chunk ends the preview until the entry is
    /// written.
    pub fn preview(&mut self, index: u32, chunk: LiveChunk<'_>) -> Vec<Value> {
        let id = self.id.clone();
        let Some(preview) = self.preview.as_mut() else { return Vec::new() };
        if preview.chunks_seen != index || preview.number < 0 {
            // No chunk has the index `u32::MAX`, so the preview stays off until the next answer.
            preview.chunks_seen = u32::MAX;
            return Vec::new();
        }
        preview.chunks_seen += 1;
        let mut writer = EventWriter { number: preview.number, events: Vec::new() };
        preview.write(&mut writer, &id, chunk);
        preview.number = writer.number;
        self.send(writer.events)
    }

    /// Return the events that the reader has not received yet. If it received the beginning of a text, return only the
    /// rest of the text.
    fn send(&mut self, events: Vec<NumberedEvent>) -> Vec<Value> {
        let mut out = Vec::with_capacity(events.len());
        for mut event in events {
            if event.number <= self.sent {
                continue;
            }
            let has = self.sent - (event.number - event.bytes);
            if event.bytes > 0 && has > 0 {
                let text = event.value["delta"].as_str().unwrap_or_default();
                let at = text.floor_char_boundary(usize::try_from(has).unwrap_or(0));
                event.value["delta"] = json!(text[at..]);
            }
            self.sent = event.number;
            out.push(event.value);
        }
        out
    }
}

impl Preview {
    fn write(&mut self, writer: &mut EventWriter, response: &ResponseId, chunk: LiveChunk<'_>) {
        let id = |index| ItemId { anchor: Anchor::Turn(response.turn), index };
        let continues = matches!(
            (&self.open, chunk),
            (Some(ItemContent::Text(_)), LiveChunk::Text(_))
                | (Some(ItemContent::Reasoning(_)), LiveChunk::Reasoning(_))
        );
        if !continues && !matches!(chunk, LiveChunk::Text("") | LiveChunk::Reasoning("")) {
            self.close(writer, response);
        }
        match chunk {
            LiveChunk::Text("") | LiveChunk::Reasoning("") | LiveChunk::Call => {}
            LiveChunk::Text(text) => {
                let at = self.items;
                let Some(ItemContent::Text(texts)) = &mut self.open else {
                    open_text(writer, &id(at), at);
                    writer.write_text_delta(&id(at), at, text);
                    self.open = Some(ItemContent::Text(vec![text.to_owned()]));
                    return;
                };
                texts[0].push_str(text);
                writer.write_text_delta(&id(at), at, text);
            }
            LiveChunk::Reasoning(text) => {
                let at = self.items;
                let Some(ItemContent::Reasoning(whole)) = &mut self.open else {
                    open_reasoning(writer, &id(at), at);
                    writer.write_reasoning_delta(&id(at), at, text);
                    self.open = Some(ItemContent::Reasoning(text.to_owned()));
                    return;
                };
                whole.push_str(text);
                writer.write_reasoning_delta(&id(at), at, text);
            }
        }
    }

    /// Close the open item, because another item follows.
    fn close(&mut self, writer: &mut EventWriter, response: &ResponseId) {
        let Some(content) = self.open.take() else { return };
        let (at, id) = (self.items, ItemId { anchor: Anchor::Turn(response.turn), index: self.items });
        let item = AnswerItem { content, parts: 0..0, status: "completed" };
        let value = item.value(&id);
        match &item.content {
            ItemContent::Text(texts) => close_text(writer, &id, at, &texts.concat(), value),
            ItemContent::Reasoning(text) => close_reasoning(writer, &id, at, text, value),
            ItemContent::Call(_) => {}
        }
        self.items += 1;
    }
}

struct EventWriter {
    number: i64,
    events: Vec<NumberedEvent>,
}

impl EventWriter {
    fn write(&mut self, kind: &str, value: Value) {
        self.write_event(kind, value, 1, 0);
    }

    /// Write a delta. It uses as many numbers as its text has bytes.
    fn write_delta(&mut self, kind: &str, value: Value, text: &str) {
        let bytes = i64::try_from(text.len()).unwrap_or(i64::MAX);
        if bytes > 0 {
            self.write_event(kind, value, bytes, bytes);
        }
    }

    fn write_event(&mut self, kind: &str, mut value: Value, numbers: i64, bytes: i64) {
        self.number += numbers;
        value["type"] = json!(kind);
        value["sequence_number"] = json!(self.number);
        self.events.push(NumberedEvent { number: self.number, bytes, value });
    }

    fn write_text_delta(&mut self, id: &ItemId, at: u32, text: &str) {
        let value = json!({ "item_id": id.named("msg"), "output_index": at, "content_index": 0, "delta": text, "logprobs": [] });
        self.write_delta("response.output_text.delta", value, text);
    }

    fn write_reasoning_delta(&mut self, id: &ItemId, at: u32, text: &str) {
        let value =
            json!({ "item_id": id.named("rs"), "output_index": at, "summary_index": 0, "delta": text });
        self.write_delta("response.reasoning_summary_text.delta", value, text);
    }
}

fn open_text(writer: &mut EventWriter, id: &ItemId, at: u32) {
    let name = id.named("msg");
    let item =
        json!({ "id": name, "type": "message", "role": "assistant", "status": "in_progress", "content": [] });
    writer.write("response.output_item.added", json!({ "output_index": at, "item": item }));
    let value = json!({ "item_id": name, "output_index": at, "content_index": 0, "part": output_text("") });
    writer.write("response.content_part.added", value);
}

fn close_text(writer: &mut EventWriter, id: &ItemId, at: u32, text: &str, item: Value) {
    let name = id.named("msg");
    let value =
        json!({ "item_id": name, "output_index": at, "content_index": 0, "text": text, "logprobs": [] });
    writer.write("response.output_text.done", value);
    let value = json!({ "item_id": name, "output_index": at, "content_index": 0, "part": output_text(text) });
    writer.write("response.content_part.done", value);
    writer.write("response.output_item.done", json!({ "output_index": at, "item": item }));
}

fn open_reasoning(writer: &mut EventWriter, id: &ItemId, at: u32) {
    let name = id.named("rs");
    let item = json!({ "id": name, "type": "reasoning", "summary": [] });
    writer.write("response.output_item.added", json!({ "output_index": at, "item": item }));
    let part = json!({ "type": "summary_text", "text": "" });
    let value = json!({ "item_id": name, "output_index": at, "summary_index": 0, "part": part });
    writer.write("response.reasoning_summary_part.added", value);
}

fn close_reasoning(writer: &mut EventWriter, id: &ItemId, at: u32, text: &str, item: Value) {
    let name = id.named("rs");
    let value = json!({ "item_id": name, "output_index": at, "summary_index": 0, "text": text });
    writer.write("response.reasoning_summary_text.done", value);
    let part = json!({ "type": "summary_text", "text": text });
    let value = json!({ "item_id": name, "output_index": at, "summary_index": 0, "part": part });
    writer.write("response.reasoning_summary_part.done", value);
    writer.write("response.output_item.done", json!({ "output_index": at, "item": item }));
}

fn write_client_call(writer: &mut EventWriter, id: &ItemId, at: u32, call: &Value) {
    let name = id.named("fc");
    let text = call["arguments"].as_str().unwrap_or_default().to_owned();
    let mut begun = call.clone();
    begun["arguments"] = json!("");
    begun["status"] = json!("in_progress");
    writer.write("response.output_item.added", json!({ "output_index": at, "item": begun }));
    let value = json!({ "item_id": name, "output_index": at, "delta": text });
    writer.write_delta("response.function_call_arguments.delta", value, &text);
    let value = json!({ "item_id": name, "output_index": at, "name": call["name"], "arguments": text });
    writer.write("response.function_call_arguments.done", value);
    writer.write("response.output_item.done", json!({ "output_index": at, "item": call }));
}

fn write_server_call(writer: &mut EventWriter, id: &ItemId, at: u32, call: &Value) {
    let name = id.named("mcp");
    let text = call["arguments"].as_str().unwrap_or_default().to_owned();
    writer.write(
        "response.output_item.added",
        json!({ "output_index": at, "item": server_call_item(id, call, None) }),
    );
    writer.write("response.mcp_call.in_progress", json!({ "item_id": name, "output_index": at }));
    let value = json!({ "item_id": name, "output_index": at, "delta": text });
    writer.write_delta("response.mcp_call_arguments.delta", value, &text);
    let value = json!({ "item_id": name, "output_index": at, "arguments": text });
    writer.write("response.mcp_call_arguments.done", value);
}

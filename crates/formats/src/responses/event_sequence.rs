//! A turn as the events of a response stream. Only durable entries determine the events and their numbers. A
//! streamed text uses as many numbers as it has bytes, regardless of its chunks. So the log alone determines the
//! number of each event, and a reader can resume after the last number it saw, on any server, even in the middle of
//! a word. Live chunks are only a preview of the entry.

use std::collections::HashSet;

use sapwood_core::entry::{AssistantMessage, ToolResult};
use sapwood_core::turn::Terms;
use sapwood_core::{Body, Entry};
use serde_json::{Value, json};

use super::items::{PendingItem, Shape, output_of, output_text, pieces_of, run_here};
use super::response::response_of;
use super::{Anchor, ItemId, ResponseId};

/// A chunk of a streamed reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Live<'a> {
    Words(&'a str),
    Thought(&'a str),
    /// A call has started, so the text before it is complete.
    Call,
}

/// One event. `bytes` is the length of a delta's text, which is added to its number.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    number: i64,
    bytes: i64,
    value: Value,
}

/// Generates the events of one turn.
#[derive(Debug)]
pub struct Script {
    id: ResponseId,
    entries: Vec<Entry>,
    /// The number of the last event sent. Earlier events are not sent again.
    sent: i64,
    /// The number of the last durable event.
    number: i64,
    /// The number of durable items.
    items: u32,
    callers_tools: HashSet<String>,
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
    /// Number of chunks seen, to detect a lost chunk.
    seen: u32,
    open: Option<PendingItem>,
}

impl Script {
    /// Create the sequence. `after` is the number of the last event that the reader has.
    pub fn new(id: ResponseId, after: Option<u32>) -> Self {
        Self {
            id,
            entries: Vec::new(),
            sent: after.map_or(-1, i64::from),
            number: -1,
            items: 0,
            callers_tools: HashSet::new(),
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
        let mut pen = Pen { number: self.number, events: Vec::new() };
        let is_output = output_of(entry).is_some();
        match &entry.body {
            Body::TurnStarted(_) => {}
            Body::Round(round) if round.number == 1 && self.number < 0 => self.begin(&mut pen),
            Body::AssistantMessage(answer) if is_output => self.tell_answer(&mut pen, answer, entry),
            Body::ToolResult(result) if is_output => self.tell_result(&mut pen, result),
            Body::TurnEnded(_) => self.end(&mut pen),
            _ => {}
        }
        self.number = pen.number;
        if let Some(preview) = self.preview.as_mut().filter(|_| is_output || self.items == 0) {
            *preview = Preview { number: self.number, items: self.items, ..Preview::default() };
        }
        self.send(pen.events)
    }

    fn begin(&mut self, pen: &mut Pen) {
        let terms = Terms::of(self.entries.iter().map(|entry| &entry.body));
        self.callers_tools = terms.tools.into_iter().map(|tool| tool.name).collect();
        for kind in ["response.created", "response.in_progress"] {
            pen.write(kind, json!({ "response": response_of(&self.id, &self.entries) }));
        }
    }

    fn item_id(&self, place: u32) -> ItemId {
        ItemId { anchor: Anchor::Turn(self.id.turn), place }
    }

    fn tell_answer(&mut self, pen: &mut Pen, answer: &AssistantMessage, entry: &Entry) {
        debug_assert!(output_of(entry).is_some());
        for piece in pieces_of(answer, Shape::Output) {
            let (at, id) = (self.items, self.item_id(self.items));
            self.items += 1;
            match &piece.held {
                PendingItem::Words(texts) => {
                    let text = texts.concat();
                    open_words(pen, &id, at);
                    pen.words(&id, at, &text);
                    close_words(pen, &id, at, &text, piece.value(&id));
                }
                PendingItem::Thought(text) => {
                    open_thought(pen, &id, at);
                    pen.thought(&id, at, text);
                    close_thought(pen, &id, at, text, piece.value(&id));
                }
                PendingItem::Call(call) if self.callers_tools.contains(&call.name) => {
                    tell_callers_call(pen, &id, at, &piece.value(&id));
                }
                PendingItem::Call(_) => {
                    let call = piece.value(&id);
                    tell_own_call(pen, &id, at, &call);
                    self.running.push((at, id, call));
                }
            }
        }
    }

    fn tell_result(&mut self, pen: &mut Pen, result: &ToolResult) {
        let is_meant = |(_, _, call): &(u32, ItemId, Value)| call["call_id"] == result.call_id.as_str();
        let Some(found) = self.running.iter().position(is_meant) else { return };
        let (at, id, call) = self.running.remove(found);
        let item = run_here(&id, &call, Some(result));
        let kind = if result.is_error { "response.mcp_call.failed" } else { "response.mcp_call.completed" };
        pen.write(kind, json!({ "item_id": item["id"], "output_index": at }));
        pen.write("response.output_item.done", json!({ "output_index": at, "item": item }));
    }

    fn end(&mut self, pen: &mut Pen) {
        let response = response_of(&self.id, &self.entries);
        let kind = match response["status"].as_str() {
            Some("completed") => "response.completed",
            Some("failed") => "response.failed",
            _ => "response.incomplete",
        };
        pen.write(kind, json!({ "response": response }));
        self.is_over = true;
    }

    /// Emit events for a live chunk, ahead of its entry. A lost chunk ends the preview until the entry is
    /// written.
    pub fn preview(&mut self, place: u32, live: Live<'_>) -> Vec<Value> {
        let id = self.id.clone();
        let Some(preview) = self.preview.as_mut() else { return Vec::new() };
        if preview.seen != place || preview.number < 0 {
            // No chunk has this number, so the preview stays off until the next answer.
            preview.seen = u32::MAX;
            return Vec::new();
        }
        preview.seen += 1;
        let mut pen = Pen { number: preview.number, events: Vec::new() };
        preview.write(&mut pen, &id, live);
        preview.number = pen.number;
        self.send(pen.events)
    }

    /// Filter the events that the reader does not have yet. If it has the beginning of a text, send the rest.
    fn send(&mut self, events: Vec<Event>) -> Vec<Value> {
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
    fn write(&mut self, pen: &mut Pen, response: &ResponseId, live: Live<'_>) {
        let id = |place| ItemId { anchor: Anchor::Turn(response.turn), place };
        let goes_on = matches!(
            (&self.open, live),
            (Some(PendingItem::Words(_)), Live::Words(_)) | (Some(PendingItem::Thought(_)), Live::Thought(_))
        );
        if !goes_on && !matches!(live, Live::Words("") | Live::Thought("")) {
            self.close(pen, response);
        }
        match live {
            Live::Words("") | Live::Thought("") | Live::Call => {}
            Live::Words(text) => {
                let at = self.items;
                let Some(PendingItem::Words(texts)) = &mut self.open else {
                    open_words(pen, &id(at), at);
                    pen.words(&id(at), at, text);
                    self.open = Some(PendingItem::Words(vec![text.to_owned()]));
                    return;
                };
                texts[0].push_str(text);
                pen.words(&id(at), at, text);
            }
            Live::Thought(text) => {
                let at = self.items;
                let Some(PendingItem::Thought(whole)) = &mut self.open else {
                    open_thought(pen, &id(at), at);
                    pen.thought(&id(at), at, text);
                    self.open = Some(PendingItem::Thought(text.to_owned()));
                    return;
                };
                whole.push_str(text);
                pen.thought(&id(at), at, text);
            }
        }
    }

    /// Close the open item, because another one follows.
    fn close(&mut self, pen: &mut Pen, response: &ResponseId) {
        let Some(held) = self.open.take() else { return };
        let (at, id) = (self.items, ItemId { anchor: Anchor::Turn(response.turn), place: self.items });
        let piece = super::items::Piece { held, parts: 0..0, status: "completed" };
        let value = piece.value(&id);
        match &piece.held {
            PendingItem::Words(texts) => close_words(pen, &id, at, &texts.concat(), value),
            PendingItem::Thought(text) => close_thought(pen, &id, at, text, value),
            PendingItem::Call(_) => {}
        }
        self.items += 1;
    }
}

/// Collects events and numbers them.
struct Pen {
    number: i64,
    events: Vec<Event>,
}

impl Pen {
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
        self.events.push(Event { number: self.number, bytes, value });
    }

    fn words(&mut self, id: &ItemId, at: u32, text: &str) {
        let value = json!({ "item_id": id.named("msg"), "output_index": at, "content_index": 0, "delta": text, "logprobs": [] });
        self.write_delta("response.output_text.delta", value, text);
    }

    fn thought(&mut self, id: &ItemId, at: u32, text: &str) {
        let value =
            json!({ "item_id": id.named("rs"), "output_index": at, "summary_index": 0, "delta": text });
        self.write_delta("response.reasoning_summary_text.delta", value, text);
    }
}

fn open_words(pen: &mut Pen, id: &ItemId, at: u32) {
    let name = id.named("msg");
    let item =
        json!({ "id": name, "type": "message", "role": "assistant", "status": "in_progress", "content": [] });
    pen.write("response.output_item.added", json!({ "output_index": at, "item": item }));
    let value = json!({ "item_id": name, "output_index": at, "content_index": 0, "part": output_text("") });
    pen.write("response.content_part.added", value);
}

fn close_words(pen: &mut Pen, id: &ItemId, at: u32, text: &str, item: Value) {
    let name = id.named("msg");
    let value =
        json!({ "item_id": name, "output_index": at, "content_index": 0, "text": text, "logprobs": [] });
    pen.write("response.output_text.done", value);
    let value = json!({ "item_id": name, "output_index": at, "content_index": 0, "part": output_text(text) });
    pen.write("response.content_part.done", value);
    pen.write("response.output_item.done", json!({ "output_index": at, "item": item }));
}

fn open_thought(pen: &mut Pen, id: &ItemId, at: u32) {
    let name = id.named("rs");
    let item = json!({ "id": name, "type": "reasoning", "summary": [] });
    pen.write("response.output_item.added", json!({ "output_index": at, "item": item }));
    let part = json!({ "type": "summary_text", "text": "" });
    let value = json!({ "item_id": name, "output_index": at, "summary_index": 0, "part": part });
    pen.write("response.reasoning_summary_part.added", value);
}

fn close_thought(pen: &mut Pen, id: &ItemId, at: u32, text: &str, item: Value) {
    let name = id.named("rs");
    let value = json!({ "item_id": name, "output_index": at, "summary_index": 0, "text": text });
    pen.write("response.reasoning_summary_text.done", value);
    let part = json!({ "type": "summary_text", "text": text });
    let value = json!({ "item_id": name, "output_index": at, "summary_index": 0, "part": part });
    pen.write("response.reasoning_summary_part.done", value);
    pen.write("response.output_item.done", json!({ "output_index": at, "item": item }));
}

fn tell_callers_call(pen: &mut Pen, id: &ItemId, at: u32, call: &Value) {
    let name = id.named("fc");
    let text = call["arguments"].as_str().unwrap_or_default().to_owned();
    let mut begun = call.clone();
    begun["arguments"] = json!("");
    begun["status"] = json!("in_progress");
    pen.write("response.output_item.added", json!({ "output_index": at, "item": begun }));
    let value = json!({ "item_id": name, "output_index": at, "delta": text });
    pen.write_delta("response.function_call_arguments.delta", value, &text);
    let value = json!({ "item_id": name, "output_index": at, "name": call["name"], "arguments": text });
    pen.write("response.function_call_arguments.done", value);
    pen.write("response.output_item.done", json!({ "output_index": at, "item": call }));
}

fn tell_own_call(pen: &mut Pen, id: &ItemId, at: u32, call: &Value) {
    let name = id.named("mcp");
    let text = call["arguments"].as_str().unwrap_or_default().to_owned();
    pen.write("response.output_item.added", json!({ "output_index": at, "item": run_here(id, call, None) }));
    pen.write("response.mcp_call.in_progress", json!({ "item_id": name, "output_index": at }));
    let value = json!({ "item_id": name, "output_index": at, "delta": text });
    pen.write_delta("response.mcp_call_arguments.delta", value, &text);
    let value = json!({ "item_id": name, "output_index": at, "arguments": text });
    pen.write("response.mcp_call_arguments.done", value);
}

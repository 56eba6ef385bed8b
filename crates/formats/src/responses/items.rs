//! Converts entries to items. One entry may become several items: reasoning, text and each call of an answer
//! are separate items. A call that Sapwood ran itself is one item together with its result, which is how
//! OpenAI's clients expect server-side tools.

use std::collections::HashMap;
use std::ops::Range;

use sapwood_core::content::{BlobRef, Part, ToolCall};
use sapwood_core::entry::{AssistantMessage, Stop, ToolResult};
use sapwood_core::{Body, Entry, EntryId, Principal, TurnId};
use serde_json::{Value, json};

use super::read::{DEVELOPER, KEPT};
use super::{Anchor, ItemId};

/// The prefix of media references in an item, `blob:HASH;MIME`, until the bytes are inserted.
pub const BLOB_SCHEME: &str = "blob:";
/// The server label of tools that Sapwood runs.
pub const SERVER_LABEL: &str = "sapwood";

#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    pub id: ItemId,
    pub entry: EntryId,
    /// The range of the entry's parts that this item shows.
    pub parts: Range<usize>,
    pub value: Value,
}

/// The fold of a path, or of a turn's entries.
#[derive(Debug, Default)]
pub struct Items {
    pub list: Vec<Item>,
    /// Number of output items per turn.
    outputs: HashMap<TurnId, u32>,
}

/// Return the turn that produced an entry; `None` for entries added by a client, including the input of a
/// turn.
pub fn output_of(entry: &Entry) -> Option<TurnId> {
    entry.meta.turn.filter(|_| matches!(entry.meta.by, Principal::Agent(_)))
}

impl Items {
    pub fn apply(&mut self, entry: &Entry) {
        match &entry.body {
            Body::UserMessage(body) => {
                let content = body.parts.iter().map(input_content).collect();
                self.add_message(entry, "user", content, body.parts.len());
            }
            Body::SystemNote(body) => {
                let role = if body.reason.as_deref() == Some(DEVELOPER) { "developer" } else { "system" };
                let content = vec![json!({ "type": "input_text", "text": body.text })];
                self.add_message(entry, role, content, 0);
            }
            Body::AssistantMessage(body) => self.add_answer(entry, body),
            Body::ToolResult(body) => self.add_result(entry, body),
            Body::CustomMessage(body) if body.custom_type == KEPT => {
                let mut value = body.details.as_ref().map(|details| details.to_value()).unwrap_or_default();
                let kind = value["type"].as_str().unwrap_or("message").to_owned();
                let id = self.next_id(entry, 0);
                value["type"] = json!(kind);
                value["id"] = json!(id.named(prefix_of(&kind)));
                self.list.push(Item { id, entry: entry.meta.id, parts: 0..body.parts.len(), value });
            }
            Body::CustomMessage(body) => {
                let content = body.parts.iter().map(input_content).collect();
                self.add_message(entry, "user", content, body.parts.len());
            }
            // Entries outside the conversation, or that only change the model's context.
            _ => {}
        }
    }

    fn next_id(&mut self, entry: &Entry, place: u32) -> ItemId {
        match output_of(entry) {
            None => ItemId { anchor: Anchor::Entry(entry.meta.id), place },
            Some(turn) => {
                let count = self.outputs.entry(turn).or_default();
                *count += 1;
                ItemId { anchor: Anchor::Turn(turn), place: *count - 1 }
            }
        }
    }

    fn add_message(&mut self, entry: &Entry, role: &str, content: Vec<Value>, parts: usize) {
        // A note by the engine is not model output.
        let id = ItemId { anchor: Anchor::Entry(entry.meta.id), place: 0 };
        let value = json!({
            "id": id.named("msg"), "type": "message", "role": role, "status": "completed", "content": content,
        });
        self.list.push(Item { id, entry: entry.meta.id, parts: 0..parts, value });
    }

    fn add_answer(&mut self, entry: &Entry, answer: &AssistantMessage) {
        let shape = if output_of(entry).is_some() { Shape::Output } else { Shape::AsSent };
        let pieces = pieces_of(answer, shape);
        for (place, piece) in pieces.into_iter().enumerate() {
            let id = self.next_id(entry, place as u32);
            let value = piece.value(&id);
            self.list.push(Item { id, entry: entry.meta.id, parts: piece.parts, value });
        }
    }

    fn add_result(&mut self, entry: &Entry, result: &ToolResult) {
        if let Some(turn) = output_of(entry) {
            let is_call = |item: &&mut Item| {
                matches!(item.id.anchor, Anchor::Turn(of) if of == turn)
                    && item.value["type"] == "function_call"
                    && item.value["call_id"] == result.call_id.as_str()
            };
            if let Some(item) = self.list.iter_mut().rev().find(is_call) {
                item.value = run_here(&item.id, &item.value, Some(result));
                return;
            }
        }
        let id = ItemId { anchor: Anchor::Entry(entry.meta.id), place: 0 };
        let value = json!({
            "id": id.named("fco"), "type": "function_call_output", "call_id": result.call_id,
            "status": if result.interrupted { "incomplete" } else { "completed" },
            "output": output_value(&result.parts),
        });
        self.list.push(Item { id, entry: entry.meta.id, parts: 0..result.parts.len(), value });
    }
}

/// How an answer's parts become items: one by one as sent, or merged as streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    AsSent,
    Output,
}

/// The content of an item of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum PendingItem {
    Words(Vec<String>),
    Thought(String),
    Call(ToolCall),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    pub held: PendingItem,
    pub parts: Range<usize>,
    /// `completed`, or `incomplete` if the answer was interrupted.
    pub status: &'static str,
}

impl Piece {
    pub fn value(&self, id: &ItemId) -> Value {
        match &self.held {
            PendingItem::Words(texts) => {
                let content: Vec<Value> = texts.iter().map(|text| output_text(text)).collect();
                json!({ "id": id.named("msg"), "type": "message", "role": "assistant", "status": self.status, "content": content })
            }
            PendingItem::Thought(text) => {
                let summary: Vec<Value> = match text.is_empty() {
                    true => Vec::new(),
                    false => vec![json!({ "type": "summary_text", "text": text })],
                };
                json!({ "id": id.named("rs"), "type": "reasoning", "summary": summary })
            }
            PendingItem::Call(call) => json!({
                "id": id.named("fc"), "type": "function_call", "call_id": call.call_id, "name": call.name,
                "arguments": arguments_text(call), "status": self.status,
            }),
        }
    }
}

pub fn pieces_of(answer: &AssistantMessage, shape: Shape) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (at, part) in answer.parts.iter().enumerate() {
        let held = match part {
            Part::Text(text) if text.text.is_empty() && shape == Shape::Output => continue,
            Part::Text(text) => PendingItem::Words(vec![text.text.clone()]),
            Part::Reasoning(thought) if thought.text.is_empty() && shape == Shape::Output => continue,
            Part::Reasoning(thought) => PendingItem::Thought(thought.text.clone()),
            Part::ToolCall(call) => PendingItem::Call(call.clone()),
            Part::Media(media) => PendingItem::Words(vec![media_name(media)]),
        };
        match (pieces.last_mut(), held, shape) {
            (
                Some(Piece { held: PendingItem::Words(texts), parts, .. }),
                PendingItem::Words(more),
                Shape::AsSent,
            ) => {
                texts.extend(more);
                parts.end = at + 1;
            }
            (
                Some(Piece { held: PendingItem::Words(texts), parts, .. }),
                PendingItem::Words(more),
                Shape::Output,
            ) => {
                texts[0].push_str(&more.concat());
                parts.end = at + 1;
            }
            (
                Some(Piece { held: PendingItem::Thought(text), parts, .. }),
                PendingItem::Thought(more),
                Shape::Output,
            ) => {
                text.push_str(&more);
                parts.end = at + 1;
            }
            (_, held, _) => pieces.push(Piece { held, parts: at..at + 1, status: "completed" }),
        }
    }
    let is_cut = matches!(answer.stop, Stop::Length | Stop::Error | Stop::Aborted | Stop::ContentFilter);
    if let Some(last) = pieces.last_mut().filter(|_| is_cut) {
        last.status = "incomplete";
    }
    pieces
}

/// Build the item for a call that Sapwood runs itself, with its result if available.
pub fn run_here(id: &ItemId, call: &Value, result: Option<&ToolResult>) -> Value {
    let status = match result {
        None => "in_progress",
        Some(result) if result.is_error => "failed",
        Some(_) => "completed",
    };
    json!({
        "id": id.named("mcp"), "type": "mcp_call", "server_label": SERVER_LABEL, "name": call["name"],
        "arguments": call["arguments"], "status": status, "error": null, "approval_request_id": null,
        "output": result.map(|result| sapwood_core::content::joined_text(&result.parts)),
    })
}

pub fn output_text(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// Return the arguments as the model wrote them: JSON, or invalid text.
pub fn arguments_text(call: &ToolCall) -> String {
    match call.input.to_value() {
        Value::String(text) => text,
        _ => call.input.get().to_owned(),
    }
}

fn output_value(parts: &[Part]) -> Value {
    match parts {
        [Part::Text(text)] => json!(text.text),
        [] => json!(""),
        parts => Value::Array(parts.iter().map(input_content).collect()),
    }
}

fn input_content(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "input_text", "text": text.text }),
        Part::Reasoning(thought) => json!({ "type": "input_text", "text": thought.text }),
        Part::ToolCall(call) => json!({ "type": "input_text", "text": arguments_text(call) }),
        Part::Media(media) if media.mime.starts_with("image/") => {
            json!({ "type": "input_image", "detail": "auto", "image_url": blob_url(media) })
        }
        Part::Media(media) => {
            json!({ "type": "input_file", "filename": media.name, "file_data": blob_url(media) })
        }
    }
}

fn blob_url(media: &BlobRef) -> String {
    format!("{BLOB_SCHEME}{};{}", media.blob, media.mime)
}

fn media_name(media: &BlobRef) -> String {
    format!("[{} {}]", media.mime, media.name.as_deref().unwrap_or("unnamed"))
}

fn prefix_of(kind: &str) -> &'static str {
    match kind {
        "message" => "msg",
        "function_call_output" => "fco",
        "reasoning" => "rs",
        _ => "item",
    }
}

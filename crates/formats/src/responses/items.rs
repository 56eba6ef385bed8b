//! Conversion of entries to items. One entry may become several items: reasoning, text and each call of an answer are
//! separate items. A call that Sapwood ran is one item together with its result, because OpenAI's clients expect this
//! form for server-side tools.

use std::collections::HashMap;
use std::ops::Range;

use sapwood_core::content::{BlobRef, Part, ToolCall};
use sapwood_core::entry::{AssistantMessage, Stop, ToolResult};
use sapwood_core::{Body, Entry, EntryId, Principal, TurnId};
use serde_json::{Value, json};

use super::read::{DEVELOPER, KEPT};
use super::{Anchor, ItemId};

/// The prefix of a media reference in an item, `blob:HASH;MIME`. The caller replaces the reference with the bytes.
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

/// The items of a path or of a turn, built by a fold over its entries.
#[derive(Debug, Default)]
pub struct Items {
    pub list: Vec<Item>,
    outputs: HashMap<TurnId, u32>,
}

/// Return the turn that produced an entry, or `None` for entries added by a client, including the input of a turn.
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
            // The entry is outside the conversation or only changes the model's context.
            _ => {}
        }
    }

    fn next_id(&mut self, entry: &Entry, index: u32) -> ItemId {
        match output_of(entry) {
            None => ItemId { anchor: Anchor::Entry(entry.meta.id), index },
            Some(turn) => {
                let count = self.outputs.entry(turn).or_default();
                *count += 1;
                ItemId { anchor: Anchor::Turn(turn), index: *count - 1 }
            }
        }
    }

    fn add_message(&mut self, entry: &Entry, role: &str, content: Vec<Value>, parts: usize) {
        // A note by the engine is not model output.
        let id = ItemId { anchor: Anchor::Entry(entry.meta.id), index: 0 };
        let value = json!({
            "id": id.named("msg"), "type": "message", "role": role, "status": "completed", "content": content,
        });
        self.list.push(Item { id, entry: entry.meta.id, parts: 0..parts, value });
    }

    fn add_answer(&mut self, entry: &Entry, answer: &AssistantMessage) {
        let shape = if output_of(entry).is_some() { AnswerShape::Output } else { AnswerShape::AsSent };
        let items = answer_items(answer, shape);
        for (index, item) in items.into_iter().enumerate() {
            let id = self.next_id(entry, index as u32);
            let value = item.value(&id);
            self.list.push(Item { id, entry: entry.meta.id, parts: item.parts, value });
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
                item.value = server_call_item(&item.id, &item.value, Some(result));
                return;
            }
        }
        let id = ItemId { anchor: Anchor::Entry(entry.meta.id), index: 0 };
        let value = json!({
            "id": id.named("fco"), "type": "function_call_output", "call_id": result.call_id,
            "status": if result.interrupted { "incomplete" } else { "completed" },
            "output": output_value(&result.parts),
        });
        self.list.push(Item { id, entry: entry.meta.id, parts: 0..result.parts.len(), value });
    }
}

/// How the parts of an answer become items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerShape {
    /// As the client sent them. Adjacent texts are separate parts of one item.
    AsSent,
    /// As the model streamed them. Adjacent texts are merged, and empty texts are dropped.
    Output,
}

/// The content of an item of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ItemContent {
    Text(Vec<String>),
    Reasoning(String),
    Call(ToolCall),
}

/// An item of an answer, without its id.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerItem {
    pub content: ItemContent,
    pub parts: Range<usize>,
    /// `completed`, or `incomplete` if the answer was interrupted.
    pub status: &'static str,
}

impl AnswerItem {
    pub fn value(&self, id: &ItemId) -> Value {
        match &self.content {
            ItemContent::Text(texts) => {
                let content: Vec<Value> = texts.iter().map(|text| output_text(text)).collect();
                json!({ "id": id.named("msg"), "type": "message", "role": "assistant", "status": self.status, "content": content })
            }
            ItemContent::Reasoning(text) => {
                let summary: Vec<Value> = match text.is_empty() {
                    true => Vec::new(),
                    false => vec![json!({ "type": "summary_text", "text": text })],
                };
                json!({ "id": id.named("rs"), "type": "reasoning", "summary": summary })
            }
            ItemContent::Call(call) => json!({
                "id": id.named("fc"), "type": "function_call", "call_id": call.call_id, "name": call.name,
                "arguments": arguments_text(call), "status": self.status,
            }),
        }
    }
}

pub fn answer_items(answer: &AssistantMessage, shape: AnswerShape) -> Vec<AnswerItem> {
    let mut items: Vec<AnswerItem> = Vec::new();
    for (at, part) in answer.parts.iter().enumerate() {
        let content = match part {
            Part::Text(text) if text.text.is_empty() && shape == AnswerShape::Output => continue,
            Part::Text(text) => ItemContent::Text(vec![text.text.clone()]),
            Part::Reasoning(thought) if thought.text.is_empty() && shape == AnswerShape::Output => continue,
            Part::Reasoning(thought) => ItemContent::Reasoning(thought.text.clone()),
            Part::ToolCall(call) => ItemContent::Call(call.clone()),
            Part::Media(media) => ItemContent::Text(vec![media_name(media)]),
        };
        match (items.last_mut(), content, shape) {
            (
                Some(AnswerItem { content: ItemContent::Text(texts), parts, .. }),
                ItemContent::Text(more),
                AnswerShape::AsSent,
            ) => {
                texts.extend(more);
                parts.end = at + 1;
            }
            (
                Some(AnswerItem { content: ItemContent::Text(texts), parts, .. }),
                ItemContent::Text(more),
                AnswerShape::Output,
            ) => {
                texts[0].push_str(&more.concat());
                parts.end = at + 1;
            }
            (
                Some(AnswerItem { content: ItemContent::Reasoning(text), parts, .. }),
                ItemContent::Reasoning(more),
                AnswerShape::Output,
            ) => {
                text.push_str(&more);
                parts.end = at + 1;
            }
            (_, content, _) => items.push(AnswerItem { content, parts: at..at + 1, status: "completed" }),
        }
    }
    let is_cut = matches!(answer.stop, Stop::Length | Stop::Error | Stop::Aborted | Stop::ContentFilter);
    if let Some(last) = items.last_mut().filter(|_| is_cut) {
        last.status = "incomplete";
    }
    items
}

/// Build the item for a call that Sapwood runs, with its result if available.
pub fn server_call_item(id: &ItemId, call: &Value, result: Option<&ToolResult>) -> Value {
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

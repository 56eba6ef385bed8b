//! The context as plain messages in the formats of the OpenAI and Anthropic APIs. Reasoning is omitted, because both
//! APIs accept it only with the vendor's signature, which is never stored (I12).

use std::collections::HashMap;

use sapwood_core::BlobHash;
use sapwood_core::content::{BlobRef, Part, joined_text};
use sapwood_core::project::context::{Context, Message, Role};
use serde_json::{Value, json};

use crate::import::text::encode_base64;

/// Bytes of media by hash. Missing media is described in text.
pub type Blobs = HashMap<BlobHash, Vec<u8>>;

/// Convert the context to an array of OpenAI chat messages.
pub fn openai(context: &Context, blobs: &Blobs) -> Value {
    let system = context.system.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages = context.messages.iter().map(|message| openai_message(message, blobs));
    Value::Array(system.chain(messages).collect())
}

fn openai_message(message: &Message, blobs: &Blobs) -> Value {
    match message.role {
        Role::User => json!({ "role": "user", "content": openai_content(&message.parts, blobs) }),
        Role::System => json!({ "role": "system", "content": message.text() }),
        Role::Tool => {
            let call_id = message.answers.as_ref().map_or("", |answers| answers.call_id.as_str());
            json!({ "role": "tool", "tool_call_id": call_id, "content": plain_text(&message.parts) })
        }
        Role::Assistant => {
            let calls: Vec<Value> = message.parts.iter().filter_map(Part::as_tool_call).map(|call| {
                json!({ "id": call.call_id, "type": "function", "function": { "name": call.name, "arguments": call.input.get() } })
            }).collect();
            let text = message.text();
            match calls.is_empty() {
                true => json!({ "role": "assistant", "content": text }),
                false if text.is_empty() => {
                    json!({ "role": "assistant", "content": null, "tool_calls": calls })
                }
                false => json!({ "role": "assistant", "content": text, "tool_calls": calls }),
            }
        }
    }
}

fn openai_content(parts: &[Part], blobs: &Blobs) -> Value {
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        return Value::String(joined_text(parts));
    }
    let block = |part: &Part| match part {
        Part::Text(text) => Some(json!({ "type": "text", "text": text.text })),
        Part::Media(media) => Some(match image_data(media, blobs) {
            Some(data) => {
                json!({ "type": "image_url", "image_url": { "url": format!("data:{};base64,{data}", media.mime) } })
            }
            None => json!({ "type": "text", "text": describe_media(media) }),
        }),
        Part::Reasoning(_) | Part::ToolCall(_) => None,
    };
    Value::Array(parts.iter().filter_map(block).collect())
}

/// Convert the context to an Anthropic object with `system` and `messages`. As that API requires, tool
/// results become user messages, and adjacent messages of one role are merged.
pub fn anthropic(context: &Context, blobs: &Blobs) -> Value {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in &context.messages {
        let (role, blocks) = anthropic_blocks(message, blobs);
        if blocks.is_empty() {
            continue;
        }
        match messages.last_mut() {
            Some((last, before)) if *last == role => before.extend(blocks),
            _ => messages.push((role, blocks)),
        }
    }
    let messages: Vec<Value> =
        messages.into_iter().map(|(role, content)| json!({ "role": role, "content": content })).collect();
    let mut document = json!({ "messages": messages });
    for (key, value) in [("system", &context.system), ("model", &context.model)] {
        if let Some(text) = value {
            document[key] = json!(text);
        }
    }
    document
}

fn anthropic_blocks<'a>(message: &Message, blobs: &Blobs) -> (&'a str, Vec<Value>) {
    if let Some(answers) = &message.answers {
        let content: Vec<Value> =
            message.parts.iter().filter_map(|part| anthropic_block(part, blobs)).collect();
        let mut result = json!({ "type": "tool_result", "tool_use_id": answers.call_id, "content": content });
        if answers.is_error {
            result["is_error"] = json!(true);
        }
        return ("user", vec![result]);
    }
    let role = if message.role == Role::Assistant { "assistant" } else { "user" };
    (role, message.parts.iter().filter_map(|part| anthropic_block(part, blobs)).collect())
}

fn anthropic_block(part: &Part, blobs: &Blobs) -> Option<Value> {
    match part {
        Part::Text(text) if text.text.trim().is_empty() => None,
        Part::Text(text) => Some(json!({ "type": "text", "text": text.text })),
        Part::ToolCall(call) => {
            let input = call.input.to_value();
            let input = if input.is_object() { input } else { json!({ "input": input }) };
            Some(json!({ "type": "tool_use", "id": call.call_id, "name": call.name, "input": input }))
        }
        Part::Media(media) => Some(match image_data(media, blobs) {
            Some(data) => {
                json!({ "type": "image", "source": { "type": "base64", "media_type": media.mime, "data": data } })
            }
            None => json!({ "type": "text", "text": describe_media(media) }),
        }),
        Part::Reasoning(_) => None,
    }
}

/// Return the image as base64 if both vendors accept its type.
fn image_data(media: &BlobRef, blobs: &Blobs) -> Option<String> {
    let known = ["image/png", "image/jpeg", "image/gif", "image/webp"].contains(&media.mime.as_str());
    blobs.get(&media.blob).filter(|_| known).map(|bytes| encode_base64(bytes))
}

pub(super) fn describe_media(media: &BlobRef) -> String {
    let name = media.name.as_deref().unwrap_or("unnamed");
    format!("[{}: {name}, {} bytes, {}]", media.mime, media.bytes, media.blob)
}

/// Join the text parts, and describe media in text. Reasoning and tool calls are omitted.
pub(super) fn plain_text(parts: &[Part]) -> String {
    let text_of = |part: &Part| match part {
        Part::Text(text) => Some(text.text.clone()),
        Part::Media(media) => Some(describe_media(media)),
        Part::Reasoning(_) | Part::ToolCall(_) => None,
    };
    parts.iter().filter_map(text_of).collect::<Vec<_>>().join("\n")
}

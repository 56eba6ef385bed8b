//! Conversion of clients' items to entries. An item without an equivalent is stored unchanged and is returned when the
//! client lists the conversation. Inline media becomes bytes for the blob store. A vendor's encrypted reasoning is
//! dropped (I12).

use sapwood_core::content::{BlobRef, Part, Reasoning};
use sapwood_core::entry::{AssistantMessage, CustomMessage, Stop, SystemNote, ToolResult, UserMessage};
use sapwood_core::{BlobHash, Body, Json};
use serde_json::Value;

use crate::import::text::decode_data_url;
use crate::message::{MessageError, NAME_BYTES_MAX, NESTING_MAX, PARTS_MAX, arguments, nesting};

/// Maximum number of items that one request may add to a conversation.
pub const ITEMS_MAX: usize = 20;
/// Maximum number of input items of one response.
pub const INPUT_ITEMS_MAX: usize = 10_000;
/// The custom type of an entry that stores an item without an equivalent.
pub const KEPT: &str = "openai_item";
/// The reason stored in a system note whose role was `developer`.
pub const DEVELOPER: &str = "developer";

type Result<T> = std::result::Result<T, MessageError>;

/// The entries of a request, and the bytes they refer to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Incoming {
    pub bodies: Vec<Body>,
    pub blobs: Vec<Vec<u8>>,
}

/// Read the input of a response: a string or an array of items.
pub fn read_input(input: &Value) -> Result<Incoming> {
    match input {
        Value::String(text) if text.is_empty() => Err(MessageError::Empty { at: "input".to_owned() }),
        Value::String(text) => {
            let message = UserMessage { parts: vec![Part::text(text)], origin: None };
            Ok(Incoming { bodies: vec![message.into()], blobs: Vec::new() })
        }
        Value::Array(items) => read_items(items, "input", INPUT_ITEMS_MAX),
        other => Err(wrong_type("input", "a string or an array", other)),
    }
}

pub fn read_items(items: &[Value], at: &str, items_max: usize) -> Result<Incoming> {
    if items.len() > items_max {
        return Err(MessageError::TooMany { at: at.to_owned(), max: items_max });
    }
    let mut reader = ItemReader::default();
    for (number, item) in items.iter().enumerate() {
        reader.read_item(item, &format!("{at}[{number}]"))?;
    }
    reader.close_answer();
    Ok(reader.incoming)
}

#[derive(Default)]
struct ItemReader {
    incoming: Incoming,
    /// The parts of the current answer. Its reasoning, text and calls form one entry.
    answer: Vec<Part>,
}

impl ItemReader {
    fn read_item(&mut self, item: &Value, at: &str) -> Result<()> {
        if !item.is_object() {
            return Err(wrong_type(at, "an object", item));
        }
        match item["type"].as_str() {
            None if item["type"].is_null() => self.read_message(item, at),
            Some("message") => self.read_message(item, at),
            Some("function_call") => self.read_call(item, at),
            Some("function_call_output") => self.read_result(item, at),
            Some("reasoning") => self.read_reasoning(item),
            Some("item_reference") => Err(MessageError::Invalid {
                at: at.to_owned(),
                why: "item references are not supported: send the item itself".to_owned(),
            }),
            Some(_) => self.keep(item, at),
            None => Err(wrong_type(&format!("{at}.type"), "a string", &item["type"])),
        }
    }

    fn read_message(&mut self, item: &Value, at: &str) -> Result<()> {
        let role = item["role"].as_str().ok_or_else(|| MessageError::Missing { at: format!("{at}.role") })?;
        let location = format!("{at}.content");
        let Some(parts) = self.read_content(&item["content"], &location)? else { return self.keep(item, at) };
        if parts.is_empty() {
            return Err(MessageError::Empty { at: location });
        }
        match role {
            "user" => self.push(UserMessage { parts, origin: None }),
            "assistant" => self.add_answer_parts(parts),
            "system" | "developer" if parts.iter().all(|part| part.as_text().is_some()) => {
                let text = sapwood_core::content::joined_text(&parts);
                let reason = (role == "developer").then(|| DEVELOPER.to_owned());
                self.push(SystemNote { text, reason });
            }
            "system" | "developer" => return self.keep(item, at),
            other => return Err(MessageError::UnknownRole { role: other.chars().take(64).collect() }),
        }
        Ok(())
    }

    /// Read content. Returns `None` if a part has no equivalent.
    fn read_content(&mut self, content: &Value, at: &str) -> Result<Option<Vec<Part>>> {
        let list = match content {
            Value::String(text) => return Ok(Some(vec![Part::text(text)])),
            Value::Array(list) if list.len() > PARTS_MAX => {
                return Err(MessageError::TooMany { at: at.to_owned(), max: PARTS_MAX });
            }
            Value::Array(list) => list,
            Value::Null => return Err(MessageError::Missing { at: at.to_owned() }),
            other => return Err(wrong_type(at, "a string or an array", other)),
        };
        let mut parts = Vec::with_capacity(list.len());
        for (number, part) in list.iter().enumerate() {
            let location = format!("{at}[{number}]");
            let kind = part["type"]
                .as_str()
                .ok_or_else(|| MessageError::Missing { at: format!("{location}.type") })?;
            let read = match kind {
                "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => {
                    Some(Part::text(required_text(part, "text", &location)?))
                }
                "refusal" => Some(Part::text(required_text(part, "refusal", &location)?)),
                "input_image" => self.read_media(part["image_url"].as_str(), None),
                "input_file" => self.read_media(part["file_data"].as_str(), part["filename"].as_str()),
                _ => None,
            };
            let Some(read) = read else { return Ok(None) };
            parts.push(read);
        }
        Ok(Some(parts))
    }

    /// Read inline media. Returns `None` for a URL, because nothing is fetched.
    fn read_media(&mut self, url: Option<&str>, name: Option<&str>) -> Option<Part> {
        let (mime, bytes) = decode_data_url(url?)?;
        let (mime, size) = (mime.to_owned(), bytes.len() as u64);
        let blob = BlobHash::of(&bytes);
        self.incoming.blobs.push(bytes);
        let name = name.map(|name| name.chars().take(NAME_BYTES_MAX).collect());
        Some(Part::Media(BlobRef { blob, mime, name, bytes: size, duration_ms: None }))
    }

    fn read_call(&mut self, item: &Value, at: &str) -> Result<()> {
        let (call_id, name) = (required_name(item, "call_id", at)?, required_name(item, "name", at)?);
        let text = required_text(item, "arguments", at)?;
        let input = arguments(text, &format!("{at}.arguments"))?;
        self.answer.push(Part::tool_call(call_id, name, input));
        Ok(())
    }

    fn read_result(&mut self, item: &Value, at: &str) -> Result<()> {
        let call_id = required_name(item, "call_id", at)?;
        let Some(parts) = self.read_content(&item["output"], &format!("{at}.output"))? else {
            return self.keep(item, at);
        };
        self.push(ToolResult {
            call_id,
            tool: None,
            parts,
            is_error: false,
            duration_ms: None,
            interrupted: item["status"] == "incomplete",
            full: None,
        });
        Ok(())
    }

    fn read_reasoning(&mut self, item: &Value) -> Result<()> {
        let texts = |key: &str| -> Vec<String> {
            let list = item[key].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(|part| part["text"].as_str()).map(str::to_owned).collect()
        };
        let reasoning =
            Some(texts("summary")).filter(|texts| !texts.is_empty()).unwrap_or_else(|| texts("content"));
        if self.answer.iter().any(|part| !matches!(part, Part::Reasoning(_))) {
            self.close_answer();
        }
        let redacted = reasoning.is_empty();
        self.answer.push(Part::Reasoning(Reasoning { text: reasoning.join("\n\n"), redacted }));
        Ok(())
    }

    /// Add a message of the model. If the current answer already has text or calls, start a new answer.
    fn add_answer_parts(&mut self, parts: Vec<Part>) {
        if self.answer.iter().any(|part| !matches!(part, Part::Reasoning(_))) {
            self.close_answer();
        }
        self.answer.extend(parts);
    }

    fn keep(&mut self, item: &Value, at: &str) -> Result<()> {
        let text = item.to_string();
        if nesting(text.as_bytes()) > NESTING_MAX {
            return Err(MessageError::TooDeep { at: at.to_owned() });
        }
        let kind: String = item["type"].as_str().unwrap_or("message").chars().take(64).collect();
        self.push(CustomMessage {
            custom_type: KEPT.to_owned(),
            parts: vec![Part::text(format!("[{kind}]"))],
            display: true,
            details: Some(Json::from_value(item)),
        });
        Ok(())
    }

    fn push(&mut self, body: impl Into<Body>) {
        self.close_answer();
        self.incoming.bodies.push(body.into());
    }

    fn close_answer(&mut self) {
        if self.answer.is_empty() {
            return;
        }
        let parts = std::mem::take(&mut self.answer);
        let calls = parts.iter().any(|part| part.as_tool_call().is_some());
        let stop = if calls { Stop::ToolUse } else { Stop::Stop };
        let answer = AssistantMessage { parts, model: None, usage: None, cost_nano_usd: None, stop };
        self.incoming.bodies.push(answer.into());
    }
}

fn required_text(value: &Value, key: &str, at: &str) -> Result<String> {
    match &value[key] {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Err(MessageError::Missing { at: format!("{at}.{key}") }),
        other => Err(wrong_type(&format!("{at}.{key}"), "a string", other)),
    }
}

fn required_name(value: &Value, key: &str, at: &str) -> Result<String> {
    let name = required_text(value, key, at)?;
    let location = || format!("{at}.{key}");
    if name.is_empty() {
        return Err(MessageError::Empty { at: location() });
    }
    if name.len() > NAME_BYTES_MAX {
        let why = format!("it is longer than {NAME_BYTES_MAX} bytes");
        return Err(MessageError::Invalid { at: location(), why });
    }
    Ok(name)
}

fn wrong_type(at: &str, expected: &'static str, found: &Value) -> MessageError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    MessageError::WrongType { at: at.to_owned(), expected, found }
}

//! A single message given by a user or client: `sapwood inject --message JSON`, or a POST to `/entries`.
//!
//! The envelope is `{"role", "content"}`. Content is a string or an array of parts in the format of Sapwood, OpenAI or
//! Anthropic. The envelope is strict: an unsupported key is an error that names the key. Extra keys in parts
//! (`cache_control`, `signature`, …) are dropped. Vendor signatures are never stored (I12). Media inside the message, as
//! base64, is returned separately, and the caller stores it as blobs. Media by URL is refused.
//!
//! The roles `custom` and `info` are for extensions: a message for the model, and data outside the tree.
//!
//! | file | reads |
//! |---|---|
//! | [`inline_media`] | media as base64 |
//! | [`fields`] | an object's fields, typed and bounded, with the location in every error |
//! | [`parts`] | the elements of `content` |
//! | [`usage`] | token counts and stop reasons, under every vendor's names |

mod fields;
mod inline_media;
mod parts;
mod usage;

use sapwood_core::content::{Part, joined_text};
use sapwood_core::custom_type::{CUSTOM_TYPE_BYTES_MAX, is_reserved};
use sapwood_core::entry::{
    AssistantMessage, CustomInfo, CustomMessage, Stop, SystemNote, ToolResult, UserMessage,
};
pub use sapwood_core::nesting::NESTING_MAX;
pub(crate) use sapwood_core::nesting::nesting;
use sapwood_core::port::store::BODY_BYTES_MAX;
use sapwood_core::{Body, Json};
use serde::Deserialize;

use fields::Fields;
use inline_media::MediaSink;
use parts::ContentElement;

/// Maximum number of parts, and of tool calls, in one message.
pub const PARTS_MAX: usize = 10_000;
/// Maximum length in bytes of a tool call id and of a tool, model or type name.
pub const NAME_BYTES_MAX: usize = 512;
/// Largest plausible token count.
pub const TOKENS_MAX: u64 = 1_000_000_000_000;
/// Largest plausible cost: a million US dollars.
pub const COST_NANO_USD_MAX: u64 = 1_000_000_000_000_000;
/// Longest plausible tool run: ten years.
pub const DURATION_MS_MAX: u64 = 10 * 366 * 86_400_000;

const ROLES: &str = "user, assistant, tool, system, developer, custom or info";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("the message is not valid JSON: {why}")]
    NotJson { why: String },
    #[error(
        "the message has {bytes} bytes, over the limit of {BODY_BYTES_MAX}: upload large content as a blob"
    )]
    TooLarge { bytes: usize },
    #[error("{at} is nested deeper than {NESTING_MAX} levels")]
    TooDeep { at: String },
    #[error("{at} must be {expected}, but is {found}")]
    WrongType { at: String, expected: &'static str, found: &'static str },
    #[error("{at} is missing")]
    Missing { at: String },
    #[error("{at} is empty")]
    Empty { at: String },
    #[error("{at} is given twice")]
    Duplicate { at: String },
    #[error("the message has no role: it must be {ROLES}")]
    NoRole,
    #[error("unknown role {role:?}: it must be {ROLES}")]
    UnknownRole { role: String },
    #[error("unknown key {key:?} in a message with role {role}")]
    UnknownKey { key: String, role: &'static str },
    #[error("{at} has the unknown type {found:?}: it must be {expected}")]
    UnknownPart { at: String, found: String, expected: &'static str },
    #[error("{at} is a {part}, which a message with role {role} cannot contain")]
    MisplacedPart { at: String, part: &'static str, role: &'static str },
    #[error(
        "{at} has media by URL or in an unsupported format: include it as base64, as \
         {{\"type\":\"media\",\"mime\":TYPE,\"data\":BASE64}}"
    )]
    InlineMedia { at: String },
    #[error("{at} must be a whole number from 0 to {max}, but is {found}")]
    OutOfRange { at: String, max: u64, found: String },
    #[error("{at} has more than {max} elements")]
    TooMany { at: String, max: usize },
    #[error("{at} has the unknown value {found:?}: it must be {expected}")]
    UnknownValue { at: String, found: String, expected: &'static str },
    #[error("{at} is not valid: {why}")]
    Invalid { at: String, why: String },
}

impl MessageError {
    /// Return the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            MessageError::TooLarge { .. } | MessageError::TooMany { .. } => "input.too_large",
            MessageError::InlineMedia { .. } => "input.inline_media",
            MessageError::NoRole | MessageError::UnknownRole { .. } => "input.role",
            MessageError::UnknownKey { .. } => "input.unknown_key",
            MessageError::NotJson { .. }
            | MessageError::TooDeep { .. }
            | MessageError::WrongType { .. }
            | MessageError::Missing { .. }
            | MessageError::Empty { .. }
            | MessageError::Duplicate { .. }
            | MessageError::UnknownPart { .. }
            | MessageError::MisplacedPart { .. }
            | MessageError::OutOfRange { .. }
            | MessageError::UnknownValue { .. }
            | MessageError::Invalid { .. } => "input.invalid",
        }
    }
}

pub type Result<T, E = MessageError> = std::result::Result<T, E>;

/// A message from a user or client.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MessageIn {
    pub bodies: Vec<Body>,
    /// The media inside the message, which the bodies refer to by hash. It must be stored before they are appended.
    pub media: Vec<Vec<u8>>,
}

/// Read one message without inline media. See [`read_message_with_media`].
pub fn read_message(json: &[u8]) -> Result<Vec<Body>> {
    let message = read_message_with_media(json)?;
    match message.media.is_empty() {
        true => Ok(message.bodies),
        false => Err(MessageError::InlineMedia { at: "content".to_owned() }),
    }
}

/// Read one message. An Anthropic user message with tool results becomes one body per result and one per run of
/// other parts, in order. Every other message becomes one body.
pub fn read_message_with_media(json: &[u8]) -> Result<MessageIn> {
    if json.len() > BODY_BYTES_MAX {
        return Err(MessageError::TooLarge { bytes: json.len() });
    }
    if let Some(body) = read_plain_text(json) {
        return Ok(MessageIn { bodies: vec![body], media: Vec::new() });
    }
    let mut media = MediaSink::default();
    let bodies = read_any(json, &mut media)?;
    Ok(MessageIn { bodies, media: media.blobs })
}

/// Read a plain user text, the most common message, in a single pass. Returns `None` for all other messages. The
/// general reader handles them in several passes and reports errors.
fn read_plain_text(json: &[u8]) -> Option<Body> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct PlainMessage<'a> {
        role: &'a str,
        content: String,
    }
    // serde would also accept an array of two strings.
    if !json.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let message: PlainMessage<'_> =
        serde_json::from_slice(json).ok().filter(|message: &PlainMessage<'_>| message.role == "user")?;
    Some(UserMessage { parts: vec![Part::text(message.content)], origin: None }.into())
}

fn read_any(json: &[u8], media: &mut MediaSink) -> Result<Vec<Body>> {
    let text = std::str::from_utf8(json).map_err(|error| MessageError::NotJson { why: error.to_string() })?;
    let mut fields = Fields::parse(text)?;
    let role = fields.text("role")?.ok_or(MessageError::NoRole)?;
    match role.as_str() {
        "user" => read_user(fields, media),
        "assistant" => read_assistant(fields, media).map(|body| vec![body.into()]),
        "tool" => read_tool(fields, media).map(|body| vec![body.into()]),
        "system" => read_note(fields, "system", media).map(|body| vec![body.into()]),
        "developer" => read_note(fields, "developer", media).map(|body| vec![body.into()]),
        "custom" => read_custom(fields, media).map(|body| vec![body.into()]),
        "info" => read_info(fields).map(|body| vec![body.into()]),
        other => Err(MessageError::UnknownRole { role: other.chars().take(64).collect() }),
    }
}

fn read_user(mut fields: Fields<'_>, media: &mut MediaSink) -> Result<Vec<Body>> {
    let elements = parts::read_content(&mut fields, media)?;
    fields.finish("user")?;
    let elements = elements.ok_or_else(|| MessageError::Missing { at: "content".to_owned() })?;
    if elements.is_empty() {
        return Err(MessageError::Empty { at: "content".to_owned() });
    }
    let mut bodies: Vec<Body> = Vec::new();
    let mut run: Vec<Part> = Vec::new();
    for (number, element) in elements.into_iter().enumerate() {
        match element {
            ContentElement::Part(part @ (Part::Text(_) | Part::Media(_))) => run.push(part),
            ContentElement::Part(part) => return Err(misplaced(number, part_name(&part), "user")),
            ContentElement::Result(result) => {
                close_run(&mut run, &mut bodies);
                bodies.push(result.into());
            }
        }
    }
    close_run(&mut run, &mut bodies);
    Ok(bodies)
}

fn close_run(run: &mut Vec<Part>, bodies: &mut Vec<Body>) {
    if !run.is_empty() {
        bodies.push(UserMessage { parts: std::mem::take(run), origin: None }.into());
    }
}

fn read_assistant(mut fields: Fields<'_>, media: &mut MediaSink) -> Result<AssistantMessage> {
    let elements = parts::read_content(&mut fields, media)?;
    let calls = parts::read_openai_calls(&mut fields)?;
    let refusal = fields.text("refusal")?;
    let reasoning = fields.text("reasoning_content")?;
    let model = fields.name("model")?;
    let stop = usage::read_stop(&mut fields)?;
    let usage = usage::read_usage(&mut fields)?;
    let cost_nano_usd = fields.number("cost_nano_usd", COST_NANO_USD_MAX)?;
    drop_vendor_keys(&mut fields)?;
    fields.finish("assistant")?;
    if elements.is_none() && calls.is_empty() && refusal.is_none() && reasoning.is_none() {
        return Err(MessageError::Missing { at: "content".to_owned() });
    }
    let mut parts: Vec<Part> =
        reasoning.filter(|text| !text.is_empty()).map(parts::reasoning).into_iter().collect();
    parts.extend(plain_parts(elements.unwrap_or_default(), "assistant")?);
    if !calls.is_empty() {
        // OpenAI sends empty text with tool calls.
        parts.retain(|part| part.as_text() != Some(""));
    }
    parts.extend(refusal.map(Part::text));
    parts.extend(calls);
    let called = parts.iter().any(|part| part.as_tool_call().is_some());
    let stop = stop.unwrap_or(if called { Stop::ToolUse } else { Stop::Stop });
    Ok(AssistantMessage { parts, model, usage, cost_nano_usd, stop })
}

/// Drop vendor keys that have no counterpart in an entry: Anthropic's `id`, `type` and `stop_sequence`, and OpenAI's
/// `annotations`. OpenAI's `audio` and `function_call` must be null.
fn drop_vendor_keys(fields: &mut Fields<'_>) -> Result<()> {
    for key in ["id", "stop_sequence", "annotations"] {
        fields.take(key);
    }
    if let Some(kind) = fields.text("type")?.filter(|kind| kind != "message") {
        return Err(MessageError::UnknownValue { at: "type".to_owned(), found: kind, expected: "message" });
    }
    if fields.take("audio").is_some() {
        return Err(MessageError::InlineMedia { at: "audio".to_owned() });
    }
    if fields.take("function_call").is_some() {
        let why = "use tool_calls instead".to_owned();
        return Err(MessageError::Invalid { at: "function_call".to_owned(), why });
    }
    Ok(())
}

fn read_tool(mut fields: Fields<'_>, media: &mut MediaSink) -> Result<ToolResult> {
    let call_id = fields.one_of(&["tool_call_id", "call_id", "tool_use_id"])?;
    let tool = fields.one_of(&["name", "tool"])?;
    let is_error = fields.flag("is_error")?;
    let interrupted = fields.flag("interrupted")?;
    let duration_ms = fields.number("duration_ms", DURATION_MS_MAX)?;
    let elements = parts::read_content(&mut fields, media)?;
    fields.finish("tool")?;
    let call_id = call_id.ok_or_else(|| MessageError::Missing { at: "tool_call_id".to_owned() })?;
    let elements = elements.ok_or_else(|| MessageError::Missing { at: "content".to_owned() })?;
    let parts = output_parts(plain_parts(elements, "tool")?, "content", "tool")?;
    Ok(ToolResult { call_id, tool, parts, is_error, duration_ms, interrupted, full: None })
}

fn read_note(mut fields: Fields<'_>, role: &'static str, media: &mut MediaSink) -> Result<SystemNote> {
    let reason = fields.name("reason")?;
    let elements = parts::read_content(&mut fields, media)?;
    fields.finish(role)?;
    let elements = elements.ok_or_else(|| MessageError::Missing { at: "content".to_owned() })?;
    let parts = plain_parts(elements, role)?;
    if let Some(number) = parts.iter().position(|part| part.as_text().is_none()) {
        return Err(misplaced(number, part_name(&parts[number]), role));
    }
    if parts.is_empty() {
        return Err(MessageError::Empty { at: "content".to_owned() });
    }
    Ok(SystemNote { text: joined_text(&parts), reason })
}

/// Read a message of an extension, which is part of the context.
fn read_custom(mut fields: Fields<'_>, media: &mut MediaSink) -> Result<CustomMessage> {
    let custom_type = read_custom_type(&mut fields)?;
    let display = !fields.has("display") || fields.flag("display")?;
    let details = parts::read_json(&mut fields, "details")?;
    let elements = parts::read_content(&mut fields, media)?;
    fields.finish("custom")?;
    let elements = elements.ok_or_else(|| MessageError::Missing { at: "content".to_owned() })?;
    let parts = output_parts(plain_parts(elements, "custom")?, "content", "custom")?;
    if parts.is_empty() {
        return Err(MessageError::Empty { at: "content".to_owned() });
    }
    Ok(CustomMessage { custom_type, parts, display, details })
}

/// Read data of an extension, which the model does not receive.
fn read_info(mut fields: Fields<'_>) -> Result<CustomInfo> {
    let custom_type = read_custom_type(&mut fields)?;
    let data = parts::read_json(&mut fields, "data")?;
    fields.finish("info")?;
    let data = data.ok_or_else(|| MessageError::Missing { at: "data".to_owned() })?;
    Ok(CustomInfo { custom_type, data })
}

/// Read the extension's name for its entry. The engine trusts its own custom entries, so their names are refused.
fn read_custom_type(fields: &mut Fields<'_>) -> Result<String> {
    let custom_type = fields.required_name("custom_type")?;
    let invalid = |why: &str| MessageError::Invalid { at: "custom_type".to_owned(), why: why.to_owned() };
    if custom_type.len() > CUSTOM_TYPE_BYTES_MAX || custom_type.chars().any(char::is_control) {
        return Err(invalid("it must have at most 128 bytes and no control characters"));
    }
    if is_reserved(&custom_type) {
        return Err(invalid("this name is reserved for Sapwood"));
    }
    Ok(custom_type)
}

fn plain_parts(elements: Vec<ContentElement>, role: &'static str) -> Result<Vec<Part>> {
    let plain = |(number, element)| match element {
        ContentElement::Part(part) => Ok(part),
        ContentElement::Result(_) => Err(misplaced(number, "tool_result", role)),
    };
    elements.into_iter().enumerate().map(plain).collect()
}

/// Check that a tool's output contains only text and media.
fn output_parts(parts: Vec<Part>, at: &str, role: &'static str) -> Result<Vec<Part>> {
    match parts.iter().position(|part| !matches!(part, Part::Text(_) | Part::Media(_))) {
        Some(number) => {
            let part = part_name(&parts[number]);
            Err(MessageError::MisplacedPart { at: format!("{at}[{number}]"), part, role })
        }
        None => Ok(parts),
    }
}

fn misplaced(number: usize, part: &'static str, role: &'static str) -> MessageError {
    MessageError::MisplacedPart { at: format!("content[{number}]"), part, role }
}

fn part_name(part: &Part) -> &'static str {
    match part {
        Part::Text(_) => "text part",
        Part::Reasoning(_) => "reasoning part",
        Part::ToolCall(_) => "tool call",
        Part::Media(_) => "media part",
    }
}

/// Parse OpenAI's arguments, which are JSON in a string. Invalid JSON from a model is stored as a string.
pub(crate) fn arguments(text: String, at: &str) -> Result<Json> {
    if text.trim().is_empty() {
        return Ok(Json::from_value(&serde_json::Value::Object(serde_json::Map::new())));
    }
    if nesting(text.as_bytes()) > NESTING_MAX {
        return Err(MessageError::TooDeep { at: at.to_owned() });
    }
    let read = serde_json::from_str::<serde_json::Value>(&text).and_then(|_| Json::parse(&text));
    Ok(read.unwrap_or_else(|_| Json::from_value(&serde_json::Value::String(text))))
}

#[cfg(test)]
mod tests;

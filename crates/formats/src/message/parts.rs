//! Readers for the elements of `content`: Sapwood's parts, OpenAI's content parts and tool calls, and Anthropic's
//! content blocks.

use sapwood_core::content::{BlobRef, Part, Reasoning};
use sapwood_core::entry::ToolResult;
use sapwood_core::port::store::BLOB_BYTES_MAX;
use sapwood_core::{BlobHash, Json};
use serde_json::value::RawValue;

use super::fields::{Fields, array_of, text_of, type_of, wrong_type};
use super::inline_media::MediaSink;
use super::{DURATION_MS_MAX, MessageError, PARTS_MAX, Result, arguments, output_parts};

const PART_TYPES: &str =
    "text, reasoning, tool_call, media, tool_use, tool_result, thinking or redacted_thinking";

/// An element of `content`: a part of the message, or a tool result inside an Anthropic user message.
pub(super) enum ContentElement {
    Part(Part),
    Result(ToolResult),
}

pub(super) fn read_content(
    fields: &mut Fields<'_>,
    media: &mut MediaSink,
) -> Result<Option<Vec<ContentElement>>> {
    let at = fields.at("content");
    fields.take("content").map(|raw| read_elements(raw, &at, media)).transpose()
}

fn read_elements(raw: &RawValue, at: &str, media: &mut MediaSink) -> Result<Vec<ContentElement>> {
    match type_of(raw) {
        "a string" => Ok(vec![ContentElement::Part(Part::text(text_of(raw, at)?))]),
        "an array" => {
            let items = array_of(raw, at, PARTS_MAX)?;
            items
                .into_iter()
                .enumerate()
                .map(|(number, item)| read_element(item, format!("{at}[{number}]"), media))
                .collect()
        }
        _ => Err(wrong_type(at, "a string or an array of parts", raw)),
    }
}

fn read_element(raw: &RawValue, at: String, media: &mut MediaSink) -> Result<ContentElement> {
    if type_of(raw) == "a string" {
        return Ok(ContentElement::Part(Part::text(text_of(raw, &at)?)));
    }
    let mut part = Fields::of(raw, at)?;
    let kind = part.required_text("type")?;
    let element = match kind.as_str() {
        "text" | "input_text" | "output_text" => Part::text(part.required_text("text")?),
        "refusal" => Part::text(part.required_text("refusal")?),
        "reasoning" => own_reasoning(&mut part)?,
        "thinking" => reasoning(part.required_text("thinking")?),
        "redacted_thinking" => Part::Reasoning(Reasoning { text: String::new(), redacted: true }),
        "tool_call" => tool_call(&mut part, "call_id")?,
        "tool_use" => tool_call(&mut part, "id")?,
        "media" => Part::Media(own_media(&mut part, media)?),
        "tool_result" => return tool_result(&mut part, media).map(ContentElement::Result),
        "image_url" | "input_image" | "image" | "input_audio" | "audio" | "file" | "input_file"
        | "document" | "video" | "video_url" => Part::Media(media.read(&mut part, &kind)?),
        other => {
            let found = other.chars().take(64).collect();
            return Err(MessageError::UnknownPart { at: part.location(), found, expected: PART_TYPES });
        }
    };
    Ok(ContentElement::Part(element))
}

pub(super) fn reasoning(text: String) -> Part {
    Part::Reasoning(Reasoning { text, redacted: false })
}

fn own_reasoning(part: &mut Fields<'_>) -> Result<Part> {
    let redacted = part.flag("redacted")?;
    let text = if redacted { part.text("text")?.unwrap_or_default() } else { part.required_text("text")? };
    Ok(Part::Reasoning(Reasoning { text, redacted }))
}

fn tool_call(part: &mut Fields<'_>, id_key: &str) -> Result<Part> {
    let call_id = part.required_name(id_key)?;
    let name = part.required_name("name")?;
    let raw = part.take("input").ok_or_else(|| MessageError::Missing { at: part.at("input") })?;
    Ok(Part::tool_call(call_id, name, json(raw, part.at("input"))?))
}

/// Take a field that contains any JSON.
pub(super) fn read_json(fields: &mut Fields<'_>, key: &str) -> Result<Option<Json>> {
    let at = fields.at(key);
    fields.take(key).map(|raw| json(raw, at)).transpose()
}

/// Parse the raw JSON completely, because raw text may contain values that readers reject, such as an unpaired
/// surrogate or 1e999.
fn json(raw: &RawValue, at: String) -> Result<Json> {
    let read = serde_json::from_str::<serde_json::Value>(raw.get()).and_then(|_| Json::parse(raw.get()));
    read.map_err(|error| MessageError::Invalid { at, why: error.to_string() })
}

/// Read a tool result with Anthropic's or Sapwood's key names.
fn tool_result(part: &mut Fields<'_>, media: &mut MediaSink) -> Result<ToolResult> {
    let call_id = part.one_of(&["tool_use_id", "call_id"])?;
    let call_id = call_id.ok_or_else(|| MessageError::Missing { at: part.at("tool_use_id") })?;
    let tool = part.one_of(&["tool", "name"])?;
    let is_error = part.flag("is_error")?;
    let at = part.at("content");
    let elements = part.take("content").map(|raw| read_elements(raw, &at, media)).transpose()?;
    let elements = elements.unwrap_or_default();
    let mut parts = Vec::with_capacity(elements.len());
    for (number, element) in elements.into_iter().enumerate() {
        match element {
            ContentElement::Part(part) => parts.push(part),
            ContentElement::Result(_) => {
                let at = format!("{at}[{number}]");
                return Err(MessageError::MisplacedPart { at, part: "tool result", role: "tool" });
            }
        }
    }
    let parts = output_parts(parts, &at, "tool")?;
    Ok(ToolResult { call_id, tool, parts, is_error, duration_ms: None, interrupted: false, full: None })
}

fn own_media(part: &mut Fields<'_>, media: &mut MediaSink) -> Result<BlobRef> {
    if part.has("data") && !part.has("blob") {
        return media.read_own(part);
    }
    if part.has("data") || part.has("url") || part.has("base64") {
        return Err(MessageError::InlineMedia { at: part.location() });
    }
    let hash = part.required_text("blob")?;
    let invalid = |why: String| MessageError::Invalid { at: part.at("blob"), why };
    let blob: BlobHash =
        hash.parse().map_err(|error: sapwood_core::id::IdError| invalid(error.to_string()))?;
    let mime = part.required_name("mime")?;
    let name = part.name("name")?;
    let bytes = part.number("bytes", BLOB_BYTES_MAX as u64)?;
    let bytes = bytes.ok_or_else(|| MessageError::Missing { at: part.at("bytes") })?;
    let duration_ms = part.number("duration_ms", DURATION_MS_MAX)?;
    Ok(BlobRef { blob, mime, name, bytes, duration_ms })
}

/// Read OpenAI's `tool_calls`, which are outside the content.
pub(super) fn read_openai_calls(fields: &mut Fields<'_>) -> Result<Vec<Part>> {
    let calls = fields.array("tool_calls", PARTS_MAX)?.unwrap_or_default();
    calls
        .into_iter()
        .enumerate()
        .map(|(number, raw)| openai_call(raw, format!("tool_calls[{number}]")))
        .collect()
}

fn openai_call(raw: &RawValue, at: String) -> Result<Part> {
    let mut call = Fields::of(raw, at)?;
    let id = call.required_name("id")?;
    if let Some(mut function) = call.object("function")? {
        let name = function.required_name("name")?;
        let at = function.at("arguments");
        let input = match function.take("arguments") {
            None => arguments(String::new(), &at)?,
            Some(raw) if type_of(raw) == "a string" => arguments(text_of(raw, &at)?, &at)?,
            Some(raw) if type_of(raw) == "an object" => json(raw, at)?,
            Some(raw) => return Err(wrong_type(&at, "a string that contains JSON", raw)),
        };
        return Ok(Part::tool_call(id, name, input));
    }
    if let Some(mut custom) = call.object("custom")? {
        let name = custom.required_name("name")?;
        let input = serde_json::Value::String(custom.required_text("input")?);
        return Ok(Part::tool_call(id, name, Json::from_value(&input)));
    }
    Err(MessageError::Missing { at: call.at("function") })
}

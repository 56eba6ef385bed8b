//! Durable content of entries. Media is always a reference to a blob, and reasoning has no vendor
//! signature. In-flight content with media bytes or signatures has other types and cannot be stored here.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::id::BlobHash;

/// Raw JSON text, preserved byte for byte.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Parse JSON text.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<Box<RawValue>>(text).map(Self)
    }
    /// Create JSON text from a value.
    pub fn from_value(value: &serde_json::Value) -> Self {
        Self(RawValue::from_string(value.to_string()).expect("a value always serializes to valid JSON"))
    }
    /// The JSON text.
    pub fn get(&self) -> &str {
        self.0.get()
    }
    /// Parse the text into a value. Text that serde_json cannot represent becomes `null`.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::from_str(self.0.get()).unwrap_or(serde_json::Value::Null)
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        Self::from_value(&value)
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}
impl Eq for Json {}

/// A reference to bytes stored outside the log, addressed by their hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlobRef {
    /// The BLAKE3 hash of the bytes.
    pub blob: BlobHash,
    /// The MIME type.
    pub mime: String,
    /// The file name, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The size in bytes.
    pub bytes: u64,
    /// The duration of audio or video, in milliseconds. Token counts use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// Text of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = TextPart))]
pub struct Text {
    /// The text.
    pub text: String,
}

/// The model's reasoning before an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ReasoningPart))]
pub struct Reasoning {
    /// The readable part of the reasoning.
    pub text: String,
    /// Whether the provider withheld the reasoning.
    #[serde(default, skip_serializing_if = "is_false")]
    pub redacted: bool,
}

/// A model's call to a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ToolCallPart))]
pub struct ToolCall {
    /// The id that connects the call with its result.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// The input, as the model wrote it.
    pub input: Json,
}

pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

/// Deserialize a present field as `Some`, even if it is `null`. Otherwise an extension's explicit `null` would be lost
/// when the entry is written again.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

/// One part of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text.
    Text(Text),
    /// The model's reasoning.
    Reasoning(Reasoning),
    /// A call to a tool.
    ToolCall(ToolCall),
    /// An image, a recording or a file, stored as a blob.
    Media(BlobRef),
}

impl Part {
    /// A text part.
    pub fn text(text: impl Into<String>) -> Self {
        Part::Text(Text { text: text.into() })
    }
    /// A part that calls a tool. The result refers to the call by its id.
    pub fn tool_call(call_id: impl Into<String>, name: impl Into<String>, input: impl Into<Json>) -> Self {
        Part::ToolCall(ToolCall { call_id: call_id.into(), name: name.into(), input: input.into() })
    }
    /// The text of a text part; `None` for other parts.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Part::Text(part) => Some(&part.text),
            Part::Reasoning(_) | Part::ToolCall(_) | Part::Media(_) => None,
        }
    }
    /// The tool call in this part, if any.
    pub fn as_tool_call(&self) -> Option<&ToolCall> {
        match self {
            Part::ToolCall(call) => Some(call),
            Part::Text(_) | Part::Reasoning(_) | Part::Media(_) => None,
        }
    }
}

/// The text parts of a message, joined by line breaks.
pub fn joined_text(parts: &[Part]) -> String {
    let mut texts = parts.iter().filter_map(Part::as_text);
    let mut joined = texts.next().unwrap_or_default().to_owned();
    for text in texts {
        joined.push('\n');
        joined.push_str(text);
    }
    joined
}

// Implemented manually because serde's tagged enums first copy every field into a buffer, and this is the
// hottest code when a full context is read. Our encoder always writes "type" first, so the other fields can
// be read directly.
impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PartVisitor)
    }
}

struct PartVisitor;

impl<'de> Visitor<'de> for PartVisitor {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part: an object with a \"type\" of text, reasoning, tool_call or media")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
        let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? else {
            return Err(A::Error::missing_field("type"));
        };
        if key == "type" {
            let kind: std::borrow::Cow<'de, str> = map.next_value()?;
            return part_of_kind(&kind, MapAccessDeserializer::new(map));
        }
        let mut object = serde_json::Map::new();
        object.insert(key.into_owned(), map.next_value()?);
        while let Some((key, value)) = map.next_entry::<String, serde_json::Value>()? {
            object.insert(key, value);
        }
        let kind = match object.remove("type") {
            Some(serde_json::Value::String(kind)) => kind,
            _ => return Err(A::Error::missing_field("type")),
        };
        part_of_kind(&kind, serde_json::Value::Object(object)).map_err(A::Error::custom)
    }
}

fn part_of_kind<'de, D: Deserializer<'de>>(kind: &str, fields: D) -> Result<Part, D::Error> {
    match kind {
        "text" => Text::deserialize(fields).map(Part::Text),
        "reasoning" => Reasoning::deserialize(fields).map(Part::Reasoning),
        "tool_call" => ToolCall::deserialize(fields).map(Part::ToolCall),
        "media" => BlobRef::deserialize(fields).map(Part::Media),
        other => Err(D::Error::unknown_variant(other, &["text", "reasoning", "tool_call", "media"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_decoded_with_any_key_order() {
        let part = Part::tool_call("c1", "ls", Json::parse(r#"{"b": 1, "a":2}"#).unwrap());
        let text = serde_json::to_string(&part).unwrap();
        assert_eq!(serde_json::from_str::<Part>(&text).unwrap(), part);
        let other = r#"{"text":"hi","type":"text"}"#;
        assert_eq!(serde_json::from_str::<Part>(other).unwrap(), Part::text("hi"));
    }

    #[test]
    fn a_part_of_an_unknown_type_is_named_in_the_error() {
        let error = serde_json::from_str::<Part>(r#"{"type":"hologram"}"#).unwrap_err();
        assert!(error.to_string().contains("hologram"), "{error}");
    }

    #[test]
    fn tool_input_keeps_its_bytes() {
        let part: Part =
            serde_json::from_str(r#"{"type":"tool_call","call_id":"c","name":"n","input":{ "z":1.0 }}"#)
                .unwrap();
        assert_eq!(part.as_tool_call().unwrap().input.get(), r#"{ "z":1.0 }"#);
    }
}

//! Upgrades records of older versions when they are read. Nothing on disk is rewritten.

use serde_json::{Value, json};

use super::Kind;

/// The current format version. History: docs/spec/log-format.md.
pub const LOG_VERSION: u32 = 2;

/// Upgrade one body from `version` to [`LOG_VERSION`], one version at a time.
pub(super) fn upcast(version: u32, kind: Kind, json: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut body: Value = serde_json::from_slice(json)?;
    if version < 2 {
        text_becomes_parts(kind, &mut body);
    }
    serde_json::to_vec(&body)
}

/// Version 1 stored a message's text in `text`; version 2 has `parts`.
fn text_becomes_parts(kind: Kind, body: &mut Value) {
    let is_message =
        matches!(kind, Kind::UserMessage | Kind::AssistantMessage | Kind::ToolResult | Kind::CustomMessage);
    let Some(fields) = body.as_object_mut().filter(|fields| is_message && !fields.contains_key("parts"))
    else {
        return;
    };
    let text = fields.remove("text").unwrap_or(Value::String(String::new()));
    fields.insert("parts".to_owned(), json!([{ "type": "text", "text": text }]));
}

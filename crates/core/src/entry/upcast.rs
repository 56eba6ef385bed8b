//! Upgrades bodies of older format versions when they are read. Nothing on disk is rewritten.

use serde_json::{Value, json};

use super::Kind;
use super::engine_records::kind_of_custom_type;

/// The current format version. History: docs/spec/log-format.md.
pub const LOG_VERSION: u32 = 3;
/// The oldest version that this version of Sapwood can write.
pub const LOG_VERSION_MIN: u32 = 2;

/// Whether bodies of this kind differ between `version` and [`LOG_VERSION`].
pub(super) fn differs(version: u32, kind: Kind) -> bool {
    let is_message =
        matches!(kind, Kind::UserMessage | Kind::AssistantMessage | Kind::ToolResult | Kind::CustomMessage);
    (version < 2 && is_message) || (version < 3 && matches!(kind, Kind::CustomInfo | Kind::Round))
}

/// Upgrade one body from `version` to [`LOG_VERSION`], one version at a time. Returns its kind in that version.
pub(super) fn upcast(version: u32, kind: Kind, json: &[u8]) -> serde_json::Result<(Kind, Vec<u8>)> {
    if kind == Kind::CustomInfo && version < 3 {
        return records_get_kinds(json);
    }
    let mut body: Value = serde_json::from_slice(json)?;
    if version < 2 {
        text_becomes_parts(kind, &mut body);
    }
    if version < 3 && kind == Kind::Round {
        rename_status(&mut body);
    }
    Ok((kind, serde_json::to_vec(&body)?))
}

/// Version 1 stored a message's text in `text`; version 2 has `parts`.
fn text_becomes_parts(kind: Kind, body: &mut Value) {
    let Some(fields) =
        body.as_object_mut().filter(|fields| differs(1, kind) && !fields.contains_key("parts"))
    else {
        return;
    };
    let text = fields.remove("text").unwrap_or(Value::String(String::new()));
    fields.insert("parts".to_owned(), json!([{ "type": "text", "text": text }]));
}

/// Version 2 stored the engine's records as `custom_info`; version 3 has a kind for each. The data keeps its bytes.
fn records_get_kinds(json: &[u8]) -> serde_json::Result<(Kind, Vec<u8>)> {
    let info: super::CustomInfo = serde_json::from_slice(json)?;
    Ok(match kind_of_custom_type(&info.custom_type) {
        Some(kind) => (kind, format!(r#"{{"data":{}}}"#, info.data.get()).into_bytes()),
        None => (Kind::CustomInfo, json.to_vec()),
    })
}

/// Version 2 called a failed round `error` and one with invalid tool input `malformed`.
fn rename_status(body: &mut Value) {
    let Some(status) = body.pointer_mut("/result/status") else { return };
    let renamed = match status.as_str() {
        Some("error") => "failed",
        Some("malformed") => "refused",
        _ => return,
    };
    *status = renamed.into();
}

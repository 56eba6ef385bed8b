//! Converts bodies between format versions. Older bodies are upgraded when they are read; nothing on disk is
//! rewritten. A store that servers of the previous version still use is written in the previous version.

use serde_json::{Value, json};

use super::engine_records::{as_custom_info, kind_of_custom_type};
use super::{Body, Kind, Round, RoundStatus};

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

/// Encode a body as version 2 stores it, and return its kind there. A round's status loses what version 2 cannot say.
pub(super) fn encode_in_version_2(body: &Body) -> (Kind, Vec<u8>) {
    if let Some((custom_type, data)) = as_custom_info(body) {
        let info = super::CustomInfo { custom_type: custom_type.to_owned(), data: data.clone() };
        return (Kind::CustomInfo, super::codec::encode(&info.into()));
    }
    let json = super::codec::encode(body);
    match body {
        Body::Round(round) => (Kind::Round, with_status_of_version_2(round, json)),
        _ => (body.kind(), json),
    }
}

fn with_status_of_version_2(round: &Round, json: Vec<u8>) -> Vec<u8> {
    let status = match round.result.as_ref().map(|result| result.status) {
        None | Some(RoundStatus::Ok | RoundStatus::Interrupted) => return json,
        Some(RoundStatus::Asked | RoundStatus::Backtracked) => "ok",
        Some(RoundStatus::Failed) => "error",
        Some(RoundStatus::Refused) => "malformed",
        Some(RoundStatus::Cancelled) => "interrupted",
    };
    let mut body: Value = serde_json::from_slice(&json).expect("an encoded body is valid JSON");
    body["result"]["status"] = status.into();
    serde_json::to_vec(&body).expect("an encoded body is valid JSON")
}
